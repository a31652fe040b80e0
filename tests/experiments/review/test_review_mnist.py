"""The review's experiments on MNIST: what their rows hold, and that every claim can fail."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from samphire import experiments, records, report
from samphire.data.arrays import write_idx
from samphire.experiments import EXPERIMENTS, Places
from samphire.experiments.claims import lower_claim
from samphire.experiments.review import averaging, bias, fig3, mnist
from samphire.experiments.review.mnist import METHODS, SAM, SGD, Clock, Run
from samphire.landscape import Landscape, average_sharpness, sharpness
from samphire.progress import silent
from samphire.train import fit_many

NARROW = (784, 32, 10)
NAMES = ("review-fig3", "review-m", "review-labelnoise", "review-bias", "review-sparse", "review-averaging")


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten blurred patterns in place of the digits, as idx files."""
    folder = tmp_path_factory.mktemp("data") / "MNIST" / "raw"
    folder.mkdir(parents=True)
    source = np.random.default_rng(0)
    patterns = 160 * (source.random((10, 28, 28)) < 0.2)
    for stem, n in (("train", 300), ("t10k", 60)):
        label = source.integers(0, 10, n).astype(np.uint8)
        noisy = patterns[label] + source.integers(0, 60, (n, 28, 28))
        write_idx(folder / f"{stem}-images-idx3-ubyte", noisy.astype(np.uint8))
        write_idx(folder / f"{stem}-labels-idx1-ubyte", label)
    return folder.parent.parent


@pytest.fixture(scope="module")
def rows(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The rows of every experiment at the tiny scale, computed as a user would."""
    out = tmp_path_factory.mktemp("out")
    experiments.reproduce(NAMES, scale="tiny", out=out, data_root=root)
    return {run.config["experiment"]: list(run.rows) for run in records.read(out / "runs")}


def computed(runs: list[Any], root: Path) -> list[Any]:
    rows = dict(mnist.compute(runs, Places(root, root), silent))
    return [rows[run] for run in runs]


# Runs and rows


def test_a_budget_buys_the_epochs_the_review_has() -> None:
    assert [METHODS[name].epochs for name in ("SGD", "SAM", "Adam")] == [150, 75, 150]  # section 2.3.2
    assert replace(averaging.ENTROPY, gradients=15_000).epochs == 30
    assert replace(SAM, looks=5).checkpoints == (0, 15, 30, 45, 60, 75)


def test_examples_belong_to_the_seed_and_flips_are_nested_and_wrong(root: Path) -> None:
    digits = mnist.load(str(root))
    one, again, other = (mnist.problem(digits, seed, 100) for seed in (0, 0, 1))
    assert torch.equal(one.x, again.x)
    assert not torch.equal(one.x, other.x)
    assert 0.3 < one.x.max() <= 1
    before = digits.y.clone()
    some, more = (mnist.problem(digits, 0, 100, flipped) for flipped in (0.2, 0.6))
    few, many = some.y != one.y, more.y != one.y
    assert (int(few.sum()), int(many.sum())) == (20, 60)
    assert bool((many | ~few).all())
    assert torch.equal(some.y[few], more.y[few])
    assert torch.equal(digits.y, before)
    assert some.test is not None
    assert torch.equal(some.test[1], digits.test_y)
    with pytest.raises(ValueError, match=r"the training set has 300 digits, got n=301; take a smaller n"):
        mnist.problem(digits, 0, 301)


def test_a_row_is_the_same_run_by_hand(root: Path) -> None:
    run = Run("sam", "adam", 1e-3, (("rho", 0.1),), seed=3, gradients=40, n=100, widths=NARROW, looks=2)
    neighbour = replace(run, seed=4)
    row, _ = computed([run, neighbour], root)
    assert [p["gradients"] for p in row["curve"]] == [0, 20, 40]
    source = mnist.problem(mnist.load(str(root)), 3, 100)
    net = mnist.network(NARROW)(mnist.generator(3, "init"))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    order = mnist.generator(3, "order")
    for _ in range(2):
        for part in torch.randperm(100, generator=order).split(10):
            x, y = source.x[part], source.y[part]
            g = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
            length = torch.cat([t.flatten() for t in g]).norm()
            kept = [p.detach().clone() for p in net.parameters()]
            with torch.no_grad():
                for p, t in zip(net.parameters(), g, strict=True):
                    p += 0.1 * t / length
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for p, t in zip(net.parameters(), kept, strict=True):
                    p.copy_(t)
            opt.step()
    assert source.test is not None
    with torch.no_grad():
        test = F.cross_entropy(net(source.test[0]), source.test[1]).item()
        assert row["loss"] == pytest.approx(F.cross_entropy(net(source.x), source.y).item(), rel=1e-3)
    assert row["test_loss"] == pytest.approx(test, rel=1e-3)
    assert row["gap"] == pytest.approx(row["test_loss"] - row["loss"], abs=1e-5)
    assert json.loads(json.dumps(row))["curve"] == row["curve"]


def test_sharpness_is_measured_where_the_loss_first_is_at_most_the_target(root: Path) -> None:
    run = replace(SGD, gradients=60, n=100, widths=NARROW, measure_at=(2.0, 0.5, -1.0))
    (row,) = computed([run], root)
    first, second, never = row["measured"]
    losses = [point["loss"] for point in row["curve"]]
    for point in (first, second):
        epoch = next(i for i, loss in enumerate(losses) if loss <= point["target"])
        assert (point["epoch"], point["loss"]) == (epoch, losses[epoch])
    assert never == {"target": -1.0, "reached": False}
    config = run.config(mnist.load(str(root)))
    (result,) = fit_many([config], checkpoints=run.checkpoints, keep_weights=True)
    net = mnist.network(NARROW)(torch.Generator())
    net.load_state_dict(result.checkpoints[second["epoch"]].weights)
    here = Landscape.of(net, F.cross_entropy, (config.problem.x, config.problem.y))
    assert second["first_order"] == pytest.approx(mnist.RADIUS * sharpness(here).gradient_norm, rel=1e-4)
    assert second["worst"] >= sharpness(here, mnist.RADIUS).one_step * (1 - 1e-5)
    assert second["lambda_1"] > 0
    assert second["trace"] > second["lambda_1"] / 2
    assert second["average"] == pytest.approx(average_sharpness(here, mnist.FAR, samples=8).rise.mean, rel=1e-3)


def test_the_clock_measures_every_method(root: Path) -> None:
    (row,) = computed([Clock(10)], root)
    assert set(row["seconds"]) == set(METHODS)
    assert all(seconds > 0 for seconds in row["seconds"].values())


def test_progress_counts_gradients_and_reaches_the_total(root: Path) -> None:
    runs = [
        replace(SGD, gradients=20, n=100, widths=NARROW),
        replace(SAM, gradients=40, n=100, widths=NARROW),
        Clock(10),
    ]
    small = Run("m_sharpness", settings=(("m", 5),), gradients=40, n=100)
    assert [run.steps for run in (*runs, small)] == [20, 40, 10, 80]
    seen: list[tuple[int, int]] = []
    list(mnist.compute(runs, Places(root, root), lambda what, done, total: seen.append((done, total))))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {70}
    assert seen[0][0] == 10  # the clock comes first
    assert seen[-1][0] == 70


# Pages


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_gives_tables_pictures_and_claims(name: str, rows: dict[str, list[Any]]) -> None:
    experiment = EXPERIMENTS[name]
    result = experiment.result(rows[name], "tiny")
    assert result.source == "the review"
    assert len(result.figures[0]) > 10_000
    assert all(table.rows for table in result.tables)
    assert result.claims
    assert all(claim.verdict == "open" for claim in result.claims)
    assert experiment.data == ("mnist",)
    again = experiment.tables(json.loads(json.dumps(rows[name])))
    assert [report.to_csv(t) for t in again] == [report.to_csv(t) for t in experiment.tables(rows[name])]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["tiny", "quick", "paper"])
def test_runs_are_distinct_and_every_rule_is_known(name: str, scale: str) -> None:
    runs = EXPERIMENTS[name].runs(EXPERIMENTS[name].at(scale))
    assert len({records.key(run) for run in runs}) == len(runs)
    assert all(run.epochs >= 1 for run in runs if isinstance(run, Run))  # makes the rule, too


# Claims


def cell(n: int, column: str, value: float, **settings: Any) -> list[Any]:
    """Rows with a column around a value, a little apart over the seeds."""
    base = {"collapsed": False, "loss": 0.1, "test_loss": 0.5, "test_error": 0.2, "gap": 0.4, "train_error": 0.1}
    return [{**base, "seed": s, column: value + 0.001 * (s % 3), **settings} for s in range(n)]


@pytest.mark.parametrize(
    ("to", "limit", "verdict"),
    [
        (0.1, 0.0, "holds"),
        (0.3, 0.0, "contradicted"),
        (0.2, 0.0, "open"),
        (0.2, 0.05, "holds"),
        (0.25, 0.05, "open"),
        (0.3, 0.05, "contradicted"),
    ],
)
def test_a_claim_is_judged_by_the_interval_of_the_paired_difference(to: float, limit: float, verdict: str) -> None:
    before = cell(5, "test_error", 0.2)
    after = [{**row, "test_error": row["test_error"] + to - 0.2 + 0.001 * (row["seed"] - 2)} for row in before]
    claim = lower_claim("text", before, after[::-1], "test_error", says="says", ours="ours", limit=limit)
    assert claim.verdict == verdict
    # differences to - 0.2 and -2, -1, 0, 1, 2 thousandths: the standard error is sqrt(2.5 / 5) thousandths
    assert claim.ours.startswith(f"ours; difference {to - 0.2:.5f} ± 0.00071 (n=5), p = ")
    assert claim.detail == "Judged by the 95 % interval of the paired difference over seeds."


def test_a_claim_counts_what_it_leaves_out_and_is_open_if_that_is_most() -> None:
    before, after = cell(5, "gap", 1.0), cell(5, "gap", 0.5)
    after = [{**row, "gap": row["gap"] + 1e-4 * row["seed"]} for row in after]
    before[0] |= {"collapsed": True, "gap": float("nan")}
    claim = lower_claim("text", before, after, "gap", says="")
    assert claim.verdict == "holds"
    assert "1 of 5 pairs left out: collapsed" in claim.ours
    for row in (*before[1:2], *after[2:3]):
        row["collapsed"] = True
    assert lower_claim("text", before, after, "gap", says="").verdict == "open"


def shifted(rows: list[Any], chosen: Any, change: float, columns: tuple[str, ...]) -> list[Any]:
    """The rows with some columns of some runs moved by a number, which differs slightly between the seeds."""
    rows = copy.deepcopy(rows)
    for row in (row for row in rows if "clock" not in row and chosen(row)):
        points = (row, *row["curve"], *(p for p in row["measured"] if p["reached"]))
        for values in points:
            for column in columns:
                if column in values:
                    values[column] += change + 1e-3 * row["seed"]
    return rows


DOCTORED = {  # which runs are moved, by which columns, and which claims (by their beginning) then change their verdict
    "review-fig3": (
        lambda row: row["rule"] == "sam" and row["base"] == "sgd",
        ("loss", "test_loss", "gap"),
        {"Figure 4: SAM's": ("contradicted", "holds"), "Figure 4: Adam's": ("holds", "contradicted"), "Figure 5: Adam's": ("holds", "contradicted"),
         "Figure 5: SAM's generalization": ("contradicted", "holds"), "Figure 3: SAM's": ("contradicted", "holds")},
    ),
    "review-m": (
        lambda row: row.get("m") == 5,
        ("test_error", "gap"),
        {"ρ = 0.1: the test error": ("contradicted", "holds"), "ρ = 0.1: the generalization gap": ("contradicted", "holds")},
    ),
    "review-labelnoise": (
        lambda row: row["rule"] == "sam",
        ("test_error",),
        {"60% wrong labels: SAM's test error is below SGD's after equally many g": ("contradicted", "holds"),
         "60% wrong labels: SAM's test error is below SGD's after equally many s": ("contradicted", "holds")},
    ),
    "review-sparse": (
        lambda row: row["rule"].startswith("ssam"),
        ("test_error",),
        {"SSAM-F": ("contradicted", "holds"), "SSAM-D": ("contradicted", "holds")},
    ),
    "review-averaging": (
        lambda row: row["rule"] == "sam",
        ("test_error",),
        {"SAM's test error is below that of SGD": ("contradicted", "holds"),
         "SAM's test error is below that of SWA": ("contradicted", "holds"),
         "SAM's test error is below that of Entropy": ("contradicted", "holds")},
    ),
    "review-bias": (
        lambda row: row["rule"] == "sam",
        ("first_order", "worst", "lambda_1", "trace", "average", "gap"),
        {f"At training loss 2.2, {label} is lower": ("contradicted", "holds")
         for label in (*bias.MEASURES.values(), "the generalization gap")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_claims_follow_the_rows(name: str, rows: dict[str, list[Any]]) -> None:
    chosen, columns, expected = DOCTORED[name]
    for k, change in enumerate((1e3, -1e3)):  # worse, better
        claims = EXPERIMENTS[name].claims(shifted(rows[name], chosen, change, columns))
        for start, verdicts in expected.items():
            (claim,) = (c for c in claims if c.text.startswith(start))
            assert claim.verdict == verdicts[k], claim


def test_averages_are_claimed_against_the_weights_they_average(rows: dict[str, list[Any]]) -> None:
    for change, verdict in ((1e3, "contradicted"), (-1e3, "holds")):
        moved = shifted(rows["review-averaging"], lambda row: row["rule"] == "", change, ("averaged_test_error",))
        (claim,) = (c for c in averaging.claims(moved) if c.text.startswith("SWA"))
        assert claim.verdict == verdict
    entropy = shifted(rows["review-averaging"], lambda row: row["rule"] == "entropy_sgd", 1.0, ("test_error",))
    assert [c.verdict for c in averaging.claims(entropy) if c.text.startswith("Entropy")] == ["contradicted"]


def test_adam_and_the_clock_are_claimed_too(rows: dict[str, list[Any]]) -> None:
    def verdicts(changed: list[Any]) -> dict[str, Any]:
        return {claim.text: claim.verdict for claim in fig3.claims(changed)}

    for change, verdict in ((1e3, "contradicted"), (-1e3, "holds")):
        adam = shifted(rows["review-fig3"], lambda row: row["base"] == "adam" and not row["rule"], change, ("loss",))
        assert verdicts(adam)["Figure 3: Adam's training loss is below SGD's."] == verdict
        both = shifted(
            rows["review-fig3"], lambda row: row["base"] == "adam" and row["rule"] == "sam", change, ("test_loss",)
        )
        assert verdicts(both)["Beyond the review: SAM around Adam has a lower test loss than Adam."] == verdict
    for seconds, verdict in ((1.0, "holds"), (0.4, "contradicted")):
        timed = [
            {**row, "seconds": dict.fromkeys(METHODS, 1.0) | {"SAM": seconds}} if "clock" in row else row
            for row in rows["review-fig3"]
        ]
        assert verdicts(timed)["Figure 3: a step of SAM takes longer than one of SGD."] == verdict


@pytest.mark.parametrize(
    ("column", "shares", "verdict"),
    [
        ("gap", (0.8, 0.81, 0.79), "holds"),
        ("gap", (0.95, 0.94, 0.96), "contradicted"),
        ("gap", (0.5, 0.51, 0.49), "contradicted"),
        ("gap", (0.7, 0.9, 0.8), "open"),
        ("loss", (1.5, 1.6, 1.4), "holds"),
        ("loss", (2.5, 2.4, 2.6), "contradicted"),
        ("loss", (1.0, 2.0, 3.0), "open"),
    ],
)
def test_shares_of_sgd_are_paired(
    rows: dict[str, list[Any]], column: str, shares: tuple[float, ...], verdict: str
) -> None:
    clock = [row for row in rows["review-fig3"] if "clock" in row]
    (template, *_) = (row for row in rows["review-fig3"] if "clock" not in row and row["seed"] == 0)
    trained = [
        {**template, "rule": method.rule, "base": method.base, "seed": s, column: 0.1 + s}
        for method in METHODS.values()
        for s in range(3)
    ]
    for row in trained:
        if (row["rule"], row["base"]) == ("sam", "sgd"):
            row[column] *= shares[row["seed"]]
    start = {"gap": "Figure 5: SAM's gap", "loss": "Figure 3: SAM's training loss"}[column]
    (claim,) = (c for c in fig3.claims([*trained, *clock]) if c.text.startswith(start))
    assert claim.verdict == verdict


@pytest.mark.parametrize(("sign", "verdict"), [(1, "holds"), (-1, "contradicted"), (0, "open")])
def test_tracking_is_a_rank_correlation(sign: int, verdict: str) -> None:
    shuffled = [3, 0, 5, 2, 7, 1, 6, 4]
    rows = []
    for s in range(8):
        gap = s if sign == 0 else sign * shuffled[s]
        value = shuffled[s] if sign else (3, 4, 0, 7, 5, 1, 2, 6)[s]
        point = {"target": 0.1, "reached": True, "gap": float(gap), "loss": 0.1}
        point |= dict.fromkeys(bias.MEASURES, float(value))
        rule = {"rule": "sam", "rho": 0.1} if s % 2 else {"rule": ""}
        rows.append({"seed": s // 2, "collapsed": False, "measured": [point], "curve": [], **rule})
    tracks = [c.verdict for c in bias.claims(rows) if "tracks" in c.text]
    assert tracks == [verdict] * len(bias.MEASURES)


def test_the_best_run_has_the_lowest_test_loss_of_those_that_trained() -> None:
    runs = cell(3, "test_loss", 0.5)
    runs[1]["test_loss"] = 0.3
    runs[2] |= {"test_loss": 0.1, "collapsed": True}
    assert fig3.best(runs)["seed"] == 1
