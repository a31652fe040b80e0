"""The contract of SharpnessAware: its two doors, groups, clipping, diagnostics and errors, over all rules."""

import copy
import gc
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

from cases import (
    ALL,
    RULES,
    assert_weights,
    backward,
    closure_of,
    every_rule,
    loss_of,
    mean_loss_of,
    problem,
    reference_run,
    sgd,
    weights,
)
from samphire import optim
from samphire.optim import Memory, SharpnessAware, gsam, inverse_sqrt, looksam, lsam, msam, sam, tied
from samphire.tree import Vector

# -------------------------------------------------------------------------------- the two doors


@every_rule
def test_step_equals_the_reference(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=7)
    opt = SharpnessAware(model, sgd(model), r)
    closure = closure_of(opt, model, x, y)
    for _ in range(7):
        with torch.no_grad():
            before = cross_entropy(model(x), y)
        loss = opt.step(closure, labels=y)
        if r.passes > 1 and not isinstance(r, optim.imb_sam):  # whose loss weighs the classes
            torch.testing.assert_close(loss, before)  # the clean loss, before the step
    assert_weights(model, expected)


@every_rule
def test_loop_over_passes_equals_the_reference(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=5)
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(5):
        for p in opt.passes(labels=y):
            backward(p, model(x[p.examples]), y[p.examples])
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


TAKES_PARTS = ("m_sharpness", "esam")
WHOLE_BATCH = {name: r for name, r in ALL.items() if not any(part in name for part in TAKES_PARTS)}


@pytest.mark.parametrize("r", WHOLE_BATCH.values(), ids=WHOLE_BATCH)
@pytest.mark.parametrize("door", ["step", "passes"])
def test_accumulation_full_equals_one_big_batch(r, door):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=4)
    opt = SharpnessAware(model, sgd(model), r)
    micro_batches = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 8, 2)]

    def share(a, b):
        def closure(p):
            out = model(a)
            backward(p, out, b, 1 / 4)
            return cross_entropy(out, b) / 4

        return closure

    for _ in range(4):
        with torch.no_grad():
            before = cross_entropy(model(x), y)
        if door == "step":
            loss = opt.step([share(a, b) for a, b in micro_batches], micro="full", labels=y)
        else:
            for p in opt.passes(labels=y):
                for a, b in micro_batches:
                    p.backward(cross_entropy(out := model(a), b, reduction="none") / 4, out)
            loss = opt.step()
        if r.passes > 1 and not isinstance(r, optim.imb_sam):
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


# -------------------------------------------------------------------------------- groups, clipping, schedules


SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "multiplied": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "steps": lambda o: lr_scheduler.StepLR(o, 3),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "constant": lr_scheduler.ConstantLR,
    "linear": lr_scheduler.LinearLR,
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 8),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "one cycle, momentum too": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cycles, momentum too": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    "averaging": lambda o: torch.optim.swa_utils.SWALR(o, 0.5, anneal_epochs=4),
    "one after the other": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=1.0),
}


@pytest.mark.parametrize("on", ["ours", "base"])
@pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)
def test_every_scheduler_of_torch_acts_as_on_a_plain_optimizer(make, on):
    results = []
    for wrapped in (False, True):
        model, x, y = problem()
        opt = base = sgd(model)
        if wrapped:
            opt = SharpnessAware(model, base, sam(0.0))
        schedule, seen = make(opt if on == "ours" else base), []

        def closure(opt=opt, model=model, x=x, y=y):
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(8):
            loss = opt.step(closure)
            schedule.step(loss.item()) if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else schedule.step()
            seen.append((opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"]))
        results.append((seen, weights(model)))
    (rates, expected), (also, _) = results
    assert also == rates
    assert_weights(model, expected, 0)


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
        opt.step(closure_of(opt, model, x, y), labels=y)
    assert_weights(model, expected)


def test_rho_per_group_scales_each_groups_share_of_one_direction():
    model, x, y = problem()
    g = torch.func.grad(mean_loss_of(model, x, y))(weights(model))
    size = math.sqrt(sum(t.square().sum().item() for t in g.values()))
    before = weights(model)
    base = torch.optim.SGD([{"params": model[0].parameters(), "rho": 0.3},
                            {"params": [*model[1].parameters(), *model[3].parameters()]}], lr=0.1)  # fmt: skip
    opt = SharpnessAware(model, base, sam(0.1))
    for p in opt.passes():
        if p.perturbed:
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
    before = weights(model)
    memory = Memory(labels=y, groups=(optim.requests.Group(tuple(before), lr=1.0),))
    answer = optim.requests.gradient_at(loss_of(model, x, y), before)
    descent = optim.requests.drive(optim.bind(r, model), before, memory, answer)
    g, directly = descent.gradient.dense(), descent.directly.dense()
    moved = lambda g: {n: before[n] - g[n] - directly.get(n, 0) for n in g}
    size = math.sqrt(sum(t.square().sum().item() for t in g.values()))
    opt = SharpnessAware(model, sgd(model, **settings), r, clip_norm=size / 2)
    opt.step(closure_of(opt, model, x, y), labels=y)
    assert_weights(model, moved({n: t / 2 for n, t in g.items()}), 1e-6)
    model.load_state_dict(before)
    opt = SharpnessAware(model, sgd(model, **settings), r, clip_value=0.01)
    opt.step(closure_of(opt, model, x, y), labels=y)
    assert_weights(model, moved({n: t.clamp(-0.01, 0.01) for n, t in g.items()}), 1e-12)


# -------------------------------------------------------------------------------- diagnostics


@pytest.mark.parametrize("name", ["sam", "asam", "lsam", "gsam", "gnp"])
def test_report_equals_an_independent_computation(name):
    r = RULES[name]
    model, x, y = problem()
    loss, w = mean_loss_of(model, x, y), weights(model)
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
        if p.perturbed:
            alive = {t.data_ptr() for t in gc.get_objects() if type(t) is torch.Tensor}
            assert not clean & alive
        p.backward(cross_entropy(model(x), y))
        clean = {q.grad.data_ptr() for q in model.parameters()}


def test_the_costlier_part_of_the_report_comes_every_so_many_steps():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), sam(0.1), measure_every=3)
    seen = []
    for _ in range(7):
        opt.step(closure_of(opt, model, x, y))
        seen.append(opt.last.numbers())
    assert [not math.isnan(s["cosine"]) for s in seen] == [True, False, False, True, False, False, True]
    assert all(s["radius"] == pytest.approx(0.1) for s in seen)
    assert all(s["gap"] > 0 and s["grad_norm"] > 0 for s in seen)


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
        if not p.perturbed:
            updates.append(p.index)
        p.backward(cross_entropy(model(x), y))
        return p.loss

    opt.step(closure)
    assert updates == [0]


# -------------------------------------------------------------------------------- bad input


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
        (lambda: SharpnessAware(model, base, sam(), rng="same"), ValueError, "rng must be 'replay' or 'fresh', got 'same'"),
        (lambda: SharpnessAware(model, base, sam(), perturbation="x"), ValueError, "perturbation must be 'global' or 'local', got 'x'"),
        (lambda: SharpnessAware(model, base, sam(), clip_norm=0), ValueError, "clip_norm must be a finite number > 0, got 0"),
        (lambda: SharpnessAware(model, base, sam(), clip_value=-1), ValueError, "clip_value must be a finite number > 0, got -1"),
        (lambda: SharpnessAware(model, base, lsam(head="fc")), ValueError, "no parameter is named or lies below 'fc'; there are 0, 1, 3"),
        (lambda: SharpnessAware(model, torch.optim.SGD([{"params": model.parameters(), "rho": -1}], lr=1), sam()), ValueError,
         "a group's rho must be a finite number >= 0"),
        (lambda: SharpnessAware(model, base, sam(), measure_every=0), ValueError, "measure_every must be a whole number >= 1, got 0"),
        (lambda: opt.step(), TypeError, "needs the loss more than once. Give it a closure"),
        (lambda: opt.step([]), ValueError, "empty list of closures"),
        (lambda: opt.step(closure, micro="half"), ValueError, "micro must be 'full' or 'm', got 'half'"),
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
