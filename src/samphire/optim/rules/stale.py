"""Single-step SAM (S²-SAM)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["stale"]


@dataclass(frozen=True)
class stale:
    r"""S²-SAM: the last step's gradient gives the direction of the climb.  One pass.

    .. math:: g_t = \nabla L_t(w_t + \rho\, g_{t-1}/\|g_{t-1}\|), \qquad \text{descend along } g_t.

    The first step is clean. The only pass of a step is the displaced one, so its loss is what ``step`` returns and
    BatchNorm sees.

    Args:
        rho: Length of the step uphill.

    Example:
        >>> memory, w = Memory(), {"w": torch.tensor([1.0, -1.0])}
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(stale(), loss, w, memory)
        {'w': tensor([ 1., -3.])}
        >>> sharpness_aware_gradient(stale(), loss, {"w": torch.tensor([0.9, -0.7])}, memory)
        {'w': tensor([ 0.9158, -2.2423])}

    References:
        Single-step Sharpness-Aware Minimization for sparse training (S²-SAM), NeurIPS 2024,
        https://openreview.net/forum?id=MJgMMqMDu4

    Differences:
        None from the formula. The released code looks at ``p.grad`` before the backward pass, so with gradients set
        to None it is plain SGD; here the gradient is kept in the rule's memory.
    """

    rho: Rho = 0.05
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "stale")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        last = memory.get("last", Vector())
        memory["last"] = yield At(self.climb(w, memory.radius(self.rho), last))
        return memory["last"]
