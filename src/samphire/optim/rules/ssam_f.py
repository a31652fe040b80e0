"""Sparse SAM by Fisher information."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from samphire import tree
from samphire.checks import BelowOne, Count, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["ssam_f"]

Scores = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class ssam_f:
    r"""Sparse SAM, Fisher: climb with the entries of largest Fisher information.  Two passes.

    .. math:: \epsilon = m \odot \rho\, g/\|g\|, \qquad m = \text{top } (1-s)\, d \text{ entries of }
              \tfrac1n \textstyle\sum_i (\nabla \ell_i)^2.

    Leaving entries out makes the step shorter. ``opt.last.perturbed`` is the share that moved. The mask is
    part of ``opt.state_dict()``.

    Args:
        rho: Length of the step before the mask.
        sparsity: Share of the entries left out; 0 is SAM.
        every: Steps from one mask to the next; one to five epochs in the paper.
        fisher: Gives the information of each entry by name, as in ``lambda: fisher(model, loss, batches)`` with
            :func:`samphire.optim.fisher` on data of your choice. Without it, the batch's squared gradient.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(ssam_f(rho=0.05), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0000, -3.1423])}

    References:
        Mi et al., Make Sharpness-Aware Minimization Stronger: A Sparsified Perturbation Approach, NeurIPS 2022,
        https://arxiv.org/abs/2210.05177

    Differences:
        The released code takes its first step without a climb and runs the Fisher pass in training mode with single
        examples, which spoils BatchNorm's statistics; here the mask is used from the first step on and
        :func:`samphire.optim.fisher` leaves the model as it was.
    """

    rho: Rho = 0.1
    sparsity: BelowOne = 0.5
    every: Count = 400
    fisher: Scores | None = None
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "ssam_f")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        if memory.step % self.every == 0:
            size = Vector({name: t.abs() for name, t in g.tensors.items()})  # ranked as its square, without overflow
            scores = size if self.fisher is None else Vector(self.fisher()).only(g.tensors)
            memory["mask"] = tree.largest(scores, entries_kept(scores, self.sparsity))
        return (yield At(masked(self.climb(w, memory.radius(self.rho), g), memory["mask"])))


def entries_kept(v: Vector, sparsity: float) -> int:
    """How many entries climb."""
    return tree.size(v) - int(sparsity * tree.size(v))


def masked(eps: Vector, mask: Vector) -> Vector:
    """A displacement where the mask is true, and none elsewhere."""
    return tree.times(eps.only(mask.tensors), mask.tensors)
