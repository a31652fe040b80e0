"""Figure 7: the hard feature's error under each of LSAM's two effects alone, and under both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samphire import report
from samphire.experiments.paper import toy
from samphire.experiments.rows import JUDGED, Row, by, mean, mean_table, usable
from samphire.statistics import all_hold, lower, not_higher, paired
from samphire.train import ToyConfig

__all__ = ["FIG7"]

EFFECTS = {"weights": "importance weights only", "rates": "learning rates only", "both": "both effects"}
SAME = 0.02  # hard probe error


@dataclass(frozen=True)
class Config(toy.Config):
    """Interventions over v*_hard, LSAM over rho, for both kinds of head."""

    stars: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
    rhos: tuple[float, ...] = toy.RHOS["paper"]
    frozen_rhos: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def runs(config: Config) -> list[ToyConfig]:
    """LSAM and the three interventions."""
    chosen = []
    for head, rhos in ((True, config.rhos), (False, config.frozen_rhos)):
        chosen += config.sweep(rhos, train_head=head)
        for name in EFFECTS:
            for star in config.stars if head or name != "both" else ():
                chosen += config.sweep((0.0,), algorithm=name, v_star=star, train_head=head)
    return chosen


def _heads(rows: list[Row]) -> Iterator[tuple[str, dict[str, list[Row]]]]:
    """The algorithms by kind of head; the pair is the same for both: its network never sees the head."""
    pair = [row for row in rows if row["algorithm"] == "both"]
    for trained in (True, False):
        group = [row for row in rows if row["train_head"] == trained]
        yield toy.head(trained), by(group, "algorithm") | {"both": pair}


def tables(rows: list[Row]) -> list[report.Table]:
    """Errors against the ratio."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for (trained, name, rho, star), cell in by(rows, "train_head", "algorithm", "rho", "v_star").items():
        key: tuple[Any, ...] = (toy.head(trained), name, f"v*_hard = {star:g}", star)
        if name == "lsam":
            key = (toy.head(trained), "LSAM", f"ρ = {rho:g}", mean(cell, "phantom_ratio"))
        cells[key] = cell
    return [mean_table(cells, ["head", "algorithm", "setting", "ratio"], toy.ERRORS, toy.CAPTION)]


def plots(rows: list[Row]) -> list[Any]:
    """One panel per intervention, one row of panels per kind of head; LSAM in each."""
    with report.figure(2, 3, size=(10.0, 6.4), sharex=True, sharey=True) as (figure, panels):
        for line, (head, kinds) in zip(panels, _heads(rows), strict=True):
            for axes, (name, title) in zip(line, EFFECTS.items(), strict=True):
                _draw_lsam(axes, kinds["lsam"])
                toy.draw(axes, kinds[name], "intervention, at v*_hard / v*_easy", x="v_star")
                axes.set_title(f"{title}, {head}")
            line[0].set_ylabel(toy.HARD_AXIS)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        for axes in panels[-1]:
            axes.set_xlabel("ratio, hard over easy")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        toy.from_zero(panels)
    return [figure]


def _draw_lsam(axes: Any, rows: list[Row]) -> None:
    cells = list(by(rows, "rho").values())
    ratios = [usable(cell, "phantom_ratio").mean for cell in cells]
    errors = [usable(cell, "probe_hard") for cell in cells]
    report.curve(axes, ratios, errors, "LSAM, at its median phantom ratio", color=report.PALETTE[6])


def claims(rows: list[Row]) -> list[report.Claim]:
    """For each kind of head: each effect helps, the pair is strongest, the pair matches LSAM."""
    judged = []
    for head, kinds in _heads(rows):
        where = head.capitalize()
        judged += [_helps(where, name, kinds[name], by(kinds["lsam"], "rho")[0.0]) for name in EFFECTS]
        judged += [_strongest(where, kinds), _matches(where, kinds)]
    return judged


def _helps(where: str, name: str, rows: list[Row], sgd: list[Row]) -> report.Claim:
    """A larger ratio must help, against the same intervention at ratio 1 and against SGD."""
    cells = by(rows, "v_star")
    top = max(cells)
    first, last, plain = (mean(cell, "probe_hard") for cell in (cells[1.0], cells[top], sgd))
    return report.Claim(
        f"{where}, {EFFECTS[name]}: a larger v*_hard lowers the hard probe error.",
        all_hold(lower(paired(base, cells[top], "probe_hard")) for base in (cells[1.0], sgd)),
        ours=f"{first} at 1 → {last} at {top:g}; SGD {plain}",
        paper="improves",
        detail=f"Against v*_hard = 1 and against SGD. {JUDGED}",
        main=name == "both",
    )


def _strongest(where: str, kinds: dict[str, list[Row]]) -> report.Claim:
    strong = {name: [row for row in kinds[name] if row["v_star"] > 1] for name in EFFECTS}
    differences = {
        name: paired(strong[name], strong["both"], "probe_hard", within=("v_star",)) for name in ("weights", "rates")
    }
    return report.Claim(
        f"{where}: the pair is stronger than either effect alone.",
        all_hold(map(lower, differences.values())),
        ours="the pair's error minus that "
        + ", ".join(f"with {name} only: {difference}" for name, difference in differences.items()),
        paper="together they account for all of LSAM's gain",
        detail=f"Mean over all v*_hard > 1. {JUDGED}",
    )


def _matches(where: str, kinds: dict[str, list[Row]]) -> report.Claim:
    """At the ratio that an LSAM run has, the pair with the same seed must not be clearly worse."""
    pair = by(kinds["both"], "seed")
    lsam = [row for row in kinds["lsam"] if row["rho"] > 0]
    at_same_ratio = [row | {"probe_hard": at_ratio(pair[row["seed"]], row["phantom_ratio"])} for row in lsam]
    matched = [row for row in at_same_ratio if not math.isnan(row["probe_hard"])]
    excess = paired(lsam, matched, "probe_hard", within=("rho",))
    at_rho = {rho: paired(by(lsam, "rho")[rho], cell, "probe_hard") for rho, cell in by(matched, "rho").items()}
    return report.Claim(
        f"{where}: at equal ratio the pair matches LSAM or does better.",
        not_higher(excess, SAME),
        ours=f"the pair's error exceeds LSAM's by {excess}"
        + "".join(f"; {part.estimate.mean:+.3f} at ρ = {rho:g}" for rho, part in at_rho.items()),
        paper="matches LSAM",
        detail=f"The pair is interpolated at each LSAM run's ratio. {JUDGED} It matches if its excess is below "
        f"{SAME:g}.",
    )


def at_ratio(rows: list[Row], ratio: float) -> float:
    """The hard error of interventions at a ratio, linear in its logarithm; nan outside what was run or collapsed.

    Example:
        >>> at_ratio([{"v_star": r, "probe_hard": e, "collapsed": False} for r, e in ((1, 0.3), (4, 0.1))], 2.0)
        0.2
    """
    points = sorted((row["v_star"], row["probe_hard"]) for row in rows if not row["collapsed"])
    for (a, low), (b, high) in pairwise(points):
        if a <= ratio <= b:
            return float(low + (high - low) * math.log(ratio / a) / math.log(b / a))
    return math.nan


FIG7 = toy.figure(
    name="fig7",
    title="Figure 7: each of LSAM's two effects alone lowers the hard feature's error, and the pair does so most.",
    says="Importance weighting alone and learning rates alone both lower the hard feature's error, by comparable "
    "amounts; together they match LSAM at the same ratio of hard to easy.",
    scales=toy.scales(
        Config,
        quick={"stars": (0.5, 1.0, 2.0, 4.0), "rhos": toy.RHOS["quick"]},
        tiny={"stars": (1.0, 4.0), "rhos": toy.RHOS["tiny"], "frozen_rhos": (0.0, 0.5)},
    ),
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "The paper places LSAM at the mean of v_hard/v_easy, which it says is constant; the phantom ratio is meant. "
        "We take its median over training, since ṽ_easy can pass zero.",
        "The interventions replace the gradient of the network only; the paper does not say what the head does. "
        "Shown are a head that follows its ordinary gradient and one that stays at (1, 1). The pair is the same for "
        "both, as its network never sees the head.",
        "v*_easy = 1 as printed, so a larger ratio is a larger head. LSAM reaches the same ratio with a smaller "
        "ṽ_easy: at equal ratio the heads differ in size.",
        toy.SPIRAL,
    ),
)
