"""Sharpness-aware gradient matching."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import AtLeastZero, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["sagm"]


@dataclass(frozen=True)
class sagm:
    r"""Sharpness-aware gradient matching: clean loss and perturbed loss with matched gradients.  Two passes.

    .. math:: \text{descend along } \tfrac12 (g + g_p), \qquad g_p = \nabla L(w + \rho\, g/\|g\| - \alpha g).

    Args:
        rho: Length of the step uphill.
        alpha: Step back downhill; 0.001 on PACS and VLCS, 0.0005 on OfficeHome.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(sagm(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0074, -3.0667])}

    References:
        Wang et al., Sharpness-Aware Gradient Matching for Domain Generalization, CVPR 2023,
        https://arxiv.org/abs/2303.10353

    Differences:
        The mean of the two gradients, as in the released code; the paper writes their sum, which is twice the
        learning rate.
    """

    rho: Rho = 0.05
    alpha: AtLeastZero = 1e-3
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "sagm")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g) - self.alpha * g)
        return 0.5 * (g + g_p)
