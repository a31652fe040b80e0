"""Gradients that somebody else's backward left before a step; closures that run none, or were left out."""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor, nn

__all__ = ["Leftovers", "backwards_noticed", "refuse_left_out_closures", "zeroing_expected"]

CALLERS = 8  # frames to look at: profilers and schedulers of torch stand between a wrapper's step and ours


class Leftovers:
    """The gradients a step leaves in ``.grad``, remembered so that others are known from them."""

    def __init__(self) -> None:
        self._ours: list[tuple[weakref.ref[Tensor], int] | None] = []

    def note(self, parameters: Iterable[nn.Parameter]) -> None:
        """These gradients are ours."""
        grads = [p.grad for p in parameters]
        self._ours = [None if grad is None else (weakref.ref(grad), grad._version) for grad in grads]

    def strangers(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """The parameters whose gradient came after the last step, or was added to since."""
        ours = iter(self._ours)
        return [p for p in parameters if not _is(p.grad, next(ours, None))]

    def __getstate__(self) -> dict[str, object]:
        return {"_ours": []}


def _is(grad: Tensor | None, ours: tuple[weakref.ref[Tensor], int] | None) -> bool:
    return grad is None or (ours is not None and ours[0]() is grad and ours[1] == grad._version)


@contextmanager
def zeroing_expected(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Refuse a closure that adds to gradients it should have zeroed.

    A gradient of an earlier backward was taken at undisplaced weights: nothing added to it makes it the gradient of a
    rule. So the smallest of the parameters gets a huge gradient instead of the one it had; where that is still there
    after the closure, the others would be too.
    """
    probe = min(parameters, key=Tensor.numel, default=None)
    if probe is None:
        yield
        return
    huge = torch.finfo(probe.dtype).max / 2
    probe.grad = torch.full_like(probe, huge)
    yield
    if probe.grad is not None and bool((probe.grad > huge / 2).all()):
        raise RuntimeError(
            "step(closure) met gradients of an earlier backward that the closure does not zero: micro-batches "
            "accumulated without the optimizer, so that no rule can perturb for them. Call opt.gradient(closure) for "
            "each micro-batch and then opt.step(), or give step() a list of closures; or zero_grad() in the closure."
        )


@contextmanager
def backwards_noticed(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The parameters whose gradient is computed during a block."""
    parameters = list(parameters)
    before = [p.grad for p in parameters]
    seen: list[nn.Parameter] = []
    hooks = [p.register_post_accumulate_grad_hook(seen.append) for p in parameters if p.requires_grad]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
    seen += [p for p, grad in zip(parameters, before, strict=True) if p.grad is not grad]  # no hooks on shards


def refuse_left_out_closures() -> None:
    """Refuse a step for accelerate's accumulation, which hands over the closure of a window's last batch alone."""
    accelerate = sys.modules.get("accelerate")
    if accelerate is None or (batches := accelerate.state.GradientState().num_steps) == 1:
        return
    callers = (frame.f_locals.get("self") for frame, _ in islice(traceback.walk_stack(None), CALLERS))
    if any(isinstance(caller, accelerate.optimizer.AcceleratedOptimizer) for caller in callers):
        raise RuntimeError(
            f"accelerate accumulates {batches} batches, but leaves out the closures of all but the last; prepare "
            "with samphire.integrations.accelerate.prepare, and give each batch to opt.gradient(run, batch)."
        )
