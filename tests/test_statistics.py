"""Estimates, paired differences and the verdict, against scipy's tests and numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from samphire import statistics
from samphire.statistics import (
    Difference,
    Estimate,
    equal,
    estimate,
    falling,
    higher,
    lower,
    not_higher,
    paired,
    raised,
    rising,
)

VALUES = {n: np.random.default_rng(n).normal(0.3, 1.0, n) for n in (2, 3, 5, 10, 40)}


@pytest.mark.parametrize("n", VALUES)
@pytest.mark.parametrize("level", [0.95, 0.998])
def test_interval_and_p_are_those_of_the_t_test(n, level):
    reference = stats.ttest_1samp(VALUES[n], 0.0)
    ours = estimate(VALUES[n])
    assert ours.p == pytest.approx(reference.pvalue, rel=1e-10)
    ends = reference.confidence_interval(level)
    assert ours.interval(level) == pytest.approx((ends.low, ends.high), rel=1e-10)
    assert ours.deviation == pytest.approx(VALUES[n].std(ddof=1), rel=1e-12)


def test_a_lone_run_judges_nothing():
    one = estimate([3.0])
    assert math.isnan(one.p)
    assert all(map(math.isnan, one.interval()))
    assert lower(one) == higher(one) == equal(one, 10.0) == "open"


def test_two_standard_errors_of_two_runs_are_within_the_noise():
    two = Estimate(-1.0, 0.4, 2)  # t = 2.5, but with one degree of freedom the interval reaches 12.7 errors
    assert lower(two) == "open"
    assert lower(Estimate(-1.0, 0.4, 10)) == "holds"  # 2.26 errors


def test_runs_that_differ_by_nothing_have_an_interval_of_no_width():
    assert lower(estimate([-0.1, -0.1, -0.1])) == "holds"
    assert lower(estimate([0.0, 0.0])) == "open"
    assert equal(estimate([0.0, 0.0]), 0.01) == "holds"
    assert estimate([0.0, 0.0]).p == 1
    assert estimate([1.0, 1.0]).p == 0


def rows(values, **others):
    return [{"seed": seed, "error": value, **others} for seed, value in values.items()]


def test_pairs_are_made_by_seed_and_signed_after_minus_before():
    difference = paired(rows({0: 0.3, 1: 0.5, 7: 9.0}), rows({1: 0.2, 0: 0.1, 8: -9.0}), "error")
    assert difference.estimate.mean == pytest.approx(-0.25)
    assert (difference.estimate.n, difference.pairs) == (2, 2)
    assert difference.p == pytest.approx(stats.ttest_rel([0.1, 0.2], [0.3, 0.5]).pvalue)
    assert (-difference).estimate.mean == pytest.approx(0.25)


@pytest.mark.parametrize("lost", [{"collapsed": True}, {"error": math.nan}])
def test_runs_that_collapsed_are_left_out_and_counted(lost):
    before = rows({0: 0.5, 1: 0.5, 2: 0.5})
    after = rows({0: 0.1, 1: 0.1, 2: 0.1})
    after[2] |= lost
    difference = paired(before, after, "error")
    assert (difference.estimate.n, difference.pairs) == (2, 3)
    assert str(difference).endswith("1 of 3 pairs left out: collapsed")


def test_where_most_pairs_collapsed_nothing_is_judged():
    kept, all_pairs = Estimate(-1.0, 0.0, 4), 9
    assert lower(Difference(kept, all_pairs)) == "open"
    assert lower(Difference(kept, 8)) == "holds"


def test_settings_of_one_seed_count_once():
    before = [{"seed": s, "batch": b, "error": 1.0} for s in (0, 1) for b in (5, 10)]
    after = [{"seed": s, "batch": b, "error": 0.1 * b} for s in (0, 1) for b in (10, 5)]
    difference = paired(before, after, "error", within=["batch"])
    assert difference.estimate.n == 2
    assert difference.estimate.mean == pytest.approx((0.5 + 1.0) / 2 - 1.0)


TINY, WIDE = 0.01, 1.0
CASES = [  # a verdict function's name, mean, standard error (n = 10: the interval is 2.26 errors), verdict
    (lower, -0.5, TINY, "holds"),
    (lower, 0.5, TINY, "contradicted"),
    (lower, -0.5, WIDE, "open"),
    (higher, 0.5, TINY, "holds"),
    (higher, -0.5, TINY, "contradicted"),
    (higher, 0.015, 0.015, "open"),
    (lambda d: equal(d, 0.2), 0.1, TINY, "holds"),
    (lambda d: equal(d, 0.2), -0.3, TINY, "contradicted"),
    (lambda d: equal(d, 0.2), 0.3, TINY, "contradicted"),
    (lambda d: equal(d, 0.2), 0.1, WIDE, "open"),
    (lambda d: not_higher(d, 0.2), -5.0, TINY, "holds"),
    (lambda d: not_higher(d, 0.2), 0.3, TINY, "contradicted"),
    (lambda d: not_higher(d, 0.2), 0.19, TINY, "open"),
]


@pytest.mark.parametrize(("judge", "mean", "error", "verdict"), CASES)
def test_one_verdict(judge, mean, error, verdict):
    assert judge(Estimate(mean, error, 10)) == verdict
    assert judge(Difference(Estimate(mean, error, 10), 10)) == verdict


def step(mean, error=TINY):
    return Difference(Estimate(mean, error, 10), 10)


def test_monotone_claims():
    assert falling([step(-0.1), step(0.001)], step(-0.1)) == "holds"
    assert falling([step(-0.3), step(0.1)], step(-0.2)) == "contradicted"
    assert falling([step(-0.1, WIDE), step(0.1, WIDE)], step(0.0, WIDE)) == "open"
    assert falling([step(0.001)], step(0.3)) == "contradicted"
    assert rising([step(0.1), step(0.1)], step(0.2)) == "holds"
    assert rising([step(-0.1)], step(0.2)) == "contradicted"


def test_many_steps_must_each_be_clearer_than_one():
    barely = step(0.025)  # 2.5 errors: clear for one step (2.26), not for twenty (4.0)
    assert falling([barely], step(-0.1)) == "contradicted"
    assert falling([barely] * 20, step(-0.1)) == "holds"


def test_steps_that_rise_are_named_and_those_that_mostly_collapsed_are_not():
    lost = Difference(Estimate(0.1, TINY, 4), 9)
    assert raised([step(0.1), step(-0.1), step(0.1, WIDE), lost]) == [True, False, False, False]
    assert falling([lost], step(-0.1)) == "holds"


def test_two_columns_of_the_same_runs_can_be_compared():
    both = [{"seed": s, "real": 0.5 + 0.1 * s, "phantom": 0.25 + 0.1 * s} for s in range(3)]
    assert paired(both, both, ("real", "phantom")).estimate.mean == pytest.approx(-0.25)
    assert paired(both, both[::-1], ("phantom", "real")).estimate.mean == pytest.approx(0.25)


def test_every_public_name_is_there():
    assert all(hasattr(statistics, name) for name in statistics.__all__)
