"""USEFUL: the part of each class that is learned slowly, found by clustering early outputs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from samphire.baselines.reweighting import Integers

__all__ = ["slow_part"]

STARTS = 10  # of k-means; the tightest clusters count
ROUNDS = 50


def slow_part(outputs: Tensor, labels: Integers, seed: int = 0) -> Tensor:
    r"""The positions of the training examples that are learned slowly, to be repeated by :func:`upsampled`.

    SAM learns features more evenly than SGD does early on; this makes the data do it. Train for a few epochs
    (5 to 10 % of all), split each class into two clusters by the outputs, take the one with the larger mean loss,

    .. math:: S = \bigcup_c \arg\max_{C \in \{C_1, C_2\}} \frac{1}{|C|} \sum_{i \in C} \ell(f(x_i), y_i), \qquad
              C_1, C_2 = \text{2-means of } \{f(x_i) : y_i = c\},

    and train again from the start with the examples of S twice, the others once.

    Args:
        outputs: What the early model makes of the training set without shuffling: class logits (n, classes).
        labels: The labels (n,).
        seed: Of k-means.

    Example:
        >>> logits = torch.tensor([[5.0, 0.0], [5.1, 0.0], [0.2, 0.0], [0.0, 4.0], [0.0, 4.1], [1.0, 0.0]])
        >>> slow = slow_part(logits, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> slow
        tensor([2, 5])
        >>> from samphire.baselines import upsampled
        >>> upsampled(slow, n=6, times=2)
        tensor([0, 1, 2, 3, 4, 5, 2, 5])

    References:
        Nguyen et al., Changing the Training Data Distribution to Reduce Simplicity Bias Improves In-distribution
        Generalization, NeurIPS 2024, https://arxiv.org/abs/2404.17768 (the method, its share of epochs and the factor
        from the abstract and figure 7).

    Differences:
        A class whose outputs are all equal has no slow part. k-means is scipy's, the best of ten starts.
    """
    labels = torch.as_tensor(labels)
    if outputs.dim() != 2 or labels.shape != outputs.shape[:1]:
        raise ValueError(
            f"slow_part: needs outputs (n, classes) and labels (n,), got shapes {tuple(outputs.shape)} and "
            f"{tuple(labels.shape)}."
        )
    outputs, labels = outputs.detach().cpu().double(), labels.cpu()
    losses = cross_entropy(outputs, labels, reduction="none")
    rng = np.random.default_rng(seed)
    slow = []
    for c in labels.unique():
        mine = (labels == c).nonzero().squeeze(1)
        second = torch.from_numpy(_two_clusters(outputs[mine].numpy(), rng)).bool()
        if second.any() and not second.all():
            higher = losses[mine[second]].mean() > losses[mine[~second]].mean()
            slow.append(mine[second == higher])
    return torch.cat(slow).sort().values if slow else torch.empty(0, dtype=torch.long)


def _two_clusters(x: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int32]:
    """Which of two clusters each row is in; all in one if no start gives two."""
    from scipy.cluster.vq import ClusterError, kmeans2

    best, tightest = np.zeros(len(x), np.int32), np.inf
    for _ in range(STARTS):
        first = x[rng.integers(len(x))]
        distance = np.square(x - first).sum(1)
        if not distance.any():
            break  # all rows are equal
        second = x[rng.choice(len(x), p=distance / distance.sum())]  # as k-means++ has it
        try:
            centers, cluster = kmeans2(x, np.stack([first, second]), iter=ROUNDS, minit="matrix", missing="raise")
        except ClusterError:
            continue
        spread = float(np.square(x - centers[cluster]).sum())
        if spread < tightest:
            best, tightest = cluster, spread
    return best
