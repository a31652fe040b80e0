"""Functional SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from samphire.checks import check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["functional_sam"]


@dataclass(frozen=True)
class functional_sam:
    r"""Functional SAM: the network's derivative one step uphill, the loss's derivative where it was.  Two passes.

    With :math:`L(w) = \ell(F(w))`, F the model's outputs,

    .. math:: \epsilon = \rho\, g / \|g\|, \qquad
              \text{descend along } \nabla F(w + \epsilon)^\top\, \nabla \ell(F(w)).

    SAM would take :math:`\nabla \ell` at :math:`F(w + \epsilon)` too, and can lower its penalty by the outputs'
    statistics alone, which is what it does in language models. In the terms of Springer et al. the examples keep
    their importance weights, and only the learning rates of features change.

    Give :meth:`Pass.backward` the outputs::

        def closure(p):
            out = model(x)
            loss = F.cross_entropy(out, y)
            p.backward(loss, out)
            return loss

    Args:
        rho: Length of the step uphill.

    Example:
        >>> loss = LossOfOutputs(lambda w: w["a"] * w["b"], lambda out: out**2 / 2)
        >>> w = {"a": torch.tensor(1.0), "b": torch.tensor(1.0)}
        >>> sharpness_aware_gradient(functional_sam(rho=0.5), loss, w)["a"]  # F(w) = 1, times b + 0.5 / sqrt(2)
        tensor(1.3536)

    References:
        Singh et al., Avoiding spurious sharpness minimization broadens applicability of SAM, ICML 2025,
        https://arxiv.org/abs/2502.02407

    Differences:
        The paper also has a version that climbs along the base optimizer's preconditioned gradient; here the climb
        is SAM's.
    """

    rho: Rho = 0.05
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    needs_outputs = True
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "functional_sam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        rho = memory.radius(self.rho)
        return (yield At(self.climb(w, rho, (yield At(wrt=self.climb.wrt))), output_gradient="before"))
