"""Groups where nobody has annotated them: clusters of features within a class, and the errors of a biased model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from samphire import records
from samphire.checks import check_one_of, check_whole

Codes = NDArray[np.int64]
Array = NDArray[np.float64]
Way = Literal["clusters", "errors", "eiil"]

__all__ = ["Clusters", "infer_groups"]

AXES = 16  # principal axes that are clustered
LOOKED_AT = 500  # examples of a class whose silhouette is computed


def infer_groups(
    label: Any,
    *,
    features: Any = None,
    logits: Any = None,
    way: Way = "clusters",
    clusters: Sequence[int] = (2, 3, 4),
    seed: int = 0,
) -> Codes:
    r"""A group for each example, label times inferred attribute: for GroupDRO, balanced sampling or DFR.

    ``"clusters"`` (GEORGE): examples of a class that a trained network sees alike. The features' principal axes are
    clustered by k-means within each class; k has the best mean silhouette. See :class:`Clusters`.

    ``"errors"`` (JTT): the examples a biased model gets wrong, apart from those it gets right.

    ``"eiil"``: two environments between which a biased model is as far from invariant as can be. Soft
    assignments :math:`q` maximize the IRM penalty

    .. math:: \Big\|\nabla_w \textstyle\frac1n\sum_i q_i\, \ell(w z_i, y_i)\Big\|^2
              + \Big\|\nabla_w \frac1n\sum_i (1 - q_i)\, \ell(w z_i, y_i)\Big\|^2 \quad\text{at } w = 1,

    with :math:`z` the biased model's logits.

    Args:
        label: Class of each example (n,), counted from 0.
        features: For ``"clusters"``: (n, d), of a trained network.
        logits: For the others: (n, classes), of a biased model, such as one trained for an epoch or with a strong
            penalty; a model that fits every example says nothing.
        way: Which of the three.
        clusters: Numbers of clusters to try.
        seed: Of the first centers or assignments.

    Returns:
        Groups counted from 0: ``label * v + attribute``, with v the number of the attribute's values.

    Example:
        >>> infer_groups([0, 0, 1], logits=np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), way="errors")
        array([0, 1, 2])

    References:
        Sohoni et al., No Subclass Left Behind, NeurIPS 2020, https://arxiv.org/abs/2011.12945 (GEORGE); Liu et al.,
        Just Train Twice, ICML 2021, https://arxiv.org/abs/2107.09044; Creager et al., Environment Inference for
        Invariant Learning, ICML 2021, https://arxiv.org/abs/2010.07249.

    Differences:
        GEORGE reduces the features by UMAP and fits Gaussian mixtures with overclustering; here it is principal axes
        and k-means, which have no further package. The number of clusters is one for all classes.
    """
    check_one_of("way to infer groups", way, ("clusters", "errors", "eiil"))
    y = np.asarray(label)
    given, name = (features, "features") if way == "clusters" else (logits, "logits")
    if given is None or len(given) != len(y):
        got = "none" if given is None else f"{len(given)} rows for {len(y)} labels"
        raise ValueError(f"infer_groups: way={way!r} needs {name} with a row for each label, got {got}.")
    if way == "clusters":
        found = Clusters.of(given, y, clusters=clusters, seed=seed)
        return y * found.k + found(given, y)
    if way == "errors":
        return y * 2 + (np.argmax(given, 1) != y)
    return y * 2 + _environments(torch.tensor(np.asarray(given)).double(), torch.tensor(y), seed)


@dataclass(frozen=True)
class Clusters:
    """Clusters of features within each class, whose numbers mean the same in all classes.

    A cluster lies somewhere relative to the mean of its class's centers. The clusters of other classes get the
    numbers of those of the first class that lie most alike (an assignment of least squared distance), so that
    "cluster 1" may be one background in every class.

    Args:
        mean: Of the features that were clustered (d,).
        axes: Their principal axes (d, r).
        centers: By class: the centers (k, r) along the axes.
    """

    mean: Array
    axes: Array
    centers: dict[int, Array]

    @property
    def k(self) -> int:
        """How many clusters each class has."""
        return len(next(iter(self.centers.values())))

    @classmethod
    def of(cls, features: Any, label: Codes, *, clusters: Sequence[int] = (2, 3, 4), seed: int = 0) -> Clusters:
        """Fitted to features (n, d) and labels (n,)."""
        x = np.asarray(features, np.float64)
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).all(1))[0])
            raise ValueError(f"infer_groups needs finite features, but row {row} is not; leave such examples out.")
        mean = x.mean(0)
        _, s, axes = np.linalg.svd(x - mean, full_matrices=False)
        axes = axes[: min(AXES, int((s > 1e-9 * s[0]).sum()))].T
        z = (x - mean) @ axes
        classes = np.unique(label)
        smallest = int(min((label == c).sum() for c in classes))
        tried = [k for k in clusters if k <= smallest]
        for k in tried:
            check_whole("clusters", k, 2)
        if not tried:
            raise ValueError(f"infer_groups needs {min(clusters)} examples of every class or more, got {smallest}.")
        fits = {k: {int(c): _k_means(z[label == c], k, seed) for c in classes} for k in tried}
        best = max(tried, key=lambda k: np.mean([_silhouette(z[label == c], fits[k][int(c)]) for c in classes]))
        return cls(mean, axes, _matched(fits[best]))

    def __call__(self, features: Any, label: Codes) -> Codes:
        """The cluster of each example, among those of its class."""
        z = (np.asarray(features, np.float64) - self.mean) @ self.axes
        cluster = np.zeros(len(z), np.int64)
        for c, centers in self.centers.items():
            mine = label == c
            cluster[mine] = _nearest(z[mine], centers)
        return cluster


def _k_means(x: Array, k: int, seed: int, starts: int = 5) -> Array:
    """The best of some runs of k-means, from well-spread first centers."""
    from scipy.cluster.vq import kmeans2

    draw = np.random.default_rng(records.seed(seed, "k-means"))
    runs = [kmeans2(x, k, minit="++", rng=draw, missing="warn", iter=30)[0] for _ in range(starts)]
    return min(runs, key=lambda centers: _distances(x, centers).min(1).sum())


def _distances(x: Array, centers: Array) -> Array:
    squared: Array = (x**2).sum(1)[:, None] - 2 * x @ centers.T + (centers**2).sum(1)
    return np.maximum(squared, 0)


def _nearest(x: Array, centers: Array) -> Codes:
    nearest: Codes = _distances(x, centers).argmin(1)
    return nearest


def _silhouette(x: Array, centers: Array) -> float:
    """Mean silhouette of some examples: how much nearer their own cluster is than the next."""
    x = x[np.linspace(0, len(x) - 1, min(len(x), LOOKED_AT)).astype(int)]
    cluster = _nearest(x, centers)
    apart = np.sqrt(_distances(x, x))
    inside = np.eye(len(centers))[cluster]
    n = inside.sum(0)
    if (n < 2).any():
        return -1.0
    total = apart @ inside
    rows = np.arange(len(x))
    own = total[rows, cluster] / (n[cluster] - 1)
    others = total / n
    others[rows, cluster] = np.inf
    other = others.min(1)
    return float(np.mean((other - own) / np.maximum(own, other)))


def _matched(centers: dict[int, Array]) -> dict[int, Array]:
    """Centers of every class in the order in which they lie like those of the first."""
    from scipy.optimize import linear_sum_assignment

    first = next(iter(centers.values()))
    relative = first - first.mean(0)
    ordered = {}
    for c, mine in centers.items():
        _, order = linear_sum_assignment(_distances(relative, mine - mine.mean(0)))
        ordered[c] = mine[order]
    return ordered


def _environments(z: Tensor, y: Tensor, seed: int, steps: int = 500, lr: float = 0.05) -> Codes:
    """EIIL: the side of each example, by gradient ascent on the penalty."""
    generator = torch.Generator().manual_seed(records.seed(seed, "eiil") % 2**63)
    s = (0.1 * torch.randn(len(y), generator=generator, dtype=z.dtype)).requires_grad_()
    opt = torch.optim.Adam([s], lr=lr)
    slope = ((z.softmax(1) - F.one_hot(y, z.shape[1])) * z).sum(1)  # of each loss by the scale w, at 1
    for _ in range(steps):
        q = torch.sigmoid(s)
        penalty = sum((w * slope).mean() ** 2 for w in (q, 1 - q))
        opt.zero_grad()
        (-penalty).backward()  # type: ignore[union-attr]
        opt.step()
    return (s.detach() > 0).long().numpy()
