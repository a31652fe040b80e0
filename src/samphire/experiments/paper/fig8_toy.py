"""Figure 8, the toy: Lorenz curves of the importance weights over training."""

from __future__ import annotations

from typing import Any

from samphire import report
from samphire.experiments.paper import importance_weights as weights
from samphire.experiments.rows import Row, by

__all__ = ["FIG8_TOY"]


def plots(rows: list[Row]) -> list[Any]:
    """A row of panels for each head, a column for each epoch."""
    groups = by(rows, "setting", "epoch")
    settings, epochs = (list(dict.fromkeys(key[i] for key in groups)) for i in (0, 1))
    size = (2.1 * len(epochs) + 0.4, 2.2 * len(settings) + 0.8)
    with report.figure(len(settings), len(epochs), size, squeeze=False, sharex=True, sharey=True) as (figure, axes):
        for (setting, epoch), group in groups.items():
            panel = axes[settings.index(setting), epochs.index(epoch)]
            weights.draw_lorenz(panel, group)
            panel.set_xticks([0, 0.5, 1])
        for panel, epoch in zip(axes[0], epochs, strict=True):
            panel.set_title(f"epoch {epoch}")
        for panel, setting in zip(axes[:, 0], settings, strict=True):
            panel.set_ylabel(setting)
        figure.supxlabel("share of the points, least weight first", fontsize=10)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return [figure]


FIG8_TOY = weights.toy_figure(
    weights.UNIFORMITY,
    plots,
    name="fig8-toy",
    title="Figure 8, the toy: the phantom weights are spread more evenly throughout training.",
    says="Figure 5 over several checkpoints: the phantom weights stay more uniform for the duration of training.",
    notes=(
        "The paper does not say which epochs it shows.",
        "Late in training with a trained head LSAM's phantom weights are no longer more uniform than SGD's real "
        "ones. By then LSAM's head is larger and its margins are spread wider; we have not separated the two. With "
        "the head frozen the difference shrinks over training.",
    ),
)
