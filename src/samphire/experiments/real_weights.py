"""What figures 5, 6, 8 and 9 share on CelebA and Waterbirds: SGD and SAM from one seed, and their checkpoints.

Not an experiment of its own. The four figures of a data set share their runs and rows; numbers, claims and the panels
of the pictures are the toy's (:mod:`samphire.experiments.weights`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samphire import probes, report
from samphire.data.parts import Parts, load_parts
from samphire.data.split import Split
from samphire.experiments import Places, Row, by, weights
from samphire.mechanisms import phantoms
from samphire.records import generator
from samphire.train import Config, TrainedRun, appendix_b, fit, load_network

BINS: weights.Bins = (torch.linspace(-4, 4, 33).double(), torch.linspace(-4, 4, 33).double())
MOST = 2.0  # where the colours of a gain in share end
JUDGED = ("gini_real", "gini_phantom", "share_real", "share_phantom", "gain_easy", "gain_hard", "gain_hard_matched")
NOTES = (
    "The captions say LSAM, the text (section 6.2) that real networks are trained by the usual SAM; so are ours. The "
    "paper gives neither ρ nor the learning rate nor epochs of these figures: ρ = 0.05 is in its sweep, and the "
    "checkpoint of figures 5 and 6 is the middle one of those of figures 8 and 9.",
    "Weights are λ = 1 - p(y|x) of the training images, without augmentation, each in one batch of the size used in "
    "training; the phantom parameter is that of the image's batch. BatchNorm normalises by the batch at both "
    "parameters, as in a step of training. At SGD's checkpoints the phantom is taken with the ρ of the SAM run.",
    "Easy and hard are the features with the lower and the higher probe error after training with SGD, in each seed. "
    "A contribution is y (u·Φ + b): the label y = ±1 and the log-odds of the feature's probe, trained on a balanced "
    "validation part and turned so that the product is positive where the feature speaks for the label. Its unit in "
    "pictures is its root mean square, since log-odds shrink with the penalty that a probe needs; bins are 1/4 wide, "
    "and the outermost hold what lies beyond.",
    "The quick scale has EfficientNet-Lite0, 1600 images in batches of 32, three epochs at a learning rate of 0.005 "
    "and one seed; the paper scale ResNet-18, all images, batches of 128 and a learning rate of 0.001.",
    "With fewer than three seeds claims are judged over batches, which both algorithms share, else over seeds.",
)


@dataclass(frozen=True)
class Pair:
    """Two trainings that differ in the rule alone, and the epochs after which both are measured.

    Args:
        data: ``"celeba"`` or ``"waterbirds"``.
        epochs: After which weights are measured, rising; the last ends the training.
        rule: What SGD is compared with, and whose phantom parameter is taken at SGD's checkpoints too.
        rho: Its radius.
        batch_norm: As for :func:`samphire.mechanisms.phantoms.batch_weights`.
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
    batch_norm: phantoms.Statistics = "train"
    settings: tuple[tuple[str, Any], ...] = ()
    seed: int = 0

    @property
    def configs(self) -> dict[str, Config]:
        """The trainings by the name of their algorithm, SGD first."""
        common: dict[str, Any] = {"seed": self.seed, "epochs": self.epochs[-1], "keep": self.epochs}
        config = appendix_b(self.data, **{**common, **dict(self.settings)})
        return {"SGD": config, self.rule.upper(): replace(config, rule=self.rule, rho=self.rho)}


@dataclass(frozen=True)
class Scale:
    """Pairs that differ in the seed alone."""

    pair: Pair
    seeds: int


TINY = {
    "model": f"{__name__}:smallest", "weights": None, "augment": False, "size": 16, "batch": 16, "examples": 64,
    "resamples": 2,
}  # fmt: skip
QUICK = {"model": "efficientnet_lite0", "examples": 1600, "batch": 32, "lr": 0.005, "resamples": 10}
EPOCHS = {"celeba": (1, 2, 5, 10, 20), "waterbirds": (1, 5, 10, 25, 50, 100)}


def smallest(num_classes: int) -> nn.Module:
    """A network with BatchNorm for the tiny scale."""
    body = nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(32, num_classes))


def scales(data: str) -> dict[str, Scale]:
    """The scales of a data set: ResNet-18 as in appendix B, EfficientNet-Lite0 (half an hour a seed), a test."""
    return {
        "paper": Scale(Pair(data, EPOCHS[data]), seeds=10),
        "reduced": Scale(Pair(data, (1, 2, 3), settings=tuple(QUICK.items())), seeds=4),
        "quick": Scale(Pair(data, (1, 2, 3), settings=tuple(QUICK.items())), seeds=1),
        "tiny": Scale(Pair(data, (1, 2), settings=tuple(TINY.items())), seeds=1),
    }


def runs(config: Scale) -> list[Pair]:
    """One pair for each seed."""
    return [replace(config.pair, seed=seed) for seed in range(config.seeds)]


def steps(pair: Pair) -> int:
    """How long a pair takes, in epochs of SGD: SAM's take two, and so does a measurement of either network."""
    return 3 * pair.epochs[-1] + 4 * len(pair.epochs)


def compute(runs: Sequence[Pair], places: Places, progress: Callable[[int, int], None]) -> Iterator[tuple[Pair, Row]]:
    """Train and measure pair by pair; an interrupted training goes on where it was."""
    total, done = 100 * sum(map(steps, runs)), 0
    for pair in runs:
        trained: dict[str, TrainedRun] = {}
        for epochs, (name, config) in zip((1, 2), pair.configs.items(), strict=True):
            share = 100 * epochs * pair.epochs[-1]

            def said(_: str, d: int, t: int, done: int = done, share: int = share) -> None:
                progress(done + share * d // t, total)

            trained[name] = fit(config, places.data, places.trainings, progress=said)
            done += share
        checkpoints: list[Row] = []
        for checkpoint in measured(pair, trained, places.data):
            checkpoints.append(checkpoint)
            done += 200
            progress(done, total)
        yield pair, row(pair, trained, checkpoints)


def row(pair: Pair, trained: Mapping[str, TrainedRun], checkpoints: list[Row]) -> Row:
    """A pair's settings, the probe errors after training, and its checkpoints."""
    return {
        **asdict(pair),
        "collapsed": any(run.stopped for run in trained.values()),
        "probe": {name: run.rows[-1].get("probe") for name, run in trained.items()},
        "checkpoints": checkpoints,
    }


def measured(pair: Pair, trained: Mapping[str, TrainedRun], root: str | os.PathLike[str]) -> Iterator[Row]:
    """Both networks after each of the epochs; nothing if one of them diverged."""
    if any(run.stopped for run in trained.values()):
        return
    config = pair.configs["SGD"]
    parts = load_parts(pair.data, root, size=config.size, augment=False, examples=config.examples)
    easy, hard = by_probe_error(trained["SGD"].rows[-1]["probe"])
    for name, run in trained.items():
        for epoch in pair.epochs:
            net: Any = load_network(run.folder, f"epoch-{epoch}.pt")
            net = net.to("cuda" if torch.cuda.is_available() else "cpu", memory_format=torch.channels_last)
            rho = run.config.radius
            yield {"algorithm": name, "rho": rho, "epoch": epoch, **checkpoint(pair, net, parts, (easy, hard))}


def by_probe_error(errors: Mapping[str, float]) -> list[str]:
    """Features from easy to hard."""
    return sorted(errors, key=lambda name: errors[name])


def checkpoint(pair: Pair, net: nn.Module, parts: Parts, features: Sequence[str]) -> Row:
    """One network in numbers: over all training examples, and for each whole batch."""
    config = pair.configs[pair.rule.upper()]
    order = torch.randperm(len(parts.whole), generator=generator(pair.seed, "measure"))
    batches = order.split(config.batch)
    found = phantoms.batch_weights(
        net, config.optimizer_rule(steps=1), _inputs(net, parts.whole, batches), batch_norm=pair.batch_norm
    )
    easy, hard = (c[order] for c in _contributions(net, parts, features))
    values = (found.real, found.phantom, easy, hard)
    placed = [_placed(x, edges) for x, edges in zip((easy, hard), BINS, strict=True)]
    parted = [
        weights.measured(*(v[found.batch == k] for v in values))
        for k, batch in enumerate(batches)
        if len(batch) == config.batch
    ]
    return {
        "train_error": float((found.real > 0.5).double().mean()),
        **weights.measured(*values),
        "cells": weights.cells(found.real, found.phantom, placed[0], placed[1], BINS),
        "batches": {name: weights.rounded(part[name] for part in parted) for name in JUDGED},
    }


def _placed(contribution: Tensor, edges: Tensor) -> Tensor:
    """In units of its root mean square, and within the bins."""
    return (contribution / contribution.square().mean().sqrt()).clamp(float(edges[0]), float(edges[-1]))


def _inputs(net: Any, split: Split, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in batches:
        index = batch.numpy()
        yield net.normalise(torch.from_numpy(split.images[index])), torch.from_numpy(split.label[index])


def _contributions(net: nn.Module, parts: Parts, features: Sequence[str]) -> Iterator[Tensor]:
    probing, training = (probes.features(net, part.images) for part in (parts.probe_train, parts.whole))
    for feature in features:
        fit = phantoms.fitted_probe(probing, parts.probe_train, feature)
        yield phantoms.probed_contribution(training, parts.whole, feature, fit)


# What the figures ask of rows


def checkpoints(rows: Iterable[Row], shown: bool) -> list[Row]:
    """One row for each network of the pairs that did not collapse; those of the middle epoch, or all."""
    chosen = []
    for pair in (pair for pair in rows if not pair["collapsed"]):
        middle = pair["epochs"][len(pair["epochs"]) // 2]
        statistics = {"train": "the batch", "eval": "running statistics"}[pair["batch_norm"]]
        easy, hard = by_probe_error(pair["probe"]["SGD"])
        common = {
            "seed": pair["seed"], "collapsed": False, "easy": easy, "hard": hard,
            "setting": f"ρ = {pair['rho']:g}, BatchNorm by {statistics}",
        }  # fmt: skip
        for point in pair["checkpoints"]:
            if not shown or point["epoch"] == middle:
                chosen.append({**common, **point})
    if not chosen:
        raise ValueError("in every pair a loss was not finite, so nothing can be shown; lower lr in its settings.")
    return chosen


def judged_by(rows: list[Row]) -> list[Row]:
    """What claims count: the rows themselves if there are three seeds or more, else each of their batches."""
    if len({row["seed"] for row in rows}) > 2:
        return rows
    return [
        {**row, "seed": (row["seed"], k), **dict(zip(JUDGED, values, strict=True))}
        for row in rows
        for k, values in enumerate(zip(*(row["batches"][name] for name in JUDGED), strict=True))
    ]


def features_table(rows: Iterable[Row]) -> report.Table:
    """Which feature is easy and which is hard, and what the other algorithm made of them."""
    lines = []
    for pair in (pair for pair in rows if not pair["collapsed"]):
        easy, hard = by_probe_error(pair["probe"]["SGD"])
        lines += [[pair["seed"], name, easy, e[easy], hard, e[hard]] for name, e in pair["probe"].items()]
    columns = ["seed", "trained by", "easy feature", "its probe error", "hard feature", "its probe error "]
    return report.Table(columns, lines, "Probe errors after training; SGD's say which feature is easy.")


class Figure(NamedTuple):
    """A figure of one data set: what an experiment makes of its rows."""

    tables: Callable[[list[Row]], list[report.Table]]
    plots: Callable[[list[Row]], list[Any]]
    claims: Callable[[list[Row]], list[report.Claim]]


def _tables(rows: list[Row], table: Callable[[list[Row]], report.Table], shown: bool) -> list[report.Table]:
    return [table(checkpoints(rows, shown)), features_table(rows)]


def _claims(rows: list[Row], claims: Callable[[list[Row]], list[report.Claim]], shown: bool) -> list[report.Claim]:
    points = checkpoints(rows, shown)
    counted = judged_by(points)
    if counted is points:
        return claims(points)
    seeds = len({row["seed"] for row in points})
    note = f" n counts batches (seeds: {seeds}), so the error is that of batches, not of trainings."
    return [replace(claim, detail=claim.detail + note) for claim in claims(counted)]


def _plot_lorenz(rows: list[Row], shown: bool) -> list[Any]:
    """A panel for each epoch."""
    points = checkpoints(rows, shown)
    epochs = by(points, "epoch")
    size = (4.2, 4.6) if shown else (2.9 * len(epochs) + 0.4, 3.7)
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


def _plot_medians(rows: list[Row], shown: bool) -> list[Any]:
    """A column for each algorithm, or for each epoch of the sharpness-aware one; real, phantom, and the gain."""
    points = [point for point in checkpoints(rows, shown) if shown or point["rho"]]
    columns = by(points, "algorithm" if shown else "epoch")
    size = (2.4 * len(columns) + 1.8, 6.6)
    with report.figure(3, len(columns), size, squeeze=False, sharex=True, sharey=True) as (figure, axes):
        for column, (name, group) in zip(axes.T, columns.items(), strict=True):
            drawn = [
                weights.draw_medians(panel, group, which, BINS, MOST)
                for panel, which in zip(column, ("real", "phantom", "ratio"), strict=True)
            ]
            column[0].set_title(name if shown else f"epoch {name}")
        for panel, label in zip(axes[:, 0], ("real, λ", "phantom, λ̃", "gain in share, λ̃/λ"), strict=True):
            panel.set_ylabel(label)
        weights.fit_limits(axes[0, 0], points, BINS)
        figure.colorbar(drawn[0], ax=axes[:2], label="median importance weight", extend="min")
        figure.colorbar(drawn[2], ax=axes[2], label="relative to mean", extend="both")
        when = f"epoch {points[0]['epoch']}" if shown else points[0]["algorithm"]
        figure.suptitle(f"{when}, {points[0]['setting']}")
        for kind, write in (("easy", figure.supxlabel), ("hard", figure.supylabel)):
            features = " or ".join(by(points, kind))  # seeds may differ in which is which
            write(f"{kind} contribution ({features}), in root mean squares", fontsize=10)
    return [figure]


def _lorenz(shown: bool) -> Figure:
    return Figure(
        partial(_tables, table=weights.uniformity_table, shown=shown),
        partial(_plot_lorenz, shown=shown),
        partial(_claims, claims=weights.uniformity_claims, shown=shown),
    )


def _medians(shown: bool) -> Figure:
    return Figure(
        partial(_tables, table=weights.fit_table, shown=shown),
        partial(_plot_medians, shown=shown),
        partial(_claims, claims=weights.fit_claims, shown=shown),
    )


FIGURE_5, FIGURE_8 = _lorenz(shown=True), _lorenz(shown=False)
FIGURE_6, FIGURE_9 = _medians(shown=True), _medians(shown=False)
