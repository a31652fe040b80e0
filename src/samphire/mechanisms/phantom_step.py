"""What a phantom step does to margins and weights, and what a logit's gradient is made of (appendix D)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from samphire.mechanisms.heads import Weights, column, displacement, unit
from samphire.optim.requests import Rule
from samphire.tree import Scalar, Vector


class Compared(NamedTuple):
    """A prediction beside its measurement, of the same shape.

    Example:
        >>> Compared(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])).error.item()
        0.5
    """

    predicted: Tensor
    measured: Tensor

    @property
    def error(self) -> Tensor:
        """The largest absolute difference."""
        return (self.predicted.double() - self.measured.double()).abs().max()


# What it does to margins and weights


def margin_shift(g: Tensor, y: Tensor, lam: Tensor, rho: Scalar) -> Tensor:
    r"""By how much the phantom step lowers each margin, to first order (eq. 25, for any batch size).

    .. math:: m_i = y_i f_i(w) - y_i f_i(\tilde w) = \rho\, \frac{y_i \langle g_i, D\rangle}{|D|} + O(\rho^2),
              \qquad D = \sum_j \lambda_j y_j g_j.

    With one example it is :math:`\rho |g|`. For LSAM, where ``g`` is ``phi``, there is no remainder at any batch
    size. In a batch it can be negative: an example whose gradient opposes the batch's is heard less.

    Args:
        g: Gradient of every example's logit by the perturbed parameters (..., n, p); append 1 for a head bias.
        y: Labels -1 or 1 (..., n).
        lam: Weights of the loss in use (..., n): logistic :math:`\sigma(-yf)` or exponential :math:`e^{-yf}`.
        rho: Length of the phantom step.

    Example:
        >>> margin_shift(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]), torch.tensor([0.1]), rho=0.5)
        tensor([2.5000])

    Differences:
        The paper treats one example. "Proportional to the gradient norm" holds for the *logarithm* of the ratio of
        weights, and for one example only.
    """
    d = torch.einsum("...n,...np->...p", lam * y, g)
    return y * torch.einsum("...np,...p->...n", g, column(rho, d) * unit(d))


def log_weight_ratio(m: Tensor, shift: Tensor) -> Tensor:
    r""":math:`\log(\tilde\lambda / \lambda)` of the logistic loss, exact for a given shift of the margin.

    :math:`\log\sigma(s - m) - \log\sigma(-m)`; in logits simply :math:`\mathrm{logit}\,\tilde\lambda =
    \mathrm{logit}\,\lambda + s`. For the exponential loss the log ratio is the shift itself (eq. 21).

    Args:
        m: Real margins, see :func:`margins`.
        shift: By how much the phantom step lowers them.

    Example:
        >>> log_weight_ratio(torch.tensor([7.0]), torch.tensor([2.5]))
        tensor([2.4899])
    """
    return F.logsigmoid(shift - m) - F.logsigmoid(-m)


def log_weight_ratio_first_order(m: Tensor, shift: Tensor) -> Tensor:
    r""":math:`(1 - \lambda)\, s`, the first-order form of :func:`log_weight_ratio`; not exact even for LSAM.

    Args:
        m: Real margins, see :func:`margins`.
        shift: By how much the phantom step lowers them.

    Example:
        >>> log_weight_ratio_first_order(torch.tensor([7.0]), torch.tensor([2.5]))
        tensor([2.4977])
    """
    return torch.sigmoid(m) * shift


def logit_shift(rule: Rule, margins_at: Callable[[dict[str, Tensor]], Tensor], w: Weights) -> Compared:
    r"""What any rule's phantom step does to the logit of every importance weight of any classifier.

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
        Compared(predicted=tensor([2.5000]), measured=tensor([2.5000]))
    """
    eps = displacement(rule, lambda w: F.softplus(-margins_at(w)).mean(), w)
    here = dict(w)
    there = (Vector(w) + eps).dense()
    step = {name: torch.zeros_like(t) for name, t in w.items()} | eps.dense()
    now, slope = torch.func.jvp(margins_at, (here,), (step,))[:2]
    return Compared(-slope, now - margins_at(there))


# What a logit's gradient is made of


class FeatureGradient(NamedTuple):
    r""":math:`|\nabla f|^2 = \sum_j a_j |h_j|^2 + b`, layer by layer from the head down to the input.

    Attributes:
        a: Coefficients :math:`a_1, \dots, a_L` (..., L).
        h: Squared norms :math:`|h_1|^2, \dots, |h_L|^2` of the representations (..., L); the last is the input's.
        bias: What the biases add (...).
    """

    a: Tensor
    h: Tensor
    bias: Tensor

    @property
    def squared_norm(self) -> Tensor:
        r""":math:`|\nabla f|^2`."""
        return (self.a * self.h).sum(-1) + self.bias


def linear_feature_gradient(v: Tensor, weights: Sequence[Tensor], x: Tensor) -> FeatureGradient:
    r"""Squared gradient norm of a linear network :math:`f = v^T W_1 \cdots W_{L-1} x` (eq. 28 to 33).

    With :math:`h_L = x,\ h_j = W_j h_{j+1}`:
    :math:`a_1 = 1,\ a_j = |v^T W_1 \cdots W_{j-2}|^2`. Two layers: :math:`|Wx|^2 + |v|^2 |x|^2`.

    Args:
        v: Head (k,).
        weights: :math:`W_1, \dots, W_{L-1}`, the one next to the head first.
        x: Inputs (..., d).

    Example:
        >>> linear_feature_gradient(torch.tensor([1.0, 2.0]), [torch.eye(2)], torch.tensor([3.0, 4.0])).squared_norm
        tensor(150.)

    Differences:
        Eq. 29 lacks the square on :math:`|x|`; eq. 32 has its transposes, eq. 33 its index one off.
    """
    return _feature_gradient(v, weights, x, [None] * len(weights), head_bias=False, relu=False)


def relu_feature_gradient(
    v: Tensor,
    weights: Sequence[Tensor],
    x: Tensor,
    biases: Sequence[Tensor] = (),
    head_bias: bool = False,
) -> FeatureGradient:
    r"""Squared gradient norm of a ReLU network (eq. 34 to 40), with or without biases.

    :math:`f = v^T h_1 + c_0,\ h_i = \mathrm{relu}(W_i h_{i+1} + c_i),\ h_L = x`. With
    :math:`A_i = \mathrm{diag}(1\{h_i > 0\})`: :math:`a_1 = 1,\ a_j = |v^T A_1 W_1 \cdots W_{j-2} A_{j-1}|^2`;
    every bias :math:`c_i` adds :math:`a_{i+1}`, that of the head adds 1.

    Args:
        v: Head (k,).
        weights: :math:`W_1, \dots, W_{L-1}`, the one next to the head first.
        x: Inputs (..., d).
        biases: :math:`c_1, \dots, c_{L-1}`, or none.
        head_bias: Whether the head has one.

    Example:
        >>> v, w1, w2 = torch.tensor([3.0, 5.0]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.eye(2)
        >>> relu_feature_gradient(v, [w1, w2], torch.tensor([2.0, 1.0])).squared_norm
        tensor(136.)

    Differences:
        Eq. 37 lacks the input in its first term and the trailing :math:`A_i` in the others; the constants after
        eq. 40 lack the head. Read :math:`\sigma_L(x)` of eq. 39 as :math:`x`.
    """
    if len(biases) not in (0, len(weights)):
        raise ValueError(
            f"relu_feature_gradient needs {len(weights)} biases, one per layer, or none, got {len(biases)}."
        )
    return _feature_gradient(v, weights, x, biases or [None] * len(weights), head_bias, relu=True)


def _feature_gradient(
    v: Tensor,
    weights: Sequence[Tensor],
    x: Tensor,
    biases: Sequence[Tensor | None],
    head_bias: bool,
    relu: bool,
) -> FeatureGradient:
    """One forward sweep for the representations h_L ... h_1, one backward sweep for u_i = df/dz_i."""
    h = [x]
    for w, c in zip(reversed(weights), reversed(biases), strict=True):
        h.append(F.relu(F.linear(h[-1], w, c)) if relu else F.linear(h[-1], w, c))
    h.reverse()
    a = [torch.ones_like(x[..., 0])]
    u = v.expand_as(h[0])
    for i, w in enumerate(weights):
        u = u * (h[i] > 0) if relu else u
        a.append(u.square().sum(-1))
        u = u @ w
    bias = sum((a_i for a_i, c in zip(a[1:], biases, strict=True) if c is not None), a[0] * head_bias)
    return FeatureGradient(torch.stack(a, -1), torch.stack([t.square().sum(-1) for t in h], -1), bias)
