"""The contract of SharpnessAware, each line over all rules where it applies."""

import copy
import gc
import io
import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import ALL, RULES, closure_of, loss_of, problem, weights
from samphire import optim
from samphire.optim import Memory, SharpnessAware, asam, gsam, inverse_sqrt, looksam, lsam, msam, sam, tied
from samphire.tree import Vector

every_rule = pytest.mark.parametrize("r", ALL.values(), ids=ALL)


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})


def reference_run(r, model, x, y, steps, lr=0.1, momentum=0.9):
    """SGD with momentum on the reference gradient: an independent loop over {name: tensor}."""
    r, loss, w, v = optim.bind(r, model), loss_of(model, x, y), weights(model), {}
    memory = Memory(n=len(x), groups=(optim.protocol.Group(tuple(w), lr=lr),))
    for _ in range(steps):
        g = optim.sharpness_aware_gradient(r, loss, w, memory)
        v = {n: momentum * v.get(n, 0) + g[n] for n in w}
        w = {n: w[n] - lr * v[n] for n in w}
    return w


def assert_weights(model, expected, tolerance=1e-12):
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=tolerance)


# ------------------------------------------------------------------------------------------ the two doors


@every_rule
def test_step_equals_the_reference(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=7)
    opt = SharpnessAware(model, sgd(model), r)
    closure = closure_of(opt, model, x, y)
    for _ in range(7):
        with torch.no_grad():
            before = cross_entropy(model(x), y)
        loss = opt.step(closure, n=len(x))
        if not isinstance(r, optim.rules.Msam):
            torch.testing.assert_close(loss, before)  # the clean loss, before the step
    assert_weights(model, expected)


@every_rule
def test_loop_over_passes_equals_the_reference(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=5)
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(5):
        for p in opt.passes(n=len(x)):
            cross_entropy(model(x[p.examples]), y[p.examples]).backward()
        opt.step()
    assert_weights(model, expected)


def test_closure_is_called_once_per_pass():
    model, x, y = problem()
    for r, steps, calls in [(looksam(0.1, k=5), 10, 12), (sam(0.1), 3, 6), (msam(0.1), 4, 4), (optim.gam(), 2, 8)]:
        opt, count = SharpnessAware(model, sgd(model), r), []
        closure = closure_of(opt, model, x, y)
        for _ in range(steps):
            opt.step(lambda p: count.append(1) or closure(p))
        assert len(count) == calls


def test_closure_without_argument_under_no_grad():
    model, x, y = problem()
    expected = reference_run(sam(0.1), model, x, y, steps=1)
    opt = SharpnessAware(model, sgd(model), sam(0.1))

    def closure():
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    with torch.no_grad():
        opt.step(closure)
    assert_weights(model, expected)


@pytest.mark.parametrize(
    "r", [r for n, r in ALL.items() if "m_sharpness" not in n], ids=[n for n in ALL if "m_sharpness" not in n]
)
@pytest.mark.parametrize("door", ["step", "passes"])
def test_accumulation_full_equals_one_big_batch(r, door):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=4)
    opt = SharpnessAware(model, sgd(model), r)
    micro_batches = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 8, 2)]

    def share(a, b):
        def closure():
            loss = cross_entropy(model(a), b) / 4
            loss.backward()
            return loss

        return closure

    for _ in range(4):
        with torch.no_grad():
            before = cross_entropy(model(x), y)
        if door == "step":
            loss = opt.step([share(a, b) for a, b in micro_batches], micro="full")
        else:
            for p in opt.passes():
                for a, b in micro_batches:
                    p.backward(cross_entropy(model(a), b) / 4)
            loss = opt.step()
        if not isinstance(r, optim.rules.Msam):
            torch.testing.assert_close(loss, before)
    assert_weights(model, expected, 1e-12)


@pytest.mark.parametrize(
    "r", [sam(0.1), gsam(0.1), looksam(0.1, k=2), msam(0.1)], ids=["sam", "gsam", "looksam", "msam"]
)
@pytest.mark.parametrize("door", ["step", "passes"])
def test_accumulation_m_equals_m_sharpness(r, door):
    model, x, y = problem()
    expected = reference_run(optim.m_sharpness(4, r), model, x, y, steps=4)
    opt = SharpnessAware(model, sgd(model), r)
    halves = [(x[:4], y[:4]), (x[4:], y[4:])]

    def share(a, b):
        def closure():
            loss = cross_entropy(model(a), b) / 2
            loss.backward()
            return loss

        return closure

    for _ in range(4):
        if door == "step":
            opt.step([share(a, b) for a, b in halves], micro="m")
        else:
            for a, b in halves:
                for p in opt.passes():
                    p.backward(cross_entropy(model(a), b) / 2)
            opt.step()
    assert_weights(model, expected)


def test_zero_grad_forgets_accumulated_micro_batches():
    model, x, y = problem()
    expected = reference_run(sam(0.1), model, x, y, steps=1)
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    for p in opt.passes():
        p.backward(cross_entropy(model(x[:2]), y[:2]))
    opt.zero_grad()
    for p in opt.passes():
        p.backward(cross_entropy(model(x), y))
    opt.step()
    assert_weights(model, expected)


def test_lbfgs_evaluates_the_rule_by_itself():
    model, x, y = problem()
    twin = copy.deepcopy(model)
    settings = {"lr": 0.5, "max_iter": 4}
    opt = SharpnessAware(model, torch.optim.LBFGS(model.parameters(), **settings), sam(0.1))
    opt.step(closure_of(opt, model, x, y))
    plain = torch.optim.LBFGS(twin.parameters(), **settings)

    def evaluate():
        g = optim.sharpness_aware_gradient(sam(0.1), loss_of(twin, x, y), weights(twin))
        for name, p in twin.named_parameters():
            p.grad = g[name]
        return cross_entropy(twin(x), y)

    plain.step(evaluate)
    assert_weights(model, weights(twin))


# ------------------------------------------------------------------------------------------ put back bit for bit


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
    opt.step(closure, n=8)
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
            opt.step(failing, n=8)
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
        if p.shadow:
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


@every_rule
def test_weights_are_bit_for_bit_the_same_after_passes_and_addresses_do_not_change(r):
    model, x, y = problem()
    before, addresses = weights(model), [p.data_ptr() for p in model.parameters()]
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(3):
        for p in opt.passes(n=8):
            cross_entropy(model(x[p.examples]), y[p.examples]).backward()
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
        for p in opt.passes(n=4):
            cross_entropy(model(x[p.examples], p.index in used_in), y[p.examples]).backward()
        opt.step()
    assert_weights(model, before, 0)
    assert all(torch.isfinite(p.grad.to_dense()).all() for p in model.parameters() if p.grad is not None)
    assert model.frozen.weight.grad is None
    opt = SharpnessAware(model, sgd(model, momentum=0.0), r)
    for p in opt.passes(n=4):
        cross_entropy(model(x[p.examples], p.index in used_in), y[p.examples]).backward()
    opt.step()
    assert not torch.equal(model.tied.weight, before["tied.weight"])
    assert torch.equal(model.frozen.weight, before["frozen.weight"])
    assert torch.equal(model.flat, before["flat"])


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


# ------------------------------------------------------------------------------------------ buffers and randomness


class Norms(nn.Module):
    """Every kind of normalisation with buffers, nested, and a buffer that is replaced instead of written to."""

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
        if isinstance(r, optim.rules.MSharpness):
            twin(x[:4])
            twin(x[4:])
        elif not (isinstance(r, optim.rules.Msam) and step):  # msam's only pass is displaced after the first step
            twin(x)
        opt.step(closure_of(opt, model, x, y), n=8)
        if isinstance(r, optim.rules.Msam):
            assert model.calls.item() == step + 1
            continue
        for (name, a), (_, b) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
            assert torch.equal(a, b), name
    assert identities["sync.running_mean"] == id(model.sync.running_mean)


def test_frozen_buffers_is_reentrant():
    bn = nn.BatchNorm1d(2)
    with optim.shadow.frozen_buffers(bn), optim.shadow.frozen_buffers(bn):
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


def test_the_stream_of_random_numbers_goes_on_from_the_clean_pass_whatever_the_shadow_pass_draws():
    model, x, y = problem()
    opt, drawn = SharpnessAware(model, sgd(model), sam(0.1)), []
    for p in opt.passes():
        if not p.shadow:
            torch.rand(5)
            drawn.append(torch.get_rng_state())
        p.backward(cross_entropy(model(x), y))
    assert torch.equal(torch.get_rng_state(), drawn[0])


def test_dropout_masks_are_replayed_unless_fresh_ones_are_asked_for():
    (clean, shadow), after = masks_of_a_step()
    assert torch.equal(clean, shadow)
    (clean, shadow), _ = masks_of_a_step(rng="fresh")
    assert not torch.equal(clean, shadow)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    model(torch.randn(2, 4))
    assert torch.equal(after, torch.rand(()))  # the stream goes on as after one plain pass


# ------------------------------------------------------------------------------------------ groups, clipping, schedules


def test_schedulers_change_the_bases_rate_and_the_base_is_shared():
    model, x, y = problem()
    base = sgd(model)
    opt = SharpnessAware(model, base, sam(0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.1)
    opt.step(closure_of(opt, model, x, y))
    scheduler.step()
    assert base.param_groups[0]["lr"] == pytest.approx(0.01)
    assert opt.param_groups is base.param_groups
    assert opt.state is base.state
    assert isinstance(opt, torch.optim.Optimizer)


@pytest.mark.parametrize("r", RULES.values(), ids=RULES)
def test_several_groups_equal_one(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=4)
    base = torch.optim.SGD([{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[3].parameters()]}],
                           lr=0.1, momentum=0.9)  # fmt: skip
    opt = SharpnessAware(model, base, r)
    for _ in range(4):
        opt.step(closure_of(opt, model, x, y), n=8)
    assert_weights(model, expected)


def test_rho_per_group_scales_each_groups_share_of_one_direction():
    model, x, y = problem()
    g = torch.func.grad(loss_of(model, x, y))(weights(model))
    size = math.sqrt(sum(t.square().sum().item() for t in g.values()))
    before = weights(model)
    base = torch.optim.SGD([{"params": model[0].parameters(), "rho": 0.3},
                            {"params": [*model[1].parameters(), *model[3].parameters()]}], lr=0.1)  # fmt: skip
    opt = SharpnessAware(model, base, sam(0.1))
    for p in opt.passes():
        if p.shadow:
            for name, q in model.named_parameters():
                rho = 0.3 if name.startswith("0.") else 0.1
                torch.testing.assert_close(q.detach(), before[name] + rho * g[name] / size)
        p.backward(cross_entropy(model(x), y))


def test_rho_follows_its_schedule_and_the_groups_learning_rate():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), sam(inverse_sqrt(0.2)))
    radii = []
    for _ in range(4):
        opt.step(closure_of(opt, model, x, y))
        radii.append(float(opt.last.radius))
    assert radii == pytest.approx([0.2 / math.sqrt(t) for t in (1, 2, 3, 4)])
    opt = SharpnessAware(model, sgd(model, lr=0.05), gsam(tied(0.6, 0.1, lr_max=0.1)))
    opt.step(closure_of(opt, model, x, y))
    assert float(opt.last.radius) == pytest.approx(0.35)


@every_rule
def test_clipping_acts_on_the_descent_gradient(r):
    model, x, y = problem()
    settings = {"lr": 1.0, "momentum": 0.0}
    g = optim.sharpness_aware_gradient(optim.bind(r, model), loss_of(model, x, y), weights(model),
                                       Memory(n=8, groups=(optim.protocol.Group(tuple(weights(model)), lr=1.0),)))  # fmt: skip
    size = math.sqrt(sum(t.square().sum().item() for t in g.values()))
    before = weights(model)
    opt = SharpnessAware(model, sgd(model, **settings), r, clip_norm=size / 2)
    opt.step(closure_of(opt, model, x, y), n=8)
    assert_weights(model, {n: before[n] - g[n] / 2 for n in g}, 1e-6)
    model.load_state_dict(before)
    opt = SharpnessAware(model, sgd(model, **settings), r, clip_value=0.01)
    opt.step(closure_of(opt, model, x, y), n=8)
    assert_weights(model, {n: before[n] - g[n].clamp(-0.01, 0.01) for n in g}, 1e-12)


# ------------------------------------------------------------------------------------------ precision


@pytest.mark.parametrize("r", RULES.values(), ids=RULES)
def test_bf16_autocast(r):
    model, x, y = problem()
    model, x = model.float(), x.float()
    opt = SharpnessAware(model, sgd(model), r)
    first = None
    for _ in range(20):
        for p in opt.passes(n=8):
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model(x[p.examples]), y[p.examples])
            p.backward(loss)
        loss = opt.step()
        first = loss if first is None else first
    assert float(loss) < float(first)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in model.parameters())


@every_rule
@pytest.mark.parametrize("door", ["step", "passes", "scaler.step"])
def test_grad_scaler_equals_no_scaler(r, door):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    opt = SharpnessAware(model, sgd(model), r, scaler=scaler)

    def closure(p):
        opt.zero_grad()
        loss = cross_entropy(model(x[p.examples]), y[p.examples])
        scaler.scale(loss).backward()
        return loss

    for _ in range(5):
        if door == "step":
            opt.step(closure, n=8)
        else:
            for p in opt.passes(n=8):
                p.backward(cross_entropy(model(x[p.examples]), y[p.examples]))
            opt.step() if door == "passes" else scaler.step(opt)
        scaler.update()
    assert_weights(model, expected)
    assert scaler.get_scale() == 2.0**12  # grew every second step: one update each


@pytest.mark.parametrize("overflow_in", [0, 1])
@pytest.mark.parametrize("door", ["step", "scaler.step"])
def test_overflow_in_any_pass_skips_the_whole_step(overflow_in, door):
    model, x, y = problem()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    opt = SharpnessAware(model, sgd(model), looksam(0.1, k=2), scaler=scaler, clip_norm=1.0)
    opt.step(lambda p: p.backward(cross_entropy(model(x), y)) or p.loss)
    scaler.update()
    opt.step(lambda p: p.backward(cross_entropy(model(x), y)) or p.loss)
    scaler.update()
    before, state = weights(model), pickle.dumps(opt.state_dict())

    def closure(p):
        loss = cross_entropy(model(x), y) * (math.inf if p.index == overflow_in else 1.0)
        p.backward(loss)
        return loss

    if door == "step":
        opt.step(closure)
    else:
        for p in opt.passes():
            closure(p)
        scaler.step(opt)
    scaler.update()
    assert opt.last.skipped
    assert opt.last.passes == overflow_in + 1
    assert_weights(model, before, 0)
    assert pickle.dumps(opt.state_dict()) == state
    assert scaler.get_scale() == 2.0**9
    opt.step(lambda p: p.backward(cross_entropy(model(x), y)) or p.loss)
    scaler.update()
    assert not opt.last.skipped


def test_scaler_step_without_the_scaler_given_says_so():
    model, x, y = problem()
    scaler = torch.amp.GradScaler("cpu")
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    for _ in opt.passes():
        scaler.scale(cross_entropy(model(x), y)).backward()
    with pytest.raises(RuntimeError, match="pass scaler= to SharpnessAware"):
        scaler.step(opt)


def test_perturbation_that_rounds_away_is_reported_and_warned_about():
    torch.manual_seed(0)
    model = nn.Linear(1000, 1000, bias=False)
    with torch.no_grad():
        model.weight.normal_(0, 0.02)
    model = model.bfloat16()
    opt = SharpnessAware(model, sgd(model, momentum=0.0, lr=0.0), sam(0.015))

    def closure(p):
        model.weight.grad = torch.randn(1000, 1000).bfloat16()
        return 0.0

    with pytest.warns(UserWarning, match=r"rounds away: \d+% of the displaced weights moved, the radius is 0\.01"):
        opt.step(closure)
    assert 0.05 < opt.last.moved < 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step(closure)  # says it once
    assert SharpnessAware(model, sgd(model), sam(0.0)).last.moved == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiny_gradients_in_half_precision_stay_finite(dtype):
    model = nn.Linear(8, 1, bias=False).to(dtype)
    opt = SharpnessAware(model, sgd(model), sam(0.5))

    def closure(p):
        model.weight.grad = torch.full_like(model.weight, 1e-7)
        return 0.0

    opt.step(closure)
    assert model.weight.isfinite().all()
    assert float(opt.last.radius) == pytest.approx(0.5, rel=0.01)


# ------------------------------------------------------------------------------------------ checkpoints and copies


@every_rule
@pytest.mark.parametrize("base", [sgd, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)], ids=["sgd", "adamw"])
def test_resumed_run_equals_the_uninterrupted_one_to_the_bit(r, base):
    model, x, y = problem()
    opt = SharpnessAware(model, base(model), r)
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y), n=8)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    for _ in range(4):
        opt.step(closure_of(opt, model, x, y), n=8)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, _, _ = problem(seed=1)
    other.load_state_dict(saved["model"])
    resumed = SharpnessAware(other, base(other), r)
    resumed.load_state_dict(saved["opt"])
    for _ in range(4):
        resumed.step(closure_of(resumed, other, x, y), n=8)
    assert_weights(other, weights(model), 0)


def test_state_is_small_and_a_plain_one_loads_both_ways():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    opt.step(closure_of(opt, model, x, y))
    plain = sgd(model)
    plain.load_state_dict(opt.state_dict())
    torch.testing.assert_close(plain.state_dict()["state"], opt.base.state_dict()["state"])
    opt.load_state_dict(plain.state_dict())
    assert opt.param_groups is opt.base.param_groups
    size = len(pickle.dumps(opt.state_dict()))
    assert size < 1.1 * len(pickle.dumps(plain.state_dict())) + 500


@every_rule
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_alike_and_apart(r, clone):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), r)
    torch.optim.lr_scheduler.StepLR(opt, 1)  # wraps opt.step, which must not get in the way
    opt.step(closure_of(opt, model, x, y), n=8)
    model2, opt2 = clone((model, opt))
    assert opt2.param_groups is opt2.base.param_groups
    opt.step(closure_of(opt, model, x, y), n=8)
    opt2.step(closure_of(opt2, model2, x, y), n=8)
    assert_weights(model2, weights(model), 0)
    opt2.step(closure_of(opt2, model2, x, y), n=8)
    assert not torch.equal(model2[0].weight, model[0].weight)


def test_added_group_is_perturbed_and_trained():
    model, x, y = problem()
    expected = reference_run(sam(0.1), model, x, y, steps=1)
    opt = SharpnessAware(model, torch.optim.SGD(model[0].parameters(), lr=0.1), sam(0.1))
    opt.add_param_group({"params": [*model[1].parameters(), *model[3].parameters()]})
    opt.step(closure_of(opt, model, x, y))
    assert_weights(model, expected)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("r", [sam(0.1), lsam(0.2), looksam(0.1, k=2)], ids=["sam", "lsam", "looksam"])
def test_compiled_model(r, backend):
    torch._dynamo.reset()
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=3)
    compiled = torch.compile(model, backend=backend)
    opt = SharpnessAware(compiled, sgd(compiled), r)
    for _ in range(3):
        opt.step(closure_of(opt, compiled, x, y))
    assert_weights(model, expected, 1e-10)
    assert list(opt._named) == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("foreach", [True, False])
def test_base_with_and_without_foreach(foreach):
    model, x, y = problem()
    expected = reference_run(asam(0.3), model, x, y, steps=3)
    opt = SharpnessAware(model, sgd(model, foreach=foreach), asam(0.3))
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y))
    assert_weights(model, expected)


def test_several_models_in_one_optimizer():
    a, x, y = problem()
    b, _, _ = problem(seed=1)
    both = nn.ModuleList([a, b])
    opt = SharpnessAware(both, sgd(both), sam(0.1))
    for p in opt.passes():
        p.backward(cross_entropy(a(x), y) + cross_entropy(b(x), y))
    opt.step()
    assert float(opt.last.radius) == pytest.approx(0.1)


# ------------------------------------------------------------------------------------------ diagnostics


@pytest.mark.parametrize("name", ["sam", "asam", "lsam", "gsam", "gnp"])
def test_report_equals_an_independent_computation(name):
    r = RULES[name]
    model, x, y = problem()
    loss, w = loss_of(model, x, y), weights(model)
    bound = optim.bind(r, model)
    g = Vector(torch.func.grad(loss)(w))
    eps = bound.climb(Vector(w), r.rho, g)
    there = (Vector(w) + eps).dense()
    g_p = Vector(torch.func.grad(loss)(there))
    asked = g if name != "lsam" else g.only(bound.climb.on)
    flat = lambda v, names: torch.cat([v.dense()[n].reshape(-1) for n in names])
    cosine = torch.cosine_similarity(flat(asked, list(asked)), flat(g_p, list(asked)), dim=0)

    opt = SharpnessAware(model, sgd(model), r)
    opt.step(closure_of(opt, model, x, y))
    seen = opt.last.numbers()
    assert seen["loss"] == pytest.approx(loss(w).item(), rel=1e-12)
    assert seen["perturbed_loss"] == pytest.approx(loss(there).item(), rel=1e-10)
    assert seen["gap"] == pytest.approx(loss(there).item() - loss(w).item(), rel=1e-8)
    assert seen["grad_norm"] == pytest.approx(flat(asked, list(asked)).norm().item(), rel=1e-12)
    assert seen["perturbed_grad_norm"] == pytest.approx(flat(g_p, list(g)).norm().item(), rel=1e-10)
    assert seen["radius"] == pytest.approx(flat(eps, list(eps)).norm().item(), rel=1e-10)
    assert seen["cosine"] == pytest.approx(cosine.item(), rel=1e-9)
    assert seen["passes"] == 2
    assert seen["moved"] == 1


def test_report_of_four_passes_compares_the_last_with_the_clean_one():
    model, x, y = problem()
    seen = []
    opt = SharpnessAware(model, sgd(model), optim.gam(0.3, r=0.1))
    for p in opt.passes():
        p.backward(cross_entropy(model(x), y))
        seen.append(torch.cat([q.grad.reshape(-1) for q in model.parameters()]))
    assert float(opt.last.cosine) == pytest.approx(torch.cosine_similarity(seen[0], seen[3], dim=0).item(), rel=1e-12)
    assert float(opt.last.perturbed_grad_norm) == pytest.approx(seen[3].norm().item(), rel=1e-12)


def test_losses_of_micro_batches_add_up_however_they_are_given():
    model, x, y = problem()
    whole = cross_entropy(model(x), y).item()

    def by_pass(part):
        return lambda p: p.backward(cross_entropy(model(x[part]), y[part]) / 2) or p.loss

    for micro in ("full", "m"):
        opt = SharpnessAware(model, sgd(model, lr=0.0), sam(0.1))
        loss = opt.step([by_pass(slice(0, 4)), by_pass(slice(4, 8))], micro=micro)
        assert float(loss) == pytest.approx(whole, rel=1e-12)


def test_clean_gradient_is_not_kept_alive_during_the_second_pass():
    model, x, y = problem()
    opt, clean = SharpnessAware(model, sgd(model), sam(0.1)), set()
    for p in opt.passes():
        if p.shadow:
            alive = {t.data_ptr() for t in gc.get_objects() if type(t) is torch.Tensor}
            assert not clean & alive
        p.backward(cross_entropy(model(x), y))
        clean = {q.grad.data_ptr() for q in model.parameters()}


def test_report_of_a_step_without_displacement():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), looksam(0.1, k=2))
    for _ in range(2):
        opt.step(closure_of(opt, model, x, y))
    seen = opt.last.numbers()
    assert seen["passes"] == 1
    assert seen["radius"] == 0
    assert math.isnan(seen["cosine"])
    assert math.isnan(seen["perturbed_loss"])


def test_pass_tells_a_stateful_loss_when_to_update():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), optim.gam())
    updates = []

    def closure(p):
        if not p.shadow:
            updates.append(p.index)
        p.backward(cross_entropy(model(x), y))
        return p.loss

    opt.step(closure)
    assert updates == [0]


# ------------------------------------------------------------------------------------------ bad input


def test_bad_input_gets_one_sentence():
    model, x, y = problem()
    base = sgd(model)
    closure = closure_of(base, model, x, y)
    opt = SharpnessAware(model, base, sam(0.1))
    other = nn.Linear(2, 2)
    bad = [
        (lambda: SharpnessAware(model, torch.optim.SGD, sam()), TypeError, "base must be a torch.optim.Optimizer instance"),
        (lambda: SharpnessAware(model, base, "sam"), TypeError, "rule must be a rule such as .* got 'sam'"),
        (lambda: SharpnessAware(other, base, sam()), ValueError, r"shape \(6, 5\) that is not in the model"),
        (lambda: SharpnessAware(model, base, sam(), rng="same"), ValueError, "rng must be one of 'replay', 'fresh', got 'same'"),
        (lambda: SharpnessAware(model, base, sam(), perturbation="x"), ValueError, "perturbation must be one of"),
        (lambda: SharpnessAware(model, base, sam(), clip_norm=0), ValueError, "clip_norm must be > 0 or None, got 0"),
        (lambda: SharpnessAware(model, base, sam(), clip_value=-1), ValueError, "clip_value must be > 0 or None, got -1"),
        (lambda: SharpnessAware(model, base, lsam(head="fc")), ValueError, "no parameter is named or lies below 'fc'; the model has"),
        (lambda: SharpnessAware(model, torch.optim.SGD([{"params": model.parameters(), "rho": -1}], lr=1), sam()), ValueError,
         "a group's rho must be a finite number >= 0"),
        (lambda: opt.step(), TypeError, "needs the loss more than once. Give it a closure"),
        (lambda: opt.step([]), ValueError, "empty list of closures"),
        (lambda: opt.step(closure, micro="half"), ValueError, "micro must be one of 'full', 'm', got 'half'"),
        (lambda: opt.step(lambda: None), TypeError, "the closure returned None"),
        (lambda: SharpnessAware(model, base, optim.m_sharpness(2)).step(lambda: 0.0, n=8), TypeError, "the closure takes no argument"),
        (lambda: SharpnessAware(model, base, optim.m_sharpness(2)).step(closure), TypeError, r"opt.step\(closure, n=len\(x\)\)"),
        (lambda: [opt.step() for _ in opt.passes()], RuntimeError, "inside the loop over passes"),
        (lambda: opt.step([lambda: opt.zero_grad(), lambda: 0.0]), RuntimeError, "inside one of several closures"),
    ]  # fmt: skip
    for call, kind, message in bad:
        with pytest.raises(kind, match=message):
            call()
    opt.step(closure)  # and it still works
