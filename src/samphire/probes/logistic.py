r"""Logistic regression to the optimum: softmax with L2 along a path of penalties, and binary with L1.

``x`` (n, d) float64 features, ``y`` (n,) classes counted from 0. Results are float64 and deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert
from scipy.optimize import minimize
from scipy.special import expit, softmax

from samphire.checks import Range, check_number

Array = NDArray[np.float64]
Classes = NDArray[np.int64]

__all__ = ["Array", "Linear", "Scaler", "softmax_regression", "sparse_regression"]

SINGLE = 1e-8  # the share by which products in single precision still lower an objective


@dataclass(frozen=True)
class Linear:
    """A linear classifier: one row of ``weight`` (classes, d) and one entry of ``bias`` for each class.

    Example:
        >>> Linear(np.array([[-1.0], [1.0]]), np.zeros(2)).predict(np.array([[0.5], [-2.0]]))
        array([1, 0])
    """

    weight: Array
    bias: Array

    def predict(self, x: Array) -> Classes:
        """The class with the largest score for each row of ``x``."""
        return np.argmax(x @ self.weight.T + self.bias, 1)


@dataclass(frozen=True)
class Scaler:
    """Mean and standard deviation of each feature; the deviation of a constant feature counts as 1.

    Example:
        >>> scaler = Scaler.of(np.array([[1.0, 5.0], [3.0, 5.0]]))
        >>> scaler(np.array([[4.0, 5.0]]))
        array([[2., 0.]])
    """

    mean: Array
    std: Array

    @classmethod
    def of(cls, x: Array) -> Scaler:
        """Fitted to ``x``."""
        mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
        rounding = len(x) * np.finfo(np.float64).eps * np.abs(mean)
        return cls(mean, np.where(std > rounding, std, 1.0))

    def __call__(self, x: Array) -> Array:
        """Standardized features."""
        return (x - self.mean) / self.std

    def undo(self, linear: Linear) -> Linear:
        """The classifier of features as they are that agrees with ``linear`` on standardized ones."""
        weight = linear.weight / self.std
        return Linear(weight, linear.bias - weight @ self.mean)


def softmax_regression(
    x: Array, y: Classes, classes: int, l2: Sequence[float], tolerance: float = 1e-9
) -> list[Linear]:
    r"""Multinomial logistic regression for every penalty of a path.

    .. math:: \min_{W, b}\ \frac1n \sum_i \Big(\log \sum_k e^{z_{ik}} - z_{i y_i}\Big)
              + \frac\lambda2 \|W\|_F^2, \qquad z_i = W x_i + b.

    A rotation of the features changes neither the loss nor the penalty, so the problem is solved along the principal
    axes of ``x`` (at most n of them). There the Hessian is nearly :math:`c\,s_j/n + \lambda` on axis j
    (:math:`s_j` the axis' sum of squares, c the mean curvature of the loss): dividing the axes by its root leaves
    L-BFGS a problem of small condition number, from one penalty's optimum to the next smaller one's. The weights of
    all classes sum to zero, so one set fewer is sought. Most iterations take products in single precision;
    the last ones, and the result, are float64.

    Args:
        x: Features, best centered.
        y: Classes.
        classes: How many there are; each must occur, or its bias would have no optimum.
        l2: Penalties :math:`\lambda > 0`. The bias is free.
        tolerance: Stop when an iteration lowers the objective by less than this share of it.

    Returns:
        One classifier for each penalty, in the order given.

    Example:
        >>> x, y = np.array([[-1.0], [1.0]]), np.array([0, 1])
        >>> fit = softmax_regression(x, y, 2, [0.5])[0]  # w = 2 W_1 has w = expit(-w) / 0.25
        >>> w = fit.weight[1, 0] - fit.weight[0, 0]
        >>> float(round(w * 0.25 - expit(-w), 6))
        0.0

    Differences:
        Always the softmax, also for two classes. W_1 - W_0 then has half the penalty of scikit-learn's binary form,
        which at C is this at :math:`\lambda = 2/(nC)`; with more classes :math:`\lambda = 1/(nC)`.
    """
    n = len(x)
    missing = np.setdiff1d(np.arange(classes), y)
    if len(missing):
        raise ValueError(f"every class must occur among the examples, but class {missing[0]} of {classes} does not.")
    for penalty in l2:
        check_number("l2", penalty, Range(above=0))
    z, s, back = _principal_axes(x)
    z, s = np.column_stack([z, np.ones(n)]), np.append(s, n)  # the bias is one more axis, without a penalty
    contrasts = helmert(classes)
    v, fits = np.zeros((classes - 1, len(s))), {}
    for penalty in sorted(set(l2), reverse=True):
        l2_of_axis = np.append(np.full(len(s) - 1, penalty), 0.0)
        v = _minimize_softmax(z, np.eye(classes)[:, y], contrasts, s / n, l2_of_axis, v, tolerance)
        w = contrasts.T @ v
        fits[penalty] = Linear(back(w[:, :-1]), w[:, -1])
    return [fits[penalty] for penalty in l2]


def _principal_axes(x: Array) -> tuple[Array, Array, Any]:
    """``x`` along its principal axes (n, r), their sums of squares (r,), and the way back for weights (k, r)."""
    n, d = x.shape
    s, u = np.linalg.eigh(x @ x.T if n < d else x.T @ x)
    kept = s > s[-1] * max(n, d) * np.finfo(float).eps
    s, u = s[kept], u[:, kept]
    if n < d:
        return u * np.sqrt(s), s, lambda v: (v / np.sqrt(s)) @ u.T @ x
    return x @ u, s, lambda v: v @ u.T


def _minimize_softmax(
    z: Array, onehot: Array, contrasts: Array, s: Array, l2: Array, start: Array, tolerance: float
) -> Array:
    """Weights (classes - 1, r) of the contrasts at the optimum; classes lead, which makes skinny products fast."""
    n = len(z)
    p = softmax(contrasts.T @ (start @ z.T), 0)
    c = max((1 - (p**2).sum(0)).mean() / len(start), 1e-6)
    unit = 1 / np.sqrt(c * s + l2)
    l2 = l2 * unit**2

    def objective(u: Array, axes: NDArray[Any]) -> tuple[float, Array]:
        u = u.reshape(start.shape)
        scores = contrasts.T @ (u.astype(axes.dtype) @ axes.T).astype(np.float64)
        scores -= scores.max(0)
        odds = np.exp(scores)
        total = odds.sum(0)
        value = (np.log(total) - (scores * onehot).sum(0)).mean() + 0.5 * (l2 * u**2).sum()
        residual = contrasts @ (odds / total - onehot)
        return value, (residual.astype(axes.dtype) @ axes / n + l2 * u).ravel()

    u, axes = start / unit, z * unit
    for given, stop in ((axes.astype(np.float32), max(tolerance, SINGLE)), (axes, tolerance)):
        u = _lbfgs(partial(objective, axes=given), u, stop)
    return u.reshape(start.shape) * unit


def sparse_regression(x: Array, y: Classes, c: float) -> Array:
    r"""Binary logistic regression with an L1 penalty on every weight.

    .. math:: \min_w\ \|w\|_1 + C \sum_i \log\big(1 + e^{-t_i w^\top x_i}\big), \qquad t_i = \pm 1.

    Solved over :math:`w = u - v` with :math:`u, v \ge 0`, where the problem is smooth and zeros are exact.

    Args:
        x: Features; add a column of ones for a bias, which is then penalized like the rest (as in liblinear).
        y: 0 or 1.
        c: Weight of the loss.

    Example:
        >>> x, y = np.array([[-1.0], [1.0]]), np.array([0, 1])
        >>> w = sparse_regression(x, y, c=2.0)  # 1 = 4 expit(-w)
        >>> bool(np.isclose(w[0], np.log(3))), sparse_regression(x, y, c=0.9)
        (True, array([0.]))
    """
    check_number("c", c, Range(above=0))
    signed = x * (2.0 * y - 1)[:, None]

    def objective(uv: Array) -> tuple[float, Array]:
        u, v = np.split(uv, 2)
        margin = signed @ (u - v)
        gradient = -c * (expit(-margin) @ signed)
        return uv.sum() + c * np.logaddexp(0, -margin).sum(), np.concatenate([1 + gradient, 1 - gradient])

    u, v = np.split(_lbfgs(objective, np.zeros(2 * x.shape[1]), 1e-12, bounds=(0, None)), 2)
    return u - v


def _lbfgs(objective: Any, start: Array, tolerance: float, bounds: tuple[float, None] | None = None) -> Array:
    """The minimizer; the objective is scaled to 1 at the start, since L-BFGS-B's tolerance is absolute below 1."""
    scale = 1 / objective(start.ravel())[0]

    def scaled(u: Array) -> tuple[float, Array]:
        value, gradient = objective(u)
        return scale * value, scale * gradient

    solution = minimize(
        scaled,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=None if bounds is None else [bounds] * start.size,
        options={"ftol": tolerance, "gtol": 0.0, "maxcor": 10, "maxiter": 100_000, "maxfun": 1_000_000},
    )
    minimizer: Array = solution.x
    return minimizer
