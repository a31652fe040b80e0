"""Adaptive SAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from samphire import tree
from samphire.checks import AtLeastZero, check_fields
from samphire.optim.requests import Climb
from samphire.optim.rules.sam import sam
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["Magnitude", "asam"]


@dataclass(frozen=True)
class Magnitude:
    """ASAM's metric ``T = |w| + eta`` on the chosen tensors, 1 on the others."""

    eta: AtLeastZero
    scaled: Literal["weights", "matrices", "all"]

    def __post_init__(self) -> None:
        check_fields(self, "asam")

    def __call__(self, w: Vector, v: Vector) -> Vector:
        sizes = {n: w.tensors[n].abs() + self.eta for n in v if self._scales(n, w.tensors[n])}
        return tree.times(v, sizes)

    def _scales(self, name: str, t: Tensor) -> bool:
        if self.scaled == "weights":
            return "weight" in name.rpartition(".")[2]
        return self.scaled == "all" or t.ndim > 1


def asam(rho: Rho = 0.5, eta: float = 0.01, scaled: Literal["weights", "matrices", "all"] = "weights") -> sam:
    r"""Adaptive SAM: climb in proportion to the size of each weight.  Two passes.

    .. math:: T = \mathrm{diag}(|w| + \eta), \qquad \epsilon = \rho\, T^2 g / \|T g\|.

    Rescaling one layer up and the next one down leaves the method unchanged (up to ``eta``).

    Args:
        rho: Length of the step measured by :math:`T^{-1}`; about ten times SAM's.
        eta: Keeps weights near zero movable.
        scaled: Which tensors ``T`` scales, the others having ``T = 1``: ``"weights"`` those named so (norm
            scales too, biases not: the released code), ``"matrices"`` those of two or more dimensions
            (neither), ``"all"`` (both; with ``eta=0`` this is davda54/sam's ``adaptive``).

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["weight"] ** 2).sum()
        >>> sharpness_aware_gradient(asam(rho=0.5, eta=0.01), loss, {"weight": torch.tensor([1.0, -2.0])})
        {'weight': tensor([ 1.0421, -9.0045])}

    References:
        Kwon et al., ASAM, ICML 2021, https://arxiv.org/abs/2102.11600

    Differences:
        big_vision's ``adaptive_perturbation`` is another formula (``|w| g / |g|``) and is not offered.
    """
    return sam(rho, climb=Climb(metric=Magnitude(eta, scaled)))
