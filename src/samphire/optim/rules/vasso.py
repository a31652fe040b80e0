"""VaSSO: variance-suppressed SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import Fraction, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["vasso"]


@dataclass(frozen=True)
class vasso:
    r"""VaSSO: a steadier direction of climb, by a running mean of the gradients.  Two passes.

    .. math:: d \leftarrow (1-\theta)\, d + \theta\, g, \qquad \epsilon = \rho\, d/\|d\|.

    Args:
        rho: Length of the step uphill.
        theta: Weight of the new gradient (not of the old mean); 1 is SAM. The mean starts as the first gradient.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(vasso(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0316, -3.2846])}

    References:
        Li and Giannakis, Enhancing Sharpness-Aware Optimization Through Variance Suppression, NeurIPS 2023,
        https://arxiv.org/abs/2309.15639
    """

    rho: Rho = 0.1
    theta: Fraction = 0.9
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "vasso")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        d = memory.get("d")
        memory["d"] = g if d is None else (1 - self.theta) * d + self.theta * g
        return (yield At(self.climb(w, memory.radius(self.rho), memory["d"])))
