"""A random direction in place of SAM's."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire import tree
from samphire.checks import check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["random"]


@dataclass(frozen=True)
class random:
    r"""A random direction of the same length as SAM's, for ablations.  One pass and a forward.

    .. math:: \epsilon = \rho\, z / \|z\|, \quad z \sim N(0, I) \text{ drawn anew each step}.

    The clean forward is kept, so that only the direction differs from SAM: BatchNorm sees clean weights, and the
    clean loss is returned. (A closure that runs ``loss.backward()`` itself pays for a gradient that is not used;
    ``p.backward(loss)`` does not.) The draw depends on ``seed`` and the
    step alone: it is the same on every rank and after a resume, and the global RNG is not touched.

    Args:
        rho: Length of the step.
        seed: Chooses the sequence of directions.

    Example:
        >>> loss = lambda w: w["w"].sum() * 2
        >>> sharpness_aware_gradient(random(), loss, {"w": torch.zeros(2)})
        {'w': tensor([2., 2.])}
    """

    rho: Rho = 0.05
    seed: int = 0
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 4 / 3  # the clean one is forward only

    def __post_init__(self) -> None:
        check_fields(self, "random")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        yield At(wrt=frozenset())
        noise = tree.randn_like(self.climb.within(w), seed=self.seed + memory.step)
        return (yield At(self.climb(w, memory.radius(self.rho), noise)))
