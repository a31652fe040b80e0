"""Figure 9, the toy: importance weights by what fits a point, over training."""

from __future__ import annotations

from typing import Any

from samphire.experiments.paper import importance_weights as weights
from samphire.experiments.paper.fig6_toy import FIT_NOTES
from samphire.experiments.rows import Row, by

__all__ = ["FIG9_TOY"]


def plots(rows: list[Row]) -> list[Any]:
    """A figure for each head: LSAM's weights, a column for each epoch."""
    lsam = [row for row in rows if row["algorithm"] == "LSAM"]
    return [_plot(group) for group in by(lsam, "setting").values()]


def _plot(rows: list[Row]) -> Any:
    columns = {f"epoch {epoch}": group for epoch, group in by(rows, "epoch").items()}
    with weights.median_columns(columns, (1.9 * len(columns) + 1.4, 6.2)) as figure:
        figure.suptitle(f"LSAM, {rows[0]['setting']}")
        figure.supxlabel("easy contribution, y v Φ", fontsize=10)
        figure.supylabel("hard contribution, y v Φ", fontsize=10)
    return figure


FIG9_TOY = weights.toy_figure(
    weights.FIT,
    plots,
    name="fig9-toy",
    title="Figure 9, the toy: which points LSAM gives more weight, over the duration of training.",
    says="Figure 6 over several checkpoints: the trends are consistent across the duration of training.",
    notes=FIT_NOTES,
)
