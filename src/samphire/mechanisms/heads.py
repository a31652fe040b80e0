"""The head at which a gradient is read, real or phantom, and how it is shared between easy and hard feature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from samphire.mechanisms.weights import importance_weights
from samphire.tree import Scalar

__all__ = [
    "LearningRates", "RatioSummary",
    "column", "head_gradient", "learning_rates", "logits_of", "pair", "phantom_head", "ratio", "share",
    "summarize_ratio", "unit",
]  # fmt: skip


def head_gradient(phi: Tensor, y: Tensor, v: Tensor) -> Tensor:
    r""":math:`E[\lambda y \Phi] = -\nabla_v L` for the logistic loss; for two features this is ``(A, H)``.

    Args:
        phi: Features (..., n, k).
        y: Labels -1 or 1 (..., n).
        v: Head (..., k), no bias.

    Example:
        >>> head_gradient(torch.tensor([[2.0, 0.5], [1.0, -0.5]]), torch.tensor([1.0, 1.0]), torch.ones(2))
        tensor([ 0.2646, -0.0754])
    """
    lam = importance_weights(logits_of(phi, v), y)
    return torch.einsum("...n,...nk->...k", lam * y, phi) / y.shape[-1]


def phantom_head(phi: Tensor, y: Tensor, v: Tensor, rho: Scalar) -> Tensor:
    r"""The head at which LSAM reads its gradient: :math:`\tilde v = v - \rho\,(A, H) / |(A, H)|` (eq. 5).

    Args:
        phi: Features of the batch (..., n, k).
        y: Labels -1 or 1 (..., n).
        v: Head (..., k), no bias.
        rho: Length of the perturbation, a number or one per run (...).

    Example:
        >>> phantom_head(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]), torch.ones(2), rho=0.5)
        tensor([0.7000, 0.6000])
    """
    return v - column(rho, v) * unit(head_gradient(phi, y, v))


# Hard over easy


def ratio(v: Tensor) -> Tensor:
    r"""Hard over easy, :math:`v_{hard} / v_{easy}` (fig. 3), of the real or the phantom head.

    Args:
        v: Head (..., 2), easy feature first.

    Example:
        >>> ratio(torch.tensor([2.0, 3.0]))
        tensor(1.5000)
    """
    easy, hard = pair(v)
    return hard / easy


def share(v: Tensor) -> Tensor:
    r"""The hard feature's part of the head, :math:`v_{hard} / (|v_{easy}| + |v_{hard}|)` (fig. 4, right).

    Unlike the ratio it stays between -1 and 1 when :math:`\tilde v_{easy}` crosses zero.

    Args:
        v: Head (..., 2), easy feature first.

    Example:
        >>> share(torch.tensor([1.0, 3.0]))
        tensor(0.7500)

    Differences:
        Fig. 4 divides by :math:`v_{easy} + v_{hard}`: the same while both are positive.
    """
    easy, hard = pair(v)
    return hard / (easy.abs() + hard.abs())


@dataclass(frozen=True)
class RatioSummary:
    """The ratio of hard to easy over many steps.

    Attributes:
        median: Of the ratios; a mean would depend on the few steps with an easy entry near zero.
        share: Mean of :func:`share`.
        crossed: Fraction of the steps with an easy entry that is not positive; their ratio means nothing.
    """

    median: Tensor
    share: Tensor
    crossed: Tensor


def summarize_ratio(v: Tensor) -> RatioSummary:
    """Median ratio, mean share and fraction of meaningless steps, over the steps of each run.

    Args:
        v: Real or phantom heads (..., steps, 2).

    Example:
        >>> summarize_ratio(torch.tensor([[1.0, 1.0], [1.0, 2.0], [-0.1, 2.0]])).median
        tensor(1.)
    """
    easy, _ = pair(v)
    return RatioSummary(ratio(v).quantile(0.5, -1), share(v).mean(-1), (easy <= 0).to(v.dtype).mean(-1))


@dataclass(frozen=True)
class LearningRates:
    """Effective learning rates of the features at the phantom head.

    Attributes:
        factor: What the perturbation multiplies each feature's rate by (..., 2).
        real: The hard feature's share of the rates at the real head.
        phantom: The same at the phantom head.
    """

    factor: Tensor
    real: Tensor
    phantom: Tensor


def learning_rates(v: Tensor, phantom: Tensor) -> LearningRates:
    r"""Effective feature learning rates (fig. 4): factors :math:`\tilde v_k / v_k`, and the hard feature's share.

    Args:
        v: Real heads (..., 2), for instance one for each batch.
        phantom: Phantom heads of the same shape.

    Example:
        >>> learning_rates(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 1.5])).factor
        tensor([0.5000, 1.5000])
    """
    return LearningRates(phantom / v, share(v), share(phantom))


# Shapes


def logits_of(phi: Tensor, v: Tensor) -> Tensor:
    """Of every example (..., n)."""
    return torch.einsum("...nk,...k->...n", phi, v)


def pair(v: Tensor) -> tuple[Tensor, Tensor]:
    """The easy and the hard entry."""
    if not v.ndim or v.shape[-1] != 2:
        raise ValueError(
            f"the head must have two entries, easy and hard, in its last dimension, got {tuple(v.shape)}."
        )
    return v[..., 0], v[..., 1]


def column(rho: Scalar, like: Tensor) -> Tensor:
    """Rho, one number or one per run, ready to multiply vectors (..., k)."""
    return torch.as_tensor(rho, dtype=like.dtype, device=like.device).unsqueeze(-1)


def unit(d: Tensor) -> Tensor:
    """``d / |d|`` along the last dimension, zero where ``d`` is zero; tiny vectors do not underflow."""
    top = d.abs().amax(-1, keepdim=True)
    scaled = d / torch.where(top == 0, 1.0, top)
    return scaled / torch.where(top == 0, 1.0, torch.linalg.vector_norm(scaled, dim=-1, keepdim=True))
