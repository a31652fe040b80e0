"""Softmax regression against closed forms, dense Newton steps and scikit-learn."""

import numpy as np
import pytest
from probe_problems import objective, problem
from scipy.optimize import brentq
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from samphire import probes
from samphire.probes.softmax import softmax_regression, softmax_regressions

SHAPES = [(30, 8, 2), (30, 8, 3), (40, 200, 2), (60, 200, 5), (25, 25, 3)]
PENALTIES = (1e-3, 1e-1, 10.0)
TIGHT = 1e-15


@pytest.mark.parametrize("l2", PENALTIES)
@pytest.mark.parametrize(("n", "d", "classes"), SHAPES)
def test_softmax_regression_is_scikit_learns(n, d, classes, l2):
    x, y = problem(n, d, classes)
    fit = softmax_regression(x, y, classes, [l2], tolerance=TIGHT)[0]
    c = (2 if classes == 2 else 1) / (n * l2)
    model = LogisticRegression(C=c, tol=1e-8, max_iter=100_000, solver="newton-cg").fit(x, y)
    if classes == 2:
        assert fit.weight[1] - fit.weight[0] == pytest.approx(model.coef_[0], abs=1e-4)
        assert fit.bias[1] - fit.bias[0] == pytest.approx(model.intercept_[0], abs=1e-4)
    else:
        assert fit.weight == pytest.approx(model.coef_, abs=1e-4)
        found = probes.Linear(model.coef_, model.intercept_)
        assert objective(fit, x, y, l2) <= objective(found, x, y, l2) * (1 + 1e-8)


@pytest.mark.parametrize(("n", "d", "classes"), SHAPES)
def test_the_default_tolerance_ends_within_1e_7_of_the_optimum(n, d, classes):
    x, y = problem(n, d, classes)
    for l2 in PENALTIES:
        usual, best = (softmax_regression(x, y, classes, [l2], **t)[0] for t in ({}, {"tolerance": TIGHT}))
        assert objective(usual, x, y, l2) <= objective(best, x, y, l2) * (1 + 1e-7)


@pytest.mark.parametrize("l2", PENALTIES)
def test_softmax_regression_is_the_fixed_point_of_dense_newton_steps(l2):
    """Newton's method with the whole Hessian over (classes, d + 1), in float64, started from zero."""
    x, y = problem(40, 6, 3, seed=1)
    n, classes = len(x), 3
    z = np.column_stack([x, np.ones(n)])
    penalty = np.tile(np.append(np.full(6, l2), 0.0), classes)
    w, onehot = np.zeros(classes * 7), np.eye(classes)[y]
    for _ in range(60):
        p = softmax(z @ w.reshape(classes, 7).T, 1)
        gradient = ((p - onehot).T @ z / n).ravel() + penalty * w
        curvature = np.einsum("ik,kl->ikl", p, np.eye(classes)) - np.einsum("ik,il->ikl", p, p)
        hessian = np.einsum("ikl,ia,ib->kalb", curvature, z, z).reshape(21, 21) / n + np.diag(penalty)
        step = np.linalg.lstsq(hessian, gradient, rcond=1e-12)[0]
        w = w - step * min(1.0, 1 / np.linalg.norm(step))
    assert np.abs(gradient).max() < 1e-10
    fit = softmax_regression(x, y, classes, [l2], tolerance=TIGHT)[0]
    assert fit.weight == pytest.approx(w.reshape(classes, 7)[:, :6], abs=2e-5)
    bias = w.reshape(classes, 7)[:, 6]
    assert fit.bias - fit.bias.mean() == pytest.approx(bias - bias.mean(), abs=2e-5)


@pytest.mark.parametrize("l2", PENALTIES)
def test_one_feature_has_a_closed_form(l2):
    """Separable x = -1, 1: W_1 = -W_0 = u with 2u the margin, so expit(-2u) = l2 u... divided by two classes."""
    x, y = np.array([[-1.0], [1.0]]), np.array([0, 1])
    u = brentq(lambda u: l2 * u - expit(-2 * u), 0, 1e4, xtol=1e-14)
    fit = softmax_regression(x, y, 2, [l2])[0]
    assert fit.weight.ravel() == pytest.approx([-u, u], rel=1e-4)
    assert fit.bias == pytest.approx([0, 0], abs=1e-5)


def test_a_path_is_its_single_fits_in_the_order_given():
    x, y = problem(40, 100, 3)
    path = softmax_regression(x, y, 3, PENALTIES)
    for l2, fit in zip(PENALTIES, path, strict=True):
        alone = softmax_regression(x, y, 3, [l2])[0]
        assert objective(fit, x, y, l2) == pytest.approx(objective(alone, x, y, l2), rel=1e-8)
    assert np.linalg.norm(path[0].weight) > np.linalg.norm(path[1].weight) > np.linalg.norm(path[2].weight)


@pytest.mark.parametrize(("n", "d"), [(40, 12), (20, 60)])
def test_rotating_features_rotates_the_weights(n, d):
    x, y = problem(n, d, 3)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))
    a, b = (softmax_regression(z, y, 3, [0.01])[0] for z in (x, x @ turn))
    assert a.weight @ turn == pytest.approx(b.weight, abs=1e-4)


def test_features_of_low_rank_and_constant_features_are_solved_too():
    x, y = problem(50, 80, 3, rank=4)
    x[:, 0] = 0.0
    fit = softmax_regression(x, y, 3, [0.1])[0]
    p = softmax(x @ fit.weight.T + fit.bias, 1)
    gradient = (p - np.eye(3)[y]).T @ x / 50 + 0.1 * fit.weight
    assert np.abs(gradient).max() < 1e-5
    assert np.abs(fit.weight[:, 0]).max() < 1e-7


def test_targets_with_different_numbers_of_classes_are_fitted_as_if_alone():
    x, y = problem(60, 9, 5)
    other = (x[:, 0] > 0).astype(np.int64)
    together = softmax_regressions(x, [(y, 5), (other, 2)], PENALTIES, TIGHT)
    for path, (target, classes) in zip(together, ((y, 5), (other, 2)), strict=True):
        for fit, l2 in zip(path, PENALTIES, strict=True):
            alone = softmax_regression(x, target, classes, [l2], tolerance=TIGHT)[0]
            assert fit.weight.shape == (classes, 9)
            assert fit.weight == pytest.approx(alone.weight, abs=1e-5)
            assert fit.bias == pytest.approx(alone.bias, abs=1e-5)


@pytest.mark.parametrize("unit", [1e-30, 1e-6, 1e6, 1e30])
def test_features_of_any_size_are_solved_and_none_in_silence(unit):
    """Scaling the features and the penalty together changes nothing, also where single precision would overflow."""
    x, y = problem(40, 100, 3)
    a = softmax_regression(x, y, 3, [0.01])[0]
    b = softmax_regression(unit * x, y, 3, [0.01 * unit**2])[0]
    assert b.weight * unit == pytest.approx(a.weight, abs=1e-4)
    assert (b.predict(unit * x) == a.predict(x)).all()


def test_separable_features_with_a_tiny_penalty_end_too():
    """The objective is so small that single precision cannot tell one step from the next."""
    y = np.repeat([0, 1], 50)
    x = np.random.default_rng(0).normal(size=(100, 30)) + 20 * y[:, None]
    fit = softmax_regression(x, y, 2, [1e-9])[0]
    best = softmax_regression(x, y, 2, [1e-9], tolerance=TIGHT)[0]
    assert objective(fit, x, y, 1e-9) <= objective(best, x, y, 1e-9) * (1 + 1e-6)
