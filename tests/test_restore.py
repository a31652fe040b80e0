"""Whatever happens within a block, the model is what it was: bit for bit, mode by mode, draw by draw."""

import pytest
import torch
from torch import nn

from samphire import restore


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    net[2].eval()  # a mode of its own
    return net


def state(net):
    return [b.clone() for b in net.buffers()], [m.training for m in net.modules()], torch.get_rng_state()


def disturb(net):
    net.train()
    net(torch.randn(8, 3))
    net[1].running_mean = torch.full((4,), 7.0)  # replaced, not written to
    torch.rand(3)


@pytest.mark.parametrize("fails", [False, True])
def test_untouched_puts_everything_back(fails):
    net = model()
    buffers = list(net.buffers())
    before = state(net)
    try:
        with restore.untouched(net):
            assert not net.training
            assert not torch.is_grad_enabled()
            disturb(net)
            assert not fails or 1 / 0
    except ZeroDivisionError:
        pass
    after = state(net)
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    assert before[1] == after[1]
    assert torch.equal(before[2], after[2])
    assert all(a is b for a, b in zip(buffers, net.buffers(), strict=True))


def test_kept_buffers_nest():
    net = model()
    before = state(net)[0]
    with restore.undone() as outer:
        restore.keep_buffers(net, outer)
        disturb(net)
        with restore.undone() as inner:
            restore.keep_buffers(net, inner)
            disturb(net)
    assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))


def test_replayed_numbers_are_the_same_and_the_stream_goes_on():
    start = restore.rng_state({torch.device("cpu"), torch.device("meta")})
    first, second = torch.rand(3), torch.rand(3)
    torch.set_rng_state(start[torch.device("cpu")])
    assert torch.equal(torch.rand(3), first)
    with restore.replayed_rng(start):
        assert torch.equal(torch.rand(3), first)
        torch.rand(100)
    assert torch.equal(torch.rand(3), second)


def test_wrappers_are_taken_off():
    net = model()
    assert restore.unwrapped(net) is net
    assert restore.unwrapped(torch.compile(net)) is net


def test_frozen_parameters_have_no_gradient_and_are_trainable_again():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(ZeroDivisionError), restore.undone() as undo:
        restore.freeze(list(net[0].parameters()), undo)
        net(torch.ones(1, 2)).sum().backward()
        raise ZeroDivisionError
    assert [p.grad is None for p in net.parameters()] == [True, True, False, False]
    assert all(p.requires_grad for p in net.parameters())


def test_gradients_are_put_back():
    net = nn.Linear(2, 1)
    net.weight.grad = torch.full((1, 2), 7.0)
    with restore.undone() as undo:
        restore.set_grads_aside(list(net.parameters()), undo)
        assert net.weight.grad is None
        net(torch.ones(1, 2)).sum().backward()
    assert net.weight.grad.tolist() == [[7.0, 7.0]]
    assert net.bias.grad is None


def test_the_way_back_is_taken_in_reverse_and_from_where_it_was_interrupted():
    taken, undo = [], restore.Undo()
    undo.note(lambda: taken.append("first"))
    undo.note(lambda: taken.append("second") or (len(taken) == 1 and 1 / 0))
    undo.note(lambda: None)
    with pytest.raises(ZeroDivisionError):
        undo.back()
    assert len(undo) == 2
    undo.back(to=1)
    assert taken == ["second", "second"]
    undo.back()
    undo.back()
    assert taken == ["second", "second", "first"]
