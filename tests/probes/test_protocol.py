"""Probes against scikit-learn and problems whose answer is planted: draws, penalties, what they find."""

import math

import numpy as np
import pytest
import torch
from probe_problems import cells, two_features
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from samphire import probes
from samphire.data.split import Split
from samphire.probes import tuning
from samphire.probes.logistic import SCALINGS, sparse_regression
from samphire.probes.resampling import balanced_halves, halves, tenth
from samphire.probes.softmax import softmax_regression


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: softmax_regression(np.ones((2, 1)), np.array([0, 2]), 3, [1.0]), "class 1 of 3"),
        (
            lambda: softmax_regression(np.ones((2, 1)), np.array([0, 1]), 2, [0.0]),
            "l2 must be a finite number > 0, got 0.0",
        ),
        (
            lambda: sparse_regression(np.ones((2, 1)), np.array([0, 1]), -1.0),
            "c must be a finite number > 0, got -1.0",
        ),
        (lambda: probes.errors([0], cells(1), cells(1)), "one predicted class for each of 4"),
        (lambda: probes.errors([0] * 4, cells(1), cells(1), "c"), "no feature is named 'c'; there are a, b"),
        (lambda: probes.features(nn.Linear(2, 2), torch.ones(1, 2), "fc"), "no layer of the model is named 'fc'"),
        (
            lambda: probes.features(nn.Linear(2, 2), torch.ones(1, 2), "", pool="max"),
            "no pool is named 'max'; there are flatten, channels, tokens, cls",
        ),
        (lambda: probes.features(nn.Linear(2, 2), [], ""), "no images"),
        (lambda: probe_a(np.ones((3, 1))), r"shape \(n, d\) with a row for each of 16"),
        (lambda: probe_a(np.full((16, 1), np.nan)), "row 0 is not"),
        (lambda: probe_a(np.ones((16, 1)), per_group=3), "per_group must be an even number from 2 to 4"),
        (lambda: probe_a(np.ones((16, 1)), resamples=0), "resamples must be a whole number >= 1, got 0"),
        (lambda: probes.dfr(np.ones((4, 1)), cells(1)), "two examples of every group"),
    ],
)
def test_bad_input_gets_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def probe_a(x, **settings):
    return probes.probe(x, cells(4), x, cells(4), "a", **settings)


# The draws


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_halves_are_balanced_disjoint_and_never_repeat(share):
    group = two_features(400, share=share).group
    per_group = np.bincount(group).min() // 2
    train, held = balanced_halves(group, per_group, np.random.default_rng(0))
    assert np.bincount(group[train]).tolist() == np.bincount(group[held]).tolist() == [per_group] * 4
    assert len(np.unique(np.concatenate([train, held]))) == 8 * per_group
    first, second = halves(group, np.random.default_rng(0))
    assert sorted([*first, *second]) == list(range(400))
    assert np.abs(np.bincount(group[first]) - np.bincount(group[second])).max() <= 1


def test_every_example_is_drawn_sooner_or_later():
    group = two_features(100, share=0.8).group
    draw = np.random.default_rng(0)
    seen = {int(i) for _ in range(200) for half in balanced_halves(group, 3, draw) for i in half}
    assert seen == set(range(100))


def test_penalties_are_chosen_without_the_held_out_half_and_all_without_the_test(monkeypatch):
    """Each row of the features is its own number, so that what the solver is given says whose it is."""
    split, test = two_features(80, share=0.7), cells(5)
    x = np.random.default_rng(0).normal(size=(80, 3))
    drawn, given = [], []
    real_halves, real_fit = probes.protocol.balanced_halves, tuning.softmax_regressions
    monkeypatch.setattr(probes.protocol, "balanced_halves", lambda *a: drawn.append(real_halves(*a)) or drawn[-1])
    monkeypatch.setattr(tuning, "softmax_regressions", lambda z, *a: given.append(z) or real_fit(z, *a))
    probes.probe(x, split, np.ones((20, 3)), test, "a", resamples=4, scaling="each", l2=(0.1, 1.0))
    assert len(given) == 2 * len(drawn) == 8
    for (train, held), tuned, final in zip(drawn, given[:4], given[4:], strict=True):
        both = np.concatenate([train, held])
        assert tuned == pytest.approx(StandardScaler().fit_transform(x[train]), abs=1e-12)
        assert final == pytest.approx(StandardScaler().fit_transform(x[both]), abs=1e-12)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_whole_protocol_written_with_scikit_learn(scaling):
    """The same draws, each step by scikit-learn: same penalty, same errors."""
    from samphire import records

    draw = np.random.default_rng(5)
    split, test = two_features(240, share=0.7), two_features(200, share=0.7, seed=9)
    look = lambda s: np.stack([s.features["a"], s.features["b"]], 1) @ draw2 + noise(len(s))
    draw2, noise = draw.normal(size=(2, 20)), lambda n: 2.5 * draw.normal(size=(n, 20))
    x, x_test, grid = look(split), look(test), (1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
    scale = np.geomspace(0.1, 1, 20)  # without it the scalings would hardly differ
    x, x_test = x * scale, x_test * scale
    result = probes.probe(x, split, x_test, test, "b", resamples=3, l2=grid, scaling=scaling)
    assert result.per_group == np.bincount(split.group).min() // 2 * 2
    again, y, y_test = np.random.default_rng(records.seed(0, "probe")), split.features["b"], test.features["b"]

    def fitted(chosen, l2):
        spread = {"each": x[chosen].std(0), "global": np.sqrt(x[chosen].var(0).mean()), "none": 1.0}[scaling]
        scaler = FunctionTransformer(lambda z: (z - x[chosen].mean(0)) / spread)
        fit = LogisticRegression(C=2 / (len(chosen) * l2), tol=1e-10, max_iter=10_000)
        return make_pipeline(scaler, fit).fit(x[chosen], y[chosen])

    drawn = [balanced_halves(split.group, result.per_group // 2, again) for _ in range(3)]
    held_out = [
        np.mean([np.mean(fitted(train, g).predict(x[held]) != y[held]) for train, held in drawn]) for g in grid
    ]
    assert list(result.tuned.held_out.values()) == pytest.approx(held_out, abs=1e-12)
    assert result.tuned.l2 == grid[int(np.argmin(held_out))]
    assert 0 < int(np.argmin(held_out)) < len(grid) - 1
    for error, halves_of in zip(result.errors, drawn, strict=True):
        wrong = fitted(np.concatenate(halves_of), result.tuned.l2).predict(x_test) != y_test
        assert error == pytest.approx(np.mean([wrong[test.group == g].mean() for g in range(4)]), abs=1e-12)


# The penalty


def told(errors):
    """A stand-in for the fits: the error of each penalty is given."""

    def held_out(x, resamples, names, l2, scaling, progress):
        return {name: np.array([errors(penalty) for penalty in l2]) for name in names}

    return held_out


@pytest.mark.parametrize(
    ("errors", "l2", "grown", "tried"),
    [
        (lambda p: abs(math.log10(p)), 1.0, 0, "0.1 to 10"),  # inside
        (lambda p: abs(math.log10(p) + 3), 1e-3, 3, "0.0001 to 10, grown by 3"),
        (lambda p: abs(math.log10(p) + 4), 1e-4, 6, "1e-07 to 10, grown by 6"),
        (lambda p: abs(math.log10(p) - 2), 1e2, 3, "0.1 to 10000, grown by 3"),
        (lambda p: 0.5, 1.0, 0, "0.1 to 10"),  # no edge is better than what lies inside
        (lambda p: min(p, 1.0), 1e-7, 6, "1e-07 to 10, grown by 6, still at an edge"),
        (lambda p: float(p != 10.0) + float(p > 10), 10.0, 3, "0.1 to 10000, grown by 3"),
    ],
)
def test_the_grid_grows_where_the_lowest_error_lies_at_an_edge(monkeypatch, errors, l2, grown, tried):
    monkeypatch.setattr(tuning, "_held_out", told(errors))
    resample = tuning.Resample(np.arange(2), np.arange(2), {"a": np.arange(2)})
    result = tuning.tuned(np.zeros((4, 1)), [resample], (0.1, 1.0, 10.0), "global")["a"]
    assert result.l2 == pytest.approx(l2)
    assert (result.grown, result.tried) == (grown, tried)


def test_ties_go_to_the_largest_penalty_inside():
    assert tuning._best({0.1: 0.2, 1.0: 0.1, 3.0: 0.1, 10.0: 0.1}) == 3.0
    assert tuning._best({0.1: 0.1, 1.0: 0.2, 10.0: 0.1}) == 10.0


def test_one_penalty_is_taken_as_it_is():
    x = planted(cells(20), 0)
    result = probes.probe(x, cells(20), x, cells(20), "a", l2=[0.05], resamples=2)
    assert (result.tuned.l2, result.tuned.tried) == (0.05, "given")
    assert result.row()["l2 tried"] == "given"


def test_a_tenth_is_apart_and_has_every_group():
    group = np.repeat([0, 1, 2], [100, 31, 2])
    rest, held = tenth(group, np.random.default_rng(0))
    assert sorted([*rest, *held]) == list(range(133))
    assert np.bincount(group[held]).tolist() == [10, 3, 1]


def test_one_probe_is_trained_where_resamples_have_all_examples():
    """Of 20, 20, 20 and 21 examples a resample has 20 of each: all, but for the odd one."""
    split = cells(20)
    more = split.subset(np.append(np.arange(80), 79))
    for part, fits in ((split, 1), (more, 1), (split.subset(np.arange(70)), 3)):
        fitted = probes.fitted_probes(planted(part, 0), part, resamples=3)
        assert [len(probe.fits) for probe in fitted.values()] == [fits] * 2
    shuffled = probes.fitted_probes(planted(split, 0), split, resamples=3, shuffle_labels=True)
    assert len(shuffled["a"].fits) == 3


# What probes find


def planted(split, seed, *, strength=(1.0, 1.0)):
    """Features a and b on two axes, plus noise: the best error of each is Phi(-strength / 2)."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(len(split), 2))
    return x + np.stack([s * split.features[name] for s, name in zip(strength, "ab", strict=True)], 1)


def test_a_planted_feature_is_found_at_its_bayes_error():
    normal_cdf = lambda t: 0.5 * math.erfc(-t / math.sqrt(2))
    split, test = cells(400), cells(2500)
    strength = (3.0, 1.0)
    x, x_test = planted(split, 0, strength=strength), planted(test, 1, strength=strength)
    found = probes.probes(x, split, x_test, test, resamples=5)
    for name, s in zip("ab", strength, strict=True):
        bayes = normal_cdf(-s / 2)
        assert found[name].mean == pytest.approx(bayes, abs=0.015)
        low, high = found[name].interval
        assert low < found[name].mean < high


def test_a_correlated_feature_does_not_leak_into_the_probe():
    """Only a is in the features; b agrees with it in 95 % of the examples, so an unbalanced probe reads b off a."""
    split, test = two_features(2000, share=0.95), cells(200)
    x, x_test = (planted(s, 1, strength=(20.0, 0.0)) for s in (split, test))
    found = probes.probes(x, split, x_test, test, resamples=5)
    assert found["a"].mean == 0
    assert found["b"].mean == pytest.approx(0.5, abs=0.05)
    naive = LogisticRegression().fit(x, split.features["b"])
    assert np.mean(naive.predict(x) != split.features["b"]) < 0.07


def test_scaling_features_changes_nothing_and_other_seeds_do():
    split, test = cells(30), cells(30)
    x, x_test = planted(split, 0), planted(test, 1)
    scale, shift = np.array([1e3, 1e-6]), np.array([-5.0, 2e-6])
    a = probes.probe(x, split, x_test, test, "a", resamples=3, scaling="each")
    b = probes.probe(x * scale + shift, split, x_test * scale + shift, test, "a", resamples=3, scaling="each")
    c = probes.probe(x, split, x_test, test, "a", resamples=3, seed=1, scaling="each")
    assert a.errors == pytest.approx(b.errors, abs=1e-12)
    assert a.tuned.l2 == b.tuned.l2
    assert a.errors != c.errors


def test_shuffled_labels_are_guessed():
    split, test = cells(100, (3, 2)), cells(100, (3, 2))
    x = lambda s: s.features["a"][:, None] + np.zeros(1)
    assert probes.probe(x(split), split, x(test), test, "a", resamples=4).mean == 0
    control = probes.probe(x(split), split, x(test), test, "a", resamples=20, shuffle_labels=True)
    assert control.mean == pytest.approx(2 / 3, abs=0.2)


def test_learning_curve_falls_with_probe_size():
    draw = np.random.default_rng(0)
    split, test = cells(128), cells(300)
    mix = draw.normal(size=(2, 60)) / 4
    look = lambda s: np.stack([s.features["a"], s.features["b"]], 1) @ mix + draw.normal(size=(len(s), 60))
    curve = probes.learning_curve(look(split), split, look(test), test, "a", resamples=4)
    assert list(curve) == [8, 16, 32, 64, 128]
    assert [p.per_group for p in curve.values()] == list(curve)
    assert curve[128].mean < curve[8].mean - 0.05


def test_progress_counts_every_resample_once():
    split, seen = cells(20), []
    probes.probes(planted(split, 0), split, planted(split, 0), split, resamples=3, progress=lambda *a: seen.append(a))
    assert [what for what, _, _ in seen] == ["penalties of a, b"] * 3 + ["probes"]
    assert [done / total for _, done, total in seen] == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=1e-3)


def test_domain_probe_fits_all_of_the_target_and_reports_the_plain_error():
    draw = np.random.default_rng(0)
    y, y_test = draw.choice(3, 200, p=[0.6, 0.3, 0.1]), draw.choice(3, 300, p=[0.2, 0.2, 0.6])
    look = lambda y: np.eye(3)[y] * 2 + draw.normal(size=(len(y), 3))
    x, x_test = look(y), look(y_test)
    train, test = (Split(v, v, {"class": v}) for v in (y, y_test))
    found = probes.domain_probe(x, train, x_test, test, scaling="each")
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(C=1 / (200 * found.tuned.l2), tol=1e-10, max_iter=10_000).fit(scaler.transform(x), y)
    assert found.mean == pytest.approx(np.mean(model.predict(scaler.transform(x_test)) != y_test), abs=1e-12)
    assert found.per_group == 200
    assert math.isnan(found.std)


def test_a_missing_combination_is_named():
    split = two_features(40, share=1.0, a=("land", "water"), b=("forest", "lake"))
    with pytest.raises(ValueError, match=r"a=land, b=lake has 0 and 0"):
        probes.probe(np.ones((40, 2)), split, np.ones((40, 2)), split, "b")
