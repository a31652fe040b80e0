"""Intervals against published examples, simulation and hand-worked numbers; which cells agree, by two sources."""

import numpy as np
import pytest
from scipy import stats
from scipy.stats.contingency import association as scipy_association

from samphire.audits.association import alignment, association, contrast
from samphire.audits.reliance import reliance
from samphire.audits.seen import crossing
from samphire.data.split import Split


def crossed(y, a):
    return crossing(Split(np.zeros(len(y)), y, {"y": y, "a": a}), "y", "a")


def repeated(counts):
    y, a = (index.ravel().repeat(np.ravel(counts)) for index in np.indices(np.shape(counts)))
    return crossed(y, a)


# A difference of proportions


@pytest.mark.parametrize(
    ("counts", "ends"),
    [((56, 70, 48, 80), (0.0524, 0.3339)), ((9, 10, 3, 10), (0.1705, 0.8090)), ((0, 10, 0, 10), (-0.2775, 0.2775))],
)
def test_the_contrast_of_two_proportions_is_newcombes_tenth_method(counts, ends):
    """Newcombe, Statistics in Medicine 17 (1998), table II, method 10."""
    a, m, b, n = counts
    assert contrast([a, b], [m, n], [1, -1])[1] == pytest.approx(ends, abs=5e-5)


def test_the_interval_of_a_mean_of_differences_holds_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(0)
    p, n, c = np.array([0.02, 0.1, 0.3, 0.5]), np.array([60, 40, 80, 50]), np.array([-0.5, 0.5, -0.5, 0.5])
    intervals = [contrast(draw.binomial(n, p).tolist(), n.tolist(), c.tolist())[1] for _ in range(600)]
    held = np.mean([low <= c @ p <= high for low, high in intervals])
    assert 0.93 <= held <= 0.985


# Co-occurrence


def test_cramers_v_is_scipys_without_what_chance_gives():
    counts = np.array([[30, 5, 12], [8, 40, 9]])
    found = association(counts)
    plain = scipy_association(counts, "cramer")
    assert found.v == pytest.approx(np.sqrt(plain**2 - 2 / counts.sum()))
    assert found.p == pytest.approx(stats.chi2_contingency(counts, correction=False).pvalue)


@pytest.mark.parametrize("strength", [0.0, 0.3, 0.8])
def test_the_interval_of_v_holds_the_truth_as_often_as_it_says(strength):
    draw = np.random.default_rng(0)
    p = np.array([0.25 + strength / 4, 0.25 - strength / 4, 0.25 - strength / 4, 0.25 + strength / 4])
    intervals = [association(draw.multinomial(400, p).reshape(2, 2)).interval for _ in range(300)]
    assert np.mean([low <= strength <= high for low, high in intervals]) >= 0.92


def test_empty_rows_and_columns_do_not_count():
    with_gaps = association(np.array([[40, 0, 10], [0, 0, 0], [10, 0, 40]]))
    assert with_gaps.v == association(np.array([[40, 10], [10, 40]])).v


def test_one_value_only_has_no_association():
    assert np.isnan(association(np.array([[3], [4]])).v)


# Which cells agree


def test_frequent_cells_of_the_training_part_are_aligned():
    train = repeated([[90, 10], [20, 80]])
    found = alignment(train, repeated([[10, 10], [10, 10]]), np.zeros(40, int))
    assert (found.sign == [[1, -1], [-1, 1]]).all()
    assert found.source == "training"


@pytest.mark.parametrize("train", [None, repeated([[50, 50], [50, 50]])], ids=["none", "not associated"])
def test_otherwise_the_model_says_it_on_the_validation_part(train):
    """Predictions follow 1 - a: the class it favors where a = 0 is 1, so (1, 0) and (0, 1) are aligned."""
    val = repeated([[20, 20], [20, 20]])
    found = alignment(train, val, 1 - val.a)
    assert (found.sign == [[-1, 1], [1, -1]]).all()
    assert found.source == "model"


def test_a_model_that_favors_no_class_is_judged_all_the_same():
    """Always class 0: class 1 is wrong everywhere, whatever the attribute, so the gap is 0."""
    val, test = repeated([[20, 20], [20, 20]]), repeated([[300, 300], [300, 300]])
    found = alignment(None, val, np.zeros(80, int))
    assert (found.sign == [[1, -1], [-1, 1]]).all()
    judged = reliance(test, test.y == 1, found)
    assert (judged.gap, judged.judgment) == (0, "not relied on")
