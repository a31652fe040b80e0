"""Figure 11: LSAM lowers the hard feature's error over a wide range of batch sizes, less so for very large ones.

samphire reproduce fig11
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from samphire import report
from samphire.experiments import Row, by, toy
from samphire.train import ToyConfig

PAPER_SAYS = (
    "LSAM is generally robust to a wide range of batch sizes, and the best ρ is similar for all; for very large "
    "batches the improvement degrades, and for large ρ the error is more sensitive to the batch size."
)
NOTES = (
    "The paper prints neither batch sizes nor ρ, and does not say whether epochs, steps or learning rate are kept. "
    "On the left epochs and learning rate are: a batch of 5 takes 6000 steps, one of 300 takes 100, so a large batch "
    "also means little training. On the right the learning rate grows with the batch, up to 50. In a trial "
    "with 5 seeds a batch of 100 (rate 0.2) showed no gain from LSAM, and at 300 (rate 0.6) SGD itself diverged.",
    "Curves have a gap where most runs collapsed.",
    toy.SPIRAL,
)
BASE_BATCH, BASE_LR, RHO = 5, 0.01, 1.0


@dataclass(frozen=True)
class Config:
    """Batch sizes at the paper's learning rate, and with a learning rate in proportion."""

    batches: tuple[int, ...] = (5, 10, 20, 50, 100, 300)
    scaled: tuple[int, ...] = (5, 10, 20, 50)
    rhos: tuple[float, ...] = toy.RHOS["paper"]
    seeds: int = toy.SEEDS["paper"]
    epochs: int = toy.EPOCHS["paper"]


SCALES = {
    "paper": Config(),
    "quick": Config((5, 20, 100, 300), (5, 20, 50), toy.RHOS["quick"], toy.SEEDS["quick"]),
    "tiny": Config((5, 300), (5, 50), (0.0, 1.0), toy.SEEDS["tiny"], toy.EPOCHS["tiny"]),
}
row = toy.summary_row


def runs(config: Config) -> list[ToyConfig]:
    """LSAM over batch size, rho and seeds, for both choices of the learning rate."""
    settings = [(batch, BASE_LR) for batch in config.batches]
    settings += [(batch, BASE_LR * batch / BASE_BATCH) for batch in config.scaled]
    return [run for b, lr in settings for run in toy.sweep(config.rhos, config.seeds, config.epochs, batch=b, lr=lr)]


def fixed(rows: list[Row]) -> dict[int, list[Row]]:
    """By batch size, at the paper's learning rate."""
    return by((row for row in rows if row["lr"] == BASE_LR), "batch")


def scaled(rows: list[Row]) -> dict[int, list[Row]]:
    """By batch size, with a learning rate in proportion."""
    return by((row for row in rows if math.isclose(row["lr"] / row["batch"], BASE_LR / BASE_BATCH)), "batch")


def tables(rows: list[Row]) -> list[report.Table]:
    """Errors by batch size, learning rate and rho."""
    return [toy.error_table(rows, {"batch": "batch", "lr": "learning rate", "rho": "ρ"})]


def plots(rows: list[Row]) -> list[Any]:
    """A curve per batch size, a panel per choice of the learning rate."""
    colours = dict(zip(fixed(rows) | scaled(rows), report.PALETTE, strict=False))
    titles = {
        f"learning rate {BASE_LR:g}": fixed(rows),
        f"learning rate {BASE_LR:g} · batch / {BASE_BATCH}": scaled(rows),
    }
    with report.figure(1, 2, size=(9.0, 4.0), sharey=True) as (figure, panels):
        for axes, (title, groups) in zip(panels, titles.items(), strict=True):
            for batch, group in groups.items():
                toy.draw(axes, group, f"{batch}", color=colours[batch])
            axes.set(title=title, xlabel=toy.RHO_AXIS)
            axes.legend(title="batch size", ncols=2)
        panels[0].set_ylabel(toy.HARD_AXIS)
        toy.from_zero(panels)
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """At the paper's learning rate."""
    groups = fixed(rows)
    return [_robust(groups), _degrades(groups), _similar_rho(groups), _sensitive(groups)]


def _gain(group: list[Row], rho: float) -> toy.Gain:
    cells = by(group, "rho")
    return toy.paired_gain(cells[0.0], cells[rho])


def _robust(groups: dict[int, list[Row]]) -> report.Claim:
    gains = {batch: _gain(group, RHO) for batch, group in groups.items()}
    verdicts = [gain.clear for batch, gain in gains.items() if batch < max(gains)]
    return report.Claim(
        f"At ρ = {RHO:g} LSAM's hard probe error is below SGD's for every batch size but the largest.",
        None if None in verdicts else all(verdicts),
        ours="a fall of " + "; ".join(f"{gain} at {batch}" for batch, gain in gains.items()),
        paper="robust to a wide range of batch sizes",
        detail=toy.JUDGED,
    )


def _degrades(groups: dict[int, list[Row]]) -> report.Claim:
    """The gain at the best rho, the smallest against the largest batch, seed by seed."""
    small, large = min(groups), max(groups)
    rhos = {batch: toy.best_rho(groups[batch]) for batch in (small, large)}
    gains = {batch: _gain(groups[batch], rhos[batch]) for batch in (small, large)}
    lost = toy.paired_gain(
        _per_seed(groups[small], rhos[small]), _per_seed(groups[large], rhos[large]), column="gain"
    )
    return report.Claim(
        f"The improvement is smaller for a batch of {large} than for one of {small}.",
        lost.clear,
        ours="; ".join(f"{gains[batch]} at {batch} (ρ = {rhos[batch]:g})" for batch in gains),
        paper="degrades for very large batches",
        detail=f"Each at its best ρ. {toy.JUDGED}",
    )


def _per_seed(group: list[Row], rho: float) -> list[Row]:
    """What each seed gains from rho, as rows."""
    cells = by(group, "rho")
    pairs = zip(cells[0.0], cells[rho], strict=True)
    return [
        {
            "seed": a["seed"],
            "gain": a["probe_hard"] - b["probe_hard"],
            "collapsed": a["collapsed"] or b["collapsed"],
        }
        for a, b in pairs
    ]


def _similar_rho(groups: dict[int, list[Row]]) -> report.Claim:
    best = {batch: toy.best_rho(group) for batch, group in groups.items()}
    return report.Claim(
        "The best ρ is similar across batch sizes.",
        min(best.values()) > 0 and max(best.values()) <= 2 * min(best.values()),
        ours=", ".join(f"{rho:g} at {batch}" for batch, rho in best.items()),
        paper="similar",
        detail="Similar is within a factor of 2, among the values of ρ tried at which most runs trained.",
    )


def _sensitive(groups: dict[int, list[Row]]) -> report.Claim:
    top = max(row["rho"] for group in groups.values() for row in group)
    at = {rho: {b: toy.usable(by(group, "rho")[rho]).mean for b, group in groups.items()} for rho in (0.0, top)}
    spread = {rho: _spread(errors) for rho, errors in at.items()}
    lost = [f"{b}" for b, error in at[top].items() if math.isnan(error)]
    return report.Claim(
        "For large ρ the hard probe error is more sensitive to the batch size.",
        None if any(map(math.isnan, at[0.0].values())) else bool(lost) or spread[top] > spread[0.0],
        ours=f"spread over batch sizes {spread[0.0]:.3f} at ρ = 0; at ρ = {top:g} "
        + (f"training collapses with batches of {', '.join(lost)}" if lost else f"{spread[top]:.3f}"),
        paper="more sensitive",
        detail="Spread: largest minus smallest mean; a batch size at which most runs collapse counts as more.",
    )


def _spread(errors: dict[int, float]) -> float:
    known = [error for error in errors.values() if not math.isnan(error)]
    return max(known) - min(known) if known else math.nan
