"""Figure 5, the toy: at the phantom parameter the importance weights are spread more evenly.

samphire reproduce fig5-toy
"""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments import Row, by, weights

PAPER_SAYS = (
    "Lorenz curves of the importance weights: within an LSAM checkpoint the weights at the phantom parameter are "
    "closer to uniform than those at the real one, and so are LSAM's (phantom) against those of an SGD "
    "checkpoint (real)."
)
NOTES = (
    *weights.NOTES,
    f"The checkpoint is that of epoch {weights.SHOWN}; the paper says only that training is incomplete. The "
    "second comparison depends on the epoch: see figure 8.",
    "Curves start from the least weight, as usual; the paper's words (the top k) would put them above the diagonal.",
)
SCALES = weights.CONFIGS
TRAINING = weights.TRAINING
runs = weights.runs
row = weights.row


def tables(rows: list[Row]) -> list[report.Table]:
    """Gini coefficient and effective sample size."""
    return [weights.uniformity_table(weights.checkpoints(rows, weights.SHOWN))]


def plots(rows: list[Row]) -> list[Any]:
    """One panel for each head."""
    groups = by(weights.checkpoints(rows, weights.SHOWN), "train_head")
    with report.figure(1, len(groups), size=(4.2 * len(groups), 4.2), squeeze=False) as (figure, axes):
        for panel, (trained, group) in zip(axes[0], groups.items(), strict=True):
            weights.draw_lorenz(panel, group)
            panel.set_title(f"{weights.head(trained)}, ρ = {weights.RHOS[trained]:g}, epoch {group[0]['epoch']}")
            panel.set_xlabel("share of the points, least weight first")
        axes[0, 0].set_ylabel("share of the importance weight")
        axes[0, 0].legend(loc="upper left")
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """Within a checkpoint, and across algorithms."""
    return weights.uniformity_claims(weights.checkpoints(rows, weights.SHOWN))
