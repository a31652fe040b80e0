"""Every claim of the swept figures can fail: rows that satisfy it and rows that break it, and what collapse does."""

import math
from dataclasses import asdict

import pytest
import torch

from samphire import experiments
from samphire.experiments import fig7, fig11, toy
from samphire.train import ToyConfig, fit_many

FIGURES = ("fig2", "fig3", "fig7", "fig10", "fig11")


def made_rows(name, change=None, scale="quick"):
    """Rows in which all that the paper says holds, paired by seed: seeds differ by more than settings do."""
    module = experiments.load(name)
    return [
        made_row(run) | (change(run) if change else {}) for run in dict.fromkeys(module.runs(module.SCALES[scale]))
    ]


def made_row(run):
    wiggle = 0.001 * ((7 * run.seed + 3 * round(10 * run.rho)) % 5)
    ratio = 1 + run.rho / 2 + wiggle
    strength = {"weights": 0.3, "rates": 0.3, "both": 1.0, "lsam": 1.0}[run.algorithm] * math.log(run.v_star * ratio)
    hardness = 0.0 if run.chi == 180 else 1.0
    batch = math.log(run.batch / 5) / math.log(60)
    error = hardness * (0.6 - 0.3 * strength * (1 - 0.9 * batch) + wiggle) + 0.05 * run.seed * hardness
    errors = {"probe_hard": error, "probe_easy": 0.0, "test_error": 0.0, "collapsed": False}
    ratios = {"phantom_ratio": ratio, "real_ratio": 1.0, "phantom_share": 0.5, "real_share": 0.5}
    return asdict(run) | errors | ratios | {"phantom_crossed": 0.0, "phantom_mean": ratio}


def verdicts(name, change=None):
    """Of all claims, by their text."""
    return {claim.text: claim.holds for claim in experiments.load(name).claims(made_rows(name, change))}


def worse(when):
    """A change that gives runs a worse hard error than any other."""
    return lambda run: {"probe_hard": 0.99 - 0.001 * run.seed} if when(run) else {}


def put(when, **columns):
    """A change of some runs' columns."""
    return lambda run: columns if when(run) else {}


def is_noisy(run, kind, where):
    return run.corruption == kind and run.where == where and run.rho == 1


# The claims


@pytest.mark.parametrize("name", FIGURES)
def test_rows_as_the_paper_has_them_satisfy_every_claim(name):
    found = verdicts(name)
    unjudged = [text for text, holds in found.items() if holds is None]
    assert [text for text, holds in found.items() if holds is False] == []
    assert unjudged == (["At χ = 180°, LSAM's hard probe error is below SGD's."] if name == "fig2" else [])


BROKEN = [
    ("fig2", worse(lambda r: r.chi == 360 and r.rho == 2), "At χ = 360°"),
    ("fig2", worse(lambda r: r.chi == 540 and r.rho == 1), "progressively"),
    ("fig3", put(lambda r: r.train_head and r.chi == 360, phantom_ratio=1.0), "Trained head, χ = 360°: the phantom"),
    (
        "fig3",
        put(lambda r: not r.train_head and r.rho == 0.9, phantom_ratio=1.1),
        "Frozen head, χ = 360°: the phantom",
    ),
    ("fig3", put(lambda r: r.chi == 540, phantom_ratio=0.7), "Trained head, χ = 540°: the ratio is close to 1"),
    ("fig3", put(lambda r: r.chi == 180 and r.rho == 1, real_ratio=0.6), "Trained head, χ = 180°: the real ratio"),
    ("fig7", worse(lambda r: r.algorithm == "weights" and r.v_star == 4), "Trained head, importance weights only"),
    ("fig7", worse(lambda r: r.algorithm == "rates" and r.v_star == 4), "Frozen head, learning rates only"),
    (
        "fig7",
        put(lambda r: r.algorithm == "rates" and r.v_star == 1, probe_hard=0.0),
        "Trained head, learning rates only",
    ),
    ("fig7", worse(lambda r: r.algorithm == "lsam" and r.rho == 0), None),
    ("fig7", put(lambda r: r.algorithm == "lsam" and r.rho == 0, probe_hard=0.0), "Trained head, both effects"),
    ("fig7", put(lambda r: r.algorithm == "rates", probe_hard=0.0), "Trained head: the pair is stronger"),
    ("fig7", worse(lambda r: r.algorithm == "both" and r.v_star == 2), "Frozen head: the pair is stronger"),
    ("fig7", put(lambda r: r.algorithm == "lsam" and r.rho > 0, probe_hard=0.0), "Frozen head: at equal ratio"),
    *(
        ("fig10", worse(lambda r, k=kind, w=where: is_noisy(r, k, w)), f"{said}, {place}")
        for kind, said in (
            ("label", "Flipped signs"),
            ("gaussian", "Gaussian noise"),
            ("dropout", "Dropped features"),
        )
        for where, place in (("both", "both features"), ("hard", "hard feature only"))
    ),
    ("fig11", worse(lambda r: r.batch == 20 and r.rho == 1), "At ρ = 1 LSAM's"),
    ("fig11", put(lambda r: r.batch == 300 and r.rho == 2, probe_hard=0.0), "The improvement is smaller"),
    ("fig11", put(lambda r: r.batch == 100 and r.rho == 0.5, probe_hard=0.0), "The best ρ is similar"),
    ("fig11", put(lambda r: r.batch == 300 and r.rho == 0, probe_hard=5.0), "For large ρ"),
]


@pytest.mark.parametrize(("name", "change", "claim"), BROKEN)
def test_rows_that_break_a_claim_are_told(name, change, claim):
    broken = [text for text, holds in verdicts(name, change).items() if holds is False]
    assert any(text.startswith(claim) or claim in text for text in broken) if claim else not broken


def test_noise_in_one_panel_leaves_the_others_alone():
    found = verdicts("fig10", worse(lambda run: is_noisy(run, "label", "hard")))
    assert [text.split(":")[0] for text, holds in found.items() if not holds] == ["Flipped signs, hard feature only"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_difference_as_large_as_its_spread_is_no_evidence(name):
    module = experiments.load(name)
    rows = [row | {"probe_hard": 0.3, "phantom_ratio": 1.0} for row in made_rows(name)]
    for number, row in enumerate(rows):
        row["probe_hard"] += 0.05 * math.sin(number)
    kinds = ("is below", "lowers", "stronger", "smaller", "increases")
    judged = [claim for claim in module.claims(rows) if any(kind in claim.text for kind in kinds)]
    assert judged
    assert not any(claim.holds for claim in judged)


def test_where_noise_makes_sgd_learn_the_hard_feature_it_is_said():
    rows = made_rows(
        "fig10", lambda run: {"probe_hard": 0.02} if run.corruption == "label" and run.level > 0.05 else {}
    )
    said = [
        claim.text.split(":")[0] for claim in experiments.load("fig10").claims(rows) if "At level 0.1" in claim.detail
    ]
    assert said == ["Flipped signs, both features", "Flipped signs, hard feature only"]


@pytest.mark.parametrize("name", FIGURES)
def test_every_point_is_inside_its_panel(name):
    late = lambda run: run.lr > 0.01 or not run.train_head or run.where == "hard"  # what later panels show
    (figure,) = experiments.load(name).plots(made_rows(name, put(late, probe_hard=1.5, phantom_ratio=4.0)))
    for axes in figure.axes:
        bottom, top = axes.get_ylim()
        values = [y for line in axes.lines for y in line.get_ydata()]
        assert values
        assert bottom == 0
        assert max(values) < top


# Collapsed runs


def test_collapsed_runs_are_left_out_and_said():
    rows = made_rows(
        "fig2", lambda run: {"probe_hard": 0.5, "collapsed": True} if run.seed == 1 and run.rho == 2 else {}
    )
    first = next(claim for claim in experiments.load("fig2").claims(rows) if "360" in claim.text)
    assert first.holds
    assert "1 of 5 seeds left out: collapsed" in first.ours
    table = experiments.load("fig2").tables(rows)[0]
    cell = next(line for line in table.rows if line[:2] == (360.0, 2.0))
    assert (cell[2].n, cell[-1]) == (4, "1 of 5")


@pytest.mark.parametrize("name", FIGURES)
def test_where_most_runs_collapse_nothing_is_drawn_and_nothing_holds(name):
    module = experiments.load(name)
    rows = made_rows(name, put(lambda run: run.seed > 0 and (run.rho > 0 or run.v_star > 1), collapsed=True))
    assert module.plots(rows)
    kinds = ("is below", "lowers", "stronger", "increases")
    assert not any(claim.holds for claim in module.claims(rows) if any(kind in claim.text for kind in kinds))


def test_the_best_radius_is_one_at_which_most_runs_train():
    errors = ((0, 0.3), (1, 0.2), (2, 0.0))
    rows = [{"rho": r, "probe_hard": e, "collapsed": r == 2 and k > 0} for r, e in errors for k in range(3)]
    assert toy.best_rho(rows) == 1
    assert math.isnan(toy.usable([row for row in rows if row["rho"] == 2]).mean)
    assert toy.best_rho([row | {"collapsed": True} for row in rows]) == 0


# Parts


def cell(errors, **settings):
    return [{"seed": s, "probe_hard": e, "collapsed": e is None} | settings for s, e in enumerate(errors)]


def test_gains_are_paired_by_seed_whatever_the_order():
    before, after = cell([0.1, 0.5, 0.9]), cell([0.0, 0.3, 0.6])
    gain = toy.paired_gain(before, after[::-1])
    assert gain.estimate.mean == pytest.approx(0.2)
    assert gain.estimate.error == pytest.approx(0.1 / math.sqrt(3))
    assert gain.clear
    assert not toy.paired_gain(after, before).clear


def test_settings_of_one_seed_count_once():
    before = cell([0.4, 0.6], level=1) + cell([0.8, 0.6], level=2)
    after = cell([0.2, 0.2], level=1) + cell([0.2, 0.2], level=2)
    gain = toy.paired_gain(before, after, "level")
    assert (gain.estimate.n, gain.estimate.mean) == (2, pytest.approx(0.4))
    assert gain.estimate.error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("errors", "clear"), [([0.1], None), ([0.1, 0.1, None], True), ([0.1, None, None], False), ([None, None], False)]
)
def test_a_gain_needs_two_seeds_and_most_of_them(errors, clear):
    assert toy.paired_gain(cell([0.5] * len(errors)), cell(errors)).clear is clear


def test_interventions_are_read_between_their_ratios_and_not_outside():
    rows = [row | {"v_star": v} for v, e in ((1.0, 0.4), (2.0, None), (4.0, 0.2)) for row in cell([e])]
    assert fig7.at_ratio(rows, 2.0) == pytest.approx(0.3)
    assert fig7.at_ratio(rows, 4.0) == pytest.approx(0.2)
    assert math.isnan(fig7.at_ratio(rows, 0.9))
    assert math.isnan(fig7.at_ratio(rows, 4.1))


def test_a_row_has_the_ratios_over_training():
    (result,) = fit_many([ToyConfig(rho=0.7, n=20, epochs=2)])
    row = toy.summary_row(result)
    assert row["phantom_ratio"] == pytest.approx(
        torch.quantile(result.phantom[:, 1] / result.phantom[:, 0], 0.5).item()
    )
    assert row["real_share"] == pytest.approx((result.v[:, 1] / result.v.abs().sum(1)).mean().item())
    assert row["phantom_crossed"] == (result.phantom[:, 0] <= 0).double().mean().item()
    assert (row["rho"], row["collapsed"]) == (0.7, result.collapsed)


def test_the_pair_does_not_depend_on_the_head_and_at_ratio_one_a_frozen_head_is_sgd():
    small = {"n": 40, "epochs": 3}
    pair = [ToyConfig(algorithm="both", v_star=2.0, train_head=head, **small) for head in (True, False)]
    sgd = [ToyConfig(algorithm=name, train_head=False, **small) for name in ("lsam", "weights", "rates", "both")]
    errors = [result.final["probe_hard"] for result in fit_many(pair + sgd, dtype=torch.float64)]
    assert errors[0] == errors[1]
    assert len(set(errors[2:])) == 1
    assert errors[0] != errors[2]


def test_the_learning_rates_of_figure_11_are_told_apart():
    rows = [made_row(run) for run in fig11.runs(fig11.SCALES["paper"])]
    assert list(fig11.fixed(rows)) == [5, 10, 20, 50, 100, 300]
    assert list(fig11.scaled(rows)) == [5, 10, 20, 50]
    assert {row["lr"] for row in fig11.fixed(rows)[20]} == {0.01}
    assert {row["lr"] for row in fig11.scaled(rows)[20]} == {0.04}


# The whole


@pytest.mark.parametrize(("scale", "most"), [("tiny", 70), ("quick", 520), ("paper", 3200)])
def test_figures_share_their_runs(scale, most):
    chosen = {name: set(m.runs(m.SCALES[scale])) for name in FIGURES for m in (experiments.load(name),)}
    trained_head = {run for run in chosen["fig3"] if run.train_head}
    assert trained_head <= chosen["fig2"]
    assert {run for run in chosen["fig7"] if run.algorithm == "lsam"} <= chosen["fig3"]
    assert len(set().union(*chosen.values())) <= most
    assert scale == "tiny" or all(run.epochs == 100 for runs in chosen.values() for run in runs)


def test_at_tiny_scale_every_figure_is_written_and_none_judged(tmp_path):
    results = experiments.reproduce(FIGURES, scale="tiny", out=tmp_path)
    assert [result.name for result in results] == list(FIGURES)
    assert all(claim.holds is None for result in results for claim in result.claims)
    assert all((tmp_path / f"{name}.{kind}").stat().st_size > 100 for name in FIGURES for kind in ("png", "csv"))
