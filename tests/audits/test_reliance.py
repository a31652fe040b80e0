"""Reliance against numbers worked out by hand, its judgments, and its counts on features whose shortcut is known."""

import numpy as np
import pytest

from samphire.audits.association import Alignment, alignment
from samphire.audits.decodability import Decodability, corner, decodability
from samphire.audits.example import example
from samphire.audits.reliance import erasures, label_reliance, reliance
from samphire.audits.remedy import predictive, remedy
from samphire.audits.seen import Seen, crossing, head_from, some_of_each, two_columns
from samphire.data.split import Split
from samphire.probes import Probe
from samphire.probes.tuning import Tuned

DIAGONAL = Alignment(np.array([[1, -1], [-1, 1]]), "training")


def cells(wrong, n):
    """Label and attribute with so many examples of every cell, the first of which are wrong."""
    y, a, bad = [], [], []
    for (i, j), total in np.ndenumerate(np.array(n)):
        y += [i] * total
        a += [j] * total
        bad += [k < wrong[i][j] for k in range(total)]
    y, a = np.array(y), np.array(a)
    return crossing(Split(np.zeros(len(y)), y, {"y": y, "a": a}), "y", "a"), np.array(bad)


def test_the_gap_is_the_mean_over_classes_of_conflicting_minus_aligned():
    """Class 0: 40/100 - 10/200; class 1: 30/50 - 20/100. Mean (0.35 + 0.4) / 2."""
    found = reliance(*cells([[10, 40], [30, 20]], [[200, 100], [50, 100]]), DIAGONAL)
    assert found.gap == pytest.approx(0.375)
    assert (found.aligned, found.conflicting) == pytest.approx((0.125, 0.5))
    assert found.n == (300, 150)
    assert found.smallest == ("y=1, a=0", 50)
    assert found.judgment == "relied on"


def test_a_value_that_is_harder_for_every_class_is_no_reliance():
    found = reliance(*cells([[20, 200], [20, 200]], [[1000, 1000], [1000, 1000]]), DIAGONAL)
    assert found.gap == pytest.approx(0.0)
    assert found.judgment == "not relied on"


@pytest.mark.parametrize(
    ("wrong", "n", "judgment"),
    [
        ([[0, 3], [3, 0]], [[40, 40], [40, 40]], "undecided"),
        ([[0, 40], [40, 0]], [[40, 40], [40, 40]], "relied on"),
        ([[0, 3], [3, 0]], [[40, 4], [3, 40]], "cannot be judged"),
        ([[10, 10], [10, 10]], [[2000, 2000], [2000, 2000]], "not relied on"),
        ([[40, 0], [0, 40]], [[40, 40], [40, 40]], "not relied on"),  # the other way round
    ],
)
def test_judgments(wrong, n, judgment):
    assert reliance(*cells(wrong, n), DIAGONAL).judgment == judgment


def test_a_class_without_conflicting_examples_is_left_out():
    found = reliance(*cells([[0, 50], [0, 0]], [[100, 100], [2, 100]]), DIAGONAL)
    assert found.gap == pytest.approx(0.5)
    assert found.n == (100, 100)


def test_more_attributes_widen_the_interval():
    one, three = (reliance(*cells([[10, 40], [30, 20]], [[200, 100], [50, 100]]), DIAGONAL, k) for k in (1, 3))
    assert three.interval[0] < one.interval[0] < one.interval[1] < three.interval[1]


def test_the_labels_reliance_is_one_minus_error_over_guessing():
    """Equal-group error (0.1 + 0.2 + 0.3 + 0.4) / 4 = 0.25; guessing errs on 0.5."""
    test, wrong = cells([[10, 20], [30, 40]], [[100, 100], [100, 100]])
    assert label_reliance(test, wrong)[0] == pytest.approx(0.5)


# Counts: a smaller number of what benchmarks/audits.py counts


def judged(correlation, seed):
    seen = example(correlation, seed=seed, test=1500)
    train, val, test = (crossing(seen[part].split, "bird", "place") for part in ("train", "val", "test"))
    return reliance(test, seen["test"].wrong, alignment(train, val, seen["val"].predicted)).judgment


def test_few_false_alarms_without_a_shortcut_and_few_missed_with_one():
    without, with_one = ([judged(c, seed) for seed in range(20)] for c in (0.5, 0.9))
    assert without.count("relied on") <= 1
    assert with_one.count("relied on") >= 19


def test_predicted_errors_hold_on_the_test_part():
    inside = []
    for seed in range(5):
        seen = example(0.9, seed=seed)
        inside += [
            c.interval[0] <= c.after <= c.interval[1]
            for c in remedy(seen["val"], seen["test"], "bird", "place").cells
        ]
    assert np.mean(inside) >= 0.85


def test_the_predictive_interval_is_that_of_new_examples():
    """Errors of two samples of one chance: the second lies inside for 95 % or more."""
    draw = np.random.default_rng(0)
    inside = []
    for p in draw.uniform(0, 0.5, 500):
        k, new = draw.binomial(60, p), draw.binomial(200, p)
        low, high = predictive(int(k), 60, 200)
        inside.append(low <= new / 200 <= high)
    assert 0.93 <= np.mean(inside) <= 0.99


# Corners


def probed(error, reach=0.02):
    return Probe("a", (error,), Tuned(1.0, {1.0: error}), "global", 10, (), (error - reach, error + reach))


@pytest.mark.parametrize(
    ("trained", "random", "judgment", "expected"),
    [
        (0.1, 0.3, "relied on", "used"),
        (0.1, 0.3, "not relied on", "known but unused"),
        (0.1, 0.3, "undecided", "known, use undecided"),
        (0.49, 0.5, "not relied on", "never learned"),
        (0.49, 0.2, "not relied on", "lost"),
        (0.30, 0.2, "relied on", "lost"),  # worse than nothing
        (0.22, 0.2, "relied on", "used"),  # no worse beyond the noise
        (0.44, 0.5, "relied on", "never learned"),  # better than guessing, but by too little
    ],
)
def test_corners(trained, random, judgment, expected):
    assert corner(Decodability("a", 2, probed(trained), {"random weights": probed(random)}), judgment) == expected


def test_a_feature_that_the_inputs_do_not_show_was_never_learned():
    for seed in range(3):
        seen = example(0.9, place=0.0, seed=seed)
        found = decodability(seen["val"], seen["test"], "bird", "place", {}, resamples=2)
        assert corner(found["place"], "undecided") == "never learned"


def test_what_cannot_be_probed_says_why():
    seen = example(1.0, val=60)
    val = seen["train"]  # the attribute is the label here, so two cells are empty
    found = decodability(val, seen["test"], "bird", "place", {})["place"]
    assert found.trained is None
    assert "bird=land, place=sea has 0" in found.problem


# Erasure


def test_erasing_the_shortcut_closes_the_gap_and_random_directions_do_not():
    seen = example(0.9)
    head = head_from(seen)
    nothing, place, random, bird = erasures(seen["val"], seen["test"], head, "bird", "place", DIAGONAL)
    assert nothing.flipped == 0
    assert nothing.gap > 0.35
    assert abs(place.gap) < 0.06
    assert place.error < nothing.error - 0.05
    assert random.gap > nothing.gap - 0.1
    assert bird.error == pytest.approx(0.5, abs=0.06)


def test_the_head_is_found_where_there_is_one():
    seen = example()
    head = head_from(seen)
    for part in seen.values():
        np.testing.assert_allclose(part.features @ head.weight.T + head.bias, part.logits, atol=1e-8)
    bent = {name: Seen(part.split, part.features, np.tanh(part.logits)) for name, part in seen.items()}
    assert head_from(bent) is None


def test_small_groups_are_kept_whole():
    group = np.repeat([0, 1, 2], [1000, 50, 4])
    kept = np.bincount(group[some_of_each(group, 200)])
    assert kept.tolist() == [146, 50, 4]


def test_single_logits_become_two_with_the_same_probabilities():
    z = np.array([[0.3], [-2.0]])
    two = two_columns(z)
    np.testing.assert_allclose(np.exp(two[:, 1]) / np.exp(two).sum(1), 1 / (1 + np.exp(-z[:, 0])))
