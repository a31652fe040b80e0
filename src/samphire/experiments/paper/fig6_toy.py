"""Figure 6, the toy: importance weights by what fits a point, at one checkpoint."""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments.paper import importance_weights as weights
from samphire.experiments.rows import Row, by

__all__ = ["FIG6_TOY", "FIT_NOTES"]

FIT_NOTES = (
    f"The checkpoint is that of epoch {weights.SHOWN}; bins are 1 wide in the easy and 0.5 in the hard contribution.",
    "Captions 6 and 9 print y v_easy Φ_hard for the hard contribution; read y v_hard Φ_hard.",
    "By itself a poor hard fit does not raise the weight: that needs E[λ y Φ_hard] ≤ 0. It does among points of "
    "equal real weight (P3), which is the form that holds.",
)


def plots(rows: list[Row]) -> list[Any]:
    """A figure for each head."""
    return [_plot(group) for group in by(rows, "setting").values()]


def _plot(rows: list[Row]) -> Any:
    cells = by(rows, "algorithm")
    with report.figure(len(cells), 3, (9.5, 5.6), squeeze=False, sharex=True, sharey=True) as (figure, axes):
        for line, (name, group) in zip(axes, cells.items(), strict=True):
            drawn = [weights.draw_medians(panel, group, at) for panel, at in zip(line, weights.PLACES, strict=True)]
            line[0].set_ylabel(f"{name}\nhard contribution, y v Φ")
        for panel, title in zip(axes[0], weights.PLACES.values(), strict=True):
            panel.set_title(title)
        for panel in axes[-1]:
            panel.set_xlabel("easy contribution, y v Φ")
        weights.fit_limits(axes[0, 0], rows)
        figure.colorbar(drawn[0], ax=axes[:, :2], label="median importance weight", extend="min")
        figure.colorbar(drawn[2], ax=axes[:, 2], label="relative to the mean", extend="both")
        figure.suptitle(f"{rows[0]['setting']}, epoch {rows[0]['epoch']}")
    return figure


FIG6_TOY = weights.toy_figure(
    weights.FIT,
    plots,
    weights.SHOWN,
    name="fig6-toy",
    title="Figure 6, the toy: LSAM gives more weight to points that the easy feature fits well and the hard one "
    "poorly.",
    says="Points that the easy feature fits poorly are assigned less importance by SAM, points that the hard feature "
    "fits poorly more: LSAM up-weights what is well fit by the easy but poorly fit by the hard feature.",
    notes=FIT_NOTES,
)
