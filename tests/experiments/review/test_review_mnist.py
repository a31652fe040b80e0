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

from samphire import experiments, report
from samphire.data.arrays import write_idx
from samphire.experiments import (
    Places,
    mnist,
    review_averaging,
    review_bias,
    review_fig3,
    review_labelnoise,
    review_m,
    review_sparse,
)
from samphire.experiments.mnist import METHODS, SAM, SGD, Clock, Run
from samphire.landscape import Landscape, average_sharpness, sharpness
from samphire.train import fit_many

NARROW = (784, 32, 10)
MODULES = {
    "review-fig3": review_fig3,
    "review-m": review_m,
    "review-labelnoise": review_labelnoise,
    "review-bias": review_bias,
    "review-sparse": review_sparse,
    "review-averaging": review_averaging,
}


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
    """The rows of every experiment at the tiny scale, computed through the runner as a user would."""
    work = experiments._Work(MODULES, "tiny", tmp_path_factory.mktemp("runs"), root)
    return work.rows()


def computed(runs: list[Any], root: Path) -> list[Any]:
    found = dict(mnist.compute(runs, Places(root, root), lambda done, total: None))
    return [found[run] for run in runs]


# Runs and rows


def test_a_budget_buys_the_epochs_the_review_has() -> None:
    assert [METHODS[name].run().epochs for name in ("SGD", "SAM", "Adam")] == [150, 75, 150]  # section 2.3.2
    assert replace(review_averaging.ENTROPY, gradients=15_000).epochs == 30
    assert SAM.run(looks=5).checkpoints == (0, 15, 30, 45, 60, 75)


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
    run = SGD.run(gradients=60, n=100, widths=NARROW, measure_at=(2.0, 0.5, -1.0))
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
    runs = [SGD.run(gradients=20, n=100, widths=NARROW), SAM.run(gradients=40, n=100, widths=NARROW), Clock(10)]
    small = Run("m_sharpness", settings=(("m", 5),), gradients=40, n=100)
    assert [mnist.steps(run) for run in (*runs, small)] == [20, 40, 10, 80]
    seen: list[tuple[int, int]] = []
    list(mnist.compute(runs, Places(root, root), lambda done, total: seen.append((done, total))))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {70}
    assert seen[-1][0] in (60, 70)  # the clock says nothing while it runs


# Pages


@pytest.mark.parametrize("name", MODULES)
def test_every_experiment_gives_tables_pictures_and_claims(name: str, rows: dict[str, list[Any]]) -> None:
    module: Any = MODULES[name]
    result = experiments._result(name, module, rows[name], "tiny")
    assert result.source == "the review"
    assert len(result.figures[0]) > 10_000
    assert all(table.rows for table in result.tables)
    assert result.claims
    assert all(claim.holds is None for claim in result.claims)
    assert module.DATA == ("mnist",)
    again = module.tables(json.loads(json.dumps(rows[name])))
    assert [report.to_csv(t) for t in again] == [report.to_csv(t) for t in module.tables(rows[name])]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("scale", ["tiny", "quick", "paper"])
def test_runs_are_distinct_and_every_rule_is_known(name: str, scale: str) -> None:
    module: Any = MODULES[name]
    runs = module.runs(module.SCALES[scale])
    assert len({experiments.records.key(run) for run in runs}) == len(runs)
    assert all(run.epochs >= 1 for run in runs if isinstance(run, Run))  # makes the rule, too


# Claims


def made(n: int, column: str, value: float, **settings: Any) -> list[Any]:
    """Rows whose column lies around a value, a little apart over the seeds."""
    base = {"collapsed": False, "loss": 0.1, "test_loss": 0.5, "test_error": 0.2, "gap": 0.4, "train_error": 0.1}
    spread = [value + 0.001 * (s % 3) for s in range(n)]
    return [{**base, "seed": s, column: v, **settings} for s, v in enumerate(spread)]


@pytest.mark.parametrize(("to", "verdict"), [(0.1, True), (0.3, False), (0.2, None)])
def test_a_difference_is_judged_by_two_standard_errors(to: float, verdict: bool | None) -> None:
    before = made(5, "test_error", 0.2)
    after = [{**row, "test_error": to + 0.001 * ((row["seed"] + 1) % 2)} for row in before]
    found = mnist.claim("text", mnist.fall(before, after, "test_error"), "said", "ours")
    assert found.holds is verdict
    assert ("Not clear" in found.detail) is (verdict is None)


def test_a_difference_leaves_out_collapsed_and_unpaired_runs() -> None:
    before, after = made(4, "gap", 1.0), made(4, "gap", 0.5)
    before[0] |= {"collapsed": True, "gap": float("nan")}
    after[1]["collapsed"] = True
    assert mnist.fall(before, after[:3], "gap") == report.estimate([0.5])
    assert mnist.clear(mnist.fall(before, after[:3], "gap")) is None


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
        {"Figure 4: SAM's": (False, True), "Figure 4: Adam's": (True, False), "Figure 5: Adam's": (True, False),
         "Figure 5: SAM's generalisation": (False, True), "Figure 3: SAM's": (False, True),
         "Figure 5: SAM's gap": (False, False)},
    ),
    "review-m": (
        lambda row: row.get("m") == 5,
        ("test_error", "gap"),
        {"ρ = 0.1: the test error": (False, True), "ρ = 0.1: the generalisation gap": (False, True)},
    ),
    "review-labelnoise": (
        lambda row: row["rule"] == "sam",
        ("test_error",),
        {"60% wrong labels: SAM's test error is below SGD's after as many g": (False, True),
         "60% wrong labels: SAM's test error is below SGD's after as many s": (False, True)},
    ),
    "review-sparse": (
        lambda row: row["rule"].startswith("ssam"),
        ("test_error",),
        {"SSAM-F": (False, True), "SSAM-D": (False, True)},
    ),
    "review-averaging": (
        lambda row: row["rule"] == "sam",
        ("test_error",),
        {"SAM's test error is below that of SGD": (False, True),
         "SAM's test error is below that of SWA": (False, True),
         "SAM's test error is below that of Entropy": (False, True)},
    ),
    "review-bias": (
        lambda row: row["rule"] == "sam",
        ("first_order", "worst", "lambda_1", "trace", "average", "gap"),
        {f"At training loss 2.2, {label} is lower": (False, True)
         for label in (*review_bias.MEASURES.values(), "the generalisation gap")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_claims_follow_the_rows(name: str, rows: dict[str, list[Any]]) -> None:
    module: Any = MODULES[name]
    chosen, columns, expected = DOCTORED[name]
    for k, change in enumerate((1e3, -1e3)):  # worse, better
        claims = module.claims(shifted(rows[name], chosen, change, columns))
        for start, verdicts in expected.items():
            (claim,) = (c for c in claims if c.text.startswith(start))
            assert claim.holds is verdicts[k], claim


def test_averages_are_claimed_against_the_weights_they_average(rows: dict[str, list[Any]]) -> None:
    for change, verdict in ((1e3, False), (-1e3, True)):
        moved = shifted(rows["review-averaging"], lambda row: row["rule"] == "", change, ("averaged_test_error",))
        (claim,) = (c for c in review_averaging.claims(moved) if c.text.startswith("SWA"))
        assert claim.holds is verdict
    entropy = shifted(rows["review-averaging"], lambda row: row["rule"] == "entropy_sgd", 1.0, ("test_error",))
    assert [c.holds for c in review_averaging.claims(entropy) if c.text.startswith("Entropy")] == [False]


def test_adam_and_the_clock_are_claimed_too(rows: dict[str, list[Any]]) -> None:
    def verdicts(changed: list[Any]) -> dict[str, Any]:
        return {claim.text: claim.holds for claim in review_fig3.claims(changed)}

    for change, verdict in ((1e3, False), (-1e3, True)):
        adam = shifted(rows["review-fig3"], lambda row: row["base"] == "adam" and not row["rule"], change, ("loss",))
        assert verdicts(adam)["Figure 3: Adam's training loss is below SGD's."] is verdict
        both = shifted(
            rows["review-fig3"], lambda row: row["base"] == "adam" and row["rule"] == "sam", change, ("test_loss",)
        )
        assert verdicts(both)["Beyond the review: SAM around Adam has a lower test loss than Adam."] is verdict
    for seconds, verdict in ((1.0, True), (0.4, False)):
        timed = [
            {**row, "seconds": dict.fromkeys(METHODS, 1.0) | {"SAM": seconds}} if "clock" in row else row
            for row in rows["review-fig3"]
        ]
        assert verdicts(timed)["Figure 3: a step of SAM takes longer than one of SGD."] is verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.8, True), (0.95, False), (0.5, False)])
def test_eighty_per_cent_is_seventy_to_ninety(rows: dict[str, list[Any]], share: float, verdict: bool) -> None:
    changed = copy.deepcopy(rows["review-fig3"])
    for row in (row for row in changed if "clock" not in row and row["base"] == "sgd"):
        row["gap"] = share if row["rule"] else 1.0
    (claim,) = (c for c in review_fig3.claims(changed) if c.text.startswith("Figure 5: SAM's gap"))
    assert claim.holds is verdict


@pytest.mark.parametrize(("sign", "verdict"), [(1, True), (-1, False), (0, None)])
def test_tracking_is_a_rank_correlation(sign: int, verdict: bool | None) -> None:
    shuffled = [3, 0, 5, 2, 7, 1, 6, 4]
    rows = []
    for s in range(8):
        gap = s if sign == 0 else sign * shuffled[s]
        value = shuffled[s] if sign else (3, 4, 0, 7, 5, 1, 2, 6)[s]
        point = {"target": 0.1, "reached": True, "gap": float(gap), "loss": 0.1}
        point |= dict.fromkeys(review_bias.MEASURES, float(value))
        rule = {"rule": "sam", "rho": 0.1} if s % 2 else {"rule": ""}
        rows.append({"seed": s // 2, "collapsed": False, "measured": [point], "curve": [], **rule})
    tracks = [c.holds for c in review_bias.claims(rows) if "tracks" in c.text]
    assert tracks == [verdict] * len(review_bias.MEASURES)


def test_the_best_run_has_the_lowest_test_loss_of_those_that_trained() -> None:
    cell = made(3, "test_loss", 0.5)
    cell[1]["test_loss"] = 0.3
    cell[2] |= {"test_loss": 0.1, "collapsed": True}
    assert review_fig3.best(cell)["seed"] == 1
