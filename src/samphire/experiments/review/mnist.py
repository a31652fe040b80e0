"""What the review's experiments on MNIST share: the network, a thousand digits, budgets, runs, rows, records."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire import report
from samphire.data.arrays import mnist
from samphire.experiments.experiment import Experiment, Places
from samphire.experiments.rows import Row, by, mean
from samphire.models import mlp
from samphire.optim import SharpnessAware
from samphire.optim.requests import Rule
from samphire.optim.rules import rule_for_run
from samphire.progress import Progress, stretch
from samphire.records import generator
from samphire.train import ModuleConfig, Problem, Result, fit_many

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BUDGET", "FAR", "GRID", "METHODS", "OUTCOME", "RADIUS", "SAM", "SGD", "TINY",
    "Budget", "Clock", "Run", "at_epoch", "draw", "experiment", "panels",
]  # fmt: skip

WIDTHS = (784, 500, 300, 10)
RADIUS = 0.05  # at which sharpness is measured
FAR = 5.0  # of the random steps for its average: shorter ones change the loss by less than float32 can tell
OUTCOME = {"test_error": "test error", "test_loss": "test loss", "loss": "training loss", "gap": "gap"}
BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, fused=True),
    "adam": partial(torch.optim.Adam, fused=True),
}

SETTING = (
    "The network is the review's (784-500-300-10, ReLU, cross-entropy), the batch 10, pixels lie in [0, 1]. Every "
    "seed draws training examples of its own, initial weights and the order of the batches; runs with equal seeds "
    "share all three. The test set is the whole one, 10000 digits."
)
RATES = (
    "The review prints no learning rates and no ρ. Ours are constant and without momentum: the best of a grid by "
    "training loss, on seeds that are used for nothing else; if two are equal within their errors, the smaller. "
    "ρ = 0.05 is the default of SAM's authors."
)
BUDGET = "A gradient computation is a forward and a backward pass over a batch; a step of SAM has two."


@dataclass(frozen=True)
class Run:
    """One training run: everything its row depends on.

    Args:
        rule: A rule of ``samphire.optim.RULES``; empty for the plain gradient.
        base: ``"sgd"`` or ``"adam"``.
        lr: Learning rate, constant.
        settings: Of the rule, by name.
        seed: Chooses examples, initial weights, order of the batches and which labels are flipped.
        gradients: Gradient computations to spend.
        n: Training examples.
        widths: Of the network's layers.
        flipped: Share of the training labels that are replaced by another class.
        test: Test examples, the first ones.
        looks: Checkpoints along the run, besides the start.
        averaged: Whether the weights of the second half are averaged as well (SWA).
        measure_at: Training losses; sharpness is measured where the run first reaches each.

    Example:
        >>> Run("sam").epochs, Run().epochs
        (75, 150)
    """

    rule: str = ""
    base: str = "sgd"
    lr: float = 0.3
    settings: tuple[tuple[str, Any], ...] = ()
    seed: int = 0
    gradients: int = 15_000
    n: int = 1000
    widths: tuple[int, ...] = WIDTHS
    flipped: float = 0.0
    test: int = 10_000
    looks: int = 1
    averaged: bool = False
    measure_at: tuple[float, ...] = ()

    batch = 10

    @property
    def optimizer_rule(self) -> Rule | None:
        """The rule itself; ``None`` for the plain gradient."""
        if not self.rule:
            return None
        steps = self.gradients // 2  # for rules that follow the length of training; all of them take two passes
        return rule_for_run(self.rule, steps=steps, batch=self.batch, **dict(self.settings))

    @property
    def passes(self) -> float:
        """Gradient computations of a step."""
        rule = self.optimizer_rule
        return 1.0 if rule is None else float(rule.passes)

    @property
    def steps(self) -> int:
        """How long the run takes, in gradient computations; one over part of a batch takes as long as any."""
        return self.gradients * math.ceil(self.batch / dict(self.settings).get("m", self.batch))

    @property
    def epochs(self) -> int:
        """How many passes over the training set the budget pays for."""
        return max(1, round(self.gradients * self.batch / self.n / self.passes))

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Epochs after which to look; where sharpness is measured, all, to meet a loss closely."""
        if self.measure_at:
            return tuple(range(self.epochs + 1))
        return tuple(sorted({round(self.epochs * i / self.looks) for i in range(self.looks + 1)}))

    def config(self, digits: Digits) -> ModuleConfig:
        """The run for ``fit_many``."""
        return ModuleConfig(
            problem(digits, self.seed, self.n, self.flipped, self.test, network(self.widths)),
            self.optimizer_rule,
            self.seed,
            self.epochs,
            self.batch,
            self.lr,
            BASES[self.base],
            self.epochs // 2 + 1 if self.averaged else None,
        )


SGD, SAM = Run(), Run("sam")
ADAM = replace(SGD, base="adam", lr=1e-3)
METHODS = {"SGD": SGD, "SAM": SAM, "Adam": ADAM, "SAM around Adam": replace(ADAM, rule="sam")}
GRID = {"sgd": (0.03, 0.1, 0.3, 1.0), "adam": (1e-4, 3e-4, 1e-3, 3e-3)}


@dataclass(frozen=True)
class Clock:
    """Seconds per gradient computation of each method, one network at a time, the methods taking turns.

    Args:
        steps: Of each method.
    """

    steps: int = 200

    def row(self, digits: Digits) -> Row:
        """The median of each method, by name."""
        source = problem(digits, seed=0, n=100)
        steppers = {name: _stepper(method, source) for name, method in METHODS.items()}
        taken: dict[str, list[float]] = {name: [] for name in METHODS}
        for i in range(self.steps):
            part = slice(10 * (i % 10), 10 * (i % 10) + 10)
            for name, step in steppers.items():
                start = time.perf_counter()
                step(source.x[part], source.y[part])
                taken[name].append((time.perf_counter() - start) / METHODS[name].passes)
        warm = {name: seconds[len(seconds) // 10 :] for name, seconds in taken.items()}
        return {"seconds": {name: statistics.median(seconds) for name, seconds in warm.items()}, "clock": True}


def _stepper(method: Run, source: Problem) -> Callable[[Tensor, Tensor], None]:
    net, rule = source.model(generator(0, "init")), method.optimizer_rule
    opt = BASES[method.base](net.parameters(), lr=method.lr)
    if rule is not None:
        opt = SharpnessAware(net, opt, rule)

    def step(x: Tensor, y: Tensor) -> None:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        with torch.enable_grad():
            opt.step(closure)  # type: ignore[arg-type]

    return step


class Size(NamedTuple):
    """What every run of an experiment shares: training examples, test examples, widths of the network."""

    n: int = 1000
    test: int = 10_000
    widths: tuple[int, ...] = WIDTHS


WHOLE, TINY = Size(), Size(100, 500, (784, 32, 10))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every configuration has: seeds, gradient computations of a run, examples and network."""

    seeds: int = 5
    gradients: int = 4000
    size: Size = WHOLE

    def over(self, run: Run, seeds: Iterable[int] | None = None, **settings: Any) -> list[Run]:
        """A run with this budget and other settings, once for each seed."""
        common = {"gradients": self.gradients, **self.size._asdict(), **settings}
        return [replace(run, seed=seed, **common) for seed in (range(self.seeds) if seeds is None else seeds)]


class Digits(NamedTuple):
    """MNIST: training images as bytes, (60000, 784), test images in [0, 1], and their labels."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@lru_cache(maxsize=1)
def load(root: str) -> Digits:
    """The digits under a folder."""
    parts = mnist(root)
    x, test_x = (torch.from_numpy(parts[name].images.copy()).flatten(1) for name in ("train", "test"))
    y, test_y = (torch.from_numpy(parts[name].label) for name in ("train", "test"))
    return Digits(x, y, test_x.float() / 255, test_y)


@lru_cache
def network(widths: tuple[int, ...] = WIDTHS) -> Callable[[torch.Generator], nn.Module]:
    """Builds the network; always the same builder for the same widths, so that its runs train together."""
    return partial(mlp, widths)


def problem(
    digits: Digits,
    seed: int,
    n: int,
    flipped: float = 0.0,
    test: int = 10_000,
    model: Callable[[torch.Generator], nn.Module] | None = None,
) -> Problem:
    """A seed's training examples, some with a wrong label, and the test set.

    The examples with wrong labels at one share are among those at a larger one.
    """
    chosen = torch.randperm(len(digits.y), generator=generator(seed, "examples"))[:n]
    if len(chosen) < n:
        raise ValueError(f"the training set has {len(digits.y)} digits, got n={n}; take a smaller n.")
    y, draw = digits.y[chosen], generator(seed, "flips")
    wrong = torch.randperm(n, generator=draw)[: round(flipped * n)]
    shift = torch.randint(1, 10, (n,), generator=draw)
    y[wrong] = (y[wrong] + shift[: len(wrong)]) % 10
    return Problem(
        model or network(), digits.x[chosen].float() / 255, y, test=(digits.test_x[:test], digits.test_y[:test])
    )


def compute(runs: Sequence[Run | Clock], places: Places, progress: Progress) -> Iterator[tuple[Run | Clock, Row]]:
    """Each run with its row; runs with the same checkpoints are trained together."""
    digits, done, total = load(os.fspath(places.data)), 0, sum(run.steps for run in runs)
    for clock in (run for run in runs if isinstance(run, Clock)):
        yield clock, clock.row(digits)
        done += clock.steps
        progress("clock", done, total)
    groups = by(({"run": run, "epochs": run.checkpoints} for run in runs if isinstance(run, Run)), "epochs")
    for checkpoints, group in groups.items():
        trained = {cell["run"].config(digits): cell["run"] for cell in group}
        after = done + sum(run.steps for run in trained.values())
        weights = any(run.measure_at for run in trained.values())
        for result in fit_many(
            list(trained),
            checkpoints=checkpoints,
            keep_weights=weights,
            chunk=3 if weights else 15,  # all checkpoints of a chunk are in memory at once
            progress=stretch(progress, done / total, after / total, total),
        ):
            yield trained[result.config], row(trained[result.config], result)
        done = after


def row(run: Run, result: Result) -> Row:
    """Settings, curves, values at the end and, at each loss of ``measure_at``, sharpness."""
    per_epoch = run.passes * run.n / run.batch
    curve = [
        {"gradients": round(c.epoch * per_epoch), "epoch": c.epoch, **_rounded(c.values)} for c in result.checkpoints
    ]
    return {
        **asdict(run),
        **dict(run.settings),
        **_rounded(result.final),
        "gap": result.final["test_loss"] - result.final["loss"],
        "collapsed": result.collapsed,
        "curve": curve,
        "measured": [_measured(result, target) for target in run.measure_at],
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def _measured(result: Result, target: float) -> Row:
    """Sharpness on the training set at the first checkpoint with a loss of at most the target, if there is one."""
    from samphire.landscape import Landscape, average_sharpness, eigenvalues, sharpness, trace

    reached = next((c for c in result.checkpoints if c.values["loss"] <= target), None)
    if reached is None or reached.weights is None:
        return {"target": target, "reached": False}
    source = result.config.problem
    net = source.model(generator(0, "init"))
    net.load_state_dict(reached.weights)
    with torch.enable_grad():
        here = Landscape.of(net, F.cross_entropy, (source.x, source.y))
        ball = sharpness(here, RADIUS, steps=8, restarts=1)
        values = {
            "first_order": ball.first_order,
            "worst": ball.worst,
            "lambda_1": float(eigenvalues(here, k=1, tol=1e-2).values[0]),
            "trace": trace(here, samples=8).trace.mean,
            "average": average_sharpness(here, FAR, samples=8).rise.mean,
        }
    values |= {"gap": reached.values["test_loss"] - reached.values["loss"], **reached.values}
    return {"target": target, "reached": True, "epoch": reached.epoch, **_rounded(values)}


# Records and pictures


def experiment(*, notes: tuple[str, ...], **record: Any) -> Experiment:
    """An experiment of the review on MNIST.

    Args:
        notes: Beside those that all of them have.
        **record: The fields of :class:`Experiment` in which they differ.
    """
    shared: dict[str, Any] = {"source": "the review", "compute": compute, "data": ("mnist",)}
    return Experiment(**shared, **record, notes=(SETTING, RATES, *notes))


def at_epoch(row: Row, epoch: int) -> Row:
    """A run as it was at the checkpoint nearest to an epoch."""
    point = min(row["curve"], key=lambda p: abs(p["epoch"] - epoch))
    return {**row, **point, "gap": point["test_loss"] - point["loss"]}


@contextmanager
def panels(columns: Mapping[str, str], x: str, size: tuple[float, float]) -> Iterator[tuple[Figure, dict[str, Axes]]]:
    """A picture with a panel for each column of the runs.

    Args:
        columns: The label of the vertical axis, by column.
        x: The label of the horizontal one.
        size: In inches.
    """
    with report.figure(1, len(columns), size) as (figure, axes):
        for panel, label in zip(axes, columns.values(), strict=True):
            panel.set(xlabel=x, ylabel=label)
        yield figure, dict(zip(columns, axes, strict=True))


def draw(axes: Axes, rows: Iterable[Row], x: str, y: str, label: str, **kwargs: Any) -> None:
    """A curve of means against a setting."""
    cells = by(rows, x)
    report.curve(axes, list(cells), [mean(cell, y) for cell in cells.values()], label, **kwargs)
