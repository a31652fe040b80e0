"""LookSAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import AtLeastZero, Count, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector, norm, project, unit

__all__ = ["looksam"]


@dataclass(frozen=True)
class looksam:
    r"""LookSAM: a SAM step every k-th step, its slowly changing part reused in between.  1 + 1/k passes.

    .. math::
        t \bmod k = 0:&\quad \text{descend along } g_p,\quad g_v = g_p - \mathrm{proj}_g\, g_p \\
        \text{else}:&\quad \text{descend along } g + \alpha\, \frac{\|g\|}{\|g_v\|}\, g_v.

    Args:
        rho: Length of the step uphill.
        k: Steps between two SAM steps; ``k=1`` is SAM.
        alpha: Weight of the reused part.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(looksam(rho=0.1), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0316, -3.2846])}

    References:
        Liu et al., Towards Efficient and Scalable Sharpness-Aware Minimization, CVPR 2022,
        https://arxiv.org/abs/2203.02714

    Differences:
        None from the paper. The ports in rollovd/LookSAM and pytorch-optimizer project tensor by tensor,
        which turns one-element tensors into plain SGD.
    """

    rho: Rho = 0.05
    k: Count = 5
    alpha: AtLeastZero = 0.7
    _: KW_ONLY
    climb: Climb = EVERYWHERE

    def __post_init__(self) -> None:
        check_fields(self, "looksam")

    @property
    def passes(self) -> float:
        return 1 + 1 / self.k

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        if memory.step % self.k:
            return g + (self.alpha * norm(g)) * unit(memory["v"].only(set(g)))  # a layer frozen since stays so
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        memory["v"] = g_p - project(g_p, onto=g)
        return g_p
