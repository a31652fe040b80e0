"""One fitted probe, against scikit-learn and the probes it takes its penalty from."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from samphire.data.split import Split
from samphire.probes import fitted_probe, probe


def grouped(counts, seed=0):
    """A split whose groups (y, place) have these sizes, and features that show both with noise."""
    draw = np.random.default_rng(seed)
    y, place = (np.repeat(values, counts) for values in ([0, 0, 1, 1], [0, 1, 0, 1]))
    phi = np.stack([y + 0.6 * draw.normal(size=len(y)), 3 * place + 2 * draw.normal(size=len(y))], 1)
    return phi, Split(np.zeros(len(y)), y, {"bird": y, "place": place})


@pytest.mark.parametrize("feature", ["bird", "place"])
def test_a_fitted_probe_is_logistic_regression_on_standardized_features(feature):
    phi, split = grouped([30] * 4)
    fit = fitted_probe(phi, split, feature, l2=[0.1], scaling="each")
    x = (phi - phi.mean(0)) / phi.std(0)
    known = LogisticRegression(C=2 / (0.1 * 120), tol=1e-10).fit(x, split.features[feature])
    log_odds = phi @ (fit.weight[1] - fit.weight[0]) + fit.bias[1] - fit.bias[0]
    np.testing.assert_allclose(log_odds, known.decision_function(x), rtol=1e-3, atol=1e-3)


def test_every_group_counts_as_much():
    """All examples of a group are alike, so which of them are drawn does not matter, but how many would."""
    corner, _ = grouped([1] * 4)
    fits = []
    for counts in ([6] * 4, [60, 6, 6, 30]):
        _, split = grouped(counts)
        fits.append(fitted_probe(np.repeat(corner, counts, 0), split, "place", l2=[0.1]))
    np.testing.assert_allclose(fits[0].weight, fits[1].weight, rtol=1e-9)
    np.testing.assert_allclose(fits[0].bias, fits[1].bias, rtol=1e-9, atol=1e-12)


def test_the_penalty_is_the_one_that_probes_choose():
    phi, split = grouped([20] * 4)
    noisy = np.concatenate([phi, np.random.default_rng(0).normal(size=(80, 40))], 1)
    other, held = grouped([3] * 4, seed=1)
    other = np.concatenate([other, np.zeros((12, 40))], 1)
    chosen = probe(noisy, split, other, held, "bird", resamples=5).tuned.l2
    fits = [fitted_probe(noisy, split, "bird", **given) for given in ({}, {"l2": [chosen]}, {"l2": [3 * chosen]})]
    np.testing.assert_array_equal(fits[0].weight, fits[1].weight)
    assert np.abs(fits[0].weight - fits[2].weight).max() > 1e-3
