"""What the review's experiments on MNIST share: the network, a thousand digits, runs, rows, paired comparisons."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire import report
from samphire.data.arrays import mnist
from samphire.experiments import Places, Row, by, mean
from samphire.models import mlp
from samphire.optim import SharpnessAware
from samphire.optim.describe import in_use
from samphire.records import generator
from samphire.report import Estimate
from samphire.train import ModuleConfig, Problem, Result, fit_many

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DATA = ("mnist",)
WIDTHS = (784, 500, 300, 10)
RADIUS = 0.05  # at which sharpness is measured
FAR = 5.0  # for its average: of a random step as short as that, float32 sees nothing
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
    "training loss, the smaller of two that are equal within their errors, on seeds that are used for nothing else; "
    "ρ = 0.05 is the default of SAM's authors."
)
BUDGET = "A gradient computation is a pass forth and back over a batch: a step of SAM counts two."
JUDGED = "Judged by the paired difference over seeds: clear if it exceeds two of its standard errors."


class Method(NamedTuple):
    """A rule around a base optimizer with its learning rate."""

    rule: str
    base: str
    lr: float

    def run(self, **settings: Any) -> Run:
        """A run of it."""
        return Run(**{**self._asdict(), **settings})


METHODS = {
    "SGD": Method("", "sgd", 0.3),
    "SAM": Method("sam", "sgd", 0.3),
    "Adam": Method("", "adam", 1e-3),
    "SAM around Adam": Method("sam", "adam", 1e-3),
}
GRID = {"sgd": (0.03, 0.1, 0.3, 1.0), "adam": (1e-4, 3e-4, 1e-3, 3e-3)}
SGD, SAM = METHODS["SGD"], METHODS["SAM"]


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
        measure_at: Training losses at which, when first reached, sharpness is measured.

    Example:
        >>> SAM.run(gradients=15_000).epochs, SGD.run(gradients=15_000).epochs
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
    def made(self) -> Any:
        """The rule itself, or ``None``."""
        if not self.rule:
            return None
        steps = self.gradients // 2  # for rules that follow the length of the training; all such take two passes
        return in_use(self.rule, steps=steps, batch=self.batch, **dict(self.settings))

    @property
    def passes(self) -> float:
        """Gradient computations of a step."""
        return 1.0 if self.made is None else float(self.made.passes)

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
            self.made,
            self.seed,
            self.epochs,
            self.batch,
            self.lr,
            BASES[self.base],
            self.epochs // 2 + 1 if self.averaged else None,
        )


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
                taken[name].append((time.perf_counter() - start) / METHODS[name].run().passes)
        warm = {name: seconds[len(seconds) // 10 :] for name, seconds in taken.items()}
        return {"seconds": {name: statistics.median(seconds) for name, seconds in warm.items()}, "clock": True}


def _stepper(method: Method, source: Problem) -> Callable[[Tensor, Tensor], None]:
    net, rule = source.model(generator(0, "init")), method.run().made
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


def compute(
    runs: Sequence[Run | Clock], places: Places, progress: Callable[[int, int], None]
) -> Iterator[tuple[Run | Clock, Row]]:
    """Train runs that look at the same epochs together; every run with its row."""
    digits, total, done = load(os.fspath(places.data)), sum(map(steps, runs)), 0
    groups = by(({"run": run, "look": getattr(run, "checkpoints", ())} for run in runs), "look")
    for checkpoints, group in groups.items():
        chosen = [cell["run"] for cell in group]
        for run in (run for run in chosen if isinstance(run, Clock)):
            yield run, run.row(digits)
        trained = {run.config(digits): run for run in chosen if isinstance(run, Run)}
        weight = sum(map(steps, chosen))
        heavy = any(run.measure_at for run in trained.values())  # whose weights are kept: few at a time
        for result in fit_many(
            list(trained),
            checkpoints=checkpoints,
            keep_weights=heavy,
            chunk=3 if heavy else 15,
            progress=lambda what, d, t, done=done, weight=weight: progress(done + weight * d // t, total),  # type: ignore[misc]
        ):
            yield trained[result.config], row(trained[result.config], result)
        done += weight


def steps(run: Run | Clock) -> int:
    """How long a run takes, in gradient computations; one over a part of a batch takes about as long as any."""
    if isinstance(run, Clock):
        return run.steps
    parts = math.ceil(run.batch / dict(run.settings).get("m", run.batch))
    return run.gradients * parts


def row(run: Run, result: Result) -> Row:
    """Settings, the curves, the values at the end and, if asked for, sharpness where a loss was first reached."""
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
    """Sharpness on the training set at the first checkpoint whose loss is at most the target; empty if none is."""
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


# Comparisons and pictures


def fall(before: Iterable[Row], after: Iterable[Row], column: str) -> Estimate:
    """How much a column falls from some runs to others with the same seeds, over the seeds that trained in both.

    Example:
        >>> a = [{"seed": s, "e": 0.3 + 0.1 * s, "collapsed": False} for s in (0, 1)]
        >>> b = [{"seed": s, "e": 0.1, "collapsed": False} for s in (1, 0)]
        >>> print(fall(a, b, "e"))
        0.250 ± 0.050 (n=2)
    """
    there = {row["seed"]: row for row in after if not row["collapsed"]}
    pairs = ((row, there[row["seed"]]) for row in before if row["seed"] in there and not row["collapsed"])
    return report.estimate(one[column] - two[column] for one, two in pairs)


def clear(difference: Estimate) -> bool | None:
    """Whether a difference is above zero by two standard errors; ``None`` if it is within them, or not known."""
    if difference.n < 2 or not math.isfinite(difference.mean) or abs(difference.mean) <= 2 * difference.error:
        return None
    return difference.mean > 0


def claim(text: str, difference: Estimate, said: str, ours: str, detail: str = "") -> report.Claim:
    """A claim that a paired difference is positive; within two standard errors of zero it is not judged.

    Args:
        text: The claim.
        difference: Positive if it holds.
        said: What the review has.
        ours: What we found, in words, without the difference.
        detail: More on how it was judged.
    """
    holds = clear(difference)
    unclear = "Not clear: the difference is within two standard errors of zero." if holds is None else ""
    return report.Claim(
        text,
        holds,
        ours=f"{ours}; a difference of {difference}",
        paper=said,
        detail=" ".join(part for part in (unclear, JUDGED, detail) if part),
    )


def at_epoch(row: Row, epoch: int) -> Row:
    """A run as it was at the checkpoint nearest to an epoch."""
    point = min(row["curve"], key=lambda p: abs(p["epoch"] - epoch))
    return {**row, **point, "gap": point["test_loss"] - point["loss"]}


def draw(axes: Axes, rows: Iterable[Row], x: str, y: str, label: str, **kwargs: Any) -> None:
    """A curve of means against a setting."""
    cells = by(rows, x)
    report.curve(axes, list(cells), [mean(cell, y) for cell in cells.values()], label, **kwargs)


def percent(estimate: Estimate) -> str:
    """A share in per cent, without its n."""
    return f"{100 * estimate.mean:.2f} %"
