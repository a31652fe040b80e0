"""Runs of any module under any rule, as one computation: against the reference and torch's optimizers, run by run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from samphire.models import mlp
from samphire.optim import SharpnessAware
from samphire.optim.batched import ModuleRuns, stacked
from samphire.optim.requests import Memory, bind, sharpness_aware_gradient, with_rho
from samphire.optim.rules import ae_sam, asam, entropy_sgd, every, gsam, looksam, lsam, m_sharpness, sam, ssam_f, wsam

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


RULES = {
    "none": None,
    "sam": sam(0.1),
    "asam": asam(0.3),
    "gsam": gsam(0.1, 0.4),
    "lsam": lsam(0.2),
    "looksam": looksam(0.1, k=2),
    "every": every(2, sam(0.1)),
    "m_sharpness": m_sharpness(2, sam(0.1)),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_module_runs_are_the_reference_run_by_run(rule: Any) -> None:
    radii, rates = (0.05, 0.4, 0.2), (0.1, 0.2, 0.3)
    nets = [mlp((4, 5, 3), torch.Generator().manual_seed(s)).double() for s in range(3)]
    w = [dict(net.named_parameters()) for net in nets]
    runs = ModuleRuns(
        nets[0], F.cross_entropy, rule, stacked(w, DOUBLE), torch.tensor(rates, dtype=DOUBLE),
        None if rule is None else torch.tensor(radii, dtype=DOUBLE),
    )  # fmt: skip
    memories = [Memory(n=6) for _ in nets]
    for step in range(5):
        x, y = normal(3, 6, 4, seed=step), torch.arange(18).view(3, 6) % 3
        runs.step(x, y)
        for r, net in enumerate(nets):

            def loss(w: Any, part: Any = slice(None), net: Any = net, x: Any = x[r], y: Any = y[r]) -> Tensor:
                return F.cross_entropy(torch.func.functional_call(net, w, (x[part],)), y[part])

            if rule is None:
                g = torch.func.grad(loss)(w[r])
            else:
                g = sharpness_aware_gradient(with_rho(bind(rule, net), radii[r]), loss, w[r], memories[r])
            w[r] = {name: (t - rates[r] * g[name]).detach() for name, t in w[r].items()}
    for r in range(3):
        for name, t in w[r].items():
            torch.testing.assert_close(runs.weights[name][r], t, rtol=0, atol=1e-13)


BASES = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": torch.optim.Adam,
    "adamw": partial(torch.optim.AdamW, weight_decay=0.1, betas=(0.8, 0.95)),
    "fused adam": partial(torch.optim.Adam, fused=True),
}
AROUND_BASES = {
    **{name: RULES[name] for name in ("none", "sam", "gsam", "looksam", "m_sharpness")},
    "wsam": wsam(0.1, gamma=0.6),  # a part of its step goes past the base
    "ssam_f": ssam_f(0.2, sparsity=0.4, every=2),
    "entropy_sgd": entropy_sgd(inner=3, lr=0.05, gamma=0.1, noise=1e-3),
    "ae_sam": ae_sam(10, sam(0.1)),  # it branches, so its runs cannot step together
    "every ae_sam": every(2, ae_sam(10, sam(0.1))),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's, for masks; fit_many hides it
@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("rule", AROUND_BASES.values(), ids=AROUND_BASES)
def test_module_runs_have_torchs_optimizers_as_their_base(rule: Any, base: Any) -> None:
    rates = (0.1, 0.02, 0.02)  # two stretches of equal rates
    nets = [mlp((4, 5, 3), torch.Generator().manual_seed(s)).double() for s in range(3)]
    start = stacked([dict(net.named_parameters()) for net in nets], DOUBLE)
    before = {name: t.clone() for name, t in start.items()}
    loss = partial(F.cross_entropy, reduction="none")
    rate = torch.tensor(rates, dtype=DOUBLE)
    mean_loss = F.cross_entropy if rule is None else loss
    runs = ModuleRuns(nets[0], mean_loss, rule, start, rate, base=base)
    steppers = [base(net.parameters(), lr=lr) for net, lr in zip(nets, rates, strict=True)]
    if rule is not None:
        steppers = [SharpnessAware(net, opt, rule) for net, opt in zip(nets, steppers, strict=True)]
    for step in range(5):
        x, y = normal(3, 6, 4, seed=step), torch.arange(18).view(3, 6) % 3
        runs.step(x, y)
        for r, (net, opt) in enumerate(zip(nets, steppers, strict=True)):
            if rule is None:
                opt.zero_grad()
                F.cross_entropy(net(x[r]), y[r]).backward()
            else:
                for p in opt.passes(n=6):
                    p.backward(loss(out := net(x[r][p.examples]), y[r][p.examples]), out)
            opt.step()
    for r, net in enumerate(nets):
        for name, t in net.state_dict().items():
            torch.testing.assert_close(runs.weights[name][r], t, rtol=0, atol=1e-12)
            assert (t - before[name][r]).abs().max() > 1e-4
    assert all(torch.equal(start[name], before[name]) for name in start)  # the caller's weights are not written to
