"""What a small run is: the toy of the paper, the toy under any rule, or any other small network.

Every configuration has ``steps`` (how many its run takes), ``fleet`` (what trains such runs), ``shape`` (what runs
must share to train together) and ``travels`` (whether another process can run it).
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire.checks import AtLeastZero, Count, Positive, Range, check_fields, check_one_of, check_whole
from samphire.data import synthetic
from samphire.data.synthetic import Corruption, Noise, Points, Spiral, Where
from samphire.models import ToyNet
from samphire.optim.batched import Base
from samphire.optim.feature_runs import ALGORITHMS
from samphire.optim.requests import Rule, rho_of, with_rho
from samphire.optim.rules import rule_for_run
from samphire.records import generator
from samphire.train.fleets import ModuleFleet, RuleFleet, ToyFleet

TEST_POINTS = 2000

__all__ = ["ModuleConfig", "Problem", "RuleConfig", "SmallRun", "ToyConfig", "ToyRun"]


@dataclass(frozen=True)
class ToyRun:
    """What all runs of the toy have: data, network, length. Not a run by itself; see its two kinds below.

    Args:
        chi: Complexity of the spiral, in degrees.
        seed: Chooses data, initial weights and order of the batches, each by a generator of its own. Runs with equal
            seeds are paired: they differ in their settings alone.
        epochs: Passes over the training points.
        batch: Points per step; the last one of an epoch may be smaller.
        lr: Learning rate, constant.
        n: Training points.
        spiral: Variant of the spiral (see :func:`samphire.data.synthetic.toy`).
        noise: Where the arms' noise is added.
        corruption: Noise of equation 45. The test points have none.
        level: How much of it.
        where: On which features.
    """

    chi: float = 360.0
    seed: Annotated[int, Range(whole=True)] = 0
    epochs: Count = 100
    batch: int = 5
    lr: Positive = 0.01
    n: int = 300
    spiral: Spiral = "point"
    noise: Noise = "inside"
    corruption: Corruption = "none"
    level: float = 0.0
    where: Where = "both"

    travels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        synthetic.check_toy(self.n, self.chi, self.spiral, self.noise, self.corruption, self.level, self.where)
        check_fields(self)
        check_whole("batch", self.batch, most=self.n)

    @property
    def steps(self) -> int:
        """How many the run takes."""
        return self.epochs * math.ceil(self.n / self.batch)

    def train_points(self, dtype: torch.dtype = torch.float32) -> Points:
        """The training set, always the same."""
        corrupted = {"corruption": self.corruption, "level": self.level, "where": self.where}
        return self._points(self.n, "train", dtype, **corrupted)

    def test_points(self, dtype: torch.dtype = torch.float32) -> Points:
        """The test set of 2000 points without corruption."""
        return self._points(TEST_POINTS, "test", dtype)

    def _points(self, n: int, purpose: str, dtype: torch.dtype, **corrupted: Any) -> Points:
        settings = {"spiral": self.spiral, "noise": self.noise, "dtype": dtype, **corrupted}
        return synthetic.toy(n, self.chi, generator=generator(self.seed, purpose), **settings)

    def network(self) -> ToyNet:
        """The network before training."""
        return ToyNet(generator=generator(self.seed, "init"))


@dataclass(frozen=True)
class ToyConfig(ToyRun):
    """One run of the toy of Springer et al. (2024): everything its outcome depends on.

    Args:
        rho: Radius of the climb; 0 for algorithms that do not climb. The useful range is 0 to 2.
        algorithm: ``"sgd"``, ``"lsam"``, ``"sam"``, or an intervention: ``"weights"`` (equation 7), ``"rates"``
            (equation 8), ``"both"`` (equation 9).
        train_head: Whether the head learns (as the text has it) or stays at (1, 1) (as figure 3 looks).
        v_star: The interventions' fixed weight of the hard feature, in the paper about 1 to 8; that of the easy one
            is 1.

    The other arguments are those of :class:`ToyRun`.

    Example:
        >>> ToyConfig(rho=1.0).algorithm, ToyConfig().steps
        ('lsam', 6000)
        >>> ToyConfig(batch=500)
        Traceback (most recent call last):
            ...
        ValueError: batch must be a whole number in [1, 300], got 500.
    """

    rho: AtLeastZero = 0.0
    algorithm: str = "lsam"
    train_head: bool = True
    v_star: Annotated[float, Range()] = 1.0

    fleet: ClassVar[type[ToyFleet]] = ToyFleet

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("algorithm", self.algorithm, ALGORITHMS)
        algorithm = ALGORITHMS[self.algorithm]
        if self.rho > 0 and algorithm.climb == "nothing":
            raise ValueError(f"rho must be 0 for {self.algorithm!r}, which does not climb, got {self.rho!r}.")
        if self.v_star != 1 and not (algorithm.star_weights or algorithm.star_rates):
            raise ValueError(f"v_star must be 1 for {self.algorithm!r}, which does not use it, got {self.v_star!r}.")

    @property
    def shape(self) -> Hashable:
        """Points, batch, epochs, one or two passes."""
        return self.n, self.batch, self.epochs, self.algorithm == "sam"


@dataclass(frozen=True)
class RuleConfig(ToyRun):
    """One run of the toy under any rule, where :class:`ToyConfig` has the algorithms of the paper.

    It shares data, initial weights and order of the batches with the :class:`ToyConfig` of its seed.

    Args:
        name: A rule of ``samphire.optim.RULES``.
        settings: Its settings by name, as for :func:`samphire.optim.rule_for_run`.

    The other arguments are those of :class:`ToyRun`.

    Example:
        >>> RuleConfig(name="every", settings=(("rho", 0.2),)).rule
        every(k=5, rule=sam(rho=0.2, climb=Climb(metric=None, on=None)))
    """

    name: str = "sam"
    settings: tuple[tuple[str, Any], ...] = ()

    fleet: ClassVar[type[ToyFleet]] = RuleFleet

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.rule  # refuses an unknown name or a bad setting

    @property
    def rule(self) -> Rule:
        """The rule, for a training of this length on batches of this size."""
        chosen: Rule = rule_for_run(self.name, steps=self.steps, batch=self.batch, **dict(self.settings))
        return chosen

    @property
    def shape(self) -> Hashable:
        """Points, batch, epochs, and the rule apart from its rho."""
        return self.n, self.batch, self.epochs, _without_rho(self.rule)


def _without_rho(rule: Rule | None) -> str:
    return repr(rule if rule is None or rho_of(rule) is None else with_rho(rule, 0.0))


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
        problem: Network, data and loss. Runs of several problems train together if only their data differ.
        rule: Any rule, or ``None`` for the plain gradient. Runs whose rules differ in rho alone train together.
        seed: Chooses initial weights and order of the batches.
        epochs: Passes over the training points.
        batch: Points per step.
        lr: Learning rate, constant.
        base: Makes the base optimizer (see :class:`samphire.optim.batched.ModuleRuns`).
        average_from: The first epoch whose final weights are averaged (SWA); ``None`` for no average. Checkpoints
            then have the averaged network's values too, under ``averaged_``.
    """

    problem: Problem
    rule: Rule | None = None
    seed: int = 0
    epochs: Count = 1
    batch: int = 10
    lr: float = 0.1
    base: Base = torch.optim.SGD
    average_from: int | None = None

    fleet: ClassVar[type[ModuleFleet]] = ModuleFleet

    def __post_init__(self) -> None:
        check_fields(self)
        check_whole("batch", self.batch, most=len(self.problem.y))
        if self.average_from is not None:
            check_whole("average_from", self.average_from, 0, self.epochs)

    @property
    def steps(self) -> int:
        """How many the run takes."""
        return self.epochs * math.ceil(len(self.problem.y) / self.batch)

    @property
    def shape(self) -> Hashable:
        """Network, loss, shapes of the data, length, base optimizer, and the rule apart from its rho."""
        p = self.problem
        data = p.x.shape, p.x.dtype, p.y.shape, p.y.dtype
        length = self.batch, self.epochs, self.average_from
        return p.model, p.loss, data, length, repr(self.base), _without_rho(self.rule)

    @property
    def travels(self) -> bool:
        """Whether another process can run it: it finds functions by their names in modules."""
        try:
            return b"__main__" not in pickle.dumps((self.problem.model, self.problem.loss, self.rule, self.base))
        except (pickle.PicklingError, AttributeError, TypeError):
            return False


SmallRun = ToyConfig | RuleConfig | ModuleConfig
