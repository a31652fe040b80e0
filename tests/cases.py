"""The tables that tests run over. A rule that is not here is not in the library (test_rules checks)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samphire import optim
from samphire.optim import (
    ae_sam,
    asam,
    cr_sam,
    every,
    friendly,
    gam,
    gnp,
    gsam,
    looksam,
    lsam,
    m_sharpness,
    msam,
    random,
    sagm,
    sam,
    sam_on,
    stable,
    stale,
    vasso,
)

RULES: dict[str, Any] = {
    "sam": sam(0.1),
    "asam": asam(0.3),
    "lsam": lsam(0.2),
    "sam_on": sam_on(0.3),
    "gsam": gsam(0.1, alpha=0.4),
    "gnp": gnp(0.1, a=0.7),
    "looksam": looksam(0.1, k=3, alpha=0.5),
    "msam": msam(0.2, mu=0.8),
    "gam": gam(0.2, r=0.05),
    "random": random(0.1),
    "sagm": sagm(0.1, alpha=0.02),
    "stable": stable(0.1),
    "cr_sam": cr_sam(0.1, gamma=0.3, beta=0.1),
    "stale": stale(0.1),
    "friendly": friendly(0.1, sigma=0.7, lam=0.8),
    "vasso": vasso(0.1, theta=0.4),
    "m_sharpness": m_sharpness(4, sam(0.1)),
    "every": every(2, asam(0.3)),
    "ae_sam": ae_sam(10, gsam(0.1)),
}
# Combinations that no factory has by itself.
HYBRIDS: dict[str, Any] = {
    "gsam on the head": optim.on("3", gsam(0.1)),
    "every gsam on norm layers": every(2, optim.on(optim.of_type(optim.scopes.NORM_LAYERS), gsam(0.1))),
    "m_sharpness of looksam": m_sharpness(4, looksam(0.1, k=2)),
    "msam on the head": optim.on("3", msam(0.2)),
    "sam, rho decaying": sam(optim.inverse_sqrt(0.2)),
    "gsam, rho tied": gsam(optim.tied(0.2, 0.05, lr_max=0.1), 0.4),
}
ALL = RULES | HYBRIDS


def problem(seed: int = 0, n: int = 8) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A small smooth classifier in float64 with a norm layer, and a batch."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()
    return model, torch.randn(n, 5, dtype=torch.float64), torch.randint(3, (n,))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    """The loss as a pure function of the weights and of the examples that take part."""

    def loss(w: dict[str, Tensor], examples: Any = slice(None)) -> Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, w, (x[examples],)), y[examples])

    return loss


def closure_of(opt: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    """The same as a closure for an optimizer."""

    def closure(p: Any) -> Tensor:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[p.examples]), y[p.examples])
        loss.backward()
        return loss

    return closure


every_rule = pytest.mark.parametrize("r", ALL.values(), ids=ALL)


def sgd(model: nn.Module, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})


def reference_run(
    r: Any, model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float = 0.1, momentum: float = 0.9
) -> dict[str, Tensor]:
    """SGD with momentum on the reference gradient: an independent loop over {name: tensor}."""
    r, loss, w, v = optim.bind(r, model), loss_of(model, x, y), weights(model), {}
    memory = optim.Memory(n=len(x), groups=(optim.protocol.Group(tuple(w), lr=lr),))
    for _ in range(steps):
        g = optim.sharpness_aware_gradient(r, loss, w, memory)
        v = {n: momentum * v.get(n, 0) + g[n] for n in w}
        w = {n: w[n] - lr * v[n] for n in w}
    return w


def assert_weights(model: nn.Module, expected: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=tolerance)
