"""Figure 9, the toy: importance weights by what fits a point, over training."""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments.paper import importance_weights as weights
from samphire.experiments.paper.fig6_toy import COLUMNS, FIT_NOTES
from samphire.experiments.rows import Row, by

__all__ = ["FIG9_TOY"]


def plots(rows: list[Row]) -> list[Any]:
    """A figure for each head: LSAM's weights, a column for each epoch."""
    lsam = [row for row in rows if row["algorithm"] == "LSAM"]
    return [_plot(group) for group in by(lsam, "setting").values()]


def _plot(rows: list[Row]) -> Any:
    epochs = by(rows, "epoch")
    size = (1.9 * len(epochs) + 1.4, 6.2)
    with report.figure(3, len(epochs), size, squeeze=False, sharex=True, sharey=True) as (figure, axes):
        for column, (epoch, group) in zip(axes.T, epochs.items(), strict=True):
            drawn = [weights.draw_medians(panel, group, which) for panel, which in zip(column, COLUMNS, strict=True)]
            column[0].set_title(f"epoch {epoch}")
        for panel, label in zip(axes[:, 0], COLUMNS.values(), strict=True):
            panel.set_ylabel(label)
        weights.fit_limits(axes[0, 0], rows)
        figure.colorbar(drawn[0], ax=axes[:2], label="median importance weight", extend="min")
        figure.colorbar(drawn[2], ax=axes[2], label="relative to mean", extend="both")
        figure.suptitle(f"LSAM, {rows[0]['setting']}")
        figure.supxlabel("easy contribution, y v Φ", fontsize=10)
        figure.supylabel("hard contribution, y v Φ", fontsize=10)
    return figure


FIG9_TOY = weights.toy_figure(
    name="fig9-toy",
    title="Figure 9, the toy: which points LSAM gives more weight, over the duration of training.",
    says="Figure 6 over several checkpoints: the trends are consistent across the duration of training.",
    epoch=None,
    table=weights.fit_table,
    plots=plots,
    claims=weights.fit_claims,
    notes=FIT_NOTES,
)
