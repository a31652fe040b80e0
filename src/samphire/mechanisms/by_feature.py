"""Weights by what each feature contributes to the margin, in the toy or as probes see it (fig. 6 and 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samphire.data.split import Split
from samphire.probes import Linear
from samphire.probes.groups import values_of
from samphire.probes.protocol import checked

__all__ = ["BinnedWeights", "contributions", "median_by_contribution", "probed_contribution"]


def contributions(phi: Tensor, y: Tensor, v: Tensor) -> Tensor:
    r"""Signed contribution of every feature, :math:`y v_k \Phi_k` (..., n, k); their sum is the margin.

    For a network without such features there is :func:`probed_contribution`.

    Args:
        phi: Features (..., n, k).
        y: Labels -1 or 1 (..., n).
        v: Head (..., k).

    Example:
        >>> contributions(torch.tensor([[3.0, 4.0]]), torch.tensor([-1.0]), torch.tensor([1.0, 0.5]))
        tensor([[-3., -2.]])

    Differences:
        The captions of fig. 6 and 9 print :math:`y v_{easy} \Phi_{hard}` for the hard feature, a slip.
    """
    return y.unsqueeze(-1) * v.unsqueeze(-2) * phi


def probed_contribution(features: Any, split: Split, feature: str, fit: Linear) -> Tensor:
    r"""Signed contribution of a feature to training examples, as its probe sees it (section 6.2).

    .. math:: c_i = y_i\, s\, (u^\top \Phi(x_i) + b), \qquad y_i = \pm 1 \text{ the label},

    with the probe's log-odds :math:`u^\top \Phi + b` and :math:`s = \pm 1` the sign of the covariance of feature and
    label over ``split``. It is positive where the feature, as the network represents it, speaks for the label, and
    large where it does so clearly, like :math:`y v_{easy} \Phi_{easy}(x)` in the toy. There the contributions of two
    features add up to the margin; here they do not, since probes are fitted one by one and are not the head.

    Args:
        features: Frozen features (n, d) of the training examples, by the network and layer of the probe.
        split: These examples; label and feature have two values each.
        feature: Its name.
        fit: Its probe, from :func:`samphire.probes.fitted_probe`.

    Example:
        >>> y, place = np.array([0, 0, 0, 1]), np.array([1, 1, 0, 0])  # goes with the *other* value of the label
        >>> split = Split(np.zeros(4), y, {"y": y, "place": place})
        >>> fit = Linear(np.array([[0.0], [2.0]]), np.array([0.0, 1.0]))  # log-odds 2 x + 1
        >>> probed_contribution(np.array([[1.0], [1.0], [-2.0], [-2.0]]), split, "place", fit)
        tensor([ 3.,  3., -3.,  3.], dtype=torch.float64)

    Differences:
        The paper writes :math:`y v^\top \Phi(x)`, without a bias; on CelebA, where men go with not blond, it must
        have turned the sign too.
    """
    x, value = checked(features, split, "training"), values_of(split, feature)
    for name, codes in (("label", split.label), (feature, value)):
        if set(np.unique(codes)) != {0, 1}:
            values = ", ".join(map(str, np.unique(codes)))
            raise ValueError(f"signed contributions need two values of {name}, 0 and 1, got {values}.")
    y = 2.0 * split.label - 1
    s = np.sign(np.cov(value, split.label)[0, 1])
    if s == 0:
        raise ValueError(f"{feature} does not go with the label in this split, so its contribution has no sign.")
    log_odds = x @ (fit.weight[1] - fit.weight[0]) + fit.bias[1] - fit.bias[0]
    return torch.from_numpy(y * s * log_odds)


@dataclass(frozen=True)
class BinnedWeights:
    """Medians over a grid; the first index is the easy feature's bin, the second the hard one's.

    Attributes:
        median: Median weight of each bin, nan where it is empty.
        counts: Examples in each bin.
        edges: Edges of the easy and of the hard bins, each one longer than the bins.
        outside: Examples that lie in no bin.
    """

    median: Tensor
    counts: Tensor
    edges: tuple[Tensor, Tensor]
    outside: int


def median_by_contribution(
    lam: Tensor, easy: Tensor, hard: Tensor, bins: int | tuple[Tensor, Tensor] = 10
) -> BinnedWeights:
    """Median weight of the examples in each bin of two signed contributions (fig. 6 and 9).

    Args:
        lam: Weights (n,).
        easy: Contribution of the easy feature (n,), see :func:`contributions`.
        hard: Contribution of the hard feature (n,).
        bins: Bins along each axis between the least and the greatest contribution, or the edges themselves,
            rising, to compare several networks on one grid. A bin holds its lower edge; the last one both.

    Example:
        >>> lam, easy, hard = torch.tensor([[1.0, 3.0, 5.0], [0.0, 0.1, 1.0], [0.0, 0.1, 1.0]])
        >>> median_by_contribution(lam, easy, hard, bins=2).median
        tensor([[2., nan],
                [nan, 5.]])
    """
    lam, easy, hard = (x.detach().reshape(-1) for x in (lam, easy, hard))
    if not lam.shape == easy.shape == hard.shape:
        raise ValueError(
            "median_by_contribution needs one weight and two contributions per example, "
            f"got {lam.numel()}, {easy.numel()} and {hard.numel()}."
        )
    edges = (_edges(easy, bins), _edges(hard, bins)) if isinstance(bins, int) else bins
    i, j = _bin(easy, edges[0]), _bin(hard, edges[1])
    rows, columns = (len(e) - 1 for e in edges)
    inside = (i >= 0) & (j >= 0)
    cell = (i * columns + j)[inside]
    count = torch.bincount(cell, minlength=rows * columns)
    median = torch.full((rows * columns,), torch.nan, dtype=lam.dtype, device=lam.device)
    for k in cell.unique().tolist():
        median[k] = lam[inside][cell == k].quantile(0.5)
    shape = (rows, columns)
    return BinnedWeights(median.reshape(shape), count.reshape(shape), edges, int((~inside).sum()))


def _edges(x: Tensor, bins: int) -> Tensor:
    if bins < 1 or not x.numel():
        raise ValueError(f"needs at least one bin and one example, got {bins} and {x.numel()}.")
    low, high = x.min(), x.max()
    if low == high:
        low, high = low - 0.5, high + 0.5
    return low + (high - low) * torch.linspace(0, 1, bins + 1, dtype=x.dtype, device=x.device)


def _bin(x: Tensor, edges: Tensor) -> Tensor:
    """The bin of every entry, -1 outside; the last bin holds its upper edge."""
    k = torch.searchsorted(edges.to(x), x, right=True) - 1
    k = torch.where(x == edges[-1], len(edges) - 2, k)
    return torch.where((x >= edges[0]) & (x <= edges[-1]), k, -1)
