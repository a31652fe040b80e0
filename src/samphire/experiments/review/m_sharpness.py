"""m-sharpness: fewer examples share a perturbation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Budget, Run
from samphire.experiments.rows import Row, by, mean, mean_table

__all__ = ["M_SHARPNESS"]


@dataclass(frozen=True)
class Config(Budget):
    """Sizes of the parts, radii, and the budget."""

    ms: tuple[int, ...] = (1, 2, 5, 10)
    rhos: tuple[float, ...] = (0.1,)


def runs(config: Config) -> list[Run]:
    """SGD, and m-sharpness over m and rho."""
    chosen = config.over(SGD)
    for rho, m in product(config.rhos, config.ms):
        chosen += config.over(SAM, rule="m_sharpness", settings=(("m", m), ("rho", rho)))
    return chosen


def _split(rows: list[Row]) -> tuple[list[Row], dict[float, list[Row]]]:
    """SGD's runs, and the others by rho."""
    rules = by(rows, "rule")
    return rules[""], by(rules["m_sharpness"], "rho")


def tables(rows: list[Row]) -> list[report.Table]:
    """The end of training by rho and m."""
    sgd, rhos = _split(rows)
    cells = {(rho, m): cell for rho, some in rhos.items() for m, cell in by(some, "m").items()}
    return [mean_table({("SGD", None): sgd, **cells}, ["ρ", "m"], mnist.OUTCOME)]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and gap against m."""
    sgd, rhos = _split(rows)
    columns, x = {"test_error": "test error", "gap": "gap"}, "m: examples that share a perturbation"
    with mnist.panels(columns, x, (9.0, 3.4)) as (figure, panels):
        for column, axes in panels.items():
            for rho, some in rhos.items():
                mnist.draw(axes, some, "m", column, f"ρ = {rho:g}")
            axes.axhline(mean(sgd, column).mean, color="0.4", linestyle="--", label="SGD")
            axes.set_xscale("log")
            axes.set_xticks(list(by(next(iter(rhos.values())), "m")), labels=[str(m) for m in by(some, "m")])
            axes.minorticks_off()
        panels["test_error"].legend()
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


M_SHARPNESS = mnist.experiment(
    name="review-m",
    title="m-sharpness: test error against the number of examples that share a perturbation.",
    says="As m, the number of examples that share a perturbation, decreases, the minimum may generalize better.",
    scales={
        "paper": Config(gradients=3000),
        "quick": Config((2, 10), (0.1,), seeds=3, gradients=1000),
        "tiny": Config((5, 10), (0.1,), seeds=2, gradients=40, size=mnist.TINY),
    },
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "A batch of 10 is cut into parts of m. Each part has its own perturbation, and the step is along the mean "
        "of their gradients. m = 10 is SAM. All make the same number of steps: the two passes over all parts count "
        "as two over the batch, although small parts take longer.",
        "SGD has the same number of gradient computations, so twice as many steps.",
    ),
)
