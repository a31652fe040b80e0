"""Small runs that advance in lock step: their data, the engine that steps them, and how they are judged."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from samphire.models import two_views
from samphire.optim.batched import ModuleRuns, stacked
from samphire.optim.feature_runs import FeatureRuns
from samphire.optim.requests import Rule, rho_of
from samphire.records import generator

if TYPE_CHECKING:
    from samphire.train.small_configs import ModuleConfig

__all__ = ["ModuleFleet", "RuleFleet", "ToyFleet"]


class ToyFleet:
    """Toy runs of one shape.

    Attributes:
        collapsed_above: The training loss above which a run has learned next to nothing.
        step_cost: How long a step takes, roughly, in steps of the toy.
        divides: Whether half as many runs take half as long.
        one_core: Whether the tensors are too small to share among cores.
    """

    collapsed_above = 0.8 * math.log(2)  # log 2 is the loss of f = 0; runs that work end below 0.3
    step_cost = 1
    divides = True
    one_core = True

    def __init__(self, runs: list[Any], dtype: torch.dtype) -> None:
        runs = runs * 2 if len(runs) == 1 else runs  # products of a batch of one are rounded in another order
        self.runs, self.dtype, self.net = runs, dtype, runs[0].network().to(dtype)
        sets = [run.train_points(dtype) for run in runs]
        self.x, self.y = two_views(torch.stack([s.x for s in sets])), torch.stack([s.y for s in sets])
        self.order = [generator(run.seed, "order") for run in runs]
        weights = stacked([run.network().state_dict() for run in runs], dtype)
        self.start(weights, lr=torch.tensor([run.lr for run in runs], dtype=dtype))

    def start(self, weights: dict[str, Tensor], lr: Tensor) -> None:
        """Make the engine."""
        runs, dtype = self.runs, self.dtype
        self.engine: Any = FeatureRuns(
            self.net.phi,
            weights,
            [run.algorithm for run in runs],
            rho=torch.tensor([run.rho for run in runs], dtype=dtype),
            lr=lr,
            v_star=torch.tensor([(1.0, run.v_star) for run in runs], dtype=dtype),
            train_head=torch.tensor([run.train_head for run in runs]),
        )
        self.v, self.phantom = (torch.empty(runs[0].steps, len(runs), 2, dtype=dtype) for _ in range(2))
        self.done = 0

    def epoch(self) -> None:
        """Every run once through its points, in its own order."""
        n, batch = self.runs[0].n, self.runs[0].batch
        order = torch.stack([torch.randperm(n, generator=g) for g in self.order])
        every = torch.arange(len(self.runs))[:, None]
        x, y = self.x[every, order], self.y[every, order]
        for start in range(0, n, batch):
            part = slice(start, start + batch)
            self.step(x[:, part], y[:, part])

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of every run, the heads it used noted."""
        real, phantom = self.engine.step(x, y)
        self.v[self.done], self.phantom[self.done] = real[:, 0], phantom[:, 0]
        self.done += 1

    def evaluate(self, r: int, w: dict[str, Tensor]) -> dict[str, float]:
        """The values of a checkpoint."""
        v = w["head.weight"][0]
        values = {}
        test = self.runs[r].test_points(self.dtype)
        for prefix, x, y in (("test", two_views(test.x), test.y), ("train", self.x[r], self.y[r])):
            P = functional_call(self.net.phi, _below("phi.", w), (x,))[..., 0]
            margin = y * (P @ v)
            values[f"{prefix}_error"] = _share_wrong(margin)
            values["loss" if prefix == "train" else "test_loss"] = F.softplus(-margin).mean().item()
            if prefix == "test":
                easy, hard = (y[:, None] * v.sign() * P).unbind(1)
                values |= {"probe_easy": _share_wrong(easy), "probe_hard": _share_wrong(hard)}
        return values

    def heads(self, r: int) -> tuple[Tensor | None, Tensor | None]:
        """Real and phantom heads of a run's steps, if there are any."""
        return self.v[:, r].clone(), self.phantom[:, r].clone()


class RuleFleet(ToyFleet):
    """Toy runs under one rule; its rho may differ."""

    step_cost = 10
    divides = False  # a rule's step costs the same for few runs and many

    def start(self, weights: dict[str, Tensor], lr: Tensor) -> None:
        rules = [run.rule for run in self.runs]
        self.engine = ModuleRuns(self.net, _logistic, rules[0], weights, lr, _radii(rules, self.dtype))

    def step(self, x: Tensor, y: Tensor) -> None:
        self.engine.step(x.sum(-2), (y > 0).long())  # the sum of the two views is the point

    def heads(self, r: int) -> tuple[Tensor | None, Tensor | None]:
        return None, None


def _logistic(f: Tensor, y: Tensor) -> Tensor:
    """The loss of each example, for classes 0 and 1."""
    return F.softplus((1 - 2 * y) * f)


def _radii(rules: Sequence[Rule | None], dtype: torch.dtype) -> Tensor | None:
    radii = [None if rule is None else rho_of(rule) for rule in rules]
    return None if None in radii else torch.tensor(radii, dtype=dtype)


class ModuleFleet:
    """Runs of one network and one rule; its rho and the data may differ."""

    collapsed_above = sys.float_info.max
    step_cost = 50
    divides = True
    one_core = False

    def __init__(self, runs: list[ModuleConfig], dtype: torch.dtype) -> None:
        self.runs, self.dtype = runs, dtype
        nets = [run.problem.model(generator(run.seed, "init")) for run in runs]
        self.net = nets[0].to(dtype)
        self.x = _in_front([self._typed(run.problem.x) for run in runs])
        self.y = _in_front([run.problem.y for run in runs])
        self.order = [generator(run.seed, "order") for run in runs]
        self.engine = ModuleRuns(
            self.net,
            runs[0].problem.loss,
            runs[0].rule,
            stacked([dict(net.named_parameters()) for net in nets], dtype),
            lr=torch.tensor([run.lr for run in runs], dtype=dtype),
            rho=_radii([run.rule for run in runs], dtype),
            base=runs[0].base,
        )
        self.done, self.average = 0, dict[str, Tensor]()

    def _typed(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def epoch(self) -> None:
        n, batch = self.y.shape[1], self.runs[0].batch
        order = torch.stack([torch.randperm(n, generator=g) for g in self.order])
        every = torch.arange(len(self.runs))[:, None]
        for start in range(0, n, batch):
            part = order[:, start : start + batch]
            self.engine.step(self.x[every, part], self.y[every, part])
        self.done += 1
        self._average()

    def _average(self) -> None:
        """The plain mean of the weights at the ends of epochs, from the chosen one on."""
        start = self.runs[0].average_from
        if start is not None and self.done >= start:
            share = 1 / (self.done - max(start, 1) + 1)
            for name, t in self.engine.weights.items():
                self.average[name] = self.average[name].lerp(t, share) if name in self.average else t.clone()

    def evaluate(self, r: int, w: dict[str, Tensor]) -> dict[str, float]:
        values = self._values(r, w)
        if self.average:
            averaged = self._values(r, {name: t[r] for name, t in self.average.items()})
            values |= {f"averaged_{name}": value for name, value in averaged.items()}
        return values

    def _values(self, r: int, w: dict[str, Tensor]) -> dict[str, float]:
        problem = self.runs[r].problem
        sets = {"train": (self.x[r], self.y[r])}
        if problem.test is not None:
            sets["test"] = (self._typed(problem.test[0]), problem.test[1])
        values = {}
        for name, (x, y) in sets.items():
            f = functional_call(self.net, w, (x,))
            values["loss" if name == "train" else "test_loss"] = problem.loss(f, y).mean().item()
            if f.ndim == 2 and not y.is_floating_point():
                values[f"{name}_error"] = (f.argmax(1) != y).double().mean().item()
        return values

    def heads(self, r: int) -> tuple[Tensor | None, Tensor | None]:
        return None, None


def _in_front(sets: list[Tensor]) -> Tensor:
    """The data of several runs with the runs in front; one copy where all have the same."""
    if all(t is sets[0] for t in sets):
        return sets[0].expand(len(sets), *sets[0].shape)
    return torch.stack(sets)


def _below(prefix: str, w: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in w.items() if name.startswith(prefix)}


def _share_wrong(margin: Tensor) -> float:
    """The share of points without a positive margin; a tie is an error, and so is NaN."""
    return 1.0 - (margin > 0).double().mean().item()
