"""Figure 5, the toy: Lorenz curves of the importance weights at one checkpoint."""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments.paper import importance_weights as weights
from samphire.experiments.rows import Row, by

__all__ = ["FIG5_TOY"]


def plots(rows: list[Row]) -> list[Any]:
    """One panel for each head."""
    groups = by(rows, "setting")
    with report.figure(1, len(groups), size=(4.2 * len(groups), 4.2), squeeze=False) as (figure, axes):
        for panel, (setting, group) in zip(axes[0], groups.items(), strict=True):
            weights.draw_lorenz(panel, group)
            panel.set_title(f"{setting}, epoch {group[0]['epoch']}")
            panel.set_xlabel("share of the points, least weight first")
        axes[0, 0].set_ylabel("share of the importance weight")
        axes[0, 0].legend(loc="upper left")
    return [figure]


FIG5_TOY = weights.toy_figure(
    weights.UNIFORMITY,
    plots,
    weights.SHOWN,
    name="fig5-toy",
    title="Figure 5, the toy: at the phantom parameter the importance weights are spread more evenly.",
    says="Lorenz curves of the importance weights: within an LSAM checkpoint the weights at the phantom parameter "
    "are closer to uniform than those at the real one, and so are LSAM's (phantom) against those of an SGD "
    "checkpoint (real).",
    notes=(
        f"The checkpoint is that of epoch {weights.SHOWN}; the paper says only that training is incomplete. The "
        "second comparison depends on the epoch: see figure 8.",
        "Curves start from the least weight, as usual; the paper's words (the top k) would put them above the "
        "diagonal.",
    ),
)
