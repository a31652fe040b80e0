"""Errors by group: by hand, Wilson's interval, the bootstrap."""

import math

import numpy as np
import pytest
from probe_problems import cells
from scipy.special import ndtri

from samphire import probes
from samphire.data.split import Split
from samphire.probes import groups
from samphire.probes.resampling import bootstrap


def test_four_averages_by_hand():
    """Groups of 4, 2, 2, 1 test examples with 1, 1, 0, 1 wrong; trained on 6, 1, 1, 2."""
    y, b = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1]), np.array([0, 0, 0, 0, 1, 1, 0, 0, 1])
    guess = np.array([1, 0, 0, 0, 1, 0, 1, 1, 0])
    test = Split(y, y, {"y": y, "b": b}, values={"b": ("land", "water")})
    ty, tb = np.repeat([0, 0, 1, 1], [6, 1, 1, 2]), np.repeat([0, 1, 0, 1], [6, 1, 1, 2])
    found = probes.errors(guess, test, Split(ty, ty, {"y": ty, "b": tb}))
    assert [g.error for g in found.groups] == [0.25, 0.5, 0.0, 1.0]
    assert [g.n for g in found.groups] == [4, 2, 2, 1]
    assert [g.train_n for g in found.groups] == [6, 1, 1, 2]
    assert found.train_weighted == pytest.approx((6 * 0.25 + 1 * 0.5 + 1 * 0.0 + 2 * 1.0) / 10)
    assert found.plain == pytest.approx(3 / 9)
    assert found.equal_group == pytest.approx(1.75 / 4)
    assert (found.worst.name, found.worst.n) == ("y=1, b=water", 1)
    row = found.row()
    assert (row["train-weighted error"], row["worst group's n"]) == (pytest.approx(0.4), 1)
    assert {"plain error", "equal-group error", "worst-group error"} <= row.keys()


def test_groups_mean_the_same_in_splits_that_hold_different_values():
    """Counted by themselves the splits number (a, b) = (1, 0) as 2 and as 3."""
    a, b = np.array([0, 1, 1]), np.array([0, 0, 1])
    c, d = np.array([0, 1, 1, 1]), np.array([0, 0, 2, 1])
    (first, second), names = groups.joint_groups(Split(a, a, {"a": a, "b": b}), Split(c, c, {"a": c, "b": d}))
    assert [names[i] for i in first] == ["a=0, b=0", "a=1, b=0", "a=1, b=1"]
    assert [names[i] for i in second] == ["a=0, b=0", "a=1, b=0", "a=1, b=2", "a=1, b=1"]


def test_a_trained_group_without_test_examples_is_refused():
    test, train = cells(1).subset(np.arange(3)), cells(1)
    with pytest.raises(ValueError, match="a=1, b=1 is trained on"):
        probes.errors([0, 0, 0], test, train)


@pytest.mark.parametrize(("wrong", "n"), [(0, 10), (3, 10), (10, 10), (90, 180), (1, 642)])
def test_the_interval_of_a_group_is_wilsons_formula(wrong, n):
    p, q = wrong / n, ndtri(0.975) ** 2
    half = math.sqrt(q * p * (1 - p) / n + (q / (2 * n)) ** 2)
    expected = [(p + q / (2 * n) + sign * half) / (1 + q / n) for sign in (-1, 1)]
    assert groups.GroupError("a=1", n, p).interval == pytest.approx(expected, abs=1e-12)


def test_bootstrap_has_the_width_of_the_binomial():
    """One resample, groups of 1000 and 400 at 20 % and 50 %: the standard error of the mean of their errors is known."""
    wrong = np.concatenate([np.arange(1000) < 200, np.arange(400) < 200])[None]
    low, high = bootstrap(wrong, np.repeat([3, 1], [1000, 400]), draws=4000)
    error = 0.5 * math.sqrt(0.2 * 0.8 / 1000 + 0.5 * 0.5 / 400)
    assert (low + high) / 2 == pytest.approx(0.35, abs=0.003)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_bootstrap_counts_the_spread_of_resamples():
    """Every test example alike within a resample: only the resamples differ, with errors 0 and 1."""
    wrong = np.repeat([[0.0], [1.0]], 50, 1)[np.arange(16) % 2]
    low, high = bootstrap(wrong, np.zeros(50, int), draws=4000)
    assert (low, high) == (pytest.approx(0.25, abs=0.07), pytest.approx(0.75, abs=0.07))
