"""Label noise: does SAM resist it better than SGD?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Budget, Run
from samphire.experiments.rows import Row, by, mean, mean_table

__all__ = ["LABEL_NOISE"]

HALFWAY = "SGD, halfway"
NOISY = "error on the noisy training labels"
RHO = 0.1


@dataclass(frozen=True)
class Config(Budget):
    """Shares of wrong labels, radii, and the budget."""

    levels: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6)
    rhos: tuple[float, ...] = (0.05, 0.1, 0.2)


def runs(config: Config) -> list[Run]:
    """SGD and SAM over radii, at each level of noise."""
    chosen = []
    for level in config.levels:
        chosen += config.over(SGD, flipped=level, looks=2)
        for rho in config.rhos:
            chosen += config.over(SAM, flipped=level, looks=2, settings=(("rho", rho),))
    return chosen


def _name(rho: float) -> str:
    return f"SAM, ρ = {rho:g}"


def _methods(rows: list[Row]) -> dict[str, list[Row]]:
    """Runs by what is compared, at all levels."""
    named: dict[str, list[Row]] = {"SGD": [], HALFWAY: []}
    for row in rows:
        if row["rule"]:
            named.setdefault(_name(row["rho"]), []).append(row)
        else:
            named["SGD"].append(row)
            named[HALFWAY].append(mnist.at_epoch(row, row["curve"][-1]["epoch"] // 2))
    return named


def tables(rows: list[Row]) -> list[report.Table]:
    """Errors by level and method."""
    methods = {name: by(some, "flipped") for name, some in _methods(rows).items()}
    cells = {(level, name): cells[level] for level in methods["SGD"] for name, cells in methods.items()}
    columns = {"test_error": "test error", "train_error": NOISY, "test_loss": "test loss"}
    return [mean_table(cells, ["wrong labels", "method"], columns)]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and error on the noisy labels against the level."""
    columns = {"test_error": "test error (clean labels)", "train_error": NOISY}
    with mnist.panels(columns, "share of wrong training labels", (9.5, 3.6)) as (figure, panels):
        for column, axes in panels.items():
            for name, some in _methods(rows).items():
                mnist.draw(axes, some, "flipped", column, name, linestyle="--" if name == HALFWAY else "-")
        panels["test_error"].legend()
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """At every level with noise: SAM against SGD after equally many gradients and after equally many steps."""
    methods = {name: by(some, "flipped") for name, some in _methods(rows).items()}
    judged = []
    for level in (level for level in methods["SGD"] if level > 0):
        shown = ", ".join(f"{name} {mean(cells[level], 'test_error')}" for name, cells in methods.items())
        judged += [
            lower_claim(
                f"{level:.0%} wrong labels: SAM's test error is below SGD's after equally many {unit}.",
                before=methods[other][level],
                after=methods[_name(RHO)][level],
                column="test_error",
                says="more robust",
                ours=shown,
                detail=f"Judged for {_name(RHO)}, fixed beforehand.",
            )
            for other, unit in (("SGD", "gradient computations"), (HALFWAY, "steps"))
        ]
    return judged


LABEL_NOISE = mnist.experiment(
    name="review-labelnoise",
    title="Label noise: test error of SGD and SAM when some of the training labels are wrong.",
    says="SAM improves robustness to label noise (section 2.3, of the original paper); why is not known (3.6).",
    scales={
        "paper": Config(),
        "quick": Config((0.0, 0.4), (RHO, 0.2), seeds=3, gradients=1500),
        "tiny": Config((0.0, 0.6), (RHO,), seeds=2, gradients=40, size=mnist.TINY),
    },
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "A wrong label is one of the other classes, each equally likely. The test labels are clean. The examples "
        "that are wrong at one level are also wrong at the next.",
        "SAM has half as many steps for the same gradient computations, and a network that trains for less time "
        "fits less of the noise. So SGD is shown twice: after equally many gradient computations, and halfway, "
        "after equally many steps.",
    ),
)
