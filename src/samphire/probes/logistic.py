r"""Linear classifiers, how features are scaled for them, and logistic regression with an L1 penalty.

``x`` (n, d) float64 features, ``y`` (n,) classes counted from 0. :mod:`samphire.probes.softmax` has the L2 penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from samphire.checks import Range, check_number, check_one_of

Array = NDArray[np.float64]
Classes = NDArray[np.int64]

Scaling = Literal["global", "each", "none"]

__all__ = ["SCALINGS", "Array", "Classes", "Linear", "Scaler", "Scaling", "predictions", "sparse_regression"]

SCALINGS: dict[str, str] = {
    "global": "one number for all features",
    "each": "one number for each feature",
    "none": "as they are",
}
"""How features may be scaled before they are penalized."""


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
        return predictions([self], x)[0]


def predictions(fits: Sequence[Linear], x: Array) -> Classes:
    """The classes that several classifiers of the same classes predict, (fits, n), by one product with ``x``.

    Example:
        >>> up = Linear(np.array([[-1.0], [1.0]]), np.zeros(2))
        >>> predictions([up, Linear(-up.weight, up.bias)], np.array([[0.5], [-2.0], [3.0]]))
        array([[1, 0, 1],
               [0, 1, 0]])
    """
    scores = x @ np.concatenate([fit.weight for fit in fits]).T + np.concatenate([fit.bias for fit in fits])
    return np.argmax(scores.reshape(len(x), len(fits), -1), 2).T


@dataclass(frozen=True)
class Scaler:
    """Mean of each feature, and the number it is divided by.

    Example:
        >>> x = np.array([[1.0, 5.0, 0.0], [3.0, 5.0, 4.0]])
        >>> Scaler.of(x)(x), Scaler.of(x, "none")(x)[0]
        (array([[-1.,  0., -1.],
               [ 1.,  0.,  1.]]), array([-1.,  0., -2.]))
        >>> Scaler.of(x, "global").std  # the root of (1 + 0 + 4) / 3
        array([1.29099445, 1.29099445, 1.29099445])
    """

    mean: Array
    std: Array

    @classmethod
    def of(cls, x: Array, scaling: Scaling = "each") -> Scaler:
        """Fitted to ``x``.

        Args:
            x: Features.
            scaling: ``"each"``: divided by its own standard deviation, where it is not constant. ``"global"``: all
                by the root mean square deviation of all. ``"none"``: centered only.
        """
        check_one_of("scaling", scaling, SCALINGS)
        mean = x.mean(0, dtype=np.float64)
        if scaling == "none":
            return cls(mean, np.ones_like(mean))
        std = x.std(0, dtype=np.float64)
        rounding = len(x) * np.finfo(np.float64).eps * np.abs(mean)
        varies = std > rounding
        if scaling == "global" and varies.any():
            return cls(mean, np.full_like(std, np.sqrt(np.mean(std**2))))
        return cls(mean, np.where(varies, std, 1.0))

    def __call__(self, x: Array) -> Array:
        """Scaled features."""
        scaled = x - self.mean
        scaled /= self.std
        return scaled

    def undo(self, linear: Linear) -> Linear:
        """The classifier of features as they are that agrees with ``linear`` on scaled ones."""
        weight = linear.weight / self.std
        return Linear(weight, linear.bias - weight @ self.mean)


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

    from scipy.optimize import minimize

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
