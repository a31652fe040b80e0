"""The bias of SAM: which sharpness is lower, and does it matter?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from samphire import report
from samphire.experiments.claims import lower_claim
from samphire.experiments.review import mnist
from samphire.experiments.review.mnist import SAM, SGD, Budget, Run
from samphire.experiments.rows import Row, by, mean
from samphire.statistics import by_p

__all__ = ["BIAS"]

MEASURES = {"first_order": "ρ‖g‖", "worst": "κ", "lambda_1": "λ₁", "trace": "trace", "average": "average rise"}


@dataclass(frozen=True)
class Config(Budget):
    """Radii, target losses, and the budget of SGD; SAM's is twice as large, for as many steps."""

    rhos: tuple[float, ...] = (0.05, 0.2)
    targets: tuple[float, ...] = (0.2, 0.1)


def runs(config: Config) -> list[Run]:
    """SGD and SAM over radii."""
    chosen = config.over(SGD, measure_at=config.targets)
    twice = replace(config, gradients=2 * config.gradients)
    for rho in config.rhos:
        chosen += twice.over(SAM, measure_at=config.targets, settings=(("rho", rho),))
    return chosen


def _points(rows: list[Row]) -> list[Row]:
    """One row for each run and each target that it reached."""
    return [
        {"method": _name(row), "seed": row["seed"], "collapsed": row["collapsed"], **point}
        for row in rows
        for point in row["measured"]
        if point["reached"]
    ]


def _name(row: Row) -> str:
    return f"SAM, ρ = {row['rho']:g}" if row["rule"] else "SGD"


def _rank_correlation(points: list[Row], measure: str) -> tuple[float, float]:
    """Spearman's, of a measure with the gap, and its p-value; nan for fewer than three points."""
    if len(points) < 3:
        return math.nan, math.nan
    from scipy import stats

    spearman = stats.spearmanr([p[measure] for p in points], [p["gap"] for p in points])
    return float(spearman.statistic), float(spearman.pvalue)


def tables(rows: list[Row]) -> list[report.Table]:
    """Every measure by target and method, and its rank correlation with the gap."""
    points = _points(rows)
    seeds = len({row["seed"] for row in rows})
    lines = []
    for (target, name), cell in by(points, "target", "method").items():
        values = (mean(cell, column) for column in ("loss", "gap", *MEASURES))
        lines.append([target, name, *values, f"{len(cell)} of {seeds}"])
    heads = ["target loss", "method", "training loss", "gap", *MEASURES.values(), "reached"]
    ranks = []
    for target, some in by(points, "target").items():
        for measure, label in MEASURES.items():
            r, p = _rank_correlation(some, measure)
            within = [_rank_correlation(cell, measure)[0] for cell in by(some, "method").values()]
            ranks.append([target, label, r, p, len(some), ", ".join(f"{w:.2f}" for w in within)])
    names = ", ".join(by(points, "method"))
    return [
        report.Table(
            heads, lines, "After the first epoch with a training loss of at most the target: mean ± standard error."
        ),
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
    widest = _name(max((row for row in rows if row["rule"]), key=lambda row: row["rho"]))
    judged = []
    for target, points in by(_points(rows), "target").items():
        judged += _flatter(target, points, widest)
        judged += [_tracks(target, points, measure) for measure in MEASURES]
    return judged


def _flatter(target: float, points: list[Row], widest: str) -> list[report.Claim]:
    cells = by(points, "method")
    sgd, sam = cells.get("SGD", []), cells.get(widest, [])
    return [
        lower_claim(
            f"At training loss {target:g}, {label} is lower for {widest} than for SGD.",
            before=sgd,
            after=sam,
            column=measure,
            says="not known which" if measure != "gap" else "flatter minima generalize better",
            ours=f"SGD {mean(sgd, measure)}, SAM {mean(sam, measure)}",
        )
        for measure, label in {**MEASURES, "gap": "the generalization gap"}.items()
    ]


def _tracks(target: float, points: list[Row], measure: str) -> report.Claim:
    r, p = _rank_correlation(points, measure)
    return report.Claim(
        f"At training loss {target:g}, {MEASURES[measure]} tracks the generalization gap.",
        by_p(r, p),
        ours=f"rank correlation {report.show(r)} over {len(points)} runs (p = {report.show(p)})",
        paper="flatter minima generalize better; how is open",
        detail="Judged by the sign of the rank correlation if p < 0.05. Of five such p, one may be chance.",
    )


BIAS = mnist.experiment(
    name="review-bias",
    title="Which sharpness SAM reduces, and whether it tracks the generalization gap.",
    says="There are many versions of sharpness: which of them characterizes SAM's bias (section 3.3)? How is "
    "sharpness connected to generalization (3.5)? A large ρ obtains a flatter minimum (3.2).",
    scales={
        "paper": Config(seeds=8, gradients=2000),
        "quick": Config((0.2,), (0.2,), seeds=3, gradients=800),
        "tiny": Config((0.1,), (2.2,), seeds=2, gradients=60, size=mnist.TINY),
    },
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "Sharpness falls with the loss, so runs are compared after the first epoch with a training loss of at most "
        f"the target. All measures are on the training set, κ at radius {mnist.RADIUS:g}; random steps have length "
        f"{mnist.FAR:g}, since shorter ones change the loss by less than float32 can tell.",
        "κ is a lower bound, by ascent from SAM's point and one random point, 8 steps each; λ₁ by Lanczos to 1 %; "
        "the trace by 8 random vectors; the average rise by 8 pairs of Gaussian steps.",
        "Rank correlations are Spearman's, over all runs at one target: they mix methods and seeds, and a few tens "
        "of runs of one small network say little about others.",
    ),
)
