"""Figures 3, 4 and 5 of the review: training loss, test loss and generalisation gap of SGD, SAM and Adam on MNIST.

samphire reproduce review-fig3 --root DIR
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments import Row, by, collapsed, mean, mnist
from samphire.experiments.mnist import METHODS, Clock, Run, Size

DATA = mnist.DATA
PAPER_SAYS = (
    "After 15000 gradient computations on 1000 digits, best of five runs: SAM's training loss is like SGD's and "
    "Adam's is lower (figure 3); SAM's test loss is much below SGD's and no better than Adam's (figure 4); SAM's "
    "generalisation gap is about 80 % of SGD's, and Adam's is smaller still (figure 5)."
)
NOTES = (
    mnist.SETTING,
    mnist.RATES,
    mnist.BUDGET,
    "The review shows the best of five runs, and not by what it was chosen. Means over all runs come first here; the "
    "best, by test loss at the end as the kindest reading, stands beside them.",
    "Runs are trained together, so their own seconds say nothing. Seconds are gradient computations times the median "
    "time of one, measured with the methods taking turns, one network at a time, on the machine named below.",
    "SAM around Adam is not in the review.",
)
COLUMNS = {"loss": "training loss", "test_loss": "test loss", "gap": "generalisation gap"}
FIRST_GRID_SEED = 100


@dataclass(frozen=True)
class Config:
    """Seeds, the budget, and the seeds and budget of the grid of learning rates."""

    seeds: int = 5
    gradients: int = 15_000
    grid_seeds: int = 2
    grid_gradients: int = 3000
    clock: int = 200
    size: Size = mnist.WHOLE


SCALES = {
    "paper": Config(),
    "quick": Config(seeds=3, gradients=2000, grid_seeds=1, grid_gradients=400, clock=50),
    "tiny": Config(seeds=2, gradients=40, grid_seeds=1, grid_gradients=20, clock=10, size=mnist.TINY),
}
compute, steps = mnist.compute, mnist.steps


def runs(config: Config) -> list[Run | Clock]:
    """Every method over seeds, the grid of learning rates on other seeds, and the clock."""
    chosen: list[Run | Clock] = []
    common: dict[str, Any] = config.size._asdict()
    for method in METHODS.values():
        curve = common | {"gradients": config.gradients, "looks": 15}
        chosen += [method.run(seed=s, **curve) for s in range(config.seeds)]
    for method in METHODS.values():
        for lr in mnist.GRID[method.base]:
            for s in range(FIRST_GRID_SEED, FIRST_GRID_SEED + config.grid_seeds):
                chosen.append(method.run(lr=lr, seed=s, gradients=config.grid_gradients, **common))
    return [*chosen, Clock(config.clock)]


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
    sgd, sam, adam = methods["SGD"], methods["SAM"], methods["Adam"]

    def less(text: str, one: str, than: str, column: str, said: str) -> report.Claim:
        a, b = methods[one], methods[than]
        shown = f"{one} {mean(a, column)}, {than} {mean(b, column)}"
        top = f"{one} {best(a)[column]:.3g}, {than} {best(b)[column]:.3g}"
        return mnist.claim(text, mnist.fall(b, a, column), said, shown, f"The best runs have {top}.")

    ratio = report.estimate(
        one["gap"] / two["gap"] for one, two in zip(sam, sgd, strict=True) if not one["collapsed"] | two["collapsed"]
    )
    similar = mnist.fall(sam, sgd, "loss")
    slower = seconds["SAM"] * METHODS["SAM"].run().passes / seconds["SGD"]
    return [
        report.Claim(
            "Figure 3: SAM's training loss at the end is like SGD's.",
            mean(sam, "loss").mean < 2 * mean(sgd, "loss").mean,
            ours=f"SAM {mean(sam, 'loss')}, SGD {mean(sgd, 'loss')}; SAM's is higher by {similar}",
            paper="similar",
            detail="Taken as similar below twice SGD's. SAM makes half as many steps, and stops short of a minimum.",
        ),
        less("Figure 3: Adam's training loss is below SGD's.", "Adam", "SGD", "loss", "a better training loss"),
        report.Claim(
            "Figure 3: a step of SAM takes longer than one of SGD.",
            slower > 1,
            ours=f"{slower:.2f} times as long",
            paper="slower by CPU time: two gradients a step",
            detail="Medians of steps that took turns.",
        ),
        less("Figure 4: SAM's test loss is below SGD's.", "SAM", "SGD", "test_loss", "significantly better"),
        less("Figure 4: Adam's test loss is below SAM's.", "Adam", "SAM", "test_loss", "SAM has no advantage"),
        less("Figure 5: SAM's generalisation gap is below SGD's.", "SAM", "SGD", "gap", "about 80 %"),
        report.Claim(
            "Figure 5: SAM's gap is about 80 % of SGD's.",
            0.7 <= ratio.mean <= 0.9,
            ours=f"{ratio} of it",
            paper="about 0.8",
            detail="About is 0.7 to 0.9, by the mean of the ratios of paired runs.",
        ),
        less("Figure 5: Adam's gap is below SAM's.", "Adam", "SAM", "gap", "Adam outperforms SAM"),
        mnist.claim(
            "Beyond the review: SAM around Adam has a lower test loss than Adam.",
            mnist.fall(adam, methods["SAM around Adam"], "test_loss"),
            "not tried",
            f"Adam {mean(adam, 'test_loss')}, SAM around it {mean(methods['SAM around Adam'], 'test_loss')}",
        ),
    ]
