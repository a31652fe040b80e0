"""Momentum-SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import BelowOne, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["msam"]


@dataclass(frozen=True)
class msam:
    r"""Momentum-SAM: the last steps' momentum gives the direction.  One pass.

    .. math:: g = \nabla L(w - \rho\, v/\|v\|), \qquad v \leftarrow \mu v + g, \qquad \text{descend along } g.

    The displacement points downhill (``v`` accumulates gradients), as in Nesterov's method but of fixed
    length. The first step is clean. The only pass of a step is the displaced one, so its loss is what
    ``step`` returns and BatchNorm sees.

    Args:
        rho: Length of the displacement; much larger than SAM's (0.3 to 3).
        mu: Momentum; give the base optimizer the same.

    Example:
        >>> memory, w = Memory(), {"w": torch.tensor([1.0, -1.0])}
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(msam(), loss, w, memory)
        {'w': tensor([ 1., -3.])}
        >>> sharpness_aware_gradient(msam(), loss, {"w": torch.tensor([0.9, -0.7])}, memory)
        {'w': tensor([ 0.8051, -1.2462])}

    References:
        Becker et al., Momentum-SAM, 2024, https://arxiv.org/abs/2401.12033

    Differences:
        The released code leaves the live weights displaced between steps, takes the old displacement out
        with the new rho, and adds weight decay at the displaced point; here the weights are put back
        within each step and ``v`` is the momentum of the loss gradients alone.
    """

    rho: Rho = 0.3
    mu: BelowOne = 0.9
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "msam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        v = memory.get("v", Vector())
        g = yield At(self.climb(w, memory.radius(self.rho), -v))
        memory["v"] = g + self.mu * v
        return g
