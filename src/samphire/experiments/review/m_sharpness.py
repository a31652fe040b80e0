"""m-sharpness: fewer examples share a perturbation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.experiment import Experiment
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Run, Size
from samphire.experiments.rows import Row, by, mean

__all__ = ["M_SHARPNESS"]


@dataclass(frozen=True)
class Config:
    """Sizes of the parts, radii, seeds, the budget."""

    ms: tuple[int, ...] = (1, 2, 5, 10)
    rhos: tuple[float, ...] = (0.1,)
    seeds: int = 5
    gradients: int = 3000
    size: Size = mnist.WHOLE


def runs(config: Config) -> list[Run]:
    """SGD, and m-sharpness over m and rho."""
    common: dict[str, Any] = {"gradients": config.gradients, **config.size._asdict()}
    seeds = range(config.seeds)
    chosen = SGD.over(seeds, **common)
    for rho, m in product(config.rhos, config.ms):
        chosen += SAM.over(seeds, rule="m_sharpness", settings=(("m", m), ("rho", rho)), **common)
    return chosen


def _split(rows: list[Row]) -> tuple[list[Row], dict[float, list[Row]]]:
    """SGD's runs, and the others by rho."""
    rules = by(rows, "rule")
    return rules[""], by(rules["m_sharpness"], "rho")


def tables(rows: list[Row]) -> list[report.Table]:
    """The end of training by rho and m."""
    sgd, rhos = _split(rows)
    cells = {(rho, m): cell for rho, some in rhos.items() for m, cell in by(some, "m").items()}
    return [mnist.table({("SGD", None): sgd, **cells}, ["ρ", "m"])]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and gap against m."""
    sgd, rhos = _split(rows)
    with report.figure(1, 2, size=(9.0, 3.4)) as (figure, panels):
        for axes, column, title in zip(panels, ("test_error", "gap"), ("test error", "gap"), strict=True):
            for rho, some in rhos.items():
                mnist.draw(axes, some, "m", column, f"ρ = {rho:g}")
            axes.axhline(mean(sgd, column).mean, color="0.4", linestyle="--", label="SGD")
            axes.set_xscale("log")
            axes.set_xticks(list(by(next(iter(rhos.values())), "m")), labels=[str(m) for m in by(some, "m")])
            axes.minorticks_off()
            axes.set_xlabel("m: examples that share a perturbation")
            axes.set_ylabel(title)
        panels[0].legend()
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """The smallest m against the whole batch, for each rho."""
    judged = []
    for rho, some in _split(rows)[1].items():
        cells = by(some, "m")
        judged += [
            lower_claim(
                f"ρ = {rho:g}: the {name} is lower at m = {min(cells)} than at m = {max(cells)}.",
                before=cells[max(cells)],
                after=cells[min(cells)],
                column=column,
                says="a smaller m may generalize better",
                ours=", ".join(f"{mean(cell, column)} at m = {m}" for m, cell in cells.items()),
                detail="The training losses differ too; they are in the table.",
            )
            for column, name in (("test_error", "test error"), ("gap", "generalization gap"))
        ]
    return judged


M_SHARPNESS = Experiment(
    name="review-m",
    title="m-sharpness: test error against the number of examples that share a perturbation.",
    source="the review",
    says="As m, the number of examples that share a perturbation, decreases, the minimum may generalize better.",
    scales={
        "paper": Config(),
        "quick": Config((2, 10), (0.1,), seeds=3, gradients=1000),
        "tiny": Config((5, 10), (0.1,), seeds=2, gradients=40, size=mnist.TINY),
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
        "A batch of 10 is cut into parts of m. Each part has its own perturbation, and the step is along the mean "
        "of their gradients. m = 10 is SAM. All make the same number of steps: the two passes over all parts count "
        "as two over the batch, although small parts take longer.",
        "SGD has the same number of gradient computations, so twice as many steps.",
    ),
)
