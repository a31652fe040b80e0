"""Sparse SAM: SSAM-F and SSAM-D against SAM at several sparsities.

samphire reproduce review-sparse --root DIR
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments import Row, by, collapsed, mean, mnist
from samphire.experiments.mnist import SAM, SGD, Run, Size

DATA = mnist.DATA
PAPER_SAYS = (
    "Sparse SAM perturbs only some of the weights, chosen by their Fisher information (SSAM-F) or by dropping and "
    "growing (SSAM-D); its authors call it efficient and effective, as good as SAM or better."
)
NOTES = (
    mnist.SETTING,
    mnist.RATES,
    "The Fisher information is the squared gradient of the batch at hand; the mask changes once an epoch (SSAM-F) or "
    "by the drop of 0.5 that its authors use (SSAM-D). The length is not made up for what the mask leaves out.",
    "No time is saved: both passes are computed whole, as in the authors' code. The claim is about quality alone.",
)
RHO = 0.05
MARGIN = 0.01  # of test error
NAMES = {"ssam_f": "SSAM-F", "ssam_d": "SSAM-D"}


@dataclass(frozen=True)
class Config:
    """Sparsities, seeds, the budget."""

    sparsities: tuple[float, ...] = (0.5, 0.8, 0.95)
    seeds: int = 5
    gradients: int = 4000
    size: Size = mnist.WHOLE


SCALES = {
    "paper": Config(),
    "quick": Config((0.5, 0.95), seeds=3, gradients=1000),
    "tiny": Config((0.5,), seeds=2, gradients=40, size=mnist.TINY),
}
compute, steps = mnist.compute, mnist.steps


def runs(config: Config) -> list[Run]:
    """SGD, SAM and the sparse rules."""
    common: dict[str, Any] = {"gradients": config.gradients, **config.size._asdict()}
    chosen = [SGD.run(seed=s, **common) for s in range(config.seeds)]
    chosen += [SAM.run(settings=(("rho", RHO),), seed=s, **common) for s in range(config.seeds)]
    for rule in NAMES:
        for sparsity in config.sparsities:
            settings = (("every", config.size.n // Run.batch), ("rho", RHO), ("sparsity", sparsity))
            method = SAM._replace(rule=rule)
            chosen += [method.run(settings=settings, seed=s, **common) for s in range(config.seeds)]
    return chosen


def tables(rows: list[Row]) -> list[report.Table]:
    """The end of training by rule and sparsity."""
    lines = []
    for rule, some in by(rows, "rule").items():
        name = NAMES.get(rule, "SAM" if rule else "SGD")
        for sparsity, cell in by(({"sparsity": None, **row} for row in some), "sparsity").items():
            values = (mean(cell, c) for c in ("test_error", "test_loss", "loss", "gap"))
            lines.append([name, sparsity, *values, collapsed(cell)])
    heads = ["method", "sparsity", "test error", "test loss", "training loss", "gap", "collapsed"]
    return [report.Table(heads, lines, "Mean over seeds ± standard error.")]


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
    """No worse than SAM, at each sparsity."""
    rules = by(rows, "rule")
    found = []
    for rule, name in NAMES.items():
        for sparsity, cell in by(rules[rule], "sparsity").items():
            worse = mnist.fall(cell, rules["sam"], "test_error")
            found.append(
                report.Claim(
                    f"{name} at sparsity {sparsity:g}: its test error is not above SAM's.",
                    _no_worse(worse),
                    ours=f"{mean(cell, 'test_error')}, SAM {mean(rules['sam'], 'test_error')}; above it by {worse}",
                    paper="comparable or better",
                    detail="By the paired difference over seeds and two of its standard errors: it holds if the "
                    f"difference is surely below {MARGIN:g}, does not if it is surely above 0; else it is not clear.",
                )
            )
    return found


def _no_worse(difference: report.Estimate) -> bool | None:
    low, high = difference.mean - 2 * difference.error, difference.mean + 2 * difference.error
    return False if low > 0 else True if high < MARGIN else None
