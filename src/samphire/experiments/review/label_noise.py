"""Label noise: does SAM resist it better than SGD?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.experiment import Experiment
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Run, Size
from samphire.experiments.rows import Row, by, mean

__all__ = ["LABEL_NOISE"]

HALFWAY = "SGD, halfway"
NOISY = "error on the noisy training labels"
RHO = 0.1


@dataclass(frozen=True)
class Config:
    """Shares of wrong labels, radii, seeds, the budget."""

    levels: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6)
    rhos: tuple[float, ...] = (0.05, 0.1, 0.2)
    seeds: int = 5
    gradients: int = 4000
    size: Size = mnist.WHOLE


def runs(config: Config) -> list[Run]:
    """SGD and SAM over radii, at each level of noise."""
    common: dict[str, Any] = {"gradients": config.gradients, "looks": 2, **config.size._asdict()}
    seeds, chosen = range(config.seeds), []
    for level in config.levels:
        chosen += SGD.over(seeds, flipped=level, **common)
        for rho in config.rhos:
            chosen += SAM.over(seeds, flipped=level, settings=(("rho", rho),), **common)
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
    return [mnist.table(cells, ["wrong labels", "method"], columns)]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and error on the noisy labels against the level."""
    with report.figure(1, 2, size=(9.5, 3.6)) as (figure, panels):
        columns = {"test_error": "test error (clean labels)", "train_error": NOISY}
        for axes, (column, title) in zip(panels, columns.items(), strict=True):
            for name, some in _methods(rows).items():
                mnist.draw(axes, some, "flipped", column, name, linestyle="--" if name == HALFWAY else "-")
            axes.set_xlabel("share of wrong training labels")
            axes.set_ylabel(title)
        panels[0].legend()
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


LABEL_NOISE = Experiment(
    name="review-labelnoise",
    title="Label noise: test error of SGD and SAM when some of the training labels are wrong.",
    source="the review",
    says="SAM improves robustness to label noise (section 2.3, of the original paper); why is not known (3.6).",
    scales={
        "paper": Config(),
        "quick": Config((0.0, 0.4), (RHO, 0.2), seeds=3, gradients=1500),
        "tiny": Config((0.0, 0.6), (RHO,), seeds=2, gradients=40, size=mnist.TINY),
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
        "A wrong label is one of the other classes, each equally likely. The test labels are clean. The examples "
        "that are wrong at one level are also wrong at the next.",
        "SAM has half as many steps for the same gradient computations, and a network that trains for less time "
        "fits less of the noise. So SGD is shown twice: after equally many gradient computations, and halfway, "
        "after equally many steps.",
    ),
)
