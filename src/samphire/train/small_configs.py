"""What a small run is: the toy of the paper, the toy under any rule, or any other small network."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire import records
from samphire.data import synthetic
from samphire.data.synthetic import Corruption, Noise, Points, Spiral, Where
from samphire.models import ToyNet
from samphire.optim.batched import Base
from samphire.optim.feature_runs import ALGORITHMS
from samphire.optim.rules import rule_for_run

TEST_POINTS = 2000


@dataclass(frozen=True)
class ToyConfig:
    """One run of the toy of Springer et al. (2024): everything its outcome depends on.

    Args:
        chi: Complexity of the spiral, in degrees.
        rho: Radius of the climb; 0 for algorithms that do not climb.
        algorithm: ``"sgd"``, ``"lsam"``, ``"sam"``, or an intervention: ``"weights"`` (equation 7), ``"rates"``
            (equation 8), ``"both"`` (equation 9).
        seed: Chooses data, initial weights and order of the batches, each by a generator of its own. Runs with equal
            seeds are paired: they differ by nothing but their settings.
        epochs: Passes over the training points.
        batch: Points per step; a rest that does not fill a batch makes a smaller one.
        lr: Learning rate, constant.
        n: Training points.
        spiral: Variant of the spiral (see :func:`samphire.data.synthetic.toy`).
        noise: Where the arms' noise is added.
        corruption: Noise of equation 45. The test points have none.
        level: How much of it.
        where: On which features.
        train_head: Whether the head learns (as the text has it) or stays at (1, 1) (as figure 3 looks).
        v_star: The interventions' fixed weight of the hard feature; that of the easy one is 1.

    Example:
        >>> ToyConfig(rho=1.0).algorithm
        'lsam'
        >>> ToyConfig(batch=500)
        Traceback (most recent call last):
            ...
        ValueError: batch must be a whole number from 1 to n = 300, got 500; take a smaller batch or a larger n.
    """

    chi: float = 360.0
    rho: float = 0.0
    algorithm: str = "lsam"
    seed: int = 0
    epochs: int = 100
    batch: int = 5
    lr: float = 0.01
    n: int = 300
    spiral: Spiral = "point"
    noise: Noise = "inside"
    corruption: Corruption = "none"
    level: float = 0.0
    where: Where = "both"
    train_head: bool = True
    v_star: float = 1.0

    def __post_init__(self) -> None:
        synthetic.check_toy(self.n, self.chi, self.spiral, self.noise, self.corruption, self.level, self.where)
        if self.algorithm not in ALGORITHMS:
            close = difflib.get_close_matches(str(self.algorithm), ALGORITHMS, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"no algorithm named {self.algorithm!r}; {guess}Known: {', '.join(ALGORITHMS)}.")
        if not 0 <= self.rho < math.inf:
            raise ValueError(f"rho must be a finite number >= 0, got {self.rho!r}; the toy's useful range is 0 to 2.")
        if self.rho > 0 and ALGORITHMS[self.algorithm].climb == "nothing":
            raise ValueError(f"rho must be 0 for {self.algorithm!r}, which does not climb, got {self.rho!r}.")
        if not isinstance(self.batch, int) or not 1 <= self.batch <= self.n:
            raise ValueError(
                f"batch must be a whole number from 1 to n = {self.n}, got {self.batch!r}; "
                "take a smaller batch or a larger n."
            )
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise ValueError(f"epochs must be a whole number >= 1, got {self.epochs!r}; the default is 100.")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be a finite number > 0, got {self.lr!r}; the paper has 0.01.")
        if not isinstance(self.seed, int):
            raise ValueError(f"seed must be a whole number, got {self.seed!r}.")
        if not math.isfinite(self.v_star):
            raise ValueError(
                f"v_star must be a finite number, got {self.v_star!r}; the paper's range is about 1 to 8."
            )
        intervenes = ALGORITHMS[self.algorithm].star_weights or ALGORITHMS[self.algorithm].star_rates
        if self.v_star != 1 and not intervenes:
            raise ValueError(f"v_star must be 1 for {self.algorithm!r}, which does not use it, got {self.v_star!r}.")

    def train_points(self, dtype: torch.dtype = torch.float32) -> Points:
        """The training set, always the same."""
        return synthetic.toy(
            self.n,
            self.chi,
            generator=generator(self.seed, "train"),
            spiral=self.spiral,
            noise=self.noise,
            corruption=self.corruption,
            level=self.level,
            where=self.where,
            dtype=dtype,
        )

    def test_points(self, dtype: torch.dtype = torch.float32) -> Points:
        """The test set of 2000 points without corruption."""
        source = generator(self.seed, "test")
        return synthetic.toy(
            TEST_POINTS, self.chi, generator=source, spiral=self.spiral, noise=self.noise, dtype=dtype
        )

    def network(self) -> ToyNet:
        """The network before training."""
        return ToyNet(generator=generator(self.seed, "init"))


@dataclass(frozen=True)
class RuleConfig(ToyConfig):
    """One run of the toy under any rule, where :class:`ToyConfig` has the algorithms of the paper.

    It shares data, initial weights and order of the batches with the :class:`ToyConfig` of its seed. ``algorithm``,
    ``rho``, ``train_head`` and ``v_star`` stay as they are: the rule says everything about a step.

    Args:
        name: A rule of ``samphire.optim.RULES``.
        settings: Its settings by name, as for :func:`samphire.optim.rule_for_run`.

    Example:
        >>> RuleConfig(name="every", settings=(("rho", 0.2),)).rule
        Every(k=5, rule=Sam(rho=0.2, climb=Climb(metric=None, on=None)))
    """

    algorithm: str = "sgd"
    name: str = "sam"
    settings: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm != "sgd" or not self.train_head:
            raise ValueError(
                f"algorithm and train_head must be 'sgd' and True, since {self.name!r} says how to step, got "
                f"{self.algorithm!r} and {self.train_head!r}; use a ToyConfig for others."
            )
        _ = self.rule  # an unknown name or a bad setting is refused here

    @property
    def rule(self) -> Any:
        """The rule, told how long it will train and on batches of which size."""
        return rule_for_run(self.name, steps=count_steps(self), batch=self.batch, **dict(self.settings))


@dataclass(frozen=True, eq=False)
class Problem:
    """What runs of another small network share.

    Args:
        model: Builds the network from a generator.
        x: Training inputs, (n, ...).
        y: Training targets, (n, ...).
        loss: Of the network's output and the targets.
        test: Inputs and targets that checkpoints evaluate too.
    """

    model: Callable[[torch.Generator], nn.Module]
    x: Tensor
    y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    test: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class ModuleConfig:
    """One run of a problem: a rule, its radius, a base optimizer, a seed.

    Args:
        problem: Network, data and loss. Runs of several problems train together if they differ in data alone.
        rule: Any rule, or ``None`` for the plain gradient. Runs whose rules differ in nothing but rho train together.
        seed: Chooses initial weights and order of the batches.
        epochs: Passes over the training points.
        batch: Points per step.
        lr: Learning rate, constant.
        base: Makes the base optimizer (see :class:`samphire.optim.batched.ModuleRuns`).
        average_from: The epoch from whose end on the weights are averaged, one set an epoch (SWA); ``None`` for
            never. Checkpoints then have the averaged network's values too, under ``averaged_``.
    """

    problem: Problem
    rule: Any = None
    seed: int = 0
    epochs: int = 1
    batch: int = 10
    lr: float = 0.1
    base: Base = torch.optim.SGD
    average_from: int | None = None

    def __post_init__(self) -> None:
        n = len(self.problem.y)
        if not isinstance(self.batch, int) or not 1 <= self.batch <= n:
            raise ValueError(f"batch must be a whole number from 1 to the {n} training points, got {self.batch!r}.")
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise ValueError(f"epochs must be a whole number >= 1, got {self.epochs!r}.")
        if self.average_from is not None and not 0 <= self.average_from <= self.epochs:
            raise ValueError(
                f"average_from must be an epoch from 0 to the last, {self.epochs}, or None, "
                f"got {self.average_from!r}."
            )


Small = ToyConfig | ModuleConfig


def count_steps(run: Small) -> int:
    """How many steps a run takes."""
    n = run.n if isinstance(run, ToyConfig) else len(run.problem.y)
    return run.epochs * math.ceil(n / run.batch)


def generator(seed: int, purpose: str) -> torch.Generator:
    """A source of random numbers for one purpose of one seed, so that a new purpose shifts none of the others."""
    return torch.Generator().manual_seed(records.seed(seed, purpose))
