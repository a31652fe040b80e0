"""Probes against closed forms, dense Newton steps, scikit-learn, and problems whose answer is planted."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, ndtri, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from samphire import probes
from samphire.data.split import Split
from samphire.probes import groups, tuning
from samphire.probes.logistic import SCALINGS, Scaler, sparse_regression
from samphire.probes.resampling import balanced, balanced_halves, bootstrap, halves, tenth
from samphire.probes.softmax import softmax_regression, softmax_regressions


def two_features(n, *, share=0.5, seed=0, **values):
    """A split whose features a and b agree in a share of the examples."""
    draw = np.random.default_rng(seed)
    a = np.arange(n) % 2
    b = np.where(draw.random(n) < share, a, 1 - a)
    return Split(np.zeros(n), a, {"a": a, "b": b}, values=values)


def cells(per_cell, sizes=(2, 2)):
    """A split with the same number of every combination."""
    a, b = (v.ravel().repeat(per_cell) for v in np.mgrid[: sizes[0], : sizes[1]])
    return Split(np.zeros(len(a)), a, {"a": a, "b": b})


def problem(n, d, classes, seed=0, rank=None):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, rank or d)) @ draw.normal(size=(rank or d, d)) / np.sqrt(np.arange(1, d + 1))
    y = np.argmax(x @ draw.normal(size=(d, classes)) + draw.normal(size=(n, classes)), 1)
    y[:classes] = np.arange(classes)
    return Scaler.of(x)(x), y


def objective(fit, x, y, l2):
    z = x @ fit.weight.T + fit.bias
    return (logsumexp(z, 1) - z[np.arange(len(y)), y]).mean() + l2 / 2 * (fit.weight**2).sum()


# The solvers

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
        (lambda p: abs(math.log10(p) - 2), 1e2, 2, "0.1 to 1000, grown by 2"),
        (lambda p: 0.5, 1.0, 0, "0.1 to 10"),  # no edge is better than what lies inside
        (lambda p: min(p, 1.0), 1e-7, 6, "1e-07 to 10, grown by 6, still at an edge"),
        (lambda p: float(p != 10.0) + float(p > 10), 10.0, 1, "0.1 to 100, grown by 1"),
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


# Errors by group


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


# Last-layer retraining


def shortcut(n, seed, share):
    split = two_features(n, share=share, seed=seed)
    draw = np.random.default_rng(seed + 100)
    x = np.stack([split.features["a"] * 2.0, split.features["b"] * 6.0], 1) + draw.normal(size=(n, 2))
    return np.concatenate([x, draw.normal(size=(n, 8))], 1), split


def test_dfr_frees_a_head_from_its_shortcut():
    (x, train), (v, val), (t, test) = shortcut(2000, 0, 0.95), shortcut(800, 1, 0.8), shortcut(2000, 2, 0.5)
    shortcut_head = LogisticRegression().fit(x, train.label)
    before = probes.errors(shortcut_head.predict(t), test, train)
    found = probes.dfr(v, val, scale_by=x, resamples=5)
    after = probes.errors(found.predict(t), test, train)
    assert before.worst.error > 0.3
    assert after.worst.error < 0.22
    assert found.per_group == np.bincount(val.group).min()
    assert found.tuning.keys() == {1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01}
    assert found.tuning[found.c] == max(found.tuning.values())
    head = probes.retrain_last_layer(v, val, scale_by=x, resamples=5)
    with torch.no_grad():
        assert (head(torch.from_numpy(t).float()).argmax(1).numpy() == found.predict(t)).all()
    place = probes.dfr(v, val, "b", resamples=2)
    assert probes.errors(place.predict(t), test, train, "b").equal_group < 0.02


def test_dfr_refits_as_published():
    """Coefficients averaged over balanced resamples of all examples, scaled by the training set, by liblinear."""
    from samphire import records

    (x, _), (v, val) = shortcut(500, 0, 0.9), shortcut(160, 1, 0.7)
    found = probes.dfr(v, val, scale_by=x, resamples=4, c=[0.3])
    draw = np.random.default_rng(records.seed(0, "dfr"))
    _, second = halves(val.group, draw)
    balanced(val.group[second], draw)
    scaler, coefs = StandardScaler().fit(x), []
    for _ in range(4):
        i = balanced(val.group, draw)
        assert len(set(np.bincount(val.group[i]))) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=0.3, l1_ratio=1, solver="liblinear", tol=1e-8, max_iter=2000)
            model.fit(scaler.transform(v[i]), val.label[i])
        coefs.append(np.append(model.coef_[0], model.intercept_))
    w = np.mean(coefs, 0)
    theirs = scaler.transform(v) @ w[:-1] + w[-1]
    z = v @ found.linear.weight.T + found.linear.bias
    assert z[:, 1] - z[:, 0] == pytest.approx(theirs, abs=2e-3)


def test_dfr_takes_more_than_two_classes():
    split = cells(40, (3, 2))
    x = np.eye(3)[split.label] * 3 + np.random.default_rng(0).normal(size=(len(split), 3))
    found = probes.dfr(x, split, resamples=3)
    assert found.head().out_features == 3
    assert np.mean(found.predict(x) != split.label) < 0.1
