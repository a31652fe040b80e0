"""The tables that tests run over. A rule that is not here is not in the library (test_rules checks)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samphire import optim
from samphire.optim import (
    ae_sam,
    asam,
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
    looksam,
    lsam,
    m_sharpness,
    msam,
    random,
    sagm,
    sam,
    sam_on,
    ssam_d,
    ssam_f,
    stable,
    stale,
    vasso,
    wsam,
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
    "wsam": wsam(0.1, gamma=0.6),
    "ssam_f": ssam_f(0.2, sparsity=0.4, every=2),
    "ssam_d": ssam_d(0.2, sparsity=0.4, every=2, steps=4),
    "esam": esam(0.1, beta=0.6, gamma=0.5),
    "imb_sam": imb_sam(0.1, tail=[2], weight=1.5),
    "functional_sam": functional_sam(0.1),
    "entropy_sgd": entropy_sgd(inner=3, lr=0.05, gamma=0.1, noise=1e-3),
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
    "esam on the last two blocks": optim.on(optim.last(2), esam(0.1)),
    "ssam_d on the head": optim.on("3", ssam_d(0.2)),
    "every wsam": every(2, wsam(0.1)),
    "ae_sam of esam": ae_sam(10, esam(0.1)),
    "asam's metric, gsam's merge": replace(gsam(0.1), climb=asam(0.3).climb),
    "lsam, radius by the head": lsam(0.05, radius="head"),
    "lsam, running mean": lsam(0.2, theta=0.3),
    "lsam, weights only": lsam(0.2, effects="weights"),
    "lsam, rates only": lsam(0.2, effects="rates"),
    "m_sharpness of functional_sam": m_sharpness(4, functional_sam(0.1)),
    "sam, rho decaying": sam(optim.inverse_sqrt(0.2)),
    "gsam, rho tied": gsam(optim.tied(0.2, 0.05, lr_max=0.1), 0.4),
}
ALL = RULES | HYBRIDS


def problem(seed: int = 0, n: int = 8) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A small smooth classifier in float64 with a norm layer, and a batch."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed notes the whole stack for each kind of GPU
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()
    return model, torch.randn(n, 5, dtype=torch.float64), torch.randint(3, (n,))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    """The losses of the examples that take part, as a pure function of the weights."""
    return optim.LossOfOutputs(
        lambda w, examples=slice(None): torch.func.functional_call(model, w, (x[examples],)),
        lambda out, examples=slice(None): nn.functional.cross_entropy(out, y[examples], reduction="none"),
    )


def mean_loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    """The loss of the batch, as a pure function of the weights."""
    losses = loss_of(model, x, y)
    return lambda w: losses(w).mean()


def backward(p: Any, out: Tensor, y: Tensor, share: float = 1.0) -> None:
    """Backward by the loop's own hand, except for rules that ask for the losses of the examples or the outputs."""
    losses = share * nn.functional.cross_entropy(out, y, reduction="none")
    if p.per_example or p.with_outputs:
        p.backward(losses, out)
    else:
        losses.mean().backward()
        p.loss = losses.mean().detach() + (0 if p.loss is None else p.loss)


def closure_of(opt: torch.optim.Optimizer, model: nn.Module, x: Tensor, y: Tensor) -> Callable[..., Tensor]:
    """The same as a closure for an optimizer."""

    def closure(p: Any) -> Tensor:
        opt.zero_grad()
        out = model(x[p.examples])
        losses = nn.functional.cross_entropy(out, y[p.examples], reduction="none")
        p.backward(losses, out)
        return losses.mean()

    return closure


every_rule = pytest.mark.parametrize("r", ALL.values(), ids=ALL)


def sgd(model: nn.Module, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings})


def reference_run(
    r: Any, model: nn.Module, x: Tensor, y: Tensor, steps: int, lr: float = 0.1, momentum: float = 0.9
) -> dict[str, Tensor]:
    """SGD with momentum on the reference gradient: an independent loop over {name: tensor}."""
    r, loss, w, v = optim.bind(r, model), loss_of(model, x, y), weights(model), {}
    memory = optim.Memory(labels=y, groups=(optim.requests.Group(tuple(w), lr=lr),))
    for _ in range(steps):
        descent = optim.requests.drive(r, w, memory, optim.requests.gradient_at(loss, w))
        g, directly = descent.gradient.dense(), descent.directly.dense()
        v = {n: momentum * v.get(n, 0) + g.get(n, 0) for n in w}
        w = {n: w[n] - lr * (v[n] + directly.get(n, 0)) for n in w}
    return w


def assert_weights(model: nn.Module, expected: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], rtol=0, atol=tolerance)
