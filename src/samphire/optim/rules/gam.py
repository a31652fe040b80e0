"""Gradient-norm-aware minimization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from samphire.checks import AtLeastZero, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector, project

__all__ = ["gam"]


@dataclass(frozen=True)
class gam:
    r"""Gradient-norm-aware minimization, accelerated form.  Four passes.

    .. math::
        g_1 &= \nabla L(w + r\,\hat g_0),\quad d = \rho\,\widehat{g_1 - g_0},\quad g_2 = \nabla L(w + d),\quad
        g_3 = \nabla L(w + d + r\,\hat g_2) \\
        m &= b_0 g_0 + |1-b_0|\, g_2,\quad p = b_1 g_1 + (1-b_1)\, g_3,\quad
        \text{descend along } p - \gamma\,(m - \mathrm{proj}_p m).

    Args:
        rho: Length of the step toward larger gradient norm.
        r: Length of the steps uphill. The defaults are those for ResNets on CIFAR-100.
        b0: Share of the clean gradient in m.
        b1: Share of :math:`g_1` in p.
        gamma: Weight of the part of m orthogonal to p.
        clean_weight: ``"b0"`` as above; ``"one"`` gives :math:`g_0` weight 1, as the released code does.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(gam(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0149, -3.2957])}

    References:
        Zhang et al., Gradient Norm Aware Minimization Seeks First-Order Flatness, CVPR 2023,
        https://arxiv.org/abs/2303.03108
    """

    rho: Rho = 0.2
    r: AtLeastZero = 0.02
    b0: float = 0.5
    b1: float = 0.6
    gamma: float = 0.03
    clean_weight: Literal["b0", "one"] = "b0"
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 4.0

    def __post_init__(self) -> None:
        check_fields(self, "gam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        rho = memory.radius(self.rho)
        g0 = yield At()
        g1 = yield At(self.climb(w, self.r, g0))
        up = self.climb(w, rho, g1 - g0)  # toward larger gradient norm
        g2 = yield At(up)
        g3 = yield At(up + self.climb(w, self.r, g2))
        b = 1.0 if self.clean_weight == "one" else self.b0
        m = b * g0 + abs(1 - self.b0) * g2
        p = self.b1 * g1 + (1 - self.b1) * g3
        return p - self.gamma * (m - project(m, onto=p))
