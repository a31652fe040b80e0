"""Gradient-norm penalty."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from samphire.checks import Fraction, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector, unit

__all__ = ["gnp"]


@dataclass(frozen=True)
class gnp:
    r"""Gradient-norm penalty: minimize the loss plus a multiple of its gradient's norm.  Two passes.

    .. math:: L + \lambda \|\nabla L\|: \qquad \text{descend along } (1-a)\, g + a\, \nabla L(w + \rho g/\|g\|),
              \quad a = \lambda/\rho.

    With ``a=1`` this is SAM.

    Args:
        rho: Step of the finite difference (the paper's r).
        a: Weight of the perturbed gradient.
        clean: ``"gradient"`` as above; ``"unit"`` uses ``g/|g|`` in the first term, which is what the
            released code does by default.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(gnp(rho=0.1, a=0.8), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0253, -3.2277])}

    References:
        Zhao et al., Penalizing Gradient Norm for Efficiently Improving Generalization in Deep Learning,
        ICML 2022, https://arxiv.org/abs/2202.03599
    """

    rho: Rho = 0.1
    a: Fraction = 0.8
    clean: Literal["gradient", "unit"] = "gradient"
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "gnp")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        if self.a == 1:
            return g_p
        return (1 - self.a) * (unit(g) if self.clean == "unit" else g) + self.a * g_p
