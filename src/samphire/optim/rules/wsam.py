"""WSAM: weighted sharpness."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import BelowOne, Positive, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Descent, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector, norm, unit

__all__ = ["wsam"]


@dataclass(frozen=True)
class wsam:
    r"""WSAM: sharpness as a regularizer with its own weight.  Two passes.

    .. math:: L + \frac{\gamma}{1-\gamma}\, (L_p - L): \qquad
              \text{base step along } g, \text{ then } w \leftarrow w - \eta\, \tfrac{\gamma}{1-\gamma}\, (g_p - g).

    With ``gamma=0.5`` and plain SGD this is SAM; 0 is the base optimizer.

    Args:
        rho: Length of the step uphill.
        gamma: Weight of the sharpness; 0.9 multiplies it by 9.
        decouple: Apply the sharpness after the base optimizer, without its momentum and preconditioner, as
            published; ``False`` sends the sum through it.
        max_norm: Clip both gradients to this length, as the released code does. (The optimizer's own ``clip_norm``
            would clip the base step alone.)

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(wsam(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.1423, -4.2807])}

    References:
        Yue et al., Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization Term, KDD 2023,
        https://arxiv.org/abs/2305.15817

    Differences:
        pytorch-optimizer clips the perturbed gradient alone, so that its step can go uphill.
    """

    rho: Rho = 0.05
    gamma: BelowOne = 0.9
    decouple: bool = True
    max_norm: Positive | None = None
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "wsam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        g, g_p = self._clipped(g), self._clipped(g_p)
        sharpness = self.gamma / (1 - self.gamma) * (g_p - g)
        return Descent(g, sharpness) if self.decouple else g + sharpness

    def _clipped(self, g: Vector) -> Vector:
        return g if self.max_norm is None else norm(g).clamp(max=self.max_norm) * unit(g)
