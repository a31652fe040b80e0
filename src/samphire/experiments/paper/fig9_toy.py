"""Figure 9, the toy: whom LSAM hears more, over the duration of training.

samphire reproduce fig9-toy
"""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments import Row, by, fig6_toy, weights

PAPER_SAYS = "Figure 6 over several checkpoints: the trends are consistent across the duration of training."
NOTES = fig6_toy.NOTES
SCALES = weights.CONFIGS
TRAINING = weights.TRAINING
runs = weights.runs
row = weights.row


def tables(rows: list[Row]) -> list[report.Table]:
    """Shares and rank correlations."""
    return [weights.fit_table(weights.checkpoints(rows))]


def plots(rows: list[Row]) -> list[Any]:
    """A figure for each head: LSAM's weights, a column for each epoch."""
    lsam = [row for row in weights.checkpoints(rows) if row["algorithm"] == "LSAM"]
    return [_plot(trained, group) for trained, group in by(lsam, "train_head").items()]


def _plot(trained: bool, rows: list[Row]) -> Any:
    epochs = by(rows, "epoch")
    size = (1.9 * len(epochs) + 1.4, 6.2)
    with report.figure(3, len(epochs), size, squeeze=False, sharex=True, sharey=True) as (figure, axes):
        for column, (epoch, group) in zip(axes.T, epochs.items(), strict=True):
            drawn = [weights.draw_medians(p, group, which) for p, which in zip(column, fig6_toy.COLUMNS, strict=True)]
            column[0].set_title(f"epoch {epoch}")
        for panel, label in zip(axes[:, 0], fig6_toy.COLUMNS.values(), strict=True):
            panel.set_ylabel(label)
        weights.fit_limits(axes[0, 0], rows)
        figure.colorbar(drawn[0], ax=axes[:2], label="median importance weight", extend="min")
        figure.colorbar(drawn[2], ax=axes[2], label="relative to mean", extend="both")
        figure.suptitle(f"LSAM, {weights.head(trained)}, ρ = {weights.RHOS[trained]:g}")
        figure.supxlabel("easy contribution, y v Φ", fontsize=10)
        figure.supylabel("hard contribution, y v Φ", fontsize=10)
    return figure


def claims(rows: list[Row]) -> list[report.Claim]:
    """Whom the phantom parameter hears more, at every epoch."""
    return weights.fit_claims(weights.checkpoints(rows))
