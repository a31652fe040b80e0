"""Figures 5, 6, 8 and 9 on CelebA and Waterbirds: SGD and SAM from one seed, and their checkpoints.

The four figures of a data set share their runs and rows; at the reduced scale those of Waterbirds are runs of
table 1. Numbers, claims and the panels of the pictures are the toy's
(:mod:`samphire.experiments.paper.importance_weights`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samphire import probes, report, sweep
from samphire.data.parts import Parts, load_parts
from samphire.data.split import Split
from samphire.experiments.experiment import Experiment, Places
from samphire.experiments.paper import importance_weights as weights
from samphire.experiments.paper import tuning
from samphire.experiments.paper.fig5_toy import FIG5_TOY
from samphire.experiments.paper.fig6_toy import FIG6_TOY
from samphire.experiments.paper.fig8_toy import FIG8_TOY
from samphire.experiments.paper.fig9_toy import FIG9_TOY
from samphire.experiments.rows import Row, by
from samphire.mechanisms import batch_weights, probed_contribution
from samphire.mechanisms.batches import Statistics
from samphire.progress import Progress, stretch
from samphire.records import generator
from samphire.train import Config, appendix_b, load_network

__all__ = ["IMAGE_FIGURES", "Pair", "smallest"]

BINS: weights.Bins = (torch.linspace(-4, 4, 33).double(), torch.linspace(-4, 4, 33).double())
MOST = 2.0  # where the colors of a gain in share end
COUNTED = ("gini_real", "gini_phantom", "share_real", "share_phantom", "gain_easy", "gain_hard", "gain_hard_matched")
NOTES = (
    "The captions say LSAM; the text (section 6.2) says that real networks are trained by the usual SAM, and so are "
    "ours. The paper gives neither ρ nor the learning rate nor epochs of these figures: ours are in its sweep, "
    "and figures 5 and 6 show the middle one of the checkpoints of figures 8 and 9.",
    "Weights are λ = 1 - p(y|x) of the training images, without augmentation, each in one batch of the size used in "
    "training; the phantom parameter is that of the image's batch. BatchNorm normalizes by the batch at both "
    "parameters, as in a step of training. At SGD's checkpoints the phantom is taken with the ρ of the SAM run.",
    "Easy and hard are the features with the lower and the higher probe error after training with SGD, in each "
    "seed. A contribution is y (u·Φ + b): the label y = ±1 times the log-odds of the feature's probe, which is "
    "trained on a balanced validation part; its sign is chosen so that the product is positive where the feature "
    "agrees with the label. Its unit in pictures is its root mean square, since log-odds shrink with the penalty "
    "that a probe needs; bins are 1/4 wide, and the outermost also hold what lies beyond.",
    "The reduced scale has EfficientNet-Lite0 at 96 pixels, batches of 32, eight epochs at a learning rate of 0.005 "
    "and three seeds (those of table 1); the quick scale 1600 images, three epochs and one seed; the paper scale "
    "ResNet-18, batches of 128 and a learning rate of 0.001.",
    "With fewer than three seeds claims are judged over batches, which both algorithms share, else over seeds.",
)


@dataclass(frozen=True)
class Pair:
    """Two trainings that differ only in the rule, and the epochs after which both are measured.

    Args:
        data: ``"celeba"`` or ``"waterbirds"``.
        epochs: After which weights are measured, rising; training ends with the last.
        rule: What SGD is compared with; its phantom parameter is taken at SGD's checkpoints too.
        rho: Its radius.
        batch_norm: As for :func:`samphire.mechanisms.batch_weights`.
        settings: What differs from the paper's appendix B: fields of :class:`samphire.train.Config`.
        seed: Of both trainings.

    Example:
        >>> pair = Pair("waterbirds", (1, 5), settings=(("lr", 0.01),))
        >>> [(config.rule, config.epochs, config.keep, config.lr) for config in pair.configs.values()]
        [('sgd', 5, (1, 5), 0.01), ('sam', 5, (1, 5), 0.01)]
    """

    data: str
    epochs: tuple[int, ...]
    rule: str = "sam"
    rho: float = 0.05
    batch_norm: Statistics = "train"
    settings: tuple[tuple[str, Any], ...] = ()
    seed: int = 0

    @property
    def configs(self) -> dict[str, Config]:
        """The trainings by the name of their algorithm, SGD first."""
        common: dict[str, Any] = {"seed": self.seed, "epochs": self.epochs[-1], "keep": self.epochs}
        config = appendix_b(self.data, **{**common, **dict(self.settings), "resamples": 0})  # probed afterwards
        return {"SGD": config, self.rule.upper(): replace(config, rule=self.rule, rho=self.rho)}

    @property
    def steps(self) -> int:
        """How long the pair takes, in epochs of SGD: SAM's take two, and so does a measurement of either network."""
        return 3 * self.epochs[-1] + 4 * len(self.epochs)


@dataclass(frozen=True)
class Scale:
    """Pairs that differ only in the seed."""

    pair: Pair
    seeds: tuple[int, ...] = (0,)


TINY = {
    **tuning.SMALLEST, "augment": False, "size": 16, "batch": 16, "examples": 64,
}  # fmt: skip
REDUCED = tuning.LITE | {"lr": 0.005}
QUICK = REDUCED | {"examples": 1600}
EPOCHS = {"celeba": (1, 2, 5, 10, 20), "waterbirds": (1, 5, 10, 25, 50, 100)}


def smallest(num_classes: int) -> nn.Module:
    """A network with BatchNorm for the tiny scale."""
    body = nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(32, num_classes))


def scales(data: str) -> dict[str, Scale]:
    """The scales of a data set: ResNet-18 as in appendix B, EfficientNet-Lite0 (half an hour a seed), a test."""
    return {
        "paper": Scale(Pair(data, EPOCHS[data]), tuple(range(10))),
        "reduced": Scale(Pair(data, (1, 4, 8), rho=0.02, settings=tuple(REDUCED.items())), (10, 11, 12)),
        "quick": Scale(Pair(data, (1, 2, 3), settings=tuple(QUICK.items()))),
        "tiny": Scale(Pair(data, (1, 2), settings=tuple(TINY.items()))),
    }


def runs(config: Scale) -> list[Pair]:
    """One pair for each seed."""
    return [replace(config.pair, seed=seed) for seed in config.seeds]


def compute(runs: Sequence[Pair], places: Places, progress: Progress) -> Iterator[tuple[Pair, Row]]:
    """Train and probe all pairs, then measure pair by pair; what is stored is not done again."""
    share = sum(3 * pair.epochs[-1] for pair in runs) / sum(pair.steps for pair in runs)
    jobs = [config for pair in runs for config in pair.configs.values()]
    trials = iter(tuning.trained_and_probed(jobs, places, stretch(progress, 0.0, share)))
    measuring = stretch(progress, share, 1.0)
    points = sum(len(pair.configs) * len(pair.epochs) for pair in runs)
    done = 0
    for pair in runs:
        trained = {name: next(trials) for name in pair.configs}
        checkpoints: list[Row] = []
        for point in measured(pair, trained, places.data):
            checkpoints.append(point)
            done += 1
            measuring("measuring", done, points)
        yield pair, row(pair, trained, checkpoints)


def row(pair: Pair, trained: Mapping[str, sweep.Trial], checkpoints: list[Row]) -> Row:
    """A pair's settings, the probe errors after training, and its checkpoints."""
    return {
        **asdict(pair),
        "collapsed": _collapsed(trained),
        "probe": {name: (trial.row or {}).get("probe") for name, trial in trained.items()},
        "checkpoints": checkpoints,
    }


def _collapsed(trained: Mapping[str, sweep.Trial]) -> bool:
    return any(trial.state != "done" for trial in trained.values())


def measured(pair: Pair, trained: Mapping[str, sweep.Trial], root: str | os.PathLike[str]) -> Iterator[Row]:
    """Both networks after each of the epochs; none if a training diverged."""
    if _collapsed(trained):
        return
    config = pair.configs["SGD"]
    parts = load_parts(pair.data, root, size=config.size, augment=False, examples=config.examples)
    assert trained["SGD"].row is not None
    easy, hard = by_probe_error(trained["SGD"].row["probe"])
    for name, trial in trained.items():
        for epoch in pair.epochs:
            net: Any = load_network(trial.folder, f"epoch-{epoch}.pt")
            net = net.to("cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last)
            rho = trial.config.radius
            yield {"algorithm": name, "rho": rho, "epoch": epoch, **checkpoint(pair, net, parts, (easy, hard))}


def by_probe_error(errors: Mapping[str, float]) -> list[str]:
    """Features from easy to hard."""
    return sorted(errors, key=lambda name: errors[name])


def checkpoint(pair: Pair, net: nn.Module, parts: Parts, features: Sequence[str]) -> Row:
    """One network in numbers: over all training examples, and for each whole batch."""
    config = pair.configs[pair.rule.upper()]
    rule = config.optimizer_rule(steps=1)
    assert rule is not None
    order = torch.randperm(len(parts.whole), generator=generator(pair.seed, "measure"))
    batches = order.split(config.batch)
    lam = batch_weights(net, rule, _inputs(net, parts.whole, batches), batch_norm=pair.batch_norm)
    easy, hard = (c[order] for c in _contributions(net, parts, features))
    values = (lam.real, lam.phantom, easy, hard)
    placed = [_placed(x, edges) for x, edges in zip((easy, hard), BINS, strict=True)]
    parted = [
        weights.measured(*(v[lam.batch == k] for v in values))
        for k, batch in enumerate(batches)
        if len(batch) == config.batch
    ]
    return {
        "train_error": float((lam.real > 0.5).double().mean()),
        **weights.measured(*values),
        "cells": weights.cells(lam.real, lam.phantom, placed[0], placed[1], BINS),
        "batches": {name: weights.rounded(part[name] for part in parted) for name in COUNTED},
    }


def _placed(contribution: Tensor, edges: Tensor) -> Tensor:
    """In units of its root mean square, and within the bins."""
    return (contribution / contribution.square().mean().sqrt()).clamp(float(edges[0]), float(edges[-1]))


def _inputs(net: Any, split: Split, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in batches:
        index = batch.numpy()
        yield net.normalize(torch.from_numpy(split.images[index])), torch.from_numpy(split.label[index])


def _contributions(net: nn.Module, parts: Parts, features: Sequence[str]) -> Iterator[Tensor]:
    probing, training = (probes.features(net, part.images) for part in (parts.probe_train, parts.whole))
    for feature in features:
        fit = probes.fitted_probe(probing, parts.probe_train, feature)
        yield probed_contribution(training, parts.whole, feature, fit)


# What the figures read from rows


def checkpoints(rows: Iterable[Row], middle: bool) -> list[Row]:
    """One row for each network of the pairs that did not collapse; of the middle epoch only, or of all."""
    chosen = []
    for pair in (pair for pair in rows if not pair["collapsed"]):
        shown = pair["epochs"][len(pair["epochs"]) // 2]
        statistics = {"train": "the batch", "eval": "running statistics"}[pair["batch_norm"]]
        easy, hard = by_probe_error(pair["probe"]["SGD"])
        common = {
            "seed": pair["seed"], "collapsed": False, "easy": easy, "hard": hard,
            "setting": f"ρ = {pair['rho']:g}, BatchNorm by {statistics}",
        }  # fmt: skip
        chosen += [common | point for point in pair["checkpoints"] if not middle or point["epoch"] == shown]
    if not chosen:
        raise ValueError("in every pair a loss was not finite, so nothing can be shown; lower lr in its settings.")
    return chosen


def judged_by(rows: list[Row]) -> list[Row]:
    """What claims count: the rows if they have three seeds or more, else each of their batches."""
    if len({row["seed"] for row in rows}) > 2:
        return rows
    return [
        {**row, "seed": (row["seed"], k), **dict(zip(COUNTED, values, strict=True))}
        for row in rows
        for k, values in enumerate(zip(*(row["batches"][name] for name in COUNTED), strict=True))
    ]


def features_table(rows: Iterable[Row]) -> report.Table:
    """Which feature is easy, which is hard, and their probe errors after each algorithm."""
    lines = []
    for pair in (pair for pair in rows if not pair["collapsed"]):
        easy, hard = by_probe_error(pair["probe"]["SGD"])
        lines += [[pair["seed"], name, easy, e[easy], hard, e[hard]] for name, e in pair["probe"].items()]
    columns = ["seed", "trained by", "easy feature", "its probe error", "hard feature", "its probe error "]
    return report.Table(columns, lines, "Probe errors after training; SGD's say which feature is easy.")


def _tables(rows: list[Row], table: Callable[[list[Row]], report.Table], middle: bool) -> list[report.Table]:
    return [table(checkpoints(rows, middle)), features_table(rows)]


def _claims(rows: list[Row], claims: Callable[[list[Row]], list[report.Claim]], middle: bool) -> list[report.Claim]:
    points = checkpoints(rows, middle)
    counted = judged_by(points)
    if counted is points:
        return claims(points)
    seeds = len({row["seed"] for row in points})
    note = f" n counts batches (seeds: {seeds}), so the error is that of batches, not of trainings."
    return [replace(claim, detail=claim.detail + note) for claim in claims(counted)]


def _lorenz(rows: list[Row], middle: bool) -> list[Any]:
    """A panel for each epoch."""
    points = checkpoints(rows, middle)
    epochs = by(points, "epoch")
    size = (4.2, 4.6) if middle else (2.9 * len(epochs) + 0.4, 3.7)
    with report.figure(1, len(epochs), size, squeeze=False, sharey=True) as (figure, axes):
        for panel, (epoch, group) in zip(axes[0], epochs.items(), strict=True):
            weights.draw_lorenz(panel, group)
            panel.set_xticks([0, 0.5, 1])
            panel.set_title(f"epoch {epoch}")
        axes[0, 0].set_ylabel("share of the importance weight")
        figure.supxlabel("share of the images, least weight first", fontsize=10)
        axes[0, 0].legend(loc="upper left")
        figure.suptitle(points[0]["setting"])
    return [figure]


def _medians(rows: list[Row], middle: bool) -> list[Any]:
    """A column for each algorithm, or for each epoch of the sharpness-aware one; real, phantom, and the gain."""
    points = [point for point in checkpoints(rows, middle) if middle or point["rho"]]
    groups = by(points, "algorithm" if middle else "epoch")
    columns = {name if middle else f"epoch {name}": group for name, group in groups.items()}
    with weights.median_columns(columns, (2.4 * len(columns) + 1.8, 6.6), BINS, MOST) as figure:
        when = f"epoch {points[0]['epoch']}" if middle else points[0]["algorithm"]
        figure.suptitle(f"{when}, {points[0]['setting']}")
        for kind, write in (("easy", figure.supxlabel), ("hard", figure.supylabel)):
            features = " or ".join(by(points, kind))  # seeds may differ in which is which
            write(f"{kind} contribution ({features}), in root mean squares", fontsize=10)
    return [figure]


UNIFORMITY, FIT = (*weights.UNIFORMITY, _lorenz), (*weights.FIT, _medians)
IMAGE_FIGURES = {
    number: tuple(
        Experiment(
            name=f"fig{number}-{data}",
            title=f"Figure {number}, {name}: {title}",
            says=toy.says,
            scales=scales(data),
            runs=runs,
            compute=compute,
            tables=partial(_tables, table=table, middle=middle),
            plots=partial(plot, middle=middle),
            claims=partial(_claims, claims=claims, middle=middle),
            data=(data,),
            notes=NOTES,
        )
        for data, name in (("celeba", "CelebA"), ("waterbirds", "Waterbirds"))
    )
    for number, toy, (table, claims, plot), middle, title in (
        (5, FIG5_TOY, UNIFORMITY, True, "at the phantom parameter the importance weights are spread more evenly."),
        (6, FIG6_TOY, FIT, True, "SAM gives more weight to images that only the easy feature fits well."),
        (8, FIG8_TOY, UNIFORMITY, False, "the phantom weights are spread more evenly throughout training."),
        (9, FIG9_TOY, FIT, False, "which images SAM gives more weight, over the duration of training."),
    )
}
"""The records for CelebA and for Waterbirds, by the number of the figure."""
