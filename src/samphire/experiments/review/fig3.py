"""Figures 3, 4 and 5 of the review: SGD, SAM and Adam on MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import METHODS, Budget, Clock, Run
from samphire.experiments.rows import Row, by, collapsed, mean, usable
from samphire.statistics import Estimate, all_hold, fact, higher, lower

__all__ = ["FIG3"]

COLUMNS = {"loss": "training loss", "test_loss": "test loss", "gap": "generalization gap"}
FIRST_GRID_SEED = 100
SIMILAR = 2.0  # a training loss is like SGD's if it is below this multiple of it
ABOUT_80 = (0.7, 0.9)  # shares that count as about 80 %


@dataclass(frozen=True)
class Config(Budget):
    """The budget, the seeds and gradients of the grid of learning rates, and the steps of the clock."""

    grid_seeds: int = 2
    grid_gradients: int = 3000
    clock: int = 200


def runs(config: Config) -> list[Run | Clock]:
    """Every method over seeds, the grid of learning rates on other seeds, and the clock."""
    others = range(FIRST_GRID_SEED, FIRST_GRID_SEED + config.grid_seeds)
    chosen: list[Run | Clock] = [Clock(config.clock)]
    for method in METHODS.values():
        chosen += config.over(method, looks=15)
        for lr in mnist.GRID[method.base]:
            chosen += config.over(method, others, lr=lr, gradients=config.grid_gradients)
    return chosen


def _split(rows: list[Row]) -> tuple[dict[str, list[Row]], dict[str, list[Row]], dict[str, float]]:
    """The methods' runs, those of the grid, and seconds per gradient computation."""
    trained = [row for row in rows if "clock" not in row]
    methods = {(method.rule, method.base): name for name, method in METHODS.items()}
    named = [{**row, "method": methods[row["rule"], row["base"]]} for row in trained]
    final, grid = ([row for row in named if (row["seed"] >= FIRST_GRID_SEED) is other] for other in (False, True))
    return by(final, "method"), by(grid, "method"), next(row["seconds"] for row in rows if "clock" in row)


def best(rows: list[Row]) -> Row:
    """The run with the lowest test loss at the end."""
    return min((row for row in rows if not row["collapsed"]), key=lambda row: row["test_loss"])


def tables(rows: list[Row]) -> list[report.Table]:
    """The methods at the end of their budget, the best runs, and the learning rates."""
    methods, grid, seconds = _split(rows)
    lines, bests = [], []
    for name, cell in methods.items():
        spent = cell[0]["curve"][-1]["gradients"]
        values = [mean(cell, column) for column in (*COLUMNS, "test_error")]
        lines.append([name, cell[0]["lr"], *values, 1e3 * seconds[name], seconds[name] * spent, collapsed(cell)])
        top = best(cell)
        bests.append([name, top["seed"], *(top[column] for column in (*COLUMNS, "test_error"))])
    heads = ["method", "learning rate", *COLUMNS.values(), "test error", "ms per gradient", "seconds", "collapsed"]
    tried = [
        [name, lr, mean(same, "loss"), "used" if lr == METHODS[name].lr else ""]
        for name, cell in grid.items()
        for lr, same in by(cell, "lr").items()
    ]
    return [
        report.Table(heads, lines, "At the end of the budget: mean over all runs ± standard error."),
        report.Table(["method", "seed", *COLUMNS.values(), "test error"], bests, "The best run of each method."),
        report.Table(["method", "learning rate", "training loss", ""], tried, "The grid of learning rates."),
    ]


def plots(rows: list[Row]) -> list[Any]:
    """Three quantities, by gradient computations and by seconds; all runs thin, their mean thick."""
    methods, _, seconds = _split(rows)
    with report.figure(2, 3, size=(11.5, 6.4), sharey="col") as (figure, panels):
        for across, (unit, label) in zip(panels, (({}, "gradient computations"), (seconds, "seconds")), strict=True):
            for axes, (column, title) in zip(across, COLUMNS.items(), strict=True):
                for i, (name, cell) in enumerate(methods.items()):
                    _draw(axes, cell, column, name, unit.get(name, 1.0), f"C{i}")
                axes.set_xlabel(label)
                axes.set_title(title)
                if column != "gap":
                    axes.set_yscale("log")
        panels[0, 0].legend(loc="upper right")
    return [figure]


def _draw(axes: Any, cell: list[Row], column: str, label: str, unit: float, color: str) -> None:
    curves = []
    for row in cell:
        points = [mnist.at_epoch(row, point["epoch"]) for point in row["curve"][1:]]
        curves.append([point[column] for point in points])
        x = [unit * point["gradients"] for point in points]
        axes.plot(x, curves[-1], color=color, linewidth=0.6, alpha=0.45)
    axes.plot(x, [sum(values) / len(values) for values in zip(*curves, strict=True)], color=color, label=label)


def claims(rows: list[Row]) -> list[report.Claim]:
    """What the review says of its three figures, over all runs, and of the best runs."""
    methods, _, seconds = _split(rows)

    def less(text: str, one: str, than: str, column: str, says: str) -> report.Claim:
        before, after = methods[than], methods[one]
        shown = f"{one} {mean(after, column)}, {than} {mean(before, column)}"
        top = f"The best runs have {one} {best(after)[column]:.3g}, {than} {best(before)[column]:.3g}."
        return lower_claim(text, before, after, column, says=says, ours=shown, detail=top)

    return [
        _similar_loss(methods["SAM"], methods["SGD"]),
        less("Figure 3: Adam's training loss is below SGD's.", "Adam", "SGD", "loss", "a better training loss"),
        _slower(seconds),
        less("Figure 4: SAM's test loss is below SGD's.", "SAM", "SGD", "test_loss", "significantly better"),
        less("Figure 4: Adam's test loss is below SAM's.", "Adam", "SAM", "test_loss", "SAM has no advantage"),
        less("Figure 5: SAM's generalization gap is below SGD's.", "SAM", "SGD", "gap", "about 80 %"),
        _gap_share(methods["SAM"], methods["SGD"]),
        less("Figure 5: Adam's gap is below SAM's.", "Adam", "SAM", "gap", "Adam outperforms SAM"),
        less(
            "Beyond the review: SAM around Adam has a lower test loss than Adam.",
            *("SAM around Adam", "Adam", "test_loss", "not tried"),
        ),
    ]


def _share(rows: list[Row], others: list[Row], column: str) -> Estimate:
    """A column of some runs over that of others, in pairs of equal seeds."""
    base = {row["seed"]: row[column] for row in others if not row["collapsed"]}
    return usable([{**row, column: row[column] / base[row["seed"]]} for row in rows if row["seed"] in base], column)


def _similar_loss(sam: list[Row], sgd: list[Row]) -> report.Claim:
    share = _share(sam, sgd, "loss")
    return report.Claim(
        "Figure 3: SAM's training loss at the end is like SGD's.",
        lower(share, SIMILAR),
        ours=f"SAM {mean(sam, 'loss')}, SGD {mean(sgd, 'loss')}; ratio {share}",
        paper="similar",
        detail=f"Similar is a ratio below {SIMILAR:g}, by its 95 % interval over seeds. SAM makes half as many "
        "steps and stops short of a minimum.",
    )


def _slower(seconds: dict[str, float]) -> report.Claim:
    ratio = seconds["SAM"] * METHODS["SAM"].passes / seconds["SGD"]
    return report.Claim(
        "Figure 3: a step of SAM takes longer than one of SGD.",
        fact(ratio > 1),
        ours=f"{ratio:.2f} times as long",
        paper="slower by CPU time: two gradients a step",
        detail="Medians of steps that took turns.",
    )


def _gap_share(sam: list[Row], sgd: list[Row]) -> report.Claim:
    share, (least, most) = _share(sam, sgd, "gap"), ABOUT_80
    return report.Claim(
        "Figure 5: SAM's gap is about 80 % of SGD's.",
        all_hold([higher(share, least), lower(share, most)]),
        ours=f"a share of {share}",
        paper="about 0.8",
        detail=f"About is {least:g} to {most:g}, by the 95 % interval of the shares of paired runs.",
    )


FIG3 = mnist.experiment(
    name="review-fig3",
    title="Figures 3, 4 and 5 of the review: training loss, test loss and generalization gap on MNIST.",
    says="After 15000 gradient computations on 1000 digits, best of five runs: SAM's training loss is like SGD's "
    "and Adam's is lower (figure 3); SAM's test loss is much below SGD's and no better than Adam's (figure 4); "
    "SAM's generalization gap is about 80 % of SGD's, and Adam's is smaller still (figure 5).",
    scales={
        "paper": Config(gradients=15_000),
        "quick": Config(seeds=3, gradients=2000, grid_seeds=1, grid_gradients=400, clock=50),
        "tiny": Config(seeds=2, gradients=40, grid_seeds=1, grid_gradients=20, clock=10, size=mnist.TINY),
    },
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        mnist.BUDGET,
        "The review shows the best of five runs and does not say how it was chosen. We show means over all runs "
        "first; the best run, by test loss at the end as the kindest reading, stands beside them.",
        "Runs are trained together, so the seconds of one run are not known. Seconds are gradient computations "
        "times the median time of one, measured with the methods taking turns, one network at a time, on the "
        "machine named below.",
        "SAM around Adam is not in the review.",
    ),
)
