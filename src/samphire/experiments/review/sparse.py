"""Sparse SAM: is a perturbation of some of the weights enough?"""

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

__all__ = ["SPARSE"]

RHO = 0.05
MARGIN = 0.01  # of test error: what counts as comparable
NAMES = {"ssam_f": "SSAM-F", "ssam_d": "SSAM-D"}


@dataclass(frozen=True)
class Config:
    """Sparsities, seeds, the budget."""

    sparsities: tuple[float, ...] = (0.5, 0.8, 0.95)
    seeds: int = 5
    gradients: int = 4000
    size: Size = mnist.WHOLE


def runs(config: Config) -> list[Run]:
    """SGD, SAM and the sparse rules."""
    common: dict[str, Any] = {"gradients": config.gradients, **config.size._asdict()}
    seeds, every = range(config.seeds), config.size.n // Run.batch
    chosen = SGD.over(seeds, **common) + SAM.over(seeds, settings=(("rho", RHO),), **common)
    for rule, sparsity in product(NAMES, config.sparsities):
        settings = (("every", every), ("rho", RHO), ("sparsity", sparsity))
        chosen += SAM.over(seeds, rule=rule, settings=settings, **common)
    return chosen


def tables(rows: list[Row]) -> list[report.Table]:
    """The end of training by rule and sparsity."""
    names = {"": "SGD", "sam": "SAM", **NAMES}
    named = ({"sparsity": None, **row, "method": names[row["rule"]]} for row in rows)
    return [mnist.table(by(named, "method", "sparsity"), ["method", "sparsity"])]


def plots(rows: list[Row]) -> list[Any]:
    """Test error and test loss against sparsity; SAM is sparsity 0."""
    rules = by(rows, "rule")
    with report.figure(1, 2, size=(9.0, 3.4)) as (figure, panels):
        for axes, column, title in zip(panels, ("test_error", "test_loss"), ("test error", "test loss"), strict=True):
            for rule, name in NAMES.items():
                sam = [{**row, "sparsity": 0.0} for row in rules["sam"]]
                mnist.draw(axes, sam + rules[rule], "sparsity", column, name)
            axes.axhline(mean(rules[""], column).mean, color="0.4", linestyle="--", label="SGD")
            axes.set_xlabel("sparsity (0 is SAM)")
            axes.set_ylabel(title)
        panels[1].legend(loc="upper left", bbox_to_anchor=(0, 0.93))
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


SPARSE = Experiment(
    name="review-sparse",
    title="Sparse SAM: SSAM-F and SSAM-D against SAM at several sparsities.",
    source="the review",
    says="Sparse SAM perturbs only some of the weights, chosen by their Fisher information (SSAM-F) or by dropping "
    "and growing (SSAM-D); its authors call it efficient and effective, as good as SAM or better.",
    scales={
        "paper": Config(),
        "quick": Config((0.5, 0.95), seeds=3, gradients=1000),
        "tiny": Config((0.5,), seeds=2, gradients=40, size=mnist.TINY),
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
        "The Fisher information is the squared gradient of the current batch. The mask changes once an epoch; "
        "SSAM-D drops a share of 0.5, as its authors do. What the mask leaves out shortens the perturbation.",
        "No time is saved: both passes compute all gradients, as in the authors' code. The claim is about quality "
        "alone.",
    ),
)
