r"""Least-squares concept erasure: the smallest linear change after which no linear classifier can read a concept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from samphire.probes.groups import Codes
from samphire.probes.logistic import Array

__all__ = ["Erasure", "erase", "erase_random"]

ROUNDING = 1e-8  # a covariance of whitened features and indicators below this is none


@dataclass(frozen=True)
class Erasure:
    r"""An affine map :math:`r(x) = x - L R (x - \mu)` of features, fitted by :func:`erase`.

    Args:
        mean: :math:`\mu` (d,).
        left: L (d, k).
        right: R (k, d).
    """

    mean: Array
    left: Array
    right: Array

    def __call__(self, x: Any) -> Array:
        """Features without the concept."""
        x = np.asarray(x, np.float64)
        return x - ((x - self.mean) @ self.right.T) @ self.left.T

    @property
    def rank(self) -> int:
        """How many directions are removed: at most the number of the concept's values minus one."""
        return self.left.shape[1]


def erase(x: Any, concept: Codes, weights: Any = None, *, shrink: bool = False) -> Erasure:
    r"""LEACE: the affine map of least squared change that leaves no covariance with the concept.

    With :math:`Z` the concept's values as indicators and :math:`W = (\Sigma_{XX}^{1/2})^+`,

    .. math:: r(x) = x - W^+ P\, W (x - \mu),

    where P projects orthogonally onto the columns of :math:`W \Sigma_{XZ}`.

    Afterwards :math:`\mathrm{Cov}(r(X), Z) = 0`, which is equivalent to: no linear classifier, under any convex loss,
    does better than the best constant one. Among all affine maps with this property r has the least
    :math:`E\|r(X) - X\|_M^2` for every norm M.

    Args:
        x: Features (n, d) to fit on.
        concept: The value of each example, counted from 0.
        weights: How much each example counts; all the same unless given. Weights that make every combination of
            concept and label equally frequent keep the label's directions out of the erased ones.
        shrink: Estimate the covariance with oracle approximating shrinkage (Chen et al. 2010), for fewer examples
            than about ten for each dimension; the covariance with the concept is then still zero.

    Example:
        >>> x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> erase(x, np.array([0, 0, 1, 1]))(x)  # the second feature is the concept, the first is left as it is
        array([[0. , 0.5],
               [1. , 0.5],
               [0. , 0.5],
               [1. , 0.5]])

    References:
        Belrose et al., LEACE: Perfect linear concept erasure in closed form, NeurIPS 2023,
        https://arxiv.org/abs/2306.03819; Chen, Wiesel, Eldar, Hero, Shrinkage Algorithms for MMSE Covariance
        Estimation, IEEE Transactions on Signal Processing 2010.
    """
    x, w = np.asarray(x, np.float64), _weights(weights, len(concept))
    mean = w @ x
    axes, s = _axes(x, mean, w, shrink)
    z = np.eye(int(concept.max()) + 1)[concept]
    cross = ((x - mean) * w[:, None]).T @ (z - w @ z)  # covariance of features and concept, (d, values)
    return _removed(mean, axes, s, (axes.T @ cross) / np.sqrt(s)[:, None])


def erase_random(
    x: Any, rank: int, draw: np.random.Generator, weights: Any = None, *, shrink: bool = False
) -> Erasure:
    """The control of :func:`erase`: as many directions, drawn evenly where the features are white.

    Args:
        x: Features (n, d).
        rank: How many directions.
        draw: Source of randomness.
        weights: As for :func:`erase`.
        shrink: As for :func:`erase`.
    """
    x, w = np.asarray(x, np.float64), _weights(weights, len(x))
    mean = w @ x
    axes, s = _axes(x, mean, w, shrink)
    return _removed(mean, axes, s, draw.normal(size=(len(s), rank)))


def _weights(weights: Any, n: int) -> Array:
    w = np.ones(n) if weights is None else np.asarray(weights, np.float64)
    return w / w.sum()


def _axes(x: Array, mean: Array, w: Array, shrink: bool) -> tuple[Array, Array]:
    """The principal axes (d, r) of the features that vary, and the variance along each (r,)."""
    centered = (x - mean) * np.sqrt(w)[:, None]
    n, d = centered.shape
    s, u = np.linalg.eigh(centered @ centered.T if n < d else centered.T @ centered)
    kept = s > s[-1] * max(n, d) * np.finfo(float).eps
    s, u = s[kept], u[:, kept]
    axes = centered.T @ u / np.sqrt(s) if n < d else u
    if shrink:
        effective = 1 / (w**2).sum()
        trace, square = s.sum(), (s**2).sum()
        share = ((1 - 2 / d) * square + trace**2) / ((effective + 1 - 2 / d) * (square - trace**2 / d))
        share = min(share, 1.0)
        s = (1 - share) * s + share * trace / d
    return axes, s


def _removed(mean: Array, axes: Array, s: Array, white: Array) -> Erasure:
    """The map that removes directions (r, k) of the whitened features."""
    u, size, _ = np.linalg.svd(white, full_matrices=False)
    u = u[:, size > ROUNDING]
    return Erasure(mean, axes @ (np.sqrt(s)[:, None] * u), (u / np.sqrt(s)[:, None]).T @ axes.T)
