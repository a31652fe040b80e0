"""Last-layer SAM."""

from __future__ import annotations

from collections.abc import Iterable

from samphire.optim import scopes
from samphire.optim.requests import Climb
from samphire.optim.rules.sam import sam
from samphire.optim.schedules import Rho
from samphire.optim.scopes import Scope

__all__ = ["lsam"]


def lsam(rho: Rho = 0.05, head: str | Iterable[str] | Scope = scopes.head) -> sam:
    r"""Last-layer SAM: climb with the head alone, descend with everything.  Two passes; one by ``last_layer``.

    .. math:: \tilde v = v + \rho\, \nabla_v L / \|\nabla_v L\|, \qquad
              \text{descend along } \nabla_{(\theta, v)} L(\theta, \tilde v).

    ``last_layer(model).one_pass`` makes a closure that takes this step at the cost of SGD.

    Args:
        rho: Length of the step, measured over the head.
        head: The module that is the last layer, or the names of its parameters; by default the model's
            last Linear layer.

    Example:
        >>> loss = lambda w: (w["body"] * w["head"]).sum()
        >>> w = {"body": torch.tensor([3.0, 4.0]), "head": torch.tensor([1.0, 1.0])}
        >>> sharpness_aware_gradient(lsam(rho=0.5, head="head"), loss, w)["body"]
        tensor([1.3000, 1.4000])

    References:
        Springer, Nagarajan, Raghunathan, Sharpness-Aware Minimization Enhances Feature Quality via Balanced
        Learning, ICLR 2024 (section 5.1).
    """
    return sam(rho, climb=Climb(on=scopes.as_scope(head)))
