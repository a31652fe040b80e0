"""Each rule against numbers worked out by hand or by the official code, its reductions, and the length of eps."""

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import samphire
from cases import ALL, RULES, loss_of, mean_loss_of, problem, weights
from samphire import optim, tree
from samphire.checks import declared_ranges
from samphire.optim import (
    Memory,
    ae_sam,
    asam,
    bind,
    cr_sam,
    entropy_sgd,
    esam,
    every,
    friendly,
    functional_sam,
    gam,
    gnp,
    gsam,
    imb_sam,
    inverse_sqrt,
    looksam,
    lsam,
    m_sharpness,
    msam,
    ramp,
    random,
    rule,
    sagm,
    sam,
    sam_on,
    sharpness_aware_gradient,
    ssam_d,
    ssam_f,
    stable,
    stale,
    tied,
    vasso,
    wsam,
)
from samphire.optim.requests import Group, drive, gradient_at, with_rho
from samphire.tree import Vector, norm

DIAGONAL = torch.tensor([1.0, 3.0], dtype=torch.float64)


def quadratic(w):
    """0.5 w' diag(1, 3) w over two one-element tensors, so that norms per tensor would show."""
    return 0.5 * (DIAGONAL * torch.cat([w["a.weight"], w["b.weight"]]) ** 2).sum()


def point(*values):
    return {f"{n}.weight": torch.tensor([v], dtype=torch.float64) for n, v in zip("ab", values, strict=True)}


def descent(r, w, memory=None):
    return torch.cat(list(sharpness_aware_gradient(r, quadratic, w, memory).values())).tolist()


# RULES-CHECKED section D: the official classes, or the formula where there is none.
GOLDEN = [
    (sam(0.05), (1, -1), (1.015811388, -3.142302495)),
    (asam(0.5, 0.01), (1, -1), (1.159695022, -4.437255197)),
    (asam(0.5, 0.0), (1, -1), (1.158113883, -4.423024947)),
    (asam(0.5, 0.01), (1, -2), (1.042145164, -9.004482119)),
    (gsam(0.05, 0.4), (1, -1), (1.004877712, -3.145837022)),
    (gsam(0.05, 0.4, descend="clean"), (1, -1), (0.9886158004, -3.003794733)),
    (gnp(0.1, 0.8), (1, -1), (1.025298221, -3.227683992)),
    (gnp(0.1, 0.8, clean="unit"), (1, -1), (0.8885437745, -2.817420651)),
    (gam(0.2, 0.02, 0.5, 0.6, 0.03), (1, -1), (1.014939863, -3.295732409)),
    (gam(0.2, 0.02, 0.5, 0.6, 0.03, clean_weight="one"), (1, -1), (1.013895083, -3.296054112)),
    (looksam(0.1, 5, 0.7), (1, -1), (1.031622777, -3.284604989)),
    (sagm(0.05, 1e-3), (1, -1), (1.007405694, -3.066651247)),
    (stable(0.05), (1, -1), (0.9727059452, -3.008960476)),
    (cr_sam(0.1, 0.1, 0.01), (1, -1), (1.032255232, -3.290297089)),
    (stale(0.05), (1, -1), (1.0, -3.0)),
    (friendly(0.1, 1.0, 0.9), (1, -1), (1.031622777, -3.284604989)),
    (vasso(0.1, 0.9), (1, -1), (1.031622777, -3.284604989)),
    (msam(0.3, 0.9), (1, -1), (1.0, -3.0)),
    (wsam(0.05, 0.9), (1, -1), (1.142302495, -4.280722452)),
    (wsam(0.05, 0.9, decouple=False), (1, -1), (1.142302495, -4.280722452)),
    (ssam_f(0.05, sparsity=0.5), (1, -1), (1.0, -3.142302495)),
    (entropy_sgd(2, lr=0.1, gamma=0.01, noise=0.0), (1, -1), (0.066225, -0.183675)),
    # by hand: g = (1, -3); only b moves, by 0.05 downwards, so its gradient is 3 * -1.05
    (lsam(0.05, head="b"), (1, -1), (1.0, -3.15)),
    (every(5, sam(0.05)), (1, -1), (1.015811388, -3.142302495)),
]


@pytest.mark.parametrize(("r", "w", "expected"), GOLDEN, ids=[repr(r)[:60] for r, _, _ in GOLDEN])
def test_first_step_is_the_golden_number(r, w, expected):
    assert descent(r, point(*w)) == pytest.approx(expected, abs=1e-9)


def test_functional_sam_by_hand():
    # F = ab at (1, 2), so l' = F = 2, g = (4, 2), eps = (2, 1) / sqrt(20); descend along 2 (b + 1, a + 2) / sqrt(20)
    product = optim.LossOfOutputs(lambda w: w["a"] * w["b"], lambda out: out**2 / 2)
    w = {"a": torch.tensor(1.0, dtype=torch.float64), "b": torch.tensor(2.0, dtype=torch.float64)}
    g = sharpness_aware_gradient(functional_sam(0.5), product, w)
    assert [g["a"].item(), g["b"].item()] == pytest.approx([4 + 2 / 20**0.5, 2 + 4 / 20**0.5], rel=1e-14)


def test_functional_sam_leaves_the_gradient_of_a_linear_model_alone():
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    w = weights(model)
    plain = torch.func.grad(mean_loss_of(model, x, y))(w)
    for name, g in sharpness_aware_gradient(functional_sam(0.5), loss_of(model, x, y), w).items():
        torch.testing.assert_close(g, plain[name], rtol=1e-13, atol=1e-15)


def test_a_rule_that_needs_outputs_refuses_a_loss_without_them():
    with pytest.raises(TypeError, match="the loss function is no LossOfOutputs"):
        sharpness_aware_gradient(functional_sam(), quadratic, point(1, -1))


def run_sgd(r, steps, lr=0.1, momentum=0.0):
    w, v, memory, trace = point(1, -1), {}, Memory(), []
    for _ in range(steps):
        g = sharpness_aware_gradient(r, quadratic, w, memory)
        v = {n: momentum * v.get(n, 0) + g[n] for n in g}
        w = {n: w[n] - lr * v[n] for n in w}
        trace.append((torch.cat(list(g.values())).tolist(), torch.cat(list(w.values())).tolist()))
    return trace


def test_looksam_second_step_reuses_the_orthogonal_part():
    (_, w1), (g2, w2) = run_sgd(looksam(0.1, 5, 0.7), 2)
    assert w1 == pytest.approx((0.8968377223, -0.6715395011), abs=1e-9)
    assert g2 == pytest.approx((-0.5676026061, -2.502765279), abs=1e-8)
    assert w2 == pytest.approx((0.953597983, -0.4212629731), abs=1e-8)


def test_msam_second_and_third_step():
    _, (g2, w2), (g3, w3) = run_sgd(msam(0.3, 0.9), 3, momentum=0.9)
    assert g2 == pytest.approx((0.8051316702, -1.246185032), abs=1e-9)
    assert w2 == pytest.approx((0.729486833, -0.3053814968), abs=1e-9)
    assert g3 == pytest.approx((0.6104914939, -0.08997200034), abs=1e-9)
    assert w3 == pytest.approx((0.5149758333, 0.05877235607), abs=1e-9)


# rule, momentum of the base: gradient and weights of later steps (RULES-CHECKED section D)
LATER = [
    (friendly(0.1, 1.0, 0.9), 1, (0.8864253567, -1.716249195), (0.8081951867, -0.4999145815)),
    (friendly(0.1, 0.5, 0.9), 1, (0.9579032397, -2.25218749), (0.8010473984, -0.4463207521)),
    (vasso(0.1, 0.9), 1, (0.9362853145, -2.290290375), (0.803209191, -0.4425104644)),
    (vasso(0.1, 0.2), 1, (0.9298230789, -2.297828128), (0.8038554145, -0.4417566891)),
    (stale(0.05), 1, (0.9158113883, -2.242302495), None),
    (stale(0.05), 2, (0.8273240778, -1.5661737), None),
]


@pytest.mark.parametrize(("r", "step", "gradient", "w"), LATER, ids=[repr(r)[:40] for r, *_ in LATER])
def test_later_steps_are_the_golden_numbers(r, step, gradient, w):
    g, after = run_sgd(r, step + 1)[step]
    assert g == pytest.approx(gradient, abs=1e-8)  # VaSSO's official guard of 1e-7 moves the 9th digit
    assert w is None or after == pytest.approx(w, abs=1e-8)


def test_wsam_clips_both_gradients():
    w = [v - 0.1 * g for v, g in zip((1, -1), descent(wsam(0.05, 0.9, max_norm=1.0), point(1, -1)), strict=True)]
    assert w == pytest.approx((0.9761452514, -0.9025814934), abs=1e-6)  # torch's clip has a guard of 1e-6


def test_cr_sam_sees_the_second_difference_on_a_quartic():
    quartic = lambda w: quadratic(w) + 0.25 * sum((t**4).sum() for t in w.values())
    for start, expected in [((1, -1), (2.189754379, -4.576919293)), ((1, -2), (2.058422798, -15.58617228))]:
        g = sharpness_aware_gradient(cr_sam(0.1, 0.1, 0.01), quartic, point(*start))
        assert torch.cat(list(g.values())).tolist() == pytest.approx(expected, abs=1e-8)


def test_ae_sam_decides_by_the_running_mean_and_variance():
    w, memory, seen = point(1, -1), Memory(), []
    for _ in range(3):
        answer, asked = gradient_at(quadratic, w), []
        g = drive(ae_sam(10, sam(0.05)), w, memory, lambda r: asked.append(r) or answer(r)).gradient.dense()
        w = {n: w[n] - 0.1 * g[n] for n in w}
        seen.append((len(asked), memory["mean"], memory["variance"]))
    assert [passes for passes, _, _ in seen] == [2, 2, 1]
    assert [m for _, m, _ in seen] == pytest.approx([1, 1.403967781, 1.524313233], abs=1e-8)
    assert [v for _, _, v in seen] == pytest.approx([8.10004086, 8.611875513, 7.868000489], abs=1e-8)
    assert torch.cat(list(w.values())).tolist() == pytest.approx((0.7259183759, -0.3264046872), abs=1e-9)


def test_m_sharpness_by_hand():
    x = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)
    w = {"w": torch.tensor(2.0, dtype=torch.float64)}

    def loss(w, examples=slice(None)):
        return ((w["w"] - x[examples]) ** 3).mean()

    # parts (1, 3) and (5): gradients 3(1 + 1)/2 = 3 and 27, both uphill to the right: w~ = 2.1,
    # there 3(1.1^2 + 0.9^2)/2 = 3.03 and 3 * 2.9^2 = 25.23; weighted 2/3 and 1/3
    g = sharpness_aware_gradient(m_sharpness(2, sam(0.1)), loss, w, Memory(n=3))["w"]
    assert g.item() == pytest.approx(2 / 3 * 3.03 + 25.23 / 3, abs=1e-12)


def test_sam_on_picks_norm_layers_by_type_whatever_their_names():
    model = nn.ModuleDict(
        {"a": nn.Linear(2, 2), "downsample": nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)), "norm": nn.Linear(2, 2),
         "i": nn.InstanceNorm1d(2, affine=True), "g": nn.GroupNorm(1, 2), "l": nn.LayerNorm(2), "r": nn.RMSNorm(2)}
    )  # fmt: skip
    assert {name.rsplit(".", 1)[0] for name in bind(sam_on(), model).climb.on} == {"downsample.1", "i", "g", "l", "r"}
    with pytest.raises(ValueError, match="no parameters in modules of type"):
        bind(sam_on(), nn.Linear(1, 1))


def test_sam_on_by_hand():
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.GroupNorm(1, 1)).double()
    r = bind(sam_on(0.5), model)

    def loss(w):  # gradient (1, 1) in the linear layer, (3, 4) in the norm layer
        return w["0.weight"].sum() + 3 * w["1.weight"].sum() + 2 * w["1.bias"].sum() ** 2

    w = {
        "0.weight": torch.zeros(1, 2).double(),
        "1.weight": torch.zeros(1).double(),
        "1.bias": torch.ones(1).double(),
    }
    g = sharpness_aware_gradient(r, loss, w)
    assert g["1.bias"].item() == pytest.approx(4 * (1 + 0.5 * 4 / 5))
    assert torch.equal(g["0.weight"], torch.ones(1, 2).double())


def test_random_direction_by_closed_form():
    w = point(1, -1)
    z = tree.randn_like(Vector(w), seed=7)
    eps = (0.2 * tree.unit(z)).dense()
    expected = [1 + eps["a.weight"].item(), 3 * (-1 + eps["b.weight"].item())]
    assert descent(random(0.2, seed=7), w) == pytest.approx(expected, abs=1e-14)


EVERYTHING = ("0", "1", "3")
REDUCES = {
    "gsam alpha=0 is sam": (gsam(0.1, alpha=0.0), sam(0.1)),
    "gsam on the clean gradient, alpha=0, is plain": (gsam(0.1, alpha=0.0, descend="clean"), sam(0.0)),
    "gnp a=1 is sam": (gnp(0.1, a=1.0), sam(0.1)),
    "gnp a=0 is plain": (gnp(0.1, a=0.0), sam(0.0)),
    "lsam over everything is sam": (lsam(0.2, head=EVERYTHING), sam(0.2)),
    "looksam k=1 is sam": (looksam(0.1, k=1), sam(0.1)),
    "every 1 is the rule": (every(1, gsam(0.1)), gsam(0.1)),
    "m_sharpness over the whole batch is the rule": (m_sharpness(8, gsam(0.1)), gsam(0.1)),
    "gam with b1=1, gamma=0 is sam(r)": (gam(0.2, r=0.1, b1=1.0, gamma=0.0), sam(0.1)),
    "msam rho=0 is plain": (msam(0.0), sam(0.0)),
    "friendly sigma=0 is sam": (friendly(0.1, sigma=0.0), sam(0.1)),
    "vasso theta=1 is sam": (vasso(0.1, theta=1.0), sam(0.1)),
    "cr_sam without regularisers is sam": (cr_sam(0.1, gamma=0.0, beta=0.0), sam(0.1)),
    "stale rho=0 is plain": (stale(0.0), sam(0.0)),
    "sagm rho=0, alpha=0 is plain": (sagm(0.0, alpha=0.0), sam(0.0)),
    "stable rho=0 is plain": (stable(0.0), sam(0.0)),
    "ae_sam with an endless threshold is plain": (ae_sam(10, sam(0.1), low=1e9, high=1e9), sam(0.0)),
    "ae_sam with none is the rule": (ae_sam(10, gsam(0.1), low=-1e9, high=-1e9), gsam(0.1)),
    "wsam gamma=1/2 is sam": (wsam(0.1, gamma=0.5), sam(0.1)),
    "wsam gamma=0 is plain": (wsam(0.1, gamma=0.0), sam(0.0)),
    "wsam coupled is wsam decoupled, under plain SGD": (wsam(0.1, decouple=False), wsam(0.1)),
    "ssam_f sparsity=0 is sam": (ssam_f(0.1, sparsity=0.0), sam(0.1)),
    "ssam_d sparsity=0 is sam": (ssam_d(0.1, sparsity=0.0), sam(0.1)),
    "esam with all tensors and examples is sam": (esam(0.1, beta=1.0, gamma=1.0), sam(0.1)),
    "imb_sam with no rare class is plain": (imb_sam(0.1, tail=()), sam(0.0)),
    "imb_sam with rare classes alone, weight 1, is sam": (imb_sam(0.1, tail=range(3), weight=1.0), sam(0.1)),
    "entropy_sgd of one inner step is the gradient": (entropy_sgd(1, lr=1.0, average=0.0, noise=0.0), sam(0.0)),
    "lsam with a running mean is vasso on the head": (lsam(0.1, "3", theta=0.4), optim.on("3", vasso(0.1, 0.4))),
    "functional_sam on a linear head is lsam's learning rates": (
        optim.on("3", functional_sam(0.1)),
        lsam(0.1, head="3", effects="rates"),
    ),
    "ramp from and to rho is sam": (sam(ramp(0.1, steps=3, start=0.1)), sam(0.1)),
}


@pytest.mark.parametrize(("left", "right"), REDUCES.values(), ids=REDUCES)
def test_rule_reduces_to_another(left, right):
    model, x, y = problem()
    loss = loss_of(model, x, y)
    memories = Memory(labels=y), Memory(labels=y)
    w = weights(model)
    for _ in range(3):
        a = sharpness_aware_gradient(left, loss, w, memories[0])
        b = sharpness_aware_gradient(right, loss, w, memories[1])
        for name in w:
            torch.testing.assert_close(a[name], b[name], rtol=1e-13, atol=1e-15)
        w = {name: w[name] - 0.1 * b[name] for name in w}


@pytest.mark.parametrize(
    "r",
    [
        sam(0.0),
        asam(0.0),
        random(0.0),
        functional_sam(0.0),
        *(lsam(0.0, "3", e) for e in ("both", "weights", "rates")),
    ],
    ids=repr,
)
def test_rho_zero_is_the_plain_gradient_bit_for_bit(r):
    model, x, y = problem()
    loss, w = loss_of(model, x, y), weights(model)
    plain = torch.func.grad(mean_loss_of(model, x, y))(w)
    for name, g in sharpness_aware_gradient(r, loss, w).items():
        assert torch.equal(g, plain[name])


def requests(r, model, loss, labels, steps=2):
    """Every request of a rule's first steps, all made at the same weights."""
    w, seen = weights(model), []
    memory = Memory(labels=labels, groups=(Group(tuple(w), lr=0.1),))
    answer = gradient_at(loss, w)
    for _ in range(steps):
        drive(bind(r, model), w, memory, lambda request: seen.append(request) or answer(request))
    return w, seen


RADIUS = {"sam": 0.1, "lsam": 0.2, "sam_on": 0.3, "gsam": 0.1, "gnp": 0.1, "looksam": 0.1, "msam": 0.2,
          "random": 0.1, "m_sharpness": 0.1, "stable": 0.1, "cr_sam": 0.1, "stale": 0.1, "friendly": 0.1, "vasso": 0.1,
          "ae_sam": 0.1, "wsam": 0.1, "imb_sam": 0.1, "functional_sam": 0.1, "esam": 0.1 / 0.6}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_every_displacement_has_the_length_rho(name):
    model, x, y = problem()
    w, seen = requests(RULES[name], model, loss_of(model, x, y), y)
    moved = [request.eps for request in seen if len(request.eps)]
    assert moved
    if name in ("asam", "every"):  # measured by T^-1
        metric = asam(0.3).climb.metric
        ones = Vector({n: torch.ones_like(t) for n, t in w.items()})
        t = metric(Vector(w), ones).dense()
        lengths = [norm(Vector({n: e / t[n] for n, e in eps.dense().items()})).item() for eps in moved]
        assert lengths == pytest.approx([0.3] * len(lengths), rel=1e-12)
    elif name == "sagm":  # a step back by alpha g
        g = Vector(torch.func.grad(mean_loss_of(model, x, y))(w))
        assert [norm(eps + 0.02 * g).item() for eps in moved] == pytest.approx([0.1] * len(moved), rel=1e-12)
    elif name in ("ssam_f", "ssam_d"):  # SAM's step where the mask is, and nothing elsewhere
        g = (0.2 * tree.unit(Vector(torch.func.grad(mean_loss_of(model, x, y))(w)))).dense()
        d = sum(t.numel() for t in g.values())
        for eps in moved:
            kept = {n: e != 0 for n, e in eps.dense().items()}
            assert sum(int(k.sum()) for k in kept.values()) == d - int(0.4 * d)
            assert all(torch.equal(e, g[n] * kept[n]) for n, e in eps.dense().items())
    elif name == "entropy_sgd":  # the first inner step: lr g and noise of known size
        g = Vector(torch.func.grad(mean_loss_of(model, x, y))(w))
        noise = 1e-3 * math.sqrt(2 * 0.05) * tree.randn_like(Vector(w), seed=0)
        assert norm(moved[0] + 0.05 * g - noise).item() == pytest.approx(0, abs=1e-15)
    elif name == "gam":
        lengths = [norm(eps).item() for eps in moved[:2]] + [norm(moved[2] - moved[1]).item()]
        assert lengths == pytest.approx([0.05, 0.2, 0.05], rel=1e-12)
    else:
        assert [norm(eps).item() for eps in moved] == pytest.approx([RADIUS[name]] * len(moved), rel=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_stated_passes_are_the_passes_asked_for(name):
    model, x, y = problem()
    _, seen = requests(ALL[name], model, loss_of(model, x, y), y, steps=12)
    share = lambda request: len(y if request.examples is None else y[request.examples]) / 8
    cost = sum(share(request) / (3 if request.wrt == frozenset() else 1) for request in seen) / 12
    r = ALL[name]
    # ae_sam decides by the gradients it sees; here they stay as large as they were
    assert cost == pytest.approx(r.rule.passes if isinstance(r, ae_sam) else r.passes)


@pytest.mark.parametrize("name", ALL)
def test_zero_gradient_means_no_climb_and_no_nan(name):
    model, _, _ = problem()

    flat_loss = optim.LossOfOutputs(
        lambda w, examples=slice(None): torch.zeros(8)[examples] + sum((0.0 * t).sum() for t in w.values()),
        lambda out, examples=slice(None): out,
    )
    memory = Memory(labels=torch.arange(8) % 3, groups=(Group(tuple(weights(model)), lr=0.1),))
    r = bind(ALL[name], model)
    if name == "entropy_sgd":
        r = replace(r, noise=0.0)
    for _ in range(3):
        for g in sharpness_aware_gradient(r, flat_loss, weights(model), memory).values():
            assert torch.equal(g, torch.zeros_like(g))


@pytest.mark.parametrize("name", ALL)
def test_rules_run_inside_vmap_over_rho_and_equal_the_loop(name):
    model, x, y = problem()
    loss, w = loss_of(model, x, y), weights(model)
    template = bind(ALL[name], model)
    at = lambda rho: replace(template, lr=rho) if name == "entropy_sgd" else with_rho(template, rho)
    smallest = 0.02 if "esam" in name else 0.0  # at 0 no loss rises, and rounding would rank the examples
    rhos = torch.tensor([smallest, 0.1, 0.5], dtype=torch.float64)
    gradient = lambda rho: sharpness_aware_gradient(at(rho), loss, w, Memory(labels=y))
    together = torch.vmap(gradient, randomness="same")(rhos)
    for i, rho in enumerate(rhos):
        for key, g in gradient(rho).items():
            torch.testing.assert_close(together[key][i], g, rtol=1e-11, atol=1e-12)


def test_asam_scales_what_it_is_told_to():
    w = {"conv.weight": torch.full((2, 2), 2.0), "bn.weight": torch.full((2,), 2.0), "bn.bias": torch.full((2,), 2.0)}
    ones = Vector({n: torch.ones_like(t) for n, t in w.items()})
    factors = lambda scaled: {n: t.mean().item() for n, t in asam(eta=0.5, scaled=scaled).climb.metric(Vector(w), ones).dense().items()}  # fmt: skip
    assert factors("weights") == {"conv.weight": 2.5, "bn.weight": 2.5, "bn.bias": 1.0}
    assert factors("matrices") == {"conv.weight": 2.5, "bn.weight": 1.0, "bn.bias": 1.0}
    assert factors("all") == {"conv.weight": 2.5, "bn.weight": 2.5, "bn.bias": 2.5}


def test_asam_is_unchanged_when_one_layer_is_scaled_up_and_the_next_down():
    torch.manual_seed(0)
    w = {"a.weight": torch.randn(4, 3).double(), "b.weight": torch.randn(1, 4).double()}
    x = torch.randn(10, 3).double()
    loss = lambda w: (w["b.weight"] @ (w["a.weight"] @ x.T).relu()).square().mean()
    other = {"a.weight": 7 * w["a.weight"], "b.weight": w["b.weight"] / 7}
    r = asam(0.5, eta=0.0)
    g, h = sharpness_aware_gradient(r, loss, w), sharpness_aware_gradient(r, loss, other)
    torch.testing.assert_close(h["a.weight"] * 7, g["a.weight"])
    assert not torch.allclose(sharpness_aware_gradient(sam(0.5), loss, other)["a.weight"] * 7,
                              sharpness_aware_gradient(sam(0.5), loss, w)["a.weight"])  # fmt: skip


def test_schedules():
    assert [inverse_sqrt(0.2)(t, None) for t in (0, 3)] == [0.2, 0.1]
    assert tied(0.6, 0.1, lr_max=3e-3, lr_min=3e-5)(0, 0.0) == 0.1  # official code: 0.0949
    assert tied(0.6, 0.1, lr_max=1.0)(0, 1.0) == pytest.approx(0.6)
    assert tied(0.6, 0.1, lr_max=1.0, lr_min=1.0)(0, 0.3) == 0.6
    memory = Memory(step=3)
    assert memory.radius(inverse_sqrt(0.2)) == 0.1
    memory.groups = (Group(("a",), lr=1.0), Group(("b",), lr=0.5, rho=0.7))
    assert memory.radius(tied(0.6, 0.1, lr_max=1.0)) == {"a": pytest.approx(0.6), "b": 0.7}


# The rules, and what they are made of, by one record of each kind: their fields declare what they may be.
RECORDS = {type(record).__name__: record for record in
           (*(make() for make in optim.RULES.values()), asam().climb.metric, inverse_sqrt(0.1), ramp(0.1, 5), tied(0.2, 0.1, 1.0))}  # fmt: skip
RANGES = [(name, field) for name, record in RECORDS.items() for field in declared_ranges(type(record))]


@pytest.mark.parametrize(("name", "field"), RANGES, ids=map(".".join, RANGES))
def test_values_outside_the_declared_range_are_refused(name, field):
    record = RECORDS[name]
    owner = {"Magnitude": "asam"}.get(name, name)
    for value in declared_ranges(type(record))[field].outside():
        with pytest.raises(ValueError, match=rf"^{owner}: {field} must be .*, got {re.escape(repr(value))}\.$"):
            replace(record, **{field: value})


def test_every_radius_and_every_count_is_declared():
    limited = {"rho", "k", "m", "steps", "every", "inner"}
    for name, record in RECORDS.items():
        assert {(name, f.name) for f in fields(record) if f.name in limited} <= set(RANGES)


BAD = [
    (lambda: asam(scaled="biases"), "asam: scaled must be 'weights' or 'matrices' or 'all', got 'biases'"),
    (lambda: gsam(descend="up"), "gsam: descend must be 'perturbed' or 'clean', got 'up'"),
    (lambda: gnp(clean="x"), "gnp: clean must be 'gradient' or 'unit', got 'x'"),
    (lambda: gam(clean_weight="b1"), "gam: clean_weight must be 'b0' or 'one', got 'b1'"),
    (lambda: wsam(decouple=1), "wsam: decouple must be true or false, got 1"),
    (lambda: tied(0.1, 0.1, lr_max=0.1, lr_min=0.2), "tied: lr_max must be at least lr_min = 0.2, got 0.1"),
    (lambda: tied(0.1, 0.1, 0.1)(0, None), "tied: the radius follows a learning rate"),
    (lambda: rule("looksm"), "no rule is named 'looksm'; did you mean 'looksam'"),
    (lambda: sharpness_aware_gradient(lsam(), quadratic, point(1, 1)), "got only the names a.weight, b.weight; .* head="),
    (lambda: sharpness_aware_gradient(lsam(head="c"), quadratic, point(1, 1)), "no parameter is named or lies below 'c'"),
    (lambda: sharpness_aware_gradient(m_sharpness(1), quadratic, point(1, 1)), "m_sharpness needs to know the size"),
    (lambda: bind(lsam(), nn.Conv2d(1, 1, 1)), "Conv2d has no Linear layer to take as its head"),
    (lambda: optim.on("x", optim.At()), "At climbs nowhere"),
    (lambda: bind(sam, nn.Linear(1, 1)), r"rule must be a rule such as samphire.sam\(rho=0.05\), got <class"),
    (lambda: bind(every(2, sam), nn.Linear(1, 1)), r"rule must be a rule such as samphire.sam\(rho=0.05\), got <class"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), BAD, ids=[m[:40] for _, m in BAD])
def test_bad_settings_are_refused_in_one_sentence(build, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_a_rule_is_one_file_and_is_in_every_table():
    folder = Path(optim.rules.__file__).parent
    assert {p.stem for p in folder.glob("*.py")} == {"__init__", *optim.RULES}
    assert set(RULES) == set(optim.RULES)
    for name, make in optim.RULES.items():
        assert make.__module__ == f"samphire.optim.rules.{name}"
        assert getattr(samphire, name) is getattr(optim, name) is make
        assert name in samphire.__all__
        assert name in optim.__all__
