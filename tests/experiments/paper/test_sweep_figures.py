"""Every claim of the swept figures: rows that satisfy it, contradict it or leave it open, and what collapse does."""

import math
from dataclasses import asdict

import pytest
import torch

from samphire import experiments
from samphire.experiments.paper import fig7, fig10, fig11, toy
from samphire.experiments.rows import usable
from samphire.statistics import lower, paired
from samphire.train import ToyConfig, fit_many

pytestmark = pytest.mark.usefixtures("rough_pictures")

FIGURES = ("fig2", "fig3", "fig7", "fig10", "fig11")


def toy_rows(name, change=None, scale="quick"):
    """Rows in which all that the paper says holds, paired by seed: seeds differ by more than settings do."""
    experiment = experiments.load(name)
    runs = dict.fromkeys(experiment.runs(experiment.at(scale)))
    return [toy_row(run) | (change(run) if change else {}) for run in runs]


def toy_row(run):
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
    return {claim.text: claim.verdict for claim in experiments.load(name).claims(toy_rows(name, change))}


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
    others = {text: verdict for text, verdict in verdicts(name).items() if verdict != "holds"}
    assert others == ({"At χ = 180°, LSAM's hard probe error is below SGD's.": "open"} if name == "fig2" else {})


def noisy(when):
    """A change that leaves no runs of some settings with an effect beyond the noise."""
    return lambda run: (
        {"probe_hard": 0.3 + 0.1 * math.sin(97 * run.seed + 31 * run.rho + run.v_star)} if when(run) else {}
    )


CONTRADICTED = [
    ("fig2", worse(lambda r: r.chi == 360 and r.rho == 2), "At χ = 360°"),
    ("fig2", worse(lambda r: r.chi == 540 and r.rho == 1), "progressively"),
    (
        "fig3",
        lambda r: {"phantom_ratio": 1.0 - 0.1 * r.rho + 0.001 * r.seed} if r.train_head and r.chi == 360 else {},
        "Trained head, χ = 360°: the phantom",
    ),
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
    ("fig7", put(lambda r: r.algorithm == "lsam" and r.rho == 0, probe_hard=0.0), "Trained head, both effects"),
    ("fig7", put(lambda r: r.algorithm == "rates", probe_hard=0.0), "Trained head: the pair is stronger"),
    ("fig7", worse(lambda r: r.algorithm == "both" and r.v_star > 1), "Frozen head: the pair is stronger"),
    ("fig7", put(lambda r: r.algorithm == "lsam" and r.rho > 0, probe_hard=0.0), "Frozen head: at equal ratio"),
    *(
        ("fig10", worse(lambda r, k=kind, w=where: is_noisy(r, k, w)), f"{name}, {place}")
        for kind, name in (
            ("label", "Flipped signs"),
            ("gaussian", "Gaussian noise"),
            ("dropout", "Dropped features"),
        )
        for where, place in (("both", "both features"), ("hard", "hard feature only"))
    ),
    ("fig10", worse(lambda r: is_noisy(r, "label", "both") and r.level < 0.05), "Flipped signs, both features"),
    ("fig11", worse(lambda r: r.batch == 20 and r.rho == 1), "At ρ = 1 LSAM's"),
    ("fig11", put(lambda r: r.batch == 300 and r.rho == 2, probe_hard=-1.0), "The improvement is smaller"),
    ("fig11", put(lambda r: r.batch == 100 and r.rho == 0.5, probe_hard=0.0), "The best ρ is similar"),
    ("fig11", put(lambda r: r.batch == 300 and r.rho == 0, probe_hard=5.0), "For large ρ"),
]

OPEN = [
    ("fig2", noisy(lambda r: r.chi == 360), "At χ = 360°"),
    ("fig2", noisy(lambda r: r.chi == 360), "progressively"),
    (
        "fig3",
        lambda r: {"phantom_ratio": 1 + 0.1 * math.sin(7 * r.seed + r.rho)} if r.chi == 360 else {},
        "Trained head, χ = 360°: the phantom",
    ),
    (
        "fig3",
        lambda r: {"phantom_ratio": 0.9 + 0.1 * r.seed} if r.rho == 0 else {},
        "Trained head, χ = 360°: the ratio is close to 1",
    ),
    (
        "fig3",
        lambda r: {"real_ratio": 0.8 + 0.1 * r.seed} if r.rho == 1 else {},
        "Trained head, χ = 360°: the real ratio",
    ),
    ("fig7", noisy(lambda r: r.algorithm == "weights"), "Trained head, importance weights only"),
    ("fig7", noisy(lambda r: r.algorithm != "lsam"), "Trained head: the pair is stronger"),
    ("fig7", worse(lambda r: r.algorithm == "both" and r.v_star == 2), "Frozen head: the pair is stronger"),
    (
        "fig7",
        lambda r: {"probe_hard": toy_row(r)["probe_hard"] + 0.2 * (r.seed - 2)} if r.algorithm == "lsam" else {},
        "Frozen head: at equal ratio",
    ),
    ("fig10", noisy(lambda r: r.corruption == "label"), "Flipped signs, both features"),
    ("fig11", noisy(lambda r: r.batch == 20), "At ρ = 1 LSAM's"),
    ("fig11", noisy(lambda r: r.batch in (5, 300)), "The improvement is smaller"),
    (
        "fig11",
        put(lambda r: r.batch == 100 and r.rho == 0.5 and r.seed == 0, probe_hard=-5.0),
        "The best ρ is similar",
    ),
    ("fig11", put(lambda r: r.batch == 300 and r.rho == 0 and r.seed == 0, probe_hard=9.0), "For large ρ"),
]


@pytest.mark.parametrize(
    ("name", "change", "claim", "verdict"),
    [(*case, "contradicted") for case in CONTRADICTED] + [(*case, "open") for case in OPEN],
)
def test_rows_contradict_a_claim_or_leave_it_open(name, change, claim, verdict):
    (text,) = [text for text in verdicts(name) if text.startswith(claim) or claim in text]
    assert verdicts(name, change)[text] == verdict


def test_a_worse_sgd_breaks_no_claim_of_figure_7():
    assert "contradicted" not in verdicts("fig7", worse(lambda r: r.algorithm == "lsam" and r.rho == 0)).values()


def test_a_difference_of_one_standard_error_is_open_not_against_the_paper():
    """As figure 10 had it: 0.015 ± 0.015 over ten seeds."""
    lsam = [0.285 + 0.015 * 3 * sign for sign in (1, -1) * 5]
    rows = toy_rows("fig10", lambda run: {"probe_hard": lsam[run.seed] if run.rho == 1 else 0.3}, scale="paper")
    claims = fig10.FIG10.claims(rows)
    assert {claim.verdict for claim in claims} == {"open"}
    assert all(claim.ours.startswith("difference -0.015 ± 0.015 (n=10)") for claim in claims)


def test_noise_in_one_panel_leaves_the_others_alone():
    judged = verdicts("fig10", worse(lambda run: is_noisy(run, "label", "hard")))
    others = [text.split(":")[0] for text, verdict in judged.items() if verdict != "holds"]
    assert others == ["Flipped signs, hard feature only"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_difference_as_large_as_its_spread_is_no_evidence(name):
    rows = [row | {"probe_hard": 0.3, "phantom_ratio": 1.0} for row in toy_rows(name)]
    for number, row in enumerate(rows):
        row["probe_hard"] += 0.05 * math.sin(number)
    kinds = ("is below", "lowers", "stronger", "smaller", "increases")
    claims = [c for c in experiments.load(name).claims(rows) if any(kind in c.text for kind in kinds)]
    assert claims
    assert not any(claim.verdict == "holds" for claim in claims)


def test_where_noise_makes_sgd_learn_the_hard_feature_the_detail_says_so():
    rows = toy_rows(
        "fig10", lambda run: {"probe_hard": 0.02} if run.corruption == "label" and run.level > 0.05 else {}
    )
    learned = [claim.text.split(":")[0] for claim in fig10.FIG10.claims(rows) if "At level 0.1" in claim.detail]
    assert learned == ["Flipped signs, both features", "Flipped signs, hard feature only"]


@pytest.mark.parametrize("name", FIGURES)
def test_every_point_is_inside_its_panel(name):
    late = lambda run: run.lr > 0.01 or not run.train_head or run.where == "hard"  # what later panels show
    (figure,) = experiments.load(name).plots(toy_rows(name, put(late, probe_hard=1.5, phantom_ratio=4.0)))
    for axes in figure.axes:
        bottom, top = axes.get_ylim()
        values = [y for line in axes.lines for y in line.get_ydata()]
        assert values
        assert bottom == 0
        assert max(values) < top


# Collapsed runs


def test_collapsed_runs_are_left_out_and_counted():
    rows = toy_rows(
        "fig2", lambda run: {"probe_hard": 0.5, "collapsed": True} if run.seed == 1 and run.rho == 2 else {}
    )
    first = next(claim for claim in experiments.load("fig2").claims(rows) if "360" in claim.text)
    assert first.verdict == "holds"
    assert "1 of 5 pairs left out: collapsed" in first.ours
    table = experiments.load("fig2").tables(rows)[0]
    cell = next(line for line in table.rows if line[:2] == (360.0, 2.0))
    assert (cell[2].n, cell[-1]) == (4, "1 of 5")


@pytest.mark.parametrize("name", FIGURES)
def test_where_most_runs_collapse_nothing_is_drawn_and_claims_are_open(name):
    experiment = experiments.load(name)
    rows = toy_rows(name, put(lambda run: run.seed > 0 and (run.rho > 0 or run.v_star > 1), collapsed=True))
    assert experiment.plots(rows)
    kinds = ("is below", "lowers", "stronger", "increases")
    claims = [claim for claim in experiment.claims(rows) if any(kind in claim.text for kind in kinds)]
    assert {claim.verdict for claim in claims} == {"open"}


def test_the_best_radius_is_one_at_which_most_runs_train():
    errors = ((0, 0.3), (1, 0.2), (2, 0.0))
    rows = [{"rho": r, "probe_hard": e, "collapsed": r == 2 and k > 0} for r, e in errors for k in range(3)]
    assert toy.best_rho(rows) == 1
    assert math.isnan(usable([row for row in rows if row["rho"] == 2], "probe_hard").mean)
    assert toy.best_rho([row | {"collapsed": True} for row in rows]) == 0


# Parts


def cell(errors, **settings):
    return [{"seed": s, "probe_hard": e, "collapsed": e is None} | settings for s, e in enumerate(errors)]


def test_differences_are_paired_by_seed_whatever_the_order():
    before, after = cell([0.1, 0.5, 0.9]), cell([0.0, 0.3, 0.6])
    difference = paired(before, after[::-1], "probe_hard")
    assert difference.estimate.mean == pytest.approx(-0.2)
    assert difference.estimate.error == pytest.approx(0.1 / math.sqrt(3))
    assert lower(difference) == "open"  # 3.46 standard errors of 3 seeds; Student's t asks for 4.30
    assert paired(after, before, "probe_hard").estimate == -difference.estimate


def test_settings_of_one_seed_count_once():
    before = cell([0.4, 0.6], level=1) + cell([0.8, 0.6], level=2)
    after = cell([0.2, 0.2], level=1) + cell([0.2, 0.2], level=2)
    difference = paired(before, after, "probe_hard", within=("level",)).estimate
    assert (difference.n, difference.mean) == (2, pytest.approx(-0.4))
    assert difference.error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [([0.1], "open"), ([0.1, 0.1, None], "holds"), ([0.1, None, None], "open"), ([None, None], "open")],
)
def test_a_difference_needs_two_seeds_and_most_of_them(errors, verdict):
    assert lower(paired(cell([0.5] * len(errors)), cell(errors), "probe_hard")) == verdict


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
    rows = [toy_row(run) for run in fig11.runs(fig11.FIG11.at("paper"))]
    assert list(fig11.fixed(rows)) == [5, 10, 20, 50, 100, 300]
    assert list(fig11.scaled(rows)) == [5, 10, 20, 50]
    assert {row["lr"] for row in fig11.fixed(rows)[20]} == {0.01}
    assert {row["lr"] for row in fig11.scaled(rows)[20]} == {0.04}


# The whole


@pytest.mark.parametrize(("scale", "most"), [("tiny", 70), ("quick", 520), ("paper", 3200)])
def test_figures_share_their_runs(scale, most):
    chosen = {name: set(e.runs(e.at(scale))) for name in FIGURES for e in (experiments.load(name),)}
    trained_head = {run for run in chosen["fig3"] if run.train_head}
    assert trained_head <= chosen["fig2"]
    assert {run for run in chosen["fig7"] if run.algorithm == "lsam"} <= chosen["fig3"]
    assert len(set().union(*chosen.values())) <= most
    assert scale == "tiny" or all(run.epochs == 100 for runs in chosen.values() for run in runs)


def test_at_tiny_scale_every_figure_is_written_and_none_judged(tmp_path):
    results = experiments.reproduce(FIGURES, scale="tiny", out=tmp_path)
    assert [result.name for result in results] == list(FIGURES)
    assert all(claim.verdict == "open" for result in results for claim in result.claims)
    assert all((tmp_path / f"{name}.{kind}").stat().st_size > 100 for name in FIGURES for kind in ("png", "csv"))
