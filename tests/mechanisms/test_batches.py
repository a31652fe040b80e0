"""Importance weights at the phantom parameter of each batch, against the step written out."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samphire.mechanisms import batch_weights
from samphire.optim import rules


class Net(nn.Module):
    """Convolution, BatchNorm and dropout before a head; ``scale`` follows the head if it is not 1."""

    def __init__(self, classes=3, scale=1.0):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5))
        self.fc, self.scale = nn.Linear(16, classes), scale

    def forward(self, x):
        z = self.fc(self.body(x))
        return z if self.scale == 1 else self.scale * z


@pytest.fixture
def problem():
    """A network in float64 with running statistics of its own, and 20 examples in batches of 8, 8 and 4."""
    torch.manual_seed(0)
    net = Net().double()
    for _ in range(3):
        net(torch.randn(9, 2, 4, 4).double() * 2 + 1)
    x, y = torch.randn(20, 2, 4, 4).double(), torch.randint(3, (20,))
    return net, list(zip(x.split(8), y.split(8), strict=True))


def by_hand(net, batch, rho, batch_norm, names):
    """The step of SAM written out: gradient by backward, the named parameters moved in a copy."""
    net = copy.deepcopy(net).eval()
    net.body[1].train(batch_norm == "train")
    x, y = batch
    net.zero_grad()
    F.cross_entropy(net(x), y).backward()
    real = 1 - net(x).softmax(1)[range(len(y)), y]
    moved = {n: p for n, p in net.named_parameters() if n in names}
    length = torch.cat([p.grad.flatten() for p in moved.values()]).norm()
    with torch.no_grad():
        for p in moved.values():
            p += rho * p.grad / length
    return real.detach(), (1 - net(x).softmax(1)[range(len(y)), y]).detach()


BODY = ("body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias")
HEAD = ("fc.weight", "fc.bias")
RULES = {
    "sam": (rules.sam(rho=0.3), (*BODY, *HEAD)),
    "lsam": (rules.lsam(rho=0.3), HEAD),
    "lsam of another layer": (rules.lsam(rho=0.3, head="body.0"), BODY[:2]),
    "sam_on": (rules.sam_on(rho=0.3), BODY[2:]),
}


@pytest.mark.parametrize("scale", [1.0, 0.5], ids=["head last", "something follows the head"])
@pytest.mark.parametrize("batch_norm", ["train", "eval"])
@pytest.mark.parametrize(("rule", "names"), RULES.values(), ids=RULES)
def test_weights_are_those_of_a_step_written_out(problem, rule, names, batch_norm, scale):
    net, batches = problem
    net.scale = scale
    expected = [by_hand(net, batch, 0.3, batch_norm, names) for batch in batches]
    weights = batch_weights(net, rule, batches, batch_norm=batch_norm)
    real, phantom = map(torch.cat, zip(*expected, strict=True))
    torch.testing.assert_close(weights.real, real, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(weights.phantom, phantom, rtol=1e-10, atol=1e-12)
    assert (real - phantom).abs().max() > 1e-3
    assert weights.batch.tolist() == [0] * 8 + [1] * 8 + [2] * 4


def test_the_mode_of_batch_norm_matters_and_is_as_in_training_by_default(problem):
    net, batches = problem
    by_batch, running = (batch_weights(net, rules.sam(), batches, batch_norm=m).real for m in ("train", "eval"))
    assert (by_batch - running).abs().max() > 0.01
    torch.testing.assert_close(batch_weights(net, rules.sam(), batches).real, by_batch, rtol=0, atol=0)


@pytest.mark.parametrize(("rule", "runs"), [(rules.sam(), 2), (rules.lsam(), 1)])
def test_where_only_the_head_moves_the_body_runs_once(problem, rule, runs):
    net, batches = problem
    calls = []
    net.body.register_forward_hook(lambda *_: calls.append(1))
    batch_weights(net, rule, batches)
    assert len(calls) == runs * len(batches)


def test_a_rule_that_needs_no_gradient_has_a_phantom_too(problem):
    net, batches = problem
    weights = batch_weights(net, rules.random(rho=0.5), batches)
    torch.testing.assert_close(weights.real, batch_weights(net, rules.sam(), batches).real, rtol=0, atol=0)
    assert (weights.real - weights.phantom).abs().max() > 1e-3


def test_binary_logits_have_binary_weights():
    net = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Flatten(0)).double()
    nn.init.zeros_(net[0].weight)
    x, y = torch.tensor([[3.0, 4.0]]).double(), torch.tensor([1.0]).double()
    weights = batch_weights(net, rules.sam(rho=0.2), [(x, y)], loss=lambda z, y: F.softplus(-y * z).mean())
    assert weights.real.item() == 0.5
    assert weights.phantom.item() == pytest.approx(
        1 / (1 + np.exp(-1.0))
    )  # the step lowers the margin by rho |x| = 1


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("rule", [rules.sam(), rules.lsam()])
def test_the_model_is_left_as_it_was(problem, rule, fails):
    net, batches = problem
    net.body[4].eval()  # modes are those of the modules, one by one
    net.fc.weight.grad = torch.ones_like(net.fc.weight)
    kept = {name: t.clone() for name, t in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    state = torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError):
            batch_weights(net, rule, [batches[0], (torch.ones(2, 3, 4, 4).double(), torch.tensor([0, 1]))])
    else:
        batch_weights(net, rule, batches)
    assert all(torch.equal(t, kept[name]) for name, t in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(net.fc.weight.grad, torch.ones_like(net.fc.weight))
    assert net.body[0].weight.grad is None
    assert all(p.requires_grad for p in net.parameters())
    assert not net.fc._forward_hooks


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"batch_norm": "batch"}, ValueError, "no mode of BatchNorm is named 'batch'; there are train, eval"),
        ({"batches": []}, ValueError, "no batches to weigh"),
        ({"rule": rules.m_sharpness(4, rules.sam())}, TypeError, "takes the batch as a whole"),
        ({"rule": rules.esam()}, TypeError, "takes the batch as a whole"),
    ],
)
def test_bad_input_is_a_sentence(problem, change, error, words):
    net, batches = problem
    settings = {"rule": rules.sam(), "batches": batches} | change
    with pytest.raises(error, match=words):
        batch_weights(net, settings.pop("rule"), settings.pop("batches"), **settings)
