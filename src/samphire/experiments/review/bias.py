"""Which sharpness SAM reduces, and whether it tracks the generalisation gap.

samphire reproduce review-bias --root DIR
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments import Row, by, mnist
from samphire.experiments.mnist import SAM, SGD, Run, Size

DATA = mnist.DATA
PAPER_SAYS = (
    "There are many versions of sharpness: which of them characterises SAM's bias (section 3.3)? How is sharpness "
    "connected to generalisation (3.5)? A large ρ obtains a flatter minimum (3.2)."
)
NOTES = (
    mnist.SETTING,
    mnist.RATES,
    "Sharpness falls as the loss does, so runs are compared where their training loss first is at most the target, "
    f"looking after every epoch. All measures are on the training set, κ at radius {mnist.RADIUS:g}; random steps "
    f"have length {mnist.FAR:g}, since shorter ones change the loss by less than float32 can tell.",
    "κ is a lower bound, by ascent from SAM's point and one random point, 8 steps each; λ₁ by Lanczos to 1 %; the "
    "trace by 8 random vectors; the average rise by 8 pairs of Gaussian steps.",
    "Rank correlations are Spearman's, over all runs at one target: they mix methods and seeds, and a few tens of "
    "runs of one small network say little about others.",
)
MEASURES = {
    "first_order": "ρ‖g‖",
    "worst": "κ",
    "lambda_1": "λ₁",
    "trace": "trace",
    "average": "average rise",
}


@dataclass(frozen=True)
class Config:
    """Radii, target losses, seeds, the budget of SGD; SAM's is twice as large, for as many steps."""

    rhos: tuple[float, ...] = (0.05, 0.2)
    targets: tuple[float, ...] = (0.2, 0.1)
    seeds: int = 8
    gradients: int = 2000
    size: Size = mnist.WHOLE


SCALES = {
    "paper": Config(),
    "quick": Config((0.2,), (0.2,), seeds=3, gradients=800),
    "tiny": Config((0.1,), (2.2,), seeds=2, gradients=60, size=mnist.TINY),
}
compute, steps = mnist.compute, mnist.steps


def runs(config: Config) -> list[Run]:
    """SGD and SAM over radii."""
    common: dict[str, Any] = {"measure_at": config.targets, **config.size._asdict()}
    chosen = [SGD.run(seed=s, gradients=config.gradients, **common) for s in range(config.seeds)]
    for rho in config.rhos:
        for s in range(config.seeds):
            chosen.append(SAM.run(settings=(("rho", rho),), seed=s, gradients=2 * config.gradients, **common))
    return chosen


def _points(rows: list[Row]) -> list[Row]:
    """One row for each run and target it reached."""
    return [
        {"method": _name(row), "seed": row["seed"], "collapsed": row["collapsed"], **point}
        for row in rows
        for point in row["measured"]
        if point["reached"]
    ]


def _name(row: Row) -> str:
    return f"SAM, ρ = {row['rho']:g}" if row["rule"] else "SGD"


def spearman(points: list[Row], measure: str, column: str = "gap") -> tuple[float, float]:
    """The rank correlation of a measure with another column, and its p value; nan for fewer than three points."""
    from scipy import stats

    if len(points) < 3:
        return math.nan, math.nan
    found = stats.spearmanr([p[measure] for p in points], [p[column] for p in points])
    return float(found.statistic), float(found.pvalue)


def tables(rows: list[Row]) -> list[report.Table]:
    """Every measure by target and method, and its rank correlation with the gap."""
    points = _points(rows)
    wanted = len(rows) // len({_name(row) for row in rows})
    lines = []
    for (target, name), cell in by(points, "target", "method").items():
        values = (report.estimate(p[column] for p in cell) for column in ("loss", "gap", *MEASURES))
        lines.append([target, name, *values, f"{len(cell)} of {wanted}"])
    heads = ["target loss", "method", "training loss", "gap", *MEASURES.values(), "reached"]
    ranks = []
    for target, some in by(points, "target").items():
        for measure, label in MEASURES.items():
            r, p = spearman(some, measure)
            within = [spearman(cell, measure)[0] for cell in by(some, "method").values()]
            ranks.append([target, label, r, p, len(some), ", ".join(f"{w:.2f}" for w in within)])
    names = ", ".join(by(points, "method"))
    return [
        report.Table(heads, lines, "Where the training loss first is at most the target: mean ± standard error."),
        report.Table(
            ["target loss", "measure", "rank correlation with the gap", "p", "runs", "within each method"],
            ranks,
            f"Spearman's rank correlation over runs; methods in order: {names}.",
        ),
    ]


def plots(rows: list[Row]) -> list[Any]:
    """The gap against every measure, a panel for each target and measure."""
    targets = by(_points(rows), "target")
    size = (2.7 * len(MEASURES), 2.9 * max(1, len(targets)))
    with report.figure(max(1, len(targets)), len(MEASURES), size=size, squeeze=False) as (figure, panels):
        for across, (target, points) in zip(panels, targets.items(), strict=False):
            for axes, (measure, label) in zip(across, MEASURES.items(), strict=True):
                for name, cell in by(points, "method").items():
                    axes.plot([p[measure] for p in cell], [p["gap"] for p in cell], "o", label=name, alpha=0.8)
                axes.set_xlabel(label)
            across[0].set_ylabel(f"gap at training loss {target:g}")
        if targets:
            panels[0, 0].legend()
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """SAM with the largest radius is flatter by each measure; each measure tracks the gap."""
    found, points = [], _points(rows)
    widest = max((row for row in rows if row["rule"]), key=lambda row: row["rho"])
    for target, some in by(points, "target").items():
        cells = by(some, "method")
        sgd, sam = cells.get("SGD", []), cells.get(_name(widest), [])
        for measure, label in {**MEASURES, "gap": "the generalisation gap"}.items():
            found.append(
                mnist.claim(
                    f"At training loss {target:g}, {label} is lower for {_name(widest)} than for SGD.",
                    mnist.fall(sgd, sam, measure),
                    "not known which" if measure != "gap" else "flatter minima generalise better",
                    f"SGD {report.estimate(p[measure] for p in sgd)}, SAM {report.estimate(p[measure] for p in sam)}",
                )
            )
        for measure, label in MEASURES.items():
            r, p = spearman(some, measure)
            found.append(
                report.Claim(
                    f"At training loss {target:g}, {label} tracks the generalisation gap.",
                    None if not p < 0.05 else r > 0,
                    ours=f"rank correlation {report.show(r)} over {len(some)} runs (p = {report.show(p)})",
                    paper="flatter minima generalise better; how is open",
                    detail="It holds if the rank correlation is positive with p < 0.05, does not if it is negative "
                    "so; otherwise it is not clear. With five measures tried, one p below 0.05 may be chance.",
                )
            )
    return found
