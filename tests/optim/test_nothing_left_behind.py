"""What a step disturbs is put back bit for bit: weights, gradients, buffers, random numbers."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import RULES, assert_weights, backward, closure_of, every_rule, problem, reference_run, sgd, weights
from samphire import optim, restore
from samphire.optim import SharpnessAware, sam

# -------------------------------------------------------------------------------- put back bit for bit


class Boom(Exception):
    pass


@every_rule
def test_weights_buffers_grads_and_memory_survive_an_exception_in_any_pass(r):
    model, x, y = problem()
    model.insert(2, nn.BatchNorm1d(6).double())
    model = nn.Sequential(*model)
    if "3" in str(r):
        r = optim.on("4", r) if not hasattr(r, "rule") else r
    opt = SharpnessAware(model, sgd(model), r)
    closure = closure_of(opt, model, x, y)
    opt.step(closure, labels=y)
    state, memory = copy.deepcopy(model.state_dict()), pickle.dumps(opt.state_dict())
    for fatal in range(4):
        opt.zero_grad()
        calls = []

        def failing(p):
            calls.append(p)
            if len(calls) == fatal + 1:
                model(x)
                raise Boom
            return closure(p)

        try:
            opt.step(failing, labels=y)
            opt.load_state_dict(pickle.loads(memory))
            model.load_state_dict(state)
            continue
        except Boom:
            pass
        for name, p in model.named_parameters():
            assert torch.equal(p, state[name]), name
            assert p.grad is None
        assert pickle.dumps(opt.state_dict()) == memory
        model.load_state_dict(state)


def test_leaving_the_loop_early_puts_everything_back():
    model, x, y = problem()
    before = weights(model)
    opt = SharpnessAware(model, sgd(model), sam(0.5))
    for p in opt.passes():
        p.backward(cross_entropy(model(x), y))
        if p.perturbed:
            assert not torch.equal(model[0].weight, before["0.weight"])
            break
    assert_weights(model, before, 0)
    held = opt.passes()  # an iterator that stays alive
    next(held)
    cross_entropy(model(x), y).backward()
    next(held)
    assert not torch.equal(model[0].weight, before["0.weight"])
    for p in opt.passes():  # the next loop cleans up
        p.backward(cross_entropy(model(x), y))
    assert_weights(model, before, 0)


def test_a_failed_micro_batch_leaves_the_gradients_of_the_earlier_ones():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    for p in opt.passes():
        p.backward(cross_entropy(model(x[:4]), y[:4]) / 2)
    before = {name: q.grad.clone() for name, q in model.named_parameters()}
    with pytest.raises(Boom):
        for p in opt.passes():
            p.backward(cross_entropy(model(x), y))
            raise Boom
    assert all(torch.equal(q.grad, before[name]) for name, q in model.named_parameters())
    expected = reference_run(optim.m_sharpness(4, sam(0.1)), model, x, y, steps=1)
    for p in opt.passes():
        p.backward(cross_entropy(model(x[4:]), y[4:]) / 2)
    opt.step()
    assert_weights(model, expected)


@every_rule
def test_weights_are_bit_for_bit_the_same_after_passes_and_addresses_do_not_change(r):
    model, x, y = problem()
    before, addresses = weights(model), [p.data_ptr() for p in model.parameters()]
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(3):
        for p in opt.passes(labels=y):
            backward(p, model(x[p.examples]), y[p.examples])
    assert_weights(model, before, 0)
    assert addresses == [p.data_ptr() for p in model.parameters()]


class Odd(nn.Module):
    """A parameter unused in some pass, a frozen one, a tied one, a sparse one, one with zero gradient."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4, sparse=True)
        self.tied = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.sometimes = nn.Parameter(torch.randn(4))
        self.flat = nn.Parameter(torch.randn(4))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x, use):
        h = self.again(torch.tanh(self.frozen(self.tied(self.embedding(x)))))
        if use:
            h = h + self.sometimes
        return self.head(self.norm(h + 0.0 * self.flat))


@pytest.mark.parametrize("used_in", [{0}, {1}, set()])
@pytest.mark.parametrize("r", RULES.values(), ids=RULES)
def test_unused_frozen_tied_sparse_and_flat_parameters(r, used_in):
    torch.manual_seed(0)
    model = Odd().double()
    before = weights(model)
    x, y = torch.tensor([0, 1, 1, 3]), torch.tensor([0, 1, 2, 0])
    opt = SharpnessAware(model, sgd(model, lr=0.0, momentum=0.0), r)
    for _ in range(2):
        for p in opt.passes(labels=y):
            backward(p, model(x[p.examples], p.index in used_in), y[p.examples])
        opt.step()
    assert_weights(model, before, 0)
    assert all(torch.isfinite(p.grad.to_dense()).all() for p in model.parameters() if p.grad is not None)
    assert model.frozen.weight.grad is None
    opt = SharpnessAware(model, sgd(model, momentum=0.0), r)
    for p in opt.passes(labels=y):
        backward(p, model(x[p.examples], p.index in used_in), y[p.examples])
    opt.step()
    assert not torch.equal(model.tied.weight, before["tied.weight"])
    assert torch.equal(model.frozen.weight, before["frozen.weight"])
    assert getattr(r, "noise", 0) or torch.equal(model.flat, before["flat"])  # Langevin noise moves it


def test_sparse_gradients_equal_dense_ones_and_stay_sparse_for_sam():
    def run(sparse):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Flatten(), nn.Linear(6, 2)).double()
        opt = SharpnessAware(model, sgd(model, momentum=0.0), sam(0.3))
        x, y = torch.tensor([[0, 1], [1, 1], [5, 0]]), torch.tensor([0, 1, 1])
        for _ in range(3):
            for p in opt.passes():
                p.backward(cross_entropy(model(x), y))
            assert model[0].weight.grad.is_sparse == sparse
            opt.step()
        return weights(model)

    a, b = run(True), run(False)
    for name in a:
        torch.testing.assert_close(a[name], b[name])


def test_parameters_that_are_not_the_bases_keep_the_clean_gradient_and_do_not_move():
    model, x, y = problem()
    twin = copy.deepcopy(model)
    cross_entropy(twin(x), y).backward()
    base = torch.optim.SGD(model[3].parameters(), lr=0.1)
    opt = SharpnessAware(model, base, sam(0.5))
    for p in opt.passes():
        p.backward(cross_entropy(model(x), y))
    assert torch.equal(model[0].weight.grad, twin[0].weight.grad)
    assert not torch.equal(model[3].weight.grad, twin[3].weight.grad)


# -------------------------------------------------------------------------------- buffers and randomness


class Norms(nn.Module):
    """Every kind of normalization with buffers, nested, and a buffer that is replaced instead of written to."""

    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv1d(2, 4, 1), nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None)))
        self.instance = nn.InstanceNorm1d(4, track_running_stats=True, affine=True)
        self.sync = nn.SyncBatchNorm(4)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 6))
        self.head = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        h = self.sync(self.instance(self.a(x)))
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean((0, 2))
        return self.head(torch.tanh(self.spectral(h.flatten(1))))


@pytest.mark.parametrize("r", RULES.values(), ids=RULES)
def test_every_buffer_sees_the_first_pass_over_the_examples_only(r):
    torch.manual_seed(0)
    model = Norms()
    x, y = torch.randn(8, 2, 3), torch.randint(3, (8,))
    opt = SharpnessAware(model, sgd(model), r)
    identities = {name: id(b) for name, b in model.named_buffers()}
    for step in range(3):
        twin = copy.deepcopy(model)
        if isinstance(r, optim.m_sharpness):
            twin(x[:4])
            twin(x[4:])
        elif not (r.passes == 1 and step):  # their only pass is displaced after the first step
            twin(x)
        opt.step(closure_of(opt, model, x, y), labels=y)
        if r.passes == 1:
            assert model.calls.item() == step + 1
            continue
        for (name, a), (_, b) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
            assert torch.equal(a, b), name
    assert identities["sync.running_mean"] == id(model.sync.running_mean)


def test_frozen_buffers_is_reentrant():
    bn = nn.BatchNorm1d(2)
    with restore.undone() as outer, restore.undone() as inner:
        restore.keep_buffers(bn, outer)
        restore.keep_buffers(bn, inner)
        bn(torch.randn(4, 2))
    assert bn.num_batches_tracked.item() == 0
    bn(torch.randn(4, 2))
    assert bn.num_batches_tracked.item() == 1
    assert bn.momentum == 0.1


def masks_of_a_step(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    opt = SharpnessAware(model, sgd(model), sam(0.1), **settings)
    x, masks = torch.randn(2, 4), []
    model[1].register_forward_hook(lambda m, i, out: masks.append(out == 0))
    opt.step(lambda p: p.backward(model(x).sum()) or p.loss)
    return masks, torch.rand(())


def test_the_stream_of_random_numbers_goes_on_from_the_clean_pass_whatever_the_perturbed_pass_draws():
    model, x, y = problem()
    opt, drawn = SharpnessAware(model, sgd(model), sam(0.1)), []
    for p in opt.passes():
        if not p.perturbed:
            torch.rand(5)
            drawn.append(torch.get_rng_state())
        p.backward(cross_entropy(model(x), y))
    assert torch.equal(torch.get_rng_state(), drawn[0])


def test_dropout_masks_are_replayed_unless_fresh_ones_are_asked_for():
    (clean, perturbed), after = masks_of_a_step()
    assert torch.equal(clean, perturbed)
    (clean, perturbed), _ = masks_of_a_step(rng="fresh")
    assert not torch.equal(clean, perturbed)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    model(torch.randn(2, 4))
    assert torch.equal(after, torch.rand(()))  # the stream goes on as after one plain pass
