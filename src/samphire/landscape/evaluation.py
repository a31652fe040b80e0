"""The loss of one batch as a function of the weights: of a model, or of any function without data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from samphire.restore import kept_modes, replayed_rng, rng_state

Weights = dict[str, Tensor]

__all__ = [
    "ChosenExamples", "Evaluate", "FunctionLoss", "ModelLoss", "Weights",
    "is_pair", "mode_in_words", "pair", "summed", "total",
]  # fmt: skip


class Evaluate(Protocol):
    """The loss of one batch as a function of the weights."""

    def __call__(self, w: Weights, batch: Any) -> tuple[Tensor, int]:
        """Either every example's loss, or their mean; and the number of examples."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """A context to call it in; afterwards everything is as it was."""


@dataclass(frozen=True, eq=False)
class ModelLoss:
    """The loss of a model, its frozen parameters and buffers held fixed."""

    model: nn.Module
    loss: Callable[[Any, Tensor], Tensor]
    fixed: Weights
    training: bool

    def __call__(self, w: Weights, batch: Any) -> tuple[Tensor, int]:
        x, y = (t.to(next(iter(w.values())).device) for t in pair(batch))
        part = self.loss(torch.func.functional_call(self.model, {**self.fixed, **w}, (x,)), y)
        if not isinstance(part, Tensor) or part.shape not in ((), (len(y),)):
            got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise ValueError(f"the loss of {len(y)} examples must be their mean or a number for each, got {got}.")
        return part, len(y)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        state = rng_state({t.device for t in self.model.parameters()})
        with kept_modes(self.model), replayed_rng(state):
            self.model.train(self.training)
            yield


@dataclass(frozen=True, eq=False)
class FunctionLoss:
    """Any function of the weights, without data."""

    f: Callable[[Weights], Tensor]

    def __call__(self, w: Weights, batch: Any) -> tuple[Tensor, int]:
        value = self.f(w)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the function must give a 0-dim tensor, got {got}.")
        return value.reshape(()), 1

    def undisturbed(self) -> AbstractContextManager[None]:
        return replayed_rng(rng_state(set()))


@dataclass(frozen=True, eq=False)
class ChosenExamples:
    """Batches without the examples that are not chosen."""

    batches: Iterable[Any]
    mask: Tensor

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for x, y in map(pair, self.batches):
            here = self.mask[start : start + len(y)].to(x.device)
            start += len(y)
            if here.any():
                yield x[here], y[here.to(y.device)]


def mode_in_words(model: nn.Module, training: bool) -> str:
    """What evaluation or training mode means for a model's layers."""
    norms = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    drops = sum(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules())
    words = ["training mode" if training else "eval mode"]
    if norms:
        words.append(f"{norms} BatchNorm by {'the statistics of each batch' if training else 'running statistics'}")
    if drops:
        words.append(f"{drops} dropout off")
    return ", ".join(words)


def is_pair(batches: Any) -> bool:
    """Whether it is one batch rather than several."""
    return isinstance(batches, (tuple, list)) and len(batches) == 2 and all(isinstance(t, Tensor) for t in batches)


def pair(batch: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a batch."""
    try:
        x, y = map(torch.as_tensor, batch)
        if len(x) == len(y):
            return x, y
        got = f"{len(x)} inputs and {len(y)} labels"
    except (TypeError, ValueError, RuntimeError):
        got = type(batch).__name__
    raise ValueError(f"each batch must be a pair (x, y) of tensors with as many examples, got {got}.")


def summed(part: Tensor, size: int) -> Tensor:
    """The loss summed over the batch, to differentiate."""
    return part.sum() if part.ndim else part * size


def total(part: Tensor, size: int) -> float:
    """The same as a number, in float64: differences of losses are small."""
    exact = part.detach().cpu().double()
    return (exact.sum() if part.ndim else exact * size).item()
