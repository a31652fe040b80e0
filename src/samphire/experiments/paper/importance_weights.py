"""What figures 5, 6, 8 and 9 share: the toy's checkpoints, and numbers, claims and pictures of importance weights.

Figures 5 and 6 show one checkpoint of the runs that figures 8 and 9 show at all of theirs, so the four share their
runs and rows. Numbers, claims and pictures serve networks on images as well
(:mod:`samphire.experiments.paper.image_weights`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from samphire import mechanisms, report
from samphire.experiments.experiment import Experiment, train_each
from samphire.experiments.paper.toy import Config, algorithm, head, scales
from samphire.experiments.rows import JUDGED, Row, by, mean, usable
from samphire.records import generator
from samphire.statistics import Difference, Estimate, all_hold, estimate, higher, paired
from samphire.train import Checkpoint, Result, ToyConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "BINS", "FIT", "PLACES", "SHOWN", "UNIFORMITY", "Bins",
    "batches", "cells", "draw_lorenz", "draw_medians", "features", "fit_limits", "measured", "median_columns",
    "phantom_weights", "rounded", "row", "toy_figure",
]  # fmt: skip

EPOCHS = (1, 5, 10, 25, 50, 100)
SHOWN = 10  # the epoch of figures 5 and 6: few training errors are left, and the spiral is not learned
RHOS = {True: 1.0, False: 0.5}  # trained head, head frozen at (1, 1): there rho < v_easy, so v~_easy stays positive
Bins = tuple[Tensor, Tensor]
BINS: Bins = torch.linspace(-8, 24, 33).double(), torch.linspace(-6, 10, 33).double()  # easy, hard
PLACES = {"real": "real, λ", "phantom": "phantom, λ̃", "ratio": "gain in share, λ̃/λ"}
CURVE = 60  # steps of a stored Lorenz curve
NOTES = (
    "The paper gives neither ρ nor epochs nor seeds. We take ρ = 1 with a trained head (the text) and ρ = 0.5 with "
    "the head frozen at (1, 1) (what figure 3 describes), so that the phantom easy weight stays positive.",
    "Weights are those of the 300 training points; the phantom head is that of the point's batch of 5, as in "
    "training. At SGD's checkpoints it is taken with the ρ of the LSAM run beside it.",
)


def runs(config: Config) -> list[ToyConfig]:
    """SGD and LSAM, with a trained and a frozen head."""
    return [run for train_head, rho in RHOS.items() for run in config.sweep((0.0, rho), train_head=train_head)]


def features(config: ToyConfig, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, 2) of the training points, their labels, and the head, in float64."""
    net = config.network()
    net.load_state_dict(weights)
    net.double()
    x, y = config.train_points(torch.float64)
    with torch.no_grad():
        return net.features(x), y, net.head.weight[0].detach()


def batches(config: ToyConfig, size: int) -> Tensor:
    """The training points in batches (n / size, size), in an order of the seed's own."""
    return torch.randperm(config.n, generator=generator(config.seed, "measure")).view(-1, size)


def phantom_weights(phi: Tensor, y: Tensor, v: Tensor, rho: float, index: Tensor) -> Tensor:
    """Every point's importance weight at the phantom head of its batch."""
    heads = mechanisms.phantom_head(phi[index], y[index], v.expand(len(index), 2), rho)
    lam = torch.empty_like(y)
    lam[index] = mechanisms.importance_weights(torch.einsum("bnk,bk->bn", phi[index], heads), y[index])
    return lam


def row(result: Result) -> Row:
    """Lorenz curves, their numbers, and median weights by contribution, at every checkpoint."""
    return {
        **asdict(result.config),
        "collapsed": result.collapsed,
        "checkpoints": [_measured(result.config, checkpoint) for checkpoint in result.checkpoints],
    }


COMPUTE = train_each(row, checkpoints=EPOCHS, keep_weights=True)


def _measured(config: ToyConfig, checkpoint: Checkpoint) -> Row:
    assert checkpoint.weights is not None
    phi, y, v = features(config, checkpoint.weights)
    rho = config.rho or RHOS[config.train_head]
    real = mechanisms.importance_weights(phi @ v, y)
    phantom = phantom_weights(phi, y, v, rho, batches(config, config.batch))
    easy, hard = mechanisms.contributions(phi, y, v).T.contiguous()
    start: Row = {"epoch": checkpoint.epoch, **checkpoint.values, "v": v.tolist()}
    return start | measured(real, phantom, easy, hard) | {"cells": cells(real, phantom, easy, hard, BINS)}


def measured(real: Tensor, phantom: Tensor, easy: Tensor, hard: Tensor) -> Row:
    """How evenly the weights of a checkpoint are spread, and which points the phantom parameter weights more."""
    spread: Row = {}
    for name, lam in (("real", real), ("phantom", phantom)):
        spread |= {
            f"lorenz_{name}": _curve(lam),
            f"gini_{name}": float(mechanisms.gini(lam)),
            f"ess_{name}": float(mechanisms.effective_sample_size(lam)),
            f"mean_{name}": float(lam.mean()),
            f"share_{name}": float(lam[_leaning(easy, hard)].sum() / lam.sum()),
        }
    return spread | _gains(real, phantom, easy, hard)


def _curve(lam: Tensor) -> list[float]:
    """The Lorenz curve at evenly spaced shares of the points; it is linear in between."""
    whole = mechanisms.lorenz(lam)
    return rounded(np.interp(np.linspace(0, len(lam), CURVE + 1), np.arange(len(whole)), whole))


def _leaning(easy: Tensor, hard: Tensor) -> Tensor:
    """Which points the easy feature fits better than it fits most, and the hard one worse."""
    return (easy > easy.median()) & (hard < hard.median())


def _gains(real: Tensor, phantom: Tensor, easy: Tensor, hard: Tensor) -> Row:
    """Rank correlations of a point's gain in weight with what fits it; the last at equal real weight."""
    from scipy.stats import rankdata

    gain = phantom.log() - real.log()
    ranks = rankdata(torch.stack([gain, easy, hard, real]).cpu(), axis=1)
    of_gain, _, of_hard, of_real = torch.from_numpy(np.corrcoef(ranks))
    matched = (of_gain[2] - of_gain[3] * of_hard[3]) / ((1 - of_gain[3] ** 2) * (1 - of_real[2] ** 2)).sqrt()
    return {"gain_easy": float(of_gain[1]), "gain_hard": float(of_gain[2]), "gain_hard_matched": float(matched)}


def cells(real: Tensor, phantom: Tensor, easy: Tensor, hard: Tensor, bins: Bins) -> list[list[float]]:
    """The bins that hold points: easy bin, hard bin, median real weight, median phantom weight."""
    grids = [mechanisms.median_by_contribution(lam, easy, hard, bins).median for lam in (real, phantom)]
    where = grids[0].isfinite().nonzero()
    values = torch.stack([g[tuple(where.T)] for g in grids], 1)
    return [[*place, *rounded(value)] for place, value in zip(where.tolist(), values, strict=True)]


def rounded(values: Tensor | Iterable[float]) -> list[float]:
    """Four significant digits, as rows keep them."""
    return [float(f"{float(v):.4g}") for v in values]


# What the figures read from rows


def checkpoints(rows: Iterable[Row], epoch: int | None = None) -> list[Row]:
    """One row for each run and each of its checkpoints, or the last up to an epoch."""
    chosen = []
    for run in rows:
        known = [c for c in run["checkpoints"] if epoch is None or c["epoch"] <= epoch]
        settings = {name: run[name] for name in ("seed", "rho", "train_head", "collapsed")}
        place = f"{head(run['train_head'])}, ρ = {RHOS[run['train_head']]:g}"
        settings |= {"setting": place, "algorithm": algorithm(run)}
        chosen += [settings | checkpoint for checkpoint in (known if epoch is None else known[-1:])]
    return chosen


def _trained(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row["collapsed"]]


Change = Callable[[list[Row]], Difference | Estimate]


def _at_every_epoch(text: str, change: Change, rows: Sequence[Row], paper: str, detail: str) -> report.Claim:
    """The claim that a change is above zero at every checkpoint that the rows have."""
    changes = {epoch: change(group) for epoch, group in by(rows, "epoch").items()}
    verdicts = {epoch: higher(known) for epoch, known in changes.items()}
    several = len(changes) > 1
    for other in ("contradicted", "open"):
        epochs = [str(epoch) for epoch, verdict in verdicts.items() if several and verdict == other]
        detail += f" {other.capitalize()} at epoch {', '.join(epochs)}." if epochs else ""
    ours = "; ".join(f"epoch {epoch}: {known}" if several else str(known) for epoch, known in changes.items())
    return report.Claim(text, all_hold(verdicts.values()), ours, paper, f"{JUDGED} {detail}")


def _uniformity_table(rows: list[Row]) -> report.Table:
    """Gini coefficient and effective sample size of the weights."""
    columns = {
        "gini_real": "Gini, real",
        "gini_phantom": "Gini, phantom",
        "ess_real": "effective sample, real",
        "ess_phantom": "effective sample, phantom",
        "train_error": "training error",
    }
    return _table(rows, columns, "Importance weights of training points; mean over seeds ± standard error.")


def _table(rows: list[Row], columns: dict[str, str], caption: str) -> report.Table:
    lines = [
        [*key, *(mean(group, column) for column in columns)]
        for key, group in by(rows, "setting", "algorithm", "epoch").items()
    ]
    return report.Table(["setting", "checkpoint", "epoch", *columns.values()], lines, caption)


def _uniformity_claims(rows: list[Row]) -> list[report.Claim]:
    """Both comparisons of figure 5, for each setting."""

    def within(group: list[Row]) -> Difference:
        aware, _ = _aware_and_sgd(group)
        return paired(aware, aware, ("gini_phantom", "gini_real"))

    def across(group: list[Row]) -> Difference:
        return paired(*_aware_and_sgd(group), ("gini_phantom", "gini_real"))

    claims = []
    for place, group in by(rows, "setting").items():
        name = _aware_and_sgd(group)[0][0]["algorithm"]
        claims += [
            _at_every_epoch(
                f"Within {name}'s checkpoint the phantom weights are more uniform than the real ones ({place}).",
                within, group, "more uniform", "Gini of the real weights minus that of the phantom weights.",
            ),
            _at_every_epoch(
                f"The weights of {name}'s updates are more uniform than those of SGD's ({place}).",
                across, group, "more uniform", f"Gini of SGD's real weights minus that of {name}'s phantom weights.",
            ),
        ]  # fmt: skip
    return claims


def _aware_and_sgd(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    return [row for row in rows if row["rho"]], [row for row in rows if not row["rho"]]


def draw_lorenz(axes: Any, rows: list[Row]) -> None:
    """Mean Lorenz curves: SGD and LSAM, real and phantom."""
    for color, (name, group) in zip(report.PALETTE, by(_trained(rows), "algorithm").items(), strict=False):
        for where, line in (("real", "--"), ("phantom", "-")):
            curves = zip(*(row[f"lorenz_{where}"] for row in group), strict=True)
            means = [estimate(points) for points in curves]
            x = [k / (len(means) - 1) for k in range(len(means))]
            report.curve(axes, x, means, f"{name}, {where}", color=color, linestyle=line, marker="")
    axes.plot([0, 1], [0, 1], color="#777777", linestyle=":", linewidth=1, label="uniform")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.grid(visible=False)


def _fit_table(rows: list[Row]) -> report.Table:
    """Which points gain weight at the phantom parameter."""
    caption = (
        "Share of the weight on points fit well by the easy and poorly by the hard feature (above and below the "
        "median), and rank correlations of log(λ̃/λ) with the contributions; mean over seeds ± standard error."
    )
    columns = {
        "share_real": "share, real",
        "share_phantom": "share, phantom",
        "gain_easy": "gain with easy",
        "gain_hard": "gain with hard",
        "gain_hard_matched": "gain with hard at equal λ",
    }
    return _table(rows, columns, caption)


def _fit_claims(rows: list[Row]) -> list[report.Claim]:
    """Which points the phantom parameter of LSAM or SAM weights more, for each setting."""
    return [
        _at_every_epoch(text.format(place), change, group, paper, detail)
        for place, group in by((row for row in rows if row["rho"]), "setting").items()
        for text, change, paper, detail in _FIT_CLAIMS
    ]


_FIT_CLAIMS: tuple[tuple[str, Change, str, str], ...] = (
    (
        "Points fit well by the easy and poorly by the hard feature get a larger share of the weight at the phantom "
        "parameter ({}).",
        lambda rows: paired(rows, rows, ("share_real", "share_phantom")),
        "up-weighted",
        "Share at the phantom minus share at the real parameter.",
    ),
    (
        "Points that the easy feature fits poorly lose weight ({}).",
        lambda rows: usable(rows, "gain_easy"),
        "less importance",
        "Rank correlation of log(λ̃/λ) with the easy contribution.",
    ),
    (
        "Points that the hard feature fits poorly gain weight ({}).",
        lambda rows: -usable(rows, "gain_hard"),
        "more importance",
        "Minus the rank correlation of log(λ̃/λ) with the hard contribution.",
    ),
    (
        "Among points with equal real weight, those that the hard feature fits poorly gain weight ({}).",
        lambda rows: -usable(rows, "gain_hard_matched"),
        "not separated",
        "As before, but the partial correlation at equal λ: our form of the claim (P3).",
    ),
)


def draw_medians(axes: Any, rows: list[Row], which: str, bins: Bins = BINS, most: float = 100) -> Any:
    """Median weight by contribution, averaged over seeds: at the real or the phantom parameter, or their ratio.

    The ratio is of shares: each weight over the mean weight, so that a common factor does not show. Its colors end
    at ``most`` and at 1 / ``most``.
    """
    from matplotlib.colors import LogNorm
    from numpy.ma import masked_invalid

    grid = _mean_grid(rows, which, bins)
    scale = LogNorm(1 / most, most) if which == "ratio" else LogNorm(1e-4, 1)
    cmap = "RdBu_r" if which == "ratio" else "viridis"
    mesh = axes.pcolormesh(*(edges.numpy() for edges in bins), masked_invalid(grid.T.numpy()), norm=scale, cmap=cmap)
    axes.grid(visible=False)
    axes.axhline(0, color="#777777", linewidth=0.7)
    axes.axvline(0, color="#777777", linewidth=0.7)
    return mesh


def fit_limits(axes: Any, rows: list[Row], bins: Bins = BINS) -> None:
    """Show the bins that hold points, on axes that share their limits."""
    for index, (edges, limit) in enumerate(zip(bins, (axes.set_xlim, axes.set_ylim), strict=True)):
        used = [cell[index] for row in _trained(rows) for cell in row["cells"]]
        if used:
            limit(float(edges[min(used)]) - 0.5, float(edges[max(used) + 1]) + 0.5)


def _mean_grid(rows: list[Row], which: str, bins: Bins) -> Tensor:
    """Geometric mean over seeds of each bin's median; nan where no seed has a point."""
    total, count = (torch.zeros(*(len(edges) - 1 for edges in bins)).double() for _ in range(2))
    for row in _trained(rows):
        for i, j, real, phantom in row["cells"]:
            ratio = (phantom / row["mean_phantom"]) / (real / row["mean_real"])
            total[i, j] += math.log({"real": real, "phantom": phantom, "ratio": ratio}[which])
            count[i, j] += 1
    return (total / count).exp()


@contextmanager
def median_columns(
    columns: Mapping[str, list[Row]], size: tuple[float, float], bins: Bins = BINS, most: float = 100
) -> Iterator[Figure]:
    """A picture with a column for each group of rows, by title: real and phantom weights, and the gain in share."""
    with report.figure(3, len(columns), size, squeeze=False, sharex=True, sharey=True) as (figure, axes):
        for column, (title, group) in zip(axes.T, columns.items(), strict=True):
            drawn = [draw_medians(panel, group, at, bins, most) for panel, at in zip(column, PLACES, strict=True)]
            column[0].set_title(title)
        for panel, label in zip(axes[:, 0], PLACES.values(), strict=True):
            panel.set_ylabel(label)
        fit_limits(axes[0, 0], [row for group in columns.values() for row in group], bins)
        figure.colorbar(drawn[0], ax=axes[:2], label="median importance weight", extend="min")
        figure.colorbar(drawn[2], ax=axes[2], label="relative to mean", extend="both")
        yield figure


Reading = tuple[Callable[[list[Row]], report.Table], Callable[[list[Row]], list[report.Claim]]]
UNIFORMITY: Reading = _uniformity_table, _uniformity_claims
FIT: Reading = _fit_table, _fit_claims


def toy_figure(
    reading: Reading, plots: Callable[[list[Row]], list[Any]], epoch: int | None = None, **record: Any
) -> Experiment:
    """A figure of the toy's importance weights.

    Args:
        reading: Table and claims from rows of checkpoints: ``UNIFORMITY`` or ``FIT``.
        plots: From rows of checkpoints.
        epoch: The checkpoint to show; None for all.
        **record: Name, title, what the paper says, and notes beside those that all four figures have.
    """
    table, claims = reading
    record["notes"] = NOTES + record["notes"]
    return Experiment(
        scales=scales(),
        runs=runs,
        compute=COMPUTE,
        tables=lambda rows: [table(checkpoints(rows, epoch))],
        plots=lambda rows: plots(checkpoints(rows, epoch)),
        claims=lambda rows: claims(checkpoints(rows, epoch)),
        **record,
    )
