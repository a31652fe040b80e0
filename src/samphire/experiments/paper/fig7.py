"""Figure 7: each of LSAM's two effects alone lowers the hard feature's error, and the pair does so most.

samphire reproduce fig7
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samphire import report
from samphire.experiments import Row, by, collapsed, mean, toy
from samphire.train import ToyConfig

PAPER_SAYS = (
    "Importance weighting alone and learning rates alone both lower the hard feature's error, by comparable amounts; "
    "together they match LSAM at the same ratio of hard to easy."
)
NOTES = (
    "The paper places LSAM at the mean of v_hard/v_easy, which it says is constant; the phantom ratio is meant. We "
    "take its median over training, since ṽ_easy can pass zero.",
    "The interventions replace the gradient of the network only; what the head does meanwhile is not said. Shown are "
    "a head that follows its ordinary gradient and one that stays at (1, 1). The pair is the same for both, as its "
    "network never sees the head.",
    "v*_easy = 1 as printed, so a larger ratio is a larger head. LSAM reaches the same ratio with a smaller ṽ_easy: "
    "at equal ratio the heads differ in size.",
    toy.SPIRAL,
)
EFFECTS = {"weights": "importance weights only", "rates": "learning rates only", "both": "both effects"}
SAME = 0.02  # hard probe error
HEADS = {True: "trained head", False: "frozen head"}


@dataclass(frozen=True)
class Config:
    """Interventions over v*_hard, LSAM over rho, for both kinds of head."""

    stars: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
    rhos: tuple[float, ...] = toy.RHOS["paper"]
    frozen_rhos: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    seeds: int = toy.SEEDS["paper"]
    epochs: int = toy.EPOCHS["paper"]


SCALES = {
    "paper": Config(),
    "quick": Config(stars=(0.5, 1.0, 2.0, 4.0), rhos=toy.RHOS["quick"], seeds=toy.SEEDS["quick"]),
    "tiny": Config((1.0, 4.0), toy.RHOS["tiny"], (0.0, 0.5), toy.SEEDS["tiny"], toy.EPOCHS["tiny"]),
}
row = toy.summary_row


def runs(config: Config) -> list[ToyConfig]:
    """LSAM and the three interventions."""
    chosen = []
    for head, rhos in ((True, config.rhos), (False, config.frozen_rhos)):
        chosen += toy.sweep(rhos, config.seeds, config.epochs, train_head=head)
        for name in EFFECTS:
            for star in config.stars if head or name != "both" else ():
                settings: dict[str, Any] = {"algorithm": name, "v_star": star, "train_head": head}
                chosen += toy.sweep((0.0,), config.seeds, config.epochs, **settings)
    return chosen


def _heads(rows: list[Row]) -> Iterator[tuple[str, dict[str, list[Row]]]]:
    """The algorithms by kind of head; the pair, whose network never sees the head, is the same for both."""
    pair = [row for row in rows if row["algorithm"] == "both"]
    for head, name in HEADS.items():
        group = [row for row in rows if row["train_head"] == head]
        yield name, by(group, "algorithm") | {"both": pair}


def tables(rows: list[Row]) -> list[report.Table]:
    """Errors against the ratio."""
    lines = []
    for (head, name, rho, star), cell in by(rows, "train_head", "algorithm", "rho", "v_star").items():
        lsam = name == "lsam"
        setting = (
            ["LSAM", f"ρ = {rho:g}", mean(cell, "phantom_ratio")] if lsam else [name, f"v*_hard = {star:g}", star]
        )
        errors = [mean(cell, column) for column in ("probe_hard", "probe_easy", "test_error")]
        lines.append([HEADS[head], *setting, *errors, collapsed(cell)])
    heads = [
        "head",
        "algorithm",
        "setting",
        "ratio",
        "hard probe error",
        "easy probe error",
        "test error",
        "collapsed",
    ]
    return [report.Table(heads, lines, toy.CAPTION)]


def plots(rows: list[Row]) -> list[Any]:
    """One panel per intervention, one row of panels per kind of head; LSAM in each."""
    with report.figure(2, 3, size=(10.0, 6.4), sharex=True, sharey=True) as (figure, panels):
        for line, (head, kinds) in zip(panels, _heads(rows), strict=True):
            for axes, (name, title) in zip(line, EFFECTS.items(), strict=True):
                _draw_lsam(axes, kinds["lsam"])
                cells = by(kinds[name], "v_star")
                report.curve(
                    axes, list(cells), [toy.usable(c) for c in cells.values()], "intervention, at v*_hard / v*_easy"
                )
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
    ratios = [toy.usable(cell, "phantom_ratio").mean for cell in cells]
    report.curve(
        axes,
        ratios,
        [toy.usable(cell) for cell in cells],
        "LSAM, at its median phantom ratio",
        color=report.PALETTE[6],
    )


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
    gains = [toy.paired_gain(base, cells[top]) for base in (cells[1.0], sgd)]
    first, last, plain = (mean(cell, "probe_hard") for cell in (cells[1.0], cells[top], sgd))
    return report.Claim(
        f"{where}, {EFFECTS[name]}: a larger v*_hard lowers the hard probe error.",
        _all(gains),
        ours=f"{first} at 1 → {last} at {top:g}; SGD {plain}",
        paper="improves",
        detail=f"Against v*_hard = 1 and against SGD. {toy.JUDGED}",
    )


def _strongest(where: str, kinds: dict[str, list[Row]]) -> report.Claim:
    raised = {name: [row for row in kinds[name] if row["v_star"] > 1] for name in EFFECTS}
    gains = {name: toy.paired_gain(raised[name], raised["both"], "v_star") for name in ("weights", "rates")}
    return report.Claim(
        f"{where}: the pair is stronger than either effect alone.",
        _all(list(gains.values())),
        ours="the pair's error is lower by " + ", ".join(f"{g} than with {name} only" for name, g in gains.items()),
        paper="together they account for all of LSAM's gain",
        detail=f"Mean over all v*_hard > 1. {toy.JUDGED}",
    )


def _matches(where: str, kinds: dict[str, list[Row]]) -> report.Claim:
    """At the ratio that an LSAM run has, the pair with the same seed must not be clearly worse."""
    pair = by(kinds["both"], "seed")
    climbed = [row for row in kinds["lsam"] if row["rho"] > 0]
    there = [row | {"probe_hard": at_ratio(pair[row["seed"]], row["phantom_ratio"])} for row in climbed]
    met = [row for row in there if not math.isnan(row["probe_hard"])]
    excess = {rho: toy.paired_gain(cell, by(climbed, "rho")[rho]) for rho, cell in by(met, "rho").items()}
    total = toy.paired_gain(met, climbed, "rho")
    return report.Claim(
        f"{where}: at equal ratio the pair matches LSAM or does better.",
        _no_worse(total),
        ours=f"the pair's error exceeds LSAM's by {total}"
        + "".join(f"; {e.estimate.mean:+.3f} at ρ = {rho:g}" for rho, e in excess.items()),
        paper="matches LSAM",
        detail=f"The pair is interpolated at each LSAM run's ratio. It matches if its excess is below {SAME:g} by "
        "two standard errors, and does not if it is above 0 by as much; else the seeds are too few to tell.",
    )


def _no_worse(excess: toy.Gain) -> bool | None:
    if excess.estimate.n >= 2 and excess.estimate.mean + 2 * excess.estimate.error < SAME:
        return True
    return False if excess.clear else None


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


def _all(gains: list[toy.Gain]) -> bool | None:
    verdicts = [gain.clear for gain in gains]
    return None if None in verdicts else all(verdicts)
