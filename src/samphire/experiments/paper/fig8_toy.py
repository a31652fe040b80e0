"""Figure 8, the toy: the phantom weights are spread more evenly throughout training.

samphire reproduce fig8-toy
"""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments import Row, by, weights

PAPER_SAYS = "Figure 5 over several checkpoints: the phantom weights stay more uniform for the duration of training."
NOTES = (
    *weights.NOTES,
    "The paper does not say which epochs it shows.",
    "Late in training with a trained head LSAM's phantom weights are no longer more uniform than SGD's real ones. By "
    "then LSAM's head is larger and its margins are spread wider; we have not separated the two. With the head "
    "frozen the difference shrinks over training.",
)
SCALES = weights.CONFIGS
TRAINING = weights.TRAINING
runs = weights.runs
row = weights.row


def tables(rows: list[Row]) -> list[report.Table]:
    """Gini coefficient and effective sample size."""
    return [weights.uniformity_table(weights.checkpoints(rows))]


def plots(rows: list[Row]) -> list[Any]:
    """A row of panels for each head, a column for each epoch."""
    groups = by(weights.checkpoints(rows), "train_head", "epoch")
    heads, epochs = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    size = (2.1 * len(epochs) + 0.4, 2.2 * len(heads) + 0.8)
    with report.figure(len(heads), len(epochs), size, squeeze=False, sharex=True, sharey=True) as (figure, axes):
        for (trained, epoch), group in groups.items():
            panel = axes[heads.index(trained), epochs.index(epoch)]
            weights.draw_lorenz(panel, group)
            panel.set_xticks([0, 0.5, 1])
            if trained == heads[0]:
                panel.set_title(f"epoch {epoch}")
        for panel, trained in zip(axes[:, 0], heads, strict=True):
            panel.set_ylabel(f"{weights.head(trained)}, ρ = {weights.RHOS[trained]:g}")
        figure.supxlabel("share of the points, least weight first", fontsize=10)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """Within a checkpoint, and across algorithms, at every epoch."""
    return weights.uniformity_claims(weights.checkpoints(rows))
