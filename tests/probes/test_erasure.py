"""Concept erasure against its closed form, its guarantee and the properties that make it the least change."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from samphire.probes.erasure import erase, erase_random
from samphire.probes.softmax import softmax_regression

SHAPES = [(300, 5, 2, False), (300, 5, 3, False), (300, 5, 2, True), (60, 100, 3, False), (60, 100, 3, True)]


def shown(n, d, values, seed=0):
    """Features that show a concept along several correlated directions."""
    draw = np.random.default_rng(seed)
    z = np.arange(n) % values
    x = draw.normal(size=(n, d)) @ draw.normal(size=(d, d)) + draw.normal(size=(values, d))[z] * 2
    return x, z


@pytest.mark.parametrize(("n", "d", "values", "shrink"), SHAPES)
def test_no_covariance_with_the_concept_is_left(n, d, values, shrink):
    x, z = shown(n, d, values)
    weights = np.random.default_rng(1).random(n)
    erased = erase(x, z, weights, shrink=shrink)
    w, onehot = weights / weights.sum(), np.eye(values)[z]
    after = erased(x)
    covariance = ((after - w @ after) * w[:, None]).T @ (onehot - w @ onehot)
    before = ((x - w @ x) * w[:, None]).T @ (onehot - w @ onehot)
    assert np.abs(before).max() > 0.1
    np.testing.assert_allclose(covariance, 0, atol=1e-9)
    assert erased.rank == values - 1


@pytest.mark.parametrize("values", [2, 3])
def test_no_linear_classifier_beats_the_best_constant_one(values):
    x, z = shown(299, 4, values)
    assert np.mean(softmax_regression(x, z, values, [1e-6])[0].predict(x) == z) > 0.6
    after = erase(x, z)(x)
    fit = softmax_regression(after, z, values, [1e-6], tolerance=1e-14)[0]
    scores = after @ fit.weight.T + fit.bias
    shares = np.bincount(z) / len(z)
    np.testing.assert_allclose(
        scores - scores.mean(1, keepdims=True), np.tile(np.log(shares) - np.log(shares).mean(), (299, 1)), atol=1e-3
    )


def test_the_closed_form_of_the_paper_with_dense_matrices():
    x, z = shown(200, 4, 3)
    mean, onehot = x.mean(0), np.eye(3)[z]
    sigma = np.cov(x.T, bias=True)
    cross = (x - mean).T @ (onehot - onehot.mean(0)) / len(x)
    w = np.linalg.inv(sqrtm(sigma).real)
    m = w @ cross
    projection = m @ np.linalg.pinv(m)
    known = x - (x - mean) @ (np.linalg.inv(w) @ projection @ w).T
    np.testing.assert_allclose(erase(x, z)(x), known, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_map_without_covariance_changes_less(seed):
    """Any A with A cov(x, z) = 0 erases; x -> mean + A (x - mean) then moves further, in any norm M."""
    x, z = shown(300, 5, 2)
    draw = np.random.default_rng(seed)
    onehot = np.eye(2)[z]
    cross = (x - x.mean(0)).T @ (onehot - onehot.mean(0)) / len(x)
    u = np.linalg.svd(cross)[0][:, :1]
    least = erase(x, z)(x) - x
    a = np.eye(5) - u @ u.T + 0.3 * draw.normal(size=(5, 5)) @ (np.eye(5) - u @ u.T)
    assert np.abs(a @ cross).max() < 1e-10
    other = (x - x.mean(0)) @ a.T + x.mean(0) - x
    m = draw.normal(size=(5, 5))
    for norm in (np.eye(5), m @ m.T):
        assert np.einsum("ni,ij,nj->", least, norm, least) < np.einsum("ni,ij,nj->", other, norm, other)


def test_a_second_erasure_changes_nothing():
    x, z = shown(300, 5, 3)
    once = erase(x, z)(x)
    np.testing.assert_allclose(erase(once, z)(once), once, atol=1e-9)


def test_random_directions_remove_as_many_and_leave_the_concept():
    x, z = shown(400, 6, 2)
    random = erase_random(x, 1, np.random.default_rng(0))
    after = random(x)
    assert np.linalg.matrix_rank(after - after.mean(0), tol=1e-8) == 5
    assert np.mean(softmax_regression(after, z, 2, [1e-3])[0].predict(after) == z) > 0.7


def test_a_concept_that_is_not_there_is_left_alone():
    x = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0], [0.0, 2.0]])
    erased = erase(x, np.array([0, 0, 1, 1]))
    assert erased.rank == 0
    np.testing.assert_array_equal(erased(x), x)
