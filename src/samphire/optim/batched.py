r"""Many small runs as one computation: every tensor has a leading axis, the runs, and no sum ever crosses it.

:class:`ModuleRuns` is for any module and any rule, by ``torch.func.vmap`` of the reference;
:class:`~samphire.optim.feature_runs.FeatureRuns` is faster, for the toy's algorithms alone. Both have one face,
``step(x, y)`` on ``weights`` (``{name: (runs, ...)}``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from samphire.optim.requests import LossOfOutputs, Memory, Rule, bind, branches, drive, gradient_at, with_rho

__all__ = ["Base", "ModuleRuns", "Weights", "stacked"]

Weights = dict[str, Tensor]
Base = Callable[..., torch.optim.Optimizer]


class ModuleRuns:
    r"""Runs of any module under one rule, each with its own weights, batches, radius and learning rate.

    .. math:: w_r \leftarrow \text{base}_{\eta_r}\bigl(w_r,\, G(w_r; \rho_r)\bigr), \qquad
              G \text{ the rule's gradient on the run's batch.}

    The base optimizer is torch's own, on the stacked weights: what acts on every number by itself, as SGD, Adam and
    AdamW do, does for each run what it would do for that run alone. A part of the rule's answer that goes past the
    base (:class:`~samphire.optim.requests.Descent`) is applied after it.

    A rule that branches on numbers of its run, as ``ae_sam`` does, cannot be one computation: its runs step one after
    the other, which takes as long as a loop over them.

    Args:
        model: The module; its own weights are not used. It must not write to buffers, as BatchNorm does in training.
        loss: Of the model's output and the targets; of each example, for rules that rank or weigh them.
        rule: The rule, or ``None`` for the plain gradient. Its own rho is not used if ``rho`` is given.
        weights: Shape (R, ...) under the model's names. They are copied, not written to.
        lr: Shape (R,).
        rho: Shape (R,).
        base: Makes the base optimizer from parameter groups; plain SGD unless given, for instance
            ``partial(torch.optim.SGD, momentum=0.9)``. It must not mix the numbers of a tensor, as LBFGS does.

    Example:
        >>> from samphire.optim.rules import sam
        >>> w = {"weight": torch.tensor([[[1.0]], [[1.0]]])}  # two runs of a 1-1 linear layer
        >>> runs = ModuleRuns(nn.Linear(1, 1, bias=False), lambda f, y: (f - y).square().mean() / 2, sam(),
        ...                   w, lr=torch.tensor([0.1, 0.1]), rho=torch.tensor([0.0, 0.5]))
        >>> runs.step(torch.ones(2, 3, 1), torch.zeros(2, 3, 1))
        >>> runs.weights["weight"].flatten()
        tensor([0.9000, 0.8500])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        rule: Rule | None,
        weights: Weights,
        lr: Tensor,
        rho: Tensor | None = None,
        base: Base = torch.optim.SGD,
    ) -> None:
        self.model, self.loss, self.lr, self.rho = model, loss, lr, rho
        self.weights = {name: t.clone() for name, t in weights.items()}
        self._stretches = _equal_stretches(lr.tolist())
        groups = [{"params": [t[runs] for t in self.weights.values()], "lr": rate} for runs, rate in self._stretches]
        self.base = base(groups)
        self.rule = None if rule is None else bind(rule, model)
        self._memory = Memory().state()
        self._tensors: list[Tensor] = []
        self._alone = [Memory() for _ in lr] if rule is not None and branches(rule) else []  # a run each, or none

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of every run: ``x`` (R, B, ...), ``y`` (R, B, ...); whole numbers in ``y`` are classes."""
        rho = torch.zeros_like(self.lr) if self.rho is None else self.rho
        gradient, directly = self._descents(rho, x, y)
        for group, (runs, _) in zip(self.base.param_groups, self._stretches, strict=True):
            for name, p in zip(self.weights, group["params"], strict=True):
                p.grad = gradient[name][runs] if name in gradient else None
        with torch.no_grad():
            self.base.step()
            for name, t in directly.items():
                self.weights[name] -= self.lr.view(-1, *[1] * (t.ndim - 1)) * t

    def _descents(self, rho: Tensor, x: Tensor, y: Tensor) -> tuple[Weights, Weights]:
        """What every run descends along, through the base optimizer and past it."""
        if not self._alone:
            together = torch.func.vmap(self._remembered, randomness="same")  # a rule draws by its own seed and step
            gradient, directly, self._tensors = together(self.weights, self._tensors, rho, x, y)
            return gradient, directly
        runs = enumerate(zip(self._alone, rho, x, y, strict=True))
        each = [self._descent({name: t[r] for name, t in self.weights.items()}, *rest) for r, rest in runs]
        gradient, directly = (stacked(parts, self.lr.dtype) for parts in zip(*each, strict=True))
        return gradient, directly

    def _remembered(
        self, w: Weights, tensors: list[Tensor], rho: Tensor, x: Tensor, y: Tensor
    ) -> tuple[Weights, Weights, list[Tensor]]:
        memory = self._remember(tensors, w)
        return *self._descent(w, memory, rho, x, y), self._keep(memory)

    def _descent(self, w: Weights, memory: Memory, rho: Tensor, x: Tensor, y: Tensor) -> tuple[Weights, Weights]:
        """What one run descends along."""
        loss = LossOfOutputs(
            lambda w, examples=slice(None): torch.func.functional_call(self.model, w, (x[examples],)),
            lambda out, examples=slice(None): self.loss(out, y[examples]),
        )
        if self.rule is None:
            return torch.func.grad(loss)(w), {}
        memory.n, memory.labels = len(x), None if y.is_floating_point() else y
        rule = self.rule if self.rho is None else with_rho(self.rule, rho)
        descent = drive(rule, w, memory, gradient_at(loss, w))
        return descent.gradient.dense(), descent.directly.dense()

    def _remember(self, tensors: list[Tensor], w: Weights) -> Memory:
        """The rule's memory of one run: its numbers are the same for all runs, its tensors came through vmap."""
        kept = iter(tensors)
        state = pytree.tree_map(lambda leaf: next(kept) if leaf is None else leaf, self._memory, is_leaf=_is_none)
        return Memory.from_state(state, w)

    def _keep(self, memory: Memory) -> list[Tensor]:
        leaves, spec = pytree.tree_flatten(memory.state())
        self._memory = pytree.tree_unflatten([None if isinstance(t, Tensor) else t for t in leaves], spec)
        return [t for t in leaves if isinstance(t, Tensor)]


def _equal_stretches(values: Sequence[float]) -> list[tuple[slice, float]]:
    """Adjacent entries of equal value: where they are, and the value."""
    stretches, start = [], 0
    for value, same in groupby(values):
        stop = start + len(list(same))
        stretches.append((slice(start, stop), value))
        start = stop
    return stretches


def _is_none(leaf: Any) -> bool:
    return leaf is None


def stacked(weights: Sequence[Mapping[str, Tensor]], dtype: torch.dtype) -> Weights:
    """The weights of several runs as one, with the runs in front."""
    return {name: torch.stack([w[name].detach().to(dtype) for w in weights]) for name in weights[0]}
