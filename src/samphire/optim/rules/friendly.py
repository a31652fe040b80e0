"""Friendly SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import Fraction, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["friendly"]


@dataclass(frozen=True)
class friendly:
    r"""Friendly SAM: climb along the gradient minus an estimate of the full-batch gradient.  Two passes.

    .. math:: \epsilon = \rho\, \widehat{(g - \sigma m)}, \qquad m \leftarrow \lambda m + (1-\lambda)\, g.

    Args:
        rho: Length of the step.
        sigma: How much of the mean is taken out; 0 is SAM.
        lam: Decay of the mean, which starts as the first gradient.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(friendly(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0316, -3.2846])}

    References:
        Li et al., Friendly Sharpness-Aware Minimization, CVPR 2024, https://arxiv.org/abs/2403.12350

    Differences:
        The mean taken out is the one before this batch, as in the released code; the paper's line has the one after,
        which for ``sigma=1`` is the same direction.
    """

    rho: Rho = 0.1
    sigma: float = 1.0
    lam: Fraction = 0.9
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "friendly")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        m = memory.get("m")
        memory["m"] = g if m is None else self.lam * m + (1 - self.lam) * g
        own = g if m is None else g - self.sigma * m
        return (yield At(self.climb(w, memory.radius(self.rho), own)))
