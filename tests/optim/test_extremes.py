"""Gradients of any size, numbers that are none, radii that are none: over all rules."""

import copy
import math
import warnings

import pytest
import torch
from torch.nn.functional import cross_entropy

from cases import ALL, assert_weights, backward, closure_of, every_rule, problem, sgd, weights
from samphire import optim, tree
from samphire.optim import SharpnessAware, requests, sam
from samphire.tree import Vector

OTHERS = ("esam", "m_sharpness", "imb_sam", "entropy")  # choose examples, or climb by noise
CLIMBING = {n: r for n, r in ALL.items() if not (any(p in n for p in OTHERS) or requests.needs_outputs(r))}
SCALES = [1e-36, 1e-22, 1e-18, 1.0, 1e18, 1e20, 1e36]


def stiffness(w):
    """A gradient that is no multiple of the weights: (k + 1) w + sin(w), entry by entry."""
    return {
        n: torch.arange(1.0, t.numel() + 1, dtype=torch.float64).view(t.shape) * t + t.sin() for n, t in w.items()
    }


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("r", CLIMBING.values(), ids=CLIMBING)
def test_the_climb_is_right_whatever_the_size_of_the_gradients(r, scale, monkeypatch):
    draw = lambda t, generator: torch.randn(t.shape, generator=generator).to(t)  # the same for float64
    monkeypatch.setattr(tree, "_randn_like", draw)
    model = problem()[0].float()
    w = {name: t.double() for name, t in weights(model).items()}
    bound, memory = optim.bind(r, model), optim.Memory(groups=(requests.Group(tuple(w), lr=0.1),))
    opt = SharpnessAware(model, sgd(model, lr=0.0), r)

    def answer(request):
        g = Vector({n: scale * t for n, t in stiffness((Vector(w) + request.eps).dense()).items()})
        return g if request.wrt is None else g.only(request.wrt)

    for _ in range(3):
        for group in opt.param_groups:
            group["lr"] = 0.1  # as schedules see it
        descent, displacements = requests.watched(bound, w, memory, answer)
        expected = descent.gradient.dense()
        total = torch.cat([t.reshape(-1) for t in expected.values()]).norm()
        if total > 1e38:  # sagm takes the gradient off the displacement as it is
            assert isinstance(r, optim.sagm)
            return
        for p, by_rule in zip(opt.passes(), displacements, strict=True):
            eps = by_rule.dense()
            size = torch.cat([t.reshape(-1) for t in eps.values()]).norm() if eps else 1.0
            for name, q in model.named_parameters():
                q.grad = (scale * stiffness({"": q.detach().double()})[""]).float()
                assert (q.detach().double() - w[name] - eps.get(name, 0)).norm() <= 1e-5 * size
            p.loss = 1.0
        for name, q in model.named_parameters():
            assert (q.grad.double() - expected[name]).norm() <= 1e-4 * total
        opt.param_groups[0]["lr"] = 0.0
        opt.step()


BAD = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("index", [0, 1])
@every_rule
def test_a_gradient_that_is_not_finite_skips_the_step_and_leaves_weights_and_memory(r, index, bad):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(2):
        opt.step(closure_of(opt, model, x, y), labels=y)
    before, state = weights(model), copy.deepcopy(opt.state_dict())
    twin, expected = copy.deepcopy((model, opt))
    ran = []

    def step():
        for p in opt.passes(labels=y):
            ran.append(p.index)
            backward(p, model(x[p.examples]), y[p.examples])
            if p.index == index and model[3].weight.grad is not None:
                model[3].weight.grad[0, 0] = bad
        opt.step()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step()
    if index in ran and opt.last.skipped:
        assert "the gradient is not finite, so the step was skipped" in str(said[0].message)
        assert_weights(model, before, 0)
        after = opt.state_dict()
        torch.testing.assert_close(after.pop("state"), state["state"], rtol=0, atol=0)
        assert after == {"param_groups": state["param_groups"]}  # the memory, in bytes
    else:  # the rule has no such pass in this step, or does not use what came of it
        expected.step(closure_of(expected, twin, x, y), labels=y)
        assert_weights(model, weights(twin))
    model.load_state_dict(before)
    opt.load_state_dict(state)
    opt.zero_grad()
    opt.step(closure_of(opt, model, x, y), labels=y)
    assert not opt.last.skipped
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_loss_that_is_not_finite_never_reaches_the_weights():
    for r in (sam(0.1), optim.gsam(0.1), optim.wsam(0.1)):
        model, x, y = problem()
        opt = SharpnessAware(model, sgd(model), r, clip_norm=1.0)
        before = weights(model)
        with pytest.warns(UserWarning, match="the gradient is not finite"):
            opt.step(lambda p: p.backward(cross_entropy(model(x), y) * math.nan) or p.loss)
        assert_weights(model, before, 0)
        assert opt.last.skipped
        assert opt.last.passes == 1  # no pass at weights that are not finite


RADII = [math.nan, math.inf, -1, None, True, 1e39, "0.1", torch.tensor(math.nan), torch.tensor(-1.0), torch.ones(2)]
WITH_RHO = {n: r for n, r in ALL.items() if optim.requests.rho_of(r) is not None}


@pytest.mark.parametrize("bad", RADII, ids=str)
@pytest.mark.parametrize("r", WITH_RHO.values(), ids=WITH_RHO)
def test_a_radius_that_is_none_is_named_and_nothing_moves(r, bad):
    model, x, y = problem()
    before = weights(model)
    kinds = [lambda t, lr: bad, lambda t, lr: 0.1 if t < 2 else bad]
    for rho in [*kinds, bad] if isinstance(bad, (torch.Tensor, float)) and bad is not True else kinds:
        with pytest.raises(ValueError, match=r"rho( at step \d)? must be a finite number"):
            opt = SharpnessAware(model, sgd(model), requests.with_rho(r, rho))
            for _ in range(12):  # some climb now and then only
                model.load_state_dict(before)
                opt.step(closure_of(opt, model, x, y), labels=y)
        assert_weights(model, before, 0)
        assert not optim.in_perturbed_pass()


def test_radii_of_other_kinds_of_numbers():
    import numpy as np

    model, x, y = problem()
    for rho in (np.float32(0.25), np.float64(0.25), torch.tensor(0.25), np.int64(0), 0.25):
        opt = SharpnessAware(model, sgd(model), sam(lambda t, lr, rho=rho: rho))
        opt.step(closure_of(opt, model, x, y))
        assert float(opt.last.radius) == pytest.approx(float(rho))


def test_norms_and_products_outside_of_float32_squares():
    from samphire.tree import dot, norm, unit

    for size in (1e-36, 1e-20, 1e20, 1e36):
        x = torch.tensor([3.0, 4.0]) * size
        v = Vector({"x": x, "y": torch.zeros(3)})
        assert norm(v).item() == pytest.approx(5 * size, rel=1e-6)
        assert dot(v, 2 * v).item() == pytest.approx(50 * size * size, rel=1e-6)
        torch.testing.assert_close(unit(v).dense()["x"], torch.tensor([0.6, 0.8]))
    assert norm(Vector({"x": torch.zeros(2)})).item() == 0
