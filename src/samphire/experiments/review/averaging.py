"""SAM and its predecessors: SWA, Entropy-SGD, SGD."""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Budget, Run
from samphire.experiments.rows import Row, by, mean, mean_table

__all__ = ["AVERAGING"]

ENTROPY = Run("entropy_sgd", lr=1.0, settings=(("inner", 5), ("lr", SGD.lr)))


def runs(config: Budget) -> list[Run]:
    """SGD and SAM with their averages, and Entropy-SGD."""
    averaged = [run for method in (SGD, SAM) for run in config.over(method, averaged=True, looks=12)]
    return averaged + config.over(ENTROPY, looks=12)


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
    return [mean_table({(name,): some for name, some in _methods(rows).items()}, ["method"], mnist.OUTCOME)]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and test loss by gradient computations."""
    columns = {"test_error": "test error", "test_loss": "test loss"}
    with mnist.panels(columns, "gradient computations", (9.5, 3.6)) as (figure, panels):
        for column, axes in panels.items():
            for name, some in _methods(rows).items():
                points = [{**row, **point} for row in some for point in row["curve"] if point["epoch"]]
                mnist.draw(axes, points, "gradients", column, name, marker="")
            axes.set_yscale("log")
        panels["test_error"].legend()
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


AVERAGING = mnist.experiment(
    name="review-averaging",
    title="SWA, Entropy-SGD, SAM and SGD with the same number of gradient computations.",
    says="Entropy-SGD minimizes local entropy and is computationally expensive; averaging weights along SGD is "
    "related to sharpness implicitly; SAM concerns sharpness directly, thus improving generalization (section 1).",
    scales={
        "paper": Budget(gradients=6000),
        "quick": Budget(seeds=3, gradients=2000),
        "tiny": Budget(seeds=2, gradients=100, size=mnist.TINY),
    },
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        mnist.BUDGET,
        "SWA is the mean of the weights at the ends of the epochs of the second half, at the constant learning rate "
        "of SGD (the review mentions a cyclical one). It is taken along the same runs of SGD, and along those of "
        "SAM.",
        "Entropy-SGD makes 5 Langevin steps on one batch (learning rate 0.3 as SGD, pull 0.01, noise 1e-4) and then "
        "goes to their mean: a step has five gradient computations.",
    ),
)
