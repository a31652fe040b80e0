"""SAM and its predecessors: SWA, Entropy-SGD, SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.experiment import Experiment
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Run, Size
from samphire.experiments.rows import Row, by, mean

__all__ = ["AVERAGING"]

ENTROPY = Run("entropy_sgd", lr=1.0, settings=(("inner", 5), ("lr", SGD.lr)))


@dataclass(frozen=True)
class Config:
    """Seeds and the budget."""

    seeds: int = 5
    gradients: int = 6000
    size: Size = mnist.WHOLE


def runs(config: Config) -> list[Run]:
    """SGD and SAM with their averages, and Entropy-SGD."""
    common: dict[str, Any] = {"gradients": config.gradients, "looks": 12, **config.size._asdict()}
    seeds = range(config.seeds)
    averaged = [run for method in (SGD, SAM) for run in method.over(seeds, averaged=True, **common)]
    return averaged + ENTROPY.over(seeds, **common)


def _methods(rows: list[Row]) -> dict[str, list[Row]]:
    """Runs by method; an average is a method of its own."""
    rules = by(rows, "rule")
    return {
        "SGD": rules[""],
        "SWA along SGD": [_averaged(row) for row in rules[""]],
        "SAM": rules["sam"],
        "SWA along SAM": [_averaged(row) for row in rules["sam"]],
        "Entropy-SGD": rules["entropy_sgd"],
    }


def _averaged(row: Row) -> Row:
    """The average in place of the last weights."""

    def instead(values: Row) -> Row:
        return values | {k.removeprefix("averaged_"): v for k, v in values.items() if k.startswith("averaged_")}

    end = instead(row)
    curve = [instead(point) for point in row["curve"] if "averaged_loss" in point]
    return {**end, "curve": curve, "gap": end["test_loss"] - end["loss"]}


def tables(rows: list[Row]) -> list[report.Table]:
    """The end of training by method."""
    return [mnist.table({(name,): some for name, some in _methods(rows).items()}, ["method"])]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and test loss by gradient computations."""
    with report.figure(1, 2, size=(9.5, 3.6)) as (figure, panels):
        for axes, column, title in zip(panels, ("test_error", "test_loss"), ("test error", "test loss"), strict=True):
            for name, some in _methods(rows).items():
                points = [{**row, **point} for row in some for point in row["curve"] if point["epoch"]]
                mnist.draw(axes, points, "gradients", column, name, marker="")
            axes.set_xlabel("gradient computations")
            axes.set_ylabel(title)
            axes.set_yscale("log")
        panels[0].legend()
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """SAM against each of its predecessors, and each against SGD."""
    methods = _methods(rows)

    def less(one: str, than: str, says: str) -> report.Claim:
        before, after = methods[than], methods[one]
        shown = f"{one} {mean(after, 'test_error')}, {than} {mean(before, 'test_error')}"
        text = f"{one}'s test error is below that of {than}."
        return lower_claim(text, before, after, "test_error", says=says, ours=shown)

    return [
        less("SAM", "SGD", "improves generalization"),
        less("SAM", "SWA along SGD", "SAM concerns sharpness directly"),
        less("SAM", "Entropy-SGD", "SAM is cheaper and direct"),
        less("SWA along SGD", "SGD", "cited as related to sharpness"),
        less("Entropy-SGD", "SGD", "cited as related to sharpness"),
    ]


AVERAGING = Experiment(
    name="review-averaging",
    title="SWA, Entropy-SGD, SAM and SGD with the same number of gradient computations.",
    source="the review",
    says="Entropy-SGD minimizes local entropy and is computationally expensive; averaging weights along SGD is "
    "related to sharpness implicitly; SAM concerns sharpness directly, thus improving generalization (section 1).",
    scales={
        "paper": Config(),
        "quick": Config(seeds=3, gradients=2000),
        "tiny": Config(seeds=2, gradients=100, size=mnist.TINY),
    },
    runs=runs,
    compute=mnist.compute,
    tables=tables,
    plots=plots,
    claims=claims,
    data=mnist.DATA,
    notes=(
        mnist.SETTING,
        mnist.RATES,
        mnist.BUDGET,
        "SWA is the mean of the weights at the ends of the epochs of the second half, at the constant learning rate "
        "of SGD (the review mentions a cyclical one). It is taken along the same runs of SGD, and along those of "
        "SAM.",
        "Entropy-SGD makes 5 Langevin steps on one batch (learning rate 0.3 as SGD, pull 0.01, noise 1e-4) and then "
        "goes to their mean: a step has five gradient computations.",
    ),
)
