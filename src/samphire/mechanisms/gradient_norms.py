"""What a logit's gradient is made of, layer by layer (appendix D)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["FeatureGradient", "feature_gradient"]


@dataclass(frozen=True)
class FeatureGradient:
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


def feature_gradient(
    v: Tensor,
    weights: Sequence[Tensor],
    x: Tensor,
    biases: Sequence[Tensor] = (),
    *,
    relu: bool = True,
    head_bias: bool = False,
) -> FeatureGradient:
    r"""Squared gradient norm of a ReLU network (eq. 34 to 40) or a linear one (eq. 28 to 33).

    :math:`f = v^T h_1 + c_0,\ h_i = \mathrm{relu}(W_i h_{i+1} + c_i),\ h_L = x`. With
    :math:`A_i = \mathrm{diag}(1\{h_i > 0\})`, or the identity for a linear network:
    :math:`a_1 = 1,\ a_j = |v^T A_1 W_1 \cdots W_{j-2} A_{j-1}|^2`; every bias :math:`c_i` adds :math:`a_{i+1}`, the
    head's adds 1. A linear network of two layers has :math:`|Wx|^2 + |v|^2 |x|^2`.

    Args:
        v: Head (k,).
        weights: :math:`W_1, \dots, W_{L-1}`, the one next to the head first.
        x: Inputs (..., d).
        biases: :math:`c_1, \dots, c_{L-1}`, or none.
        relu: Whether a ReLU follows each layer.
        head_bias: Whether the head has a bias.

    Example:
        >>> v, w, x = torch.tensor([1.0, 2.0]), torch.eye(2), torch.tensor([3.0, 4.0])
        >>> feature_gradient(v, [w], x, relu=False).squared_norm
        tensor(150.)
        >>> v, w1, w2 = torch.tensor([3.0, 5.0]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.eye(2)
        >>> feature_gradient(v, [w1, w2], torch.tensor([2.0, 1.0])).squared_norm
        tensor(136.)

    Differences:
        Eq. 29 lacks the square on :math:`|x|`; eq. 32 has its transposes, eq. 33 its index one off. Eq. 37 lacks the
        input in its first term and the trailing :math:`A_i` in the others; the constants after eq. 40 lack the head.
        Read :math:`\sigma_L(x)` of eq. 39 as :math:`x`.
    """
    if len(biases) not in (0, len(weights)):
        raise ValueError(f"feature_gradient needs {len(weights)} biases, one per layer, or none, got {len(biases)}.")
    each: Sequence[Tensor | None] = biases or [None] * len(weights)
    h = [x]
    for w, c in zip(reversed(weights), reversed(each), strict=True):
        h.append(F.relu(F.linear(h[-1], w, c)) if relu else F.linear(h[-1], w, c))
    h.reverse()
    a, u = [torch.ones_like(x[..., 0])], v.expand_as(h[0])  # u is the gradient by h_1, h_2, ...
    for h_i, w in zip(h, weights, strict=False):
        u = u * (h_i > 0) if relu else u
        a.append(u.square().sum(-1))
        u = u @ w
    bias = sum(a[1:], a[0] * head_bias) if biases else a[0] * head_bias
    return FeatureGradient(torch.stack(a, -1), torch.stack([t.square().sum(-1) for t in h], -1), bias)
