"""Weights by what each feature contributes: against scipy and hand-worked numbers."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from samphire import mechanisms
from samphire.data.split import Split
from samphire.mechanisms import probed_contribution
from samphire.probes import Linear


def vec(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def near(actual, expected, tol=1e-12):
    assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tol, atol=tol)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_contributions_add_up_to_the_margin():
    phi, y, v = random(6, 2), random(6, seed=100).sign(), random(2, seed=1)
    near(mechanisms.contributions(phi, y, v).sum(-1), mechanisms.margins(phi @ v, y))


def test_binned_medians_agree_with_scipy():
    easy, hard, lam = random(300), random(300, seed=1), random(300, seed=2).exp()
    binned = mechanisms.median_by_contribution(lam, easy, hard, bins=6)
    median, *edges, _ = stats.binned_statistic_2d(easy, hard, lam, statistic="median", bins=6)
    np.testing.assert_allclose(binned.median, median, rtol=1e-12)
    count = stats.binned_statistic_2d(easy, hard, lam, statistic="count", bins=6).statistic
    np.testing.assert_array_equal(binned.counts, count)
    np.testing.assert_allclose(torch.stack(binned.edges), np.stack(edges), rtol=1e-12, atol=1e-12)
    assert binned.median.isnan().equal(binned.counts == 0)
    assert binned.counts.sum() == 300


def test_examples_outside_given_edges_are_counted():
    edges = (vec(0, 1, 2), vec(0, 1))
    binned = mechanisms.median_by_contribution(vec(1, 2, 3, 4), vec(0, 1, 2, 3), vec(0, 1, 0.5, 0.5), edges)
    near(binned.median, [[1.0], [2.5]])  # the example on the inner edge 1 is in the upper bin
    assert binned.counts.tolist() == [[1], [2]]
    assert binned.outside == 1


def test_equal_contributions_fall_into_one_bin():
    binned = mechanisms.median_by_contribution(vec(1, 3), vec(2, 2), vec(5, 5), bins=1)
    near(binned.median, [[2.0]])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((vec(1), vec(1, 2), vec(1)), "got 1, 2 and 1"),
        ((vec(1), vec(1), vec(1), 0), "got 0 and 1"),
        ((vec(), vec(), vec()), "got 10 and 0"),
    ],
)
def test_bins_that_do_not_fit_are_refused(args, message):
    with pytest.raises(ValueError, match=message):
        mechanisms.median_by_contribution(*args)


# As probes see it


@pytest.mark.parametrize("turned", [False, True], ids=["with the label", "against it"])
def test_contributions_are_log_odds_for_the_label(turned):
    y = np.array([0, 0, 0, 1, 1, 1])
    place = np.array([0, 0, 1, 1, 1, 0])
    split = Split(np.zeros(6), y, {"bird": y, "place": 1 - place if turned else place})
    phi = np.array([[-1.0], [-2.0], [3.0], [2.0], [-0.5], [0.0]])
    sign = -1.0 if turned else 1.0
    fit = Linear(np.array([[-sign], [sign]]), np.array([0.25 * sign, -0.25 * sign]))  # log-odds sign (2 phi - 0.5)
    contribution = probed_contribution(phi, split, "place", fit)
    assert contribution.tolist() == [2.5, 4.5, -5.5, 3.5, -1.5, -0.5]


def test_contributions_need_two_values_and_a_sign():
    y, three = np.array([0, 1, 0, 1]), np.array([0, 1, 2, 0])
    split = Split(np.zeros(4), y, {"y": y, "three": three, "level": np.array([0, 0, 1, 1])})
    fit = Linear(np.array([[0.0], [1.0]]), np.zeros(2))
    with pytest.raises(ValueError, match=r"two values of three, 0 and 1, got 0, 1, 2"):
        probed_contribution(np.ones((4, 1)), split, "three", fit)
    with pytest.raises(ValueError, match="level does not go with the label"):
        probed_contribution(np.ones((4, 1)), split, "level", fit)
