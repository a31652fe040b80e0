"""Sparse SAM: is a perturbation of some of the weights enough?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Budget, Run
from samphire.experiments.rows import Row, by, mean, mean_table

__all__ = ["SPARSE"]

RHO = 0.05
MARGIN = 0.01  # of test error: what counts as comparable
NAMES = {"ssam_f": "SSAM-F", "ssam_d": "SSAM-D"}


@dataclass(frozen=True)
class Config(Budget):
    """Sparsities, and the budget."""

    sparsities: tuple[float, ...] = (0.5, 0.8, 0.95)


def runs(config: Config) -> list[Run]:
    """SGD, SAM and the sparse rules."""
    every = config.size.n // Run.batch
    chosen = config.over(SGD) + config.over(SAM, settings=(("rho", RHO),))
    for rule, sparsity in product(NAMES, config.sparsities):
        settings = (("every", every), ("rho", RHO), ("sparsity", sparsity))
        chosen += config.over(SAM, rule=rule, settings=settings)
    return chosen


def tables(rows: list[Row]) -> list[report.Table]:
    """The end of training by rule and sparsity."""
    names = {"": "SGD", "sam": "SAM", **NAMES}
    named = ({"sparsity": None, **row, "method": names[row["rule"]]} for row in rows)
    return [mean_table(by(named, "method", "sparsity"), ["method", "sparsity"], mnist.OUTCOME)]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and test loss against sparsity; SAM is sparsity 0."""
    rules = by(rows, "rule")
    sam = [{**row, "sparsity": 0.0} for row in rules["sam"]]
    columns = {"test_error": "test error", "test_loss": "test loss"}
    with mnist.panels(columns, "sparsity (0 is SAM)", (9.0, 3.4)) as (figure, panels):
        for column, axes in panels.items():
            for rule, name in NAMES.items():
                mnist.draw(axes, sam + rules[rule], "sparsity", column, name)
            axes.axhline(mean(rules[""], column).mean, color="0.4", linestyle="--", label="SGD")
        panels["test_loss"].legend(loc="upper left", bbox_to_anchor=(0, 0.93))
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """Comparable with SAM, at each sparsity."""
    rules = by(rows, "rule")
    return [
        lower_claim(
            f"{name} at sparsity {sparsity:g}: its test error is at most {MARGIN:g} above SAM's.",
            before=rules["sam"],
            after=cell,
            column="test_error",
            says="comparable or better",
            ours=f"{mean(cell, 'test_error')}, SAM {mean(rules['sam'], 'test_error')}",
            limit=MARGIN,
        )
        for rule, name in NAMES.items()
        for sparsity, cell in by(rules[rule], "sparsity").items()
    ]


SPARSE = mnist.experiment(
    name="review-sparse",
    title="Sparse SAM: SSAM-F and SSAM-D against SAM at several sparsities.",
    says="Sparse SAM perturbs only some of the weights, chosen by their Fisher information (SSAM-F) or by dropping "
    "and growing (SSAM-D); its authors call it efficient and effective, as good as SAM or better.",
    scales={
        "paper": Config(),
        "quick": Config((0.5, 0.95), seeds=3, gradients=1000),
        "tiny": Config((0.5,), seeds=2, gradients=40, size=mnist.TINY),
    },
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "The Fisher information is the squared gradient of the current batch. The mask changes once an epoch; "
        "SSAM-D drops a share of 0.5, as its authors do. What the mask leaves out shortens the perturbation.",
        "No time is saved: both passes compute all gradients, as in the authors' code. The claim is about quality "
        "alone.",
    ),
)
