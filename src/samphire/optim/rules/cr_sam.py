"""Curvature-regularized SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import AtLeastZero, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["cr_sam"]


@dataclass(frozen=True)
class cr_sam:
    r"""Curvature-regularized SAM: a finite difference keeps the curvature along the climb small.  Three passes.

    .. math:: g_\pm = \nabla L(w \pm \rho\, g/\|g\|), \qquad
              \text{descend along } g_+ + \gamma\,(g_+ + g_- - 2 g) + \beta\,(g_+ - g_-).

    Args:
        rho: Length of the step uphill, and of the one downhill.
        gamma: Weight of the second difference.
        beta: Weight of the first difference.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(cr_sam(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0323, -3.2903])}

    References:
        Wu, Luo, Wunsch, CR-SAM: Curvature Regularized Sharpness-Aware Minimization, AAAI 2024,
        https://arxiv.org/abs/2312.13555

    Differences:
        As in the released code; the paper's regularizer has logarithms, which would divide the two brackets.
    """

    rho: Rho = 0.1
    gamma: AtLeastZero = 0.1
    beta: AtLeastZero = 0.01
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 3.0

    def __post_init__(self) -> None:
        check_fields(self, "cr_sam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        eps = self.climb(w, memory.radius(self.rho), g)
        up = yield At(eps)
        down = yield At(-eps)
        return up + self.gamma * (up + down - 2 * g) + self.beta * (up - down)
