"""The board, its claims and its choices by hand-made rows; the engine behind it against independent ones."""

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from samphire import optim, records
from samphire.experiments.paper import scoreboard
from samphire.optim import Memory, bind, sharpness_aware_gradient
from samphire.records import generator
from samphire.train import RuleConfig, ToyConfig, fit_many

pytestmark = pytest.mark.usefixtures("rough_pictures")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("rules")
    finally:
        sys.path.remove(str(BENCHMARKS))
        del sys.modules["rules"], sys.modules["step"]


# Tables with a row per rule


def test_the_tables_of_exceptions_name_rules_that_exist(bench):
    assert set(scoreboard.TRIALS) < set(optim.RULES)
    assert set(bench.CLAIMS) | set(bench.BARS) < {*optim.RULES, bench.ONE_PASS, "saf"}


@pytest.mark.parametrize("scale", scoreboard.SCALES)
def test_every_rule_is_trained_at_each_strength_and_seed(scale):
    config = scoreboard.SCALES[scale]
    runs = scoreboard.runs(config)
    assert len(runs) == len({records.key(run) for run in runs})
    assert len(runs) == config.seeds * (1 + len(optim.RULES) * len(config.tried))
    assert [run.seed for run in runs if type(run) is ToyConfig] == list(range(config.seeds))


def test_the_paper_scale_is_the_toy_of_the_other_figures():
    assert {(r.chi, r.epochs, r.batch) for r in scoreboard.runs(scoreboard.SCALES["paper"])} == {(360.0, 100, 5)}
    assert scoreboard.SCALES["paper"].seeds == 10


def test_strengths_reach_the_rules():
    runs = {r.name: r for r in scoreboard.runs(scoreboard.SCALES["quick"]) if isinstance(r, RuleConfig)}
    assert runs["sam"].rule.rho == 0.2  # the last of its three
    assert runs["every"].rule.rule.rho == 0.2
    assert runs["ae_sam"].rule.steps == runs["ae_sam"].steps
    assert runs["m_sharpness"].rule.m == 12
    assert (runs["entropy_sgd"].rule.lr, runs["entropy_sgd"].lr) == (0.1, 1.0)


# The engine


def loop(run):
    """The toy by hand: SGD on the reference gradient, one run, float64."""
    net, points = run.network().double(), run.train_points(torch.float64)
    w = {name: p.detach() for name, p in net.named_parameters()}
    rule, memory, order = bind(run.rule, net), Memory(), generator(run.seed, "order")
    for _ in range(run.epochs):
        shuffled = torch.randperm(run.n, generator=order)
        for start in range(0, run.n, run.batch):
            x, y = (t[shuffled[start : start + run.batch]] for t in (points.x, points.y))

            losses = optim.LossOfOutputs(
                lambda w, examples=slice(None), x=x: torch.func.functional_call(net, w, (x[examples],)),
                lambda f, examples=slice(None), y=y: nn.functional.softplus(-y[examples] * f),
            )
            memory.n, memory.labels = len(x), (y > 0).long()
            g = sharpness_aware_gradient(rule, losses, w, memory)
            w = {name: t - run.lr * g[name] if name in g else t for name, t in w.items()}
    return w


@pytest.mark.parametrize("name", optim.RULES)
def test_every_rule_trains_in_company_as_alone(name):
    trial = scoreboard.TRIALS.get(name, scoreboard.Trial())
    settings = [((trial.setting, value * (0.01 if trial.in_rates else 1)),) for value in trial.values[:2]]
    runs = [RuleConfig(n=16, batch=6, epochs=3, seed=s, name=name, settings=v) for s, v in enumerate(settings)]
    for result in fit_many(runs, dtype=torch.float64, keep_weights=True):
        expected = loop(result.config)
        for key, t in result.checkpoints[-1].weights.items():
            torch.testing.assert_close(t, expected[key], rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["sam", "lsam"])
def test_two_engines_agree_where_both_know_the_rule(name):
    ours = RuleConfig(n=20, epochs=3, seed=1, name=name, settings=(("rho", 0.5),))
    theirs = ToyConfig(n=20, epochs=3, seed=1, algorithm=name, rho=0.5)
    a, b = (next(fit_many([run], dtype=torch.float64, keep_weights=True)) for run in (ours, theirs))
    for key, t in b.checkpoints[-1].weights.items():
        torch.testing.assert_close(a.checkpoints[-1].weights[key], t, rtol=0, atol=1e-12)
    assert a.final.keys() == b.final.keys()
    assert a.v is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "smm"}, "no rule is named 'smm'; did you mean 'sam'"),
        ({"name": "sam", "settings": (("rho", -1.0),)}, "rho must be a finite number >= 0"),
    ],
)
def test_bad_runs_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RuleConfig(**settings)


# The board


def board_row(rule, seed, strength=0.0, error=0.3, passes=2.0, **more):
    errors = {"probe_hard": error, "probe_easy": 0.0, "test_error": 0.0}
    return {"rule": rule, "seed": seed, "strength": strength, "passes": passes, "collapsed": False} | errors | more


def board_rows(change=None):
    """Seeds differ by more than rules do; lsam and gsam beat SGD, nothing beats lsam."""
    errors = {"sgd": 0.3, "lsam": 0.1, "sam": 0.25, "gsam": 0.2, "gam": 0.1, "msam": 0.31}
    passes = {"sgd": 1.0, "lsam": 1.0, "gam": 4.0, "msam": 1.0}
    rows = []
    for rule, error in errors.items():
        for strength in (0.0,) if rule == "sgd" else (1.0, 2.0):
            for seed in range(6):
                wiggle = 0.05 * seed + 0.001 * ((3 * seed + len(rule)) % 4) + 0.02 * (strength == 1.0)
                row = board_row(rule, seed, strength, error + wiggle, passes.get(rule, 2.0))
                rows.append(row | (change(row) if change else {}))
    return rows


def verdicts(change=None):
    return [claim.verdict for claim in scoreboard.claims(board_rows(change))]


def test_rows_as_expected_satisfy_every_claim():
    assert verdicts() == ["holds", "holds", "holds"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda r: {"probe_hard": 0.6 + r["probe_hard"]} if r["rule"] == "lsam" else {},
            ["contradicted", "holds", "contradicted"],
        ),
        (
            lambda r: {"probe_hard": 0.1 + r["probe_hard"]} if r["rule"] == "sam" else {},
            ["holds", "contradicted", "holds"],
        ),
        (
            lambda r: (
                {"probe_hard": 0.3 + 0.05 * r["seed"] + 0.01 * (-1) ** r["seed"]} if r["rule"] == "msam" else {}
            ),
            ["holds", "holds", "holds"],
        ),
        (
            lambda r: (
                {"probe_hard": 0.1 + 0.05 * r["seed"] + 0.01 * (-1) ** r["seed"]} if r["rule"] == "msam" else {}
            ),
            ["holds", "holds", "open"],
        ),
        (
            lambda r: {"probe_hard": 0.3 + 0.05 * r["seed"] + 0.01 * (-1) ** r["seed"]} if r["rule"] == "sam" else {},
            ["holds", "open", "holds"],
        ),
        (
            lambda r: {"probe_hard": r["seed"] / 100} if r["rule"] == "msam" else {},
            ["holds", "holds", "contradicted"],
        ),
        (
            lambda r: {"probe_hard": r["seed"] / 100} if r["rule"] == "gam" else {},
            ["holds", "holds", "holds"],
        ),  # costs more
        (lambda r: {"collapsed": r["rule"] == "sam"}, ["holds", "open", "holds"]),
        (lambda r: {"collapsed": r["rule"] == "lsam"}, ["open", "holds", "open"]),
    ],
)
def test_rows_that_break_a_claim_or_leave_it_open(change, expected):
    assert verdicts(change) == expected


def test_who_beats_lsam_is_named_with_its_cost():
    claim = scoreboard.claims(board_rows(lambda r: {"probe_hard": 0.0} if r["rule"] in ("gam", "msam") else {}))[-1]
    assert claim.ours == "clearly better at its cost or less: msam; at more: gam (4 passes)"


def test_a_strength_is_chosen_by_the_other_half_of_the_seeds():
    errors = {(1.0, 0): 0.1, (1.0, 1): 0.4, (2.0, 0): 0.2, (2.0, 1): 0.3}  # by strength and parity
    rows = [board_row("sam", seed, s, errors[s, seed % 2]) for s in (1.0, 2.0) for seed in range(4)]
    chosen = scoreboard._cross_chosen(rows)
    assert {(r["seed"], r["strength"]) for r in chosen} == {(0, 2.0), (2, 2.0), (1, 1.0), (3, 1.0)}
    assert sum(r["probe_hard"] for r in chosen) / 4 == pytest.approx(0.3)  # the best of the grid would say 0.2


@pytest.mark.parametrize(("fails", "works"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_strength_at_which_most_runs_collapse_is_not_chosen(fails, works):
    rows = [board_row("sam", seed, s, collapsed=s == fails) for s in (1.0, 2.0) for seed in range(4)]
    assert {r["strength"] for r in scoreboard._cross_chosen(rows)} == {works}


def test_the_frontier_by_hand():
    def entry(rule, passes, error):
        return scoreboard.Entry(rule, passes, [board_row(rule, 0, error=error)], None)

    entries = [entry(*e) for e in [("a", 1, 0.3), ("b", 1, 0.2), ("c", 2, 0.2), ("d", 2, 0.1), ("e", 4, 0.15)]]
    assert [e.rule for e in scoreboard.frontier(entries)] == ["b", "d"]


def test_tables_and_picture_show_every_rule_and_count_collapsed_runs():
    rows = board_rows(lambda r: {"collapsed": r["rule"] == "gam" and r["seed"] < 5})
    board, tried = scoreboard.tables(rows)
    lines = {line[0]: line for line in board.rows}
    assert set(lines) == {"sgd", "lsam", "sam", "gsam", "gam", "msam"}
    assert board.rows[-1][0] == "gam"  # most of its runs collapsed
    assert lines["gam"][-1] == "5 of 6"
    assert [name for name, line in lines.items() if line[board.columns.index("on the frontier")]] == ["lsam"]
    assert lines["sgd"][board.columns.index("gain over SGD")].mean == 0
    assert len(tried.rows) == 1 + 2 * 5
    assert len(scoreboard.plots(rows)) == 1


def test_a_run_becomes_a_row():
    run = RuleConfig(n=10, epochs=1, name="lsam", settings=(("rho", 0.5),))
    row = scoreboard.row(next(fit_many([run])))
    assert (row["rule"], row["strength"], row["passes"], row["seed"]) == ("lsam", 0.5, 1.0, 0)
    assert math.isfinite(row["probe_hard"])
    row = scoreboard.row(next(fit_many([replace(run, name="gam")])))
    assert row["passes"] == 4
    assert scoreboard.row(next(fit_many([ToyConfig(n=10, epochs=1)])))["rule"] == "sgd"


# The benchmark


def test_flops_of_the_benchmark(bench):
    data = bench.Data()
    sgd = bench.flops(bench.sgd_step(data), 1)
    ratio = {
        name: bench.flops(bench.rule_step(data, optim.RULES[name]()), steps) / sgd
        for name, steps in [("sam", 1), ("msam", 1), ("looksam", 5)]
    }
    assert ratio == {"sam": pytest.approx(2), "msam": pytest.approx(1), "looksam": pytest.approx(1.2)}


def test_periods_are_timed_whole(bench):
    spans = bench.spans({name: make() for name, make in optim.RULES.items()})
    assert (spans["sam"], spans["looksam"], spans["every"], spans["ae_sam"]) == (1, 5, 5, 20)
