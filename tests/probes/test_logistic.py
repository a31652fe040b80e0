"""Sparse regression and scaling against liblinear, optimality conditions and scikit-learn."""

import warnings

import numpy as np
import pytest
from probe_problems import problem
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from samphire.probes.logistic import Scaler, sparse_regression
from samphire.probes.softmax import softmax_regression


@pytest.mark.parametrize("c", [1.0, 0.3, 0.1, 0.03])
@pytest.mark.parametrize(("n", "d"), [(60, 10), (60, 90)])
def test_sparse_regression_is_liblinear(n, d, c):
    x, y = problem(n, d, 2, seed=2)
    w = sparse_regression(np.column_stack([x, np.ones(n)]), y, c)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=c, l1_ratio=1, solver="liblinear", tol=1e-7, max_iter=2000).fit(x, y)
    theirs = np.append(model.coef_[0], model.intercept_)
    value = lambda w: np.abs(w).sum() + c * np.logaddexp(0, -(2 * y - 1) * (x @ w[:-1] + w[-1])).sum()
    assert value(w) <= value(theirs) * (1 + 1e-9)
    assert w == pytest.approx(theirs, abs=2e-3)


@pytest.mark.parametrize("c", [1.0, 0.1])
def test_sparse_regression_meets_its_optimality_conditions(c):
    """|gradient of the loss| <= 1 where a weight is 0, and minus its sign elsewhere."""
    x, y = problem(60, 90, 2, seed=2)
    w = sparse_regression(x, y, c)
    gradient = -c * (expit(-(2 * y - 1) * (x @ w)) * (2 * y - 1)) @ x
    assert 0 < (w != 0).sum() < 60
    assert gradient[w != 0] == pytest.approx(-np.sign(w[w != 0]), abs=1e-4)
    assert np.abs(gradient[w == 0]).max() <= 1 + 1e-6


def test_scaler_is_scikit_learns_and_undone_exactly():
    x, y = problem(30, 5, 3)
    x = 7 + 3 * x
    x[:, 2] = 0.1  # whose computed deviation is not quite 0
    x[:, 3] *= 1e-9
    scaler = Scaler.of(x)
    assert scaler(x) == pytest.approx(StandardScaler().fit_transform(x), abs=1e-12)
    fit = softmax_regression(scaler(x), y, 3, [0.1])[0]
    raw = scaler.undo(fit)
    assert x @ raw.weight.T + raw.bias == pytest.approx(scaler(x) @ fit.weight.T + fit.bias, abs=1e-10)
