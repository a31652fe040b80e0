"""Mixed precision: autocast, GradScaler, half-precision weights."""

import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import RULES, assert_weights, every_rule, problem, reference_run, sgd, weights
from samphire.optim import SharpnessAware, looksam, sam


@pytest.mark.parametrize("r", RULES.values(), ids=RULES)
def test_bf16_autocast(r):
    model, x, y = problem()
    model, x = model.float(), x.float()
    opt = SharpnessAware(model, sgd(model), r)
    first = None
    for _ in range(20):
        for p in opt.passes(labels=y):
            with torch.autocast("cpu", torch.bfloat16):
                out = model(x[p.examples])
                losses = cross_entropy(out, y[p.examples], reduction="none")
            p.backward(losses, out)
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
        out = model(x[p.examples])
        losses = cross_entropy(out, y[p.examples], reduction="none")
        if p.per_example or p.with_outputs:
            p.backward(losses, out)
        else:
            scaler.scale(losses.mean()).backward()
        return losses.mean()

    for _ in range(5):
        if door == "step":
            opt.step(closure, labels=y)
        else:
            for p in opt.passes(labels=y):
                p.backward(cross_entropy(out := model(x[p.examples]), y[p.examples], reduction="none"), out)
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


@pytest.mark.parametrize("door", ["step", "scaler.step"])
def test_unscaling_once_more_before_clipping_is_refused(door):
    model, x, y = problem()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    opt = SharpnessAware(model, sgd(model), sam(0.1), scaler=scaler)
    for p in opt.passes():
        p.backward(cross_entropy(model(x), y))
    scaler.unscale_(opt)  # as the recipes for one backward have it
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"scaler.unscale_\(opt\) has divided them once more; leave it out"):
        opt.step() if door == "step" else scaler.step(opt)
    assert_weights(model, before, 0)


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
