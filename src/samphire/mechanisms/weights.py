"""Importance weights: how much each example counts in the gradient, and how evenly they are spread."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from samphire.checks import check_indices, check_one_of

__all__ = ["effective_sample_size", "gini", "importance_weights", "lorenz", "margins"]


def margins(z: Tensor, y: Tensor) -> Tensor:
    r"""How far each example lies on its label's side: minus the logit of its importance weight.

    Binary :math:`m = y f`; multi-class :math:`m = z_y - \log\sum_{k \ne y} e^{z_k}`. In both cases the
    cross-entropy is :math:`\log(1 + e^{-m})` and the weight :math:`\lambda = \sigma(-m)`.

    Args:
        z: Binary logits of the shape of ``y``, or class logits with one more dimension.
        y: Labels -1 or 1 for binary logits, class indices for class logits.

    Example:
        >>> margins(torch.tensor([2.0, 3.0]), torch.tensor([1, -1]))
        tensor([ 2., -3.])
        >>> margins(torch.tensor([[1.0, 4.0]]), torch.tensor([0]))
        tensor([-3.])
    """
    if z.shape == y.shape:
        if not ((y == 1) | (y == -1)).all():
            wrong = y[(y != 1) & (y != -1)][0].item()
            raise ValueError(f"binary labels must be -1 or 1, got {wrong!r}; for labels 0 and 1 pass 2 * y - 1.")
        return y * z
    if z.shape[:-1] != y.shape or y.dtype.is_floating_point:
        raise ValueError(
            "margins needs binary logits and labels of one shape, or class logits (..., classes) and integer "
            f"labels (...), got {tuple(z.shape)} and {y.dtype} {tuple(y.shape)}."
        )
    classes = z.shape[-1]
    if classes < 2:
        raise ValueError(f"class logits must be of two classes or more, got {classes}; drop that dimension.")
    check_indices("class labels", y.reshape(-1), classes)
    index = y.long().unsqueeze(-1)
    others = z.scatter(-1, index, -torch.inf).logsumexp(-1)
    return z.gather(-1, index).squeeze(-1) - others


def importance_weights(z: Tensor, y: Tensor) -> Tensor:
    r"""How much each example counts in the gradient: :math:`\lambda` of eq. 6, for any classifier.

    Binary :math:`\lambda = \sigma(-y f)`; multi-class :math:`\lambda = 1 - p_y = -\partial\ell/\partial z_y`,
    computed as :math:`\sigma(-m)` so that a tiny weight is not rounded to zero. Evaluate the logits at the real or
    at the phantom parameter to get the real or the phantom weights.

    Args:
        z: Logits, see :func:`margins`.
        y: Labels, see :func:`margins`.

    Example:
        >>> importance_weights(torch.tensor([[1.0, 2.0, 4.0]]).log(), torch.tensor([0])) * 7
        tensor([6.])
        >>> importance_weights(torch.tensor([[50.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor([7.1716e-22])

    Differences:
        Eq. 6 lacks the sign: the gradient is :math:`-y \lambda g`. With soft labels :math:`1 - p_y` is not the
        weight.
    """
    return torch.sigmoid(-margins(z, y))


# How evenly they are spread


def lorenz(lam: Tensor, order: Literal["ascending", "top"] = "ascending") -> Tensor:
    r"""Share of the total weight held by the first k of n examples, at :math:`k/n` for k = 0 ... n (fig. 5).

    Args:
        lam: Weights >= 0 (..., n).
        order: ``"ascending"``: least first, the usual Lorenz curve, on or below the diagonal. ``"top"``: greatest
            first, as the paper words it, on or above; ``top(x) = 1 - ascending(1 - x)``.

    Returns:
        The curve (..., n + 1), from 0 to 1; nan if all weights are zero.

    Example:
        >>> lorenz(torch.tensor([4.0, 1.0, 3.0, 2.0]))
        tensor([0.0000, 0.1000, 0.3000, 0.6000, 1.0000])
        >>> lorenz(torch.tensor([4.0, 1.0, 3.0, 2.0]), order="top")
        tensor([0.0000, 0.4000, 0.7000, 0.9000, 1.0000])
    """
    check_one_of("order", order, ("ascending", "top"))
    ordered = _checked(lam).sort(-1, descending=order == "top").values
    held = ordered.cumsum(-1)
    return F.pad(held, (1, 0)) / held[..., -1:]


def gini(lam: Tensor) -> Tensor:
    r"""Gini coefficient: 0 if all weights are equal, :math:`(n-1)/n` if one example has everything.

    .. math:: G = \frac{2 \sum_i i\, \lambda_{(i)}}{n \sum_i \lambda_i} - \frac{n+1}{n}
                = 1 - 2 \cdot \text{area under the Lorenz curve.}

    Args:
        lam: Weights >= 0 (..., n); a run in which all are zero gives nan.

    Example:
        >>> gini(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor(0.2500)
    """
    n = lam.shape[-1] if lam.ndim else 0
    ordered = _checked(lam).sort(-1).values
    rank = torch.arange(1, n + 1, dtype=lam.dtype, device=lam.device)
    # 2i - (n+1) instead of 2i, then minus (n+1)/n: the same sum without its cancellation.
    return ((2 * rank - (n + 1)) * ordered).sum(-1) / (n * ordered.sum(-1))


def effective_sample_size(lam: Tensor) -> Tensor:
    r"""How many equally weighted examples weigh as much: :math:`(\sum\lambda)^2 / \sum\lambda^2`, from 1 to n.

    Args:
        lam: Weights >= 0 (..., n); a run in which all are zero gives nan.

    Example:
        >>> effective_sample_size(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor(3.3333)
    """
    scaled = _checked(lam) / lam.amax(-1, keepdim=True)
    return scaled.sum(-1) ** 2 / (scaled**2).sum(-1)


def _checked(lam: Tensor) -> Tensor:
    if not lam.ndim or not lam.shape[-1]:
        raise ValueError(f"needs at least one weight in the last dimension, got shape {tuple(lam.shape)}.")
    if (lam < 0).any():
        raise ValueError(f"importance weights must be >= 0, got {lam.min().item():.6g}.")
    return lam
