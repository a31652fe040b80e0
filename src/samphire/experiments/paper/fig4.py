"""Figure 4: effective learning rates of the easy and the hard feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from samphire import mechanisms, report
from samphire.experiments.experiment import Experiment, train_each
from samphire.experiments.paper.toy import Config, head, scales
from samphire.experiments.rows import JUDGED, Row, by, mean, mean_table, usable
from samphire.statistics import Verdict, higher, lower, paired
from samphire.train import Result, ToyConfig

__all__ = ["FIG4"]

SETTINGS = ((True, 1.0), (True, 2.0), (False, 0.5))  # train_head, rho
WINDOWS = 50
FACTORS, PARTS = torch.linspace(-1, 2, 61), torch.linspace(-1, 1, 61)
SERIES = {"factor_easy": FACTORS, "factor_hard": FACTORS, "part_real": PARTS, "part_phantom": PARTS}
LABELS = {
    "factor_easy": "easy: ṽ_easy/v_easy",
    "factor_hard": "hard: ṽ_hard/v_hard",
    "part_real": "real: v",
    "part_phantom": "phantom: ṽ",
}


def runs(config: Config) -> list[ToyConfig]:
    """LSAM with a trained and a frozen head."""
    return [run for train_head, rho in SETTINGS for run in config.sweep((rho,), train_head=train_head)]


def row(result: Result) -> Row:
    """Median over batches, histogram, and quantiles along training of each series."""
    assert result.v is not None
    assert result.phantom is not None
    rates = mechanisms.learning_rates(result.v, result.phantom)
    series = dict(zip(SERIES, (*rates.factor.unbind(1), rates.real, rates.phantom), strict=True))
    return {
        **asdict(result.config),
        "collapsed": result.collapsed,
        **{name: float(values.median()) for name, values in series.items()},
        "raised": float((rates.factor[:, 1] > rates.factor[:, 0]).double().mean()),
        "crossed": float((result.phantom[:, 0] <= 0).double().mean()),
        "histogram": {name: _histogram(values, SERIES[name]) for name, values in series.items()},
        "along": {name: _along(values) for name, values in series.items()},
    }


def _histogram(values: Tensor, edges: Tensor) -> list[float]:
    """The share of batches in each bin; what lies outside counts in the outermost."""
    inside = values.clamp(float(edges[0]) + 1e-6, float(edges[-1]) - 1e-6)
    counts = torch.bincount(torch.bucketize(inside, edges) - 1, minlength=len(edges) - 1)
    return [round(share, 5) for share in (counts / len(values)).tolist()]


def _along(values: Tensor) -> list[list[float]]:
    """10 %, 50 % and 90 % quantiles over the batches of each part of training."""
    levels = torch.tensor([0.1, 0.5, 0.9])
    return [[round(q, 4) for q in part.quantile(levels).tolist()] for part in values.tensor_split(WINDOWS)]


def tables(rows: list[Row]) -> list[report.Table]:
    """Medians over batches, mean over seeds."""
    columns = {
        "factor_easy": "ṽ_easy/v_easy", "factor_hard": "ṽ_hard/v_hard", "part_real": "hard part, real",
        "part_phantom": "hard part, phantom", "raised": "batches with hard > easy",
        "crossed": "batches with ṽ_easy ≤ 0",
    }  # fmt: skip
    cells = {(head(trained), rho): group for (trained, rho), group in by(rows, "train_head", "rho").items()}
    caption = "Medians over all batches of training; mean over seeds ± standard error."
    return [mean_table(cells, ["head", "ρ"], columns, caption)]


def plots(rows: list[Row]) -> list[Any]:
    """Both panels of the paper and the course of training; a column for each setting."""
    groups = by((row for row in rows if not row["collapsed"]), "train_head", "rho")
    with report.figure(3, max(len(groups), 1), size=(10.5, 8.2), squeeze=False) as (figure, axes):
        for (factors, parts, course), ((trained, rho), group) in zip(axes.T, groups.items(), strict=False):
            factors.set_title(f"{head(trained)}, ρ = {rho:g}")
            _distribution(factors, group, "factor_easy", "factor_hard")
            factors.axvline(1, color="#777777", linewidth=0.8, linestyle=":")
            factors.set_xlabel("learning-rate factor, ṽ/v")
            _distribution(parts, group, "part_real", "part_phantom")
            parts.set_xlabel("hard feature's part of the rates")
            _course(course, group)
        labels = ("(i) share of batches", "(ii) share of batches", "factor ṽ/v (band: 80 %)")
        for panel, label in zip(axes[:, 0], labels, strict=True):
            panel.set_ylabel(label)
            panel.legend(loc="upper left", ncols=2 if panel is axes[2, 0] else 1)
    return [figure]


def _distribution(panel: Any, rows: list[Row], *names: str) -> None:
    for name, color in zip(names, report.PALETTE, strict=False):
        shares = torch.tensor([row["histogram"][name] for row in rows]).mean(0).tolist()
        panel.stairs(shares, SERIES[name].tolist(), fill=True, color=color, alpha=0.35)
        panel.stairs(shares, SERIES[name].tolist(), color=color, label=_short(name), linewidth=1.2)


def _short(name: str) -> str:
    return LABELS[name].partition(":")[0]


def _course(panel: Any, rows: list[Row]) -> None:
    """The median over the batches of each part of training, and where 80 % of them lie; mean over seeds."""
    epochs = [(k + 0.5) * rows[0]["epochs"] / WINDOWS for k in range(WINDOWS)]
    for name, color in zip(("factor_easy", "factor_hard"), report.PALETTE, strict=False):
        low, middle, high = torch.tensor([row["along"][name] for row in rows]).mean(0).T.tolist()
        panel.plot(epochs, middle, color=color, label=_short(name))
        panel.fill_between(epochs, low, high, color=color, alpha=0.18, linewidth=0)
    panel.axhline(1, color="#777777", linewidth=0.8, linestyle=":")
    panel.set(xlabel="epoch", ylim=(-1, 2))


def claims(rows: list[Row]) -> list[report.Claim]:
    """The paper's four statements, for each setting, by medians over batches."""
    return [
        report.Claim(
            f"{text} ({head(trained)}, ρ = {rho:g}).",
            judge(group),
            ours="; ".join(f"{LABELS[name]} {mean(group, name)}" for name in columns),
            paper="higher" if "above" in text else "lower",
            detail=f"Medians over batches. {JUDGED}",
        )
        for (trained, rho), group in by(rows, "train_head", "rho").items()
        for text, judge, columns in _CLAIMS
    ]


_CLAIMS: tuple[tuple[str, Callable[[list[Row]], Verdict], tuple[str, ...]], ...] = (
    (
        "The hard feature's factor is above the easy one's",
        lambda rows: higher(paired(rows, rows, ("factor_easy", "factor_hard"))),
        ("factor_easy", "factor_hard"),
    ),
    ("The easy feature's factor is below 1", lambda rows: lower(usable(rows, "factor_easy"), 1), ("factor_easy",)),
    ("The hard feature's factor is above 1", lambda rows: higher(usable(rows, "factor_hard"), 1), ("factor_hard",)),
    (
        "At the phantom parameter the hard feature's part of the rates is above its real one",
        lambda rows: higher(paired(rows, rows, ("part_real", "part_phantom"))),
        ("part_real", "part_phantom"),
    ),
)

FIG4 = Experiment(
    name="fig4",
    title="Figure 4: LSAM shifts the effective learning rates from the easy to the hard feature.",
    says="LSAM increases the learning rate of the hard feature (ṽ_hard/v_hard) and decreases that of the easy one, "
    "and the hard feature's part of the rates is larger at the phantom parameter than at the real one.",
    scales=scales(),
    runs=runs,
    compute=train_each(row),
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "The paper shows distributions over batches of the dataset and names neither ρ nor the epochs; ours are over "
        "all batches of 100 epochs. The lower panels show when.",
        "The text says that LSAM decreases the rate “for each feature”; read: for the easy feature.",
        "Part: v_hard/(|v_easy|+|v_hard|), which is the paper's as long as both are positive; with ρ = 2 the phantom "
        "easy weight is not, on some batches.",
        "Both factors are mostly below 1, because a phantom step lowers the weight of every feature that helps: "
        "ṽ = v − ρ(A, H)/|(A, H)|, and H = E[λ y Φ_hard] is positive on most batches. What rises is the hard "
        "feature's rate relative to the easy one's.",
    ),
)
