"""Stable SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector, norm, unit

__all__ = ["stable"]


@dataclass(frozen=True)
class stable:
    r"""Stable SAM: SAM's gradient, rescaled to the length of the clean one.  Two passes.

    .. math:: \text{descend along } \frac{\|g\|}{\|g_p\|}\, g_p, \qquad g_p = \nabla L(w + \rho\, g/\|g\|).

    Training stays as stable as SGD's at the same learning rate, so larger rho can be used.

    Args:
        rho: Length of the step uphill.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(stable(rho=0.05), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 0.9727, -3.0090])}

    References:
        Tan et al., Stable Sharpness-Aware Minimization, JMLR 2025, https://arxiv.org/abs/2401.07250
    """

    rho: Rho = 0.05
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "stable")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        return norm(g) * unit(g_p)
