"""How a perturbation shifts margins and importance weights: predicted beside measured (appendix D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from samphire.mechanisms.heads import column, unit
from samphire.optim.requests import Memory, Rule, bind, gradient_at, watched
from samphire.tree import Scalar, Vector

__all__ = ["Comparison", "last_displacement", "logit_shift", "margin_shift"]


@dataclass(frozen=True)
class Comparison:
    """A prediction beside its measurement, of the same shape.

    Example:
        >>> Comparison(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])).error.item()
        0.5
    """

    predicted: Tensor
    measured: Tensor

    @property
    def error(self) -> Tensor:
        """The largest absolute difference."""
        return (self.predicted.double() - self.measured.double()).abs().max()


def margin_shift(g: Tensor, y: Tensor, lam: Tensor, rho: Scalar) -> Tensor:
    r"""By how much each margin at the phantom parameter is lower, to first order (eq. 25, for any batch size).

    .. math:: m_i = y_i f_i(w) - y_i f_i(\tilde w) = \rho\, \frac{y_i \langle g_i, D\rangle}{|D|} + O(\rho^2),
              \qquad D = \sum_j \lambda_j y_j g_j.

    With one example it is :math:`\rho |g|`. For LSAM, where ``g`` is ``phi``, there is no remainder at any batch
    size. In a batch it can be negative: an example with a gradient against the batch's counts less.

    Args:
        g: Gradient of every example's logit by the perturbed parameters (..., n, p); append 1 for a head bias.
        y: Labels -1 or 1 (..., n).
        lam: Weights of the loss in use (..., n): logistic :math:`\sigma(-yf)` or exponential :math:`e^{-yf}`.
        rho: Length of the perturbation.

    Example:
        >>> margin_shift(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]), torch.tensor([0.1]), rho=0.5)
        tensor([2.5000])

    Differences:
        The paper treats one example. "Proportional to the gradient norm" holds for the *logarithm* of the ratio of
        weights, and for one example only.
    """
    d = torch.einsum("...n,...np->...p", lam * y, g)
    return y * torch.einsum("...np,...p->...n", g, column(rho, d) * unit(d))


def logit_shift(rule: Rule, margins_at: Callable[[dict[str, Tensor]], Tensor], w: Mapping[str, Tensor]) -> Comparison:
    r"""How any rule's perturbation shifts the logit of every importance weight of any classifier.

    Predicted :math:`-\langle \nabla m_i, \epsilon\rangle`, one forward-mode product, so no gradient per example is
    stored; measured :math:`m_i(w) - m_i(w + \epsilon)`. Equal for LSAM with binary logits at any batch size; for
    SAM they differ by :math:`O(\rho^2)`.

    Args:
        rule: A rule of :mod:`samphire.optim.rules`.
        margins_at: The batch's margins (n,) as a function of ``{name: tensor}``; build it with :func:`margins`.
        w: The weights.

    Example:
        >>> from samphire.mechanisms import margins
        >>> from samphire.optim.rules import sam
        >>> phi, y = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0])
        >>> logit_shift(sam(rho=0.5), lambda w: margins(phi @ w["v"], y), {"v": torch.ones(2)})
        Comparison(predicted=tensor([2.5000]), measured=tensor([2.5000]))
    """
    eps = last_displacement(rule, lambda w: F.softplus(-margins_at(w)).mean(), w)
    tangent = {name: torch.zeros_like(t) for name, t in w.items()} | eps.dense()
    real, slope = torch.func.jvp(margins_at, (dict(w),), (tangent,))[:2]
    return Comparison(-slope, real - margins_at((Vector(w) + eps).dense()))


def last_displacement(rule: Rule, loss: Callable[[dict[str, Tensor]], Tensor], w: Mapping[str, Tensor]) -> Vector:
    """The phantom parameter of any rule, where it asks for its last gradient, relative to the weights (eq. 3)."""
    _, displacements = watched(bind(rule, w), w, Memory(), gradient_at(loss, w))
    return displacements[-1]
