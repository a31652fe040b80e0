"""Surrogate-gap SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from samphire.checks import AtLeastZero, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector, project

__all__ = ["gsam"]


@dataclass(frozen=True)
class gsam:
    r"""Surrogate-gap SAM: also reduce the gap between perturbed and clean loss.  Two passes.

    .. math:: \text{descend along } g_p - \alpha\,(g - \mathrm{proj}_{g_p} g), \qquad g_p = \nabla L(w + \rho \hat g).

    With ``alpha=0`` this is SAM. The published radius follows the learning rate: ``rho=tied(0.6, 0.1, lr_max)``.

    Args:
        rho: Length of the step uphill.
        alpha: Weight of the orthogonal part.
        descend: ``"perturbed"`` as above; ``"clean"`` is big_vision's other mode,
            :math:`g + \alpha\,(g_p - \mathrm{proj}_g g_p)`.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(gsam(rho=0.05, alpha=0.4), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0049, -3.1458])}

    References:
        Zhuang et al., Surrogate Gap Minimization Improves Sharpness-Aware Training, ICLR 2022,
        https://arxiv.org/abs/2203.08065
    """

    rho: Rho = 0.05
    alpha: AtLeastZero = 0.4
    descend: Literal["perturbed", "clean"] = "perturbed"
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "gsam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        if self.descend == "clean":
            return g + self.alpha * (g_p - project(g_p, onto=g))
        return g_p - self.alpha * (g - project(g, onto=g_p))
