"""Table 2: transfer to a domain that was not trained on, SGD against SAM, on PACS, VLCS and OfficeHome.

samphire reproduce table2 --root DIR --scale reduced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from samphire import report, sweep
from samphire.experiments import Row, by, tuned
from samphire.experiments.tuned import ALGORITHMS, Tuning, compared, name_of, spread, values

PAPER_SAYS = (
    "A linear probe on the target domain is more accurate after SAM than after SGD, for each domain of each set."
)
NOTES = (
    *tuned.NOTES,
    "The paper does not say its network, epochs, batch or augmentation: at paper scale we train ResNet-18 at 224 "
    "pixels for 20 epochs. At the reduced scale: PACS alone, EfficientNet-Lite0, 96 pixels, 1600 training images, "
    "batches of 32, 5 epochs, one learning rate and one radius, two seeds.",
    "Splits are 80/20 within classes and domains, a tenth of the training part for validation.",
    "Numbers of the paper's table that could not be read are left out.",
)
DATA = ("pacs",)
PAPER = {
    "officehome": {"Clipart": (0.716, 0.745)},
    "pacs": {"cartoon": (0.897, 0.921), "photo": (0.955, 0.964)},
    "vlcs": {
        "Caltech101": (0.993, 0.996),
        "LabelMe": (0.736, 0.748),
        "SUN09": (0.748, 0.776),
        "VOC2007": (0.812, 0.830),
    },
}


@dataclass(frozen=True)
class Scale:
    """The blocks of the table, one for each target."""

    blocks: tuple[Tuning, ...]


def _blocks(data: str, **settings: Any) -> tuple[Tuning, ...]:
    return tuple(tuned.tuning(data, target=target, **settings) for target in sweep.GRIDS[data]["targets"])


def _short(targets: Sequence[str], seeds: int, **settings: Any) -> Scale:
    block = Tuning("pacs", (0.01,), (0.0, 0.05), seeds, settings=tuple(settings.items()))
    return Scale(tuple(replace(block, target=target) for target in targets))


LITE = {"model": "efficientnet_lite0", "size": 96, "batch": 32}
TARGETS: Sequence[str] = sweep.GRIDS["pacs"]["targets"]
SCALES = {
    "paper": Scale(sum((_blocks(data) for data in PAPER), ())),
    "reduced": _short(TARGETS, 2, examples=1600, epochs=5, **LITE),
    "quick": _short(TARGETS[-1:], 1, examples=500, epochs=2, **LITE),
    "tiny": _short(TARGETS[:1], 2, model="samphire.experiments.real_weights:smallest", weights=None, size=8, batch=16,
                   epochs=1, augment=False),
}  # fmt: skip
compute, steps = tuned.compute, tuned.steps


def runs(config: Scale) -> list[Tuning]:
    """One for each target."""
    return list(config.blocks)


def accuracy(row: Row, side: str) -> dict[int, float]:
    """Of the probe on the target's test part, by seed."""
    return values(row, side, lambda run: 1 - run["probe"]["label"])


def tables(rows: Sequence[Row]) -> list[report.Table]:
    """Ours beside the paper's, then every criterion's choice."""
    found = []
    for row in rows:
        sgd, sam = PAPER[row["data"]].get(row["target"], (None, None))
        for side, chosen in row["sides"].items():
            found.append(
                {"set": row["data"], "target": row["target"], "algorithm": ALGORITHMS[side], "lr": chosen["lr"]}
                | {"rho": chosen["rho"], "settings tried": chosen["settings"]}
                | {"accuracy": spread(accuracy(row, side), percent=False)}
                | {"error in distribution": spread(values(row, side, lambda r: r["test_error"]), percent=False)}
                | {"paper": {"sgd": sgd, "sam": sam}.get(side)}
            )
    missing = set(PAPER) - {row["data"] for row in rows}
    found += [{"set": data, "algorithm": "not run: not at this scale, or no data"} for data in sorted(missing)]
    caption = "Accuracy of a linear probe on the target's test part, mean ± standard deviation (n - 1) over seeds."
    return [report.table(found, caption=caption), tuned.criteria_table(rows)]


def claims(rows: Sequence[Row]) -> list[report.Claim]:
    """SAM, and one-pass LSAM, against SGD on each target, paired over seeds; and over all targets of a set."""
    found = []
    for side in ("sam", "lsam"):
        for row in rows:
            ours, sgd = ({s: 1 - a for s, a in accuracy(row, name).items()} for name in (side, "sgd"))
            paper = PAPER[row["data"]].get(row["target"])
            beside = f"accuracy {paper[0]} to {paper[1]}" if paper and side == "sam" else "not readable or not tried"
            text = f"{name_of(row)}: the probe's error after {ALGORITHMS[side]} is lower than after SGD."
            found.append(compared(text, ours, sgd, beside, unit=100))
        for data, group in by(rows, "data").items():
            ours, sgd = ({row["target"]: 1 - _mean(row, name) for row in group} for name in (side, "sgd"))
            text = f"{data}, over its domains: the probe's error after {ALGORITHMS[side]} is lower than after SGD."
            found.append(compared(text, ours, sgd, "each domain", unit=100, over="domains"))
    return found


def _mean(row: Row, side: str) -> float:
    return report.estimate(accuracy(row, side).values()).mean


def plots(rows: Sequence[Row]) -> list[Any]:
    """Accuracies by target."""
    with report.figure(size=(1.6 + 1.5 * len(rows), 3.4)) as (figure, axes):
        for i, (side, label) in enumerate(ALGORITHMS.items()):
            for at, row in enumerate(rows):
                found = accuracy(row, side)
                axes.plot([at + 0.2 * (i - 1)] * len(found), list(found.values()), "o", color=report.PALETTE[i],
                          alpha=0.6, label=label if at == 0 else None)  # fmt: skip
                paper = PAPER[row["data"]].get(row["target"])
                if paper and side != "lsam":
                    axes.plot([at + 0.2 * (i - 1) + 0.07], [paper[i]], "_", color=report.PALETTE[i], markersize=12)
        axes.set(xticks=range(len(rows)), xticklabels=[name_of(row) for row in rows], ylabel="accuracy of the probe")
        axes.set_title("dots: seeds; bars: the paper")
        axes.legend()
    return [figure]
