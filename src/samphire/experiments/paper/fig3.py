"""Figure 3: the ratio of hard to easy in the real and the phantom head against rho."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samphire import report
from samphire.experiments.paper import toy
from samphire.experiments.rows import JUDGED, Row, by, collapsed, mean, usable
from samphire.statistics import Estimate, all_hold, equal, higher, lower, paired, raised, rising
from samphire.train import ToyConfig

__all__ = ["FIG3"]

NEARLY = 0.1  # how close to 1 is close, and how close to the value at rho = 0, relative to it, is constant


@dataclass(frozen=True)
class Config(toy.Config):
    """Complexities and radii for each kind of head."""

    chis: tuple[float, ...] = (180.0, 360.0, 540.0)
    rhos: tuple[float, ...] = toy.RHOS["paper"]
    frozen_chis: tuple[float, ...] = (180.0, 360.0, 540.0)
    frozen_rhos: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def runs(config: Config) -> list[ToyConfig]:
    """LSAM over head, complexity, rho and seeds."""
    grids = {True: (config.chis, config.rhos), False: (config.frozen_chis, config.frozen_rhos)}
    return [
        run
        for train_head, (chis, rhos) in grids.items()
        for chi in chis
        for run in config.sweep(rhos, chi=chi, train_head=train_head)
    ]


def tables(rows: list[Row]) -> list[report.Table]:
    """Ratios and shares."""
    columns = {
        "phantom_ratio": "phantom ratio",
        "real_ratio": "real ratio",
        "phantom_share": "phantom share",
        "real_share": "real share",
        "phantom_crossed": "steps with ṽ_easy ≤ 0",
    }
    lines = [
        [toy.head(head), chi, rho, *(mean(cell, column) for column in columns), _mean_ratio(cell), collapsed(cell)]
        for (head, chi, rho), cell in by(rows, "train_head", "chi", "rho").items()
    ]
    caption = (
        "Hard over easy: median over training, then mean over seeds ± standard error. Shares are means over "
        "training, and so is the last ratio, given where ṽ_easy stayed positive."
    )
    heads = ["head", "χ (degrees)", "ρ", *columns.values(), "phantom ratio, mean over training", "collapsed"]
    return [report.Table(heads, lines, caption)]


def _mean_ratio(cell: list[Row]) -> Estimate | None:
    crossed = any(row["phantom_crossed"] for row in cell)
    return None if crossed else mean(cell, "phantom_mean")


def plots(rows: list[Row]) -> list[Any]:
    """One panel per kind of head, one color per complexity."""
    colors = dict(zip(by(rows, "chi"), report.PALETTE, strict=False))
    with report.figure(1, 2, size=(9.0, 4.0), sharey=True) as (figure, panels):
        for axes, (head, group) in zip(panels, by(rows, "train_head").items(), strict=True):
            for chi, curve in by(group, "chi").items():
                toy.draw(axes, curve, f"{chi:g}°", "phantom_ratio", color=colors[chi])
                real = {"color": colors[chi], "linestyle": "--", "marker": "", "linewidth": 1.2}
                toy.draw(axes, curve, "", "real_ratio", **real)
            axes.set(title=toy.head(head), xlabel=toy.RHO_AXIS)
        panels[0].set_ylabel("hard over easy\nsolid: phantom, dashed: real")
        panels[0].legend(title="complexity χ")
        toy.from_zero(panels)
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """For each kind of head, at each complexity."""
    judged = []
    for (head, chi), group in by(rows, "train_head", "chi").items():
        where, cells = f"{toy.head(head).capitalize()}, χ = {chi:g}°", by(group, "rho")
        judged.append(_rises(where, cells))
        if head:
            judged += [_starts_at_one(where, cells), _stays(where, cells)]
    return judged


def _rises(where: str, cells: dict[float, list[Row]]) -> report.Claim:
    top, ends = max(cells), list(pairwise(sorted(cells)))
    steps = [paired(cells[a], cells[b], "phantom_ratio") for a, b in ends]
    falls = [f"{a:g} → {b:g}" for (a, b), fall in zip(ends, raised([-s for s in steps]), strict=True) if fall]
    first, last = (mean(cells[rho], "phantom_ratio") for rho in (0.0, top))
    return report.Claim(
        f"{where}: the phantom ratio increases with ρ.",
        rising(steps, paired(cells[0.0], cells[top], "phantom_ratio")),
        ours=f"{first} → {last} at ρ = {top:g}" + (f"; falls at ρ {', '.join(falls)}" if falls else ""),
        paper="increases with ρ",
        detail=f"{JUDGED} From the first ρ to the last it must rise, and no step may lower it clearly; the intervals "
        f"of the steps hold together.{_by_mean(cells, falls)}",
    )


def _by_mean(cells: dict[float, list[Row]], falls: list[str]) -> str:
    """What the mean over training does where the median falls."""
    means = [f"{known} at ρ = {rho:g}" for rho, cell in cells.items() if (known := _mean_ratio(cell)) is not None]
    return f" The mean over training instead of the median: {', '.join(means)}." if falls and means else ""


def _starts_at_one(where: str, cells: dict[float, list[Row]]) -> report.Claim:
    ratio = usable(cells[0.0], "phantom_ratio")
    return report.Claim(
        f"{where}: the ratio is close to 1 for SGD.",
        all_hold([higher(ratio, 1 - NEARLY), lower(ratio, 1 + NEARLY)]),
        ours=str(ratio),
        paper="close to 1",
        detail=f"{JUDGED} Close is within {NEARLY:g}.",
    )


def _stays(where: str, cells: dict[float, list[Row]]) -> report.Claim:
    start = mean(cells[0.0], "real_ratio")
    changes = {rho: paired(cells[0.0], cell, "real_ratio") for rho, cell in cells.items() if rho}
    far = max(changes, key=lambda rho: abs(changes[rho].estimate.mean))
    return report.Claim(
        f"{where}: the real ratio is nearly constant in ρ.",
        all_hold(equal(change, NEARLY * start.mean) for change in changes.values()),
        ours=f"{start} at ρ = 0, {mean(cells[far], 'real_ratio')} at ρ = {far:g}",
        paper="nearly constant",
        detail=f"{JUDGED} Nearly is within {NEARLY:.0%} of the value at ρ = 0, at every ρ.",
    )


FIG3 = toy.figure(
    name="fig3",
    title="Figure 3: the phantom ratio of hard to easy rises with rho; the real one is constant only in a frozen "
    "head.",
    says="The phantom ratio is close to 1 at ρ = 0 and increases with ρ; the real ratio remains nearly constant, so "
    "the re-balancing comes from the perturbation.",
    scales=toy.scales(
        Config,
        quick={"rhos": toy.RHOS["quick"], "frozen_chis": (360.0,)},
        tiny={"chis": (360.0,), "rhos": toy.RHOS["tiny"], "frozen_chis": (360.0,), "frozen_rhos": (0.0, 0.5)},
    ),
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "The text trains the head; the figure (ratio 1 at ρ = 0, real ratio flat) looks like a head that stays at "
        "(1, 1). Both are shown. With a frozen head the real ratio is 1 by construction.",
        "Why a trained head differs: the condition under which the perturbation raises the ratio is the one under "
        "which training the head lowers it.",
        "Each run gives the median over its steps: ṽ_easy can pass zero once ρ exceeds v_easy, and there the ratio "
        "means nothing. The table has the fraction of such steps, and the share v_hard / (|v_easy| + |v_hard|), "
        "which stays bounded.",
        toy.SPIRAL,
    ),
)
