"""Leave a model as it was: its modes, buffers, gradients and random numbers, also after an exception."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

RngState = dict[torch.device, Tensor]

__all__ = [
    "RngState", "data_parallel", "evaluation_mode", "frozen", "kept_buffers", "kept_grads", "kept_modes",
    "replayed_rng", "rng_state", "set_rng_state", "untouched", "unwrapped",
]  # fmt: skip


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile and DistributedDataParallel.

    Example:
        >>> unwrapped(torch.compile(nn.Linear(2, 1)))
        Linear(in_features=2, out_features=1, bias=True)
    """
    *_, innermost = _from_outside_in(model)
    return innermost


def data_parallel(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel around a model, if there is one; torch.compile may be around that."""
    return next((module for module in _from_outside_in(model) if isinstance(module, DistributedDataParallel)), None)


def _from_outside_in(model: nn.Module) -> Iterator[nn.Module]:
    yield model
    if isinstance(model, DistributedDataParallel):
        yield from _from_outside_in(model.module)
    elif hasattr(model, "_orig_mod"):
        yield from _from_outside_in(model._orig_mod)  # type: ignore[arg-type]


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards modes, buffers and random number generators are as before.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
        >>> with untouched(model):
        ...     [module.training for module in model]
        [False, False]
        >>> [module.training for module in model]
        [True, False]
    """
    state = rng_state({p.device for p in model.parameters()})
    with torch.no_grad(), evaluation_mode(model), kept_buffers(model), replayed_rng(state):
        yield


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Put the training mode of every module back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluate: BatchNorm by its running statistics, no dropout; afterwards every module has its own mode again."""
    with kept_modes(model):
        model.eval()
        yield


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put every buffer back afterwards, bit for bit: BatchNorm of any kind, EMAs, observers, spectral norm.

    Copies, rather than momentum set to zero, so that it holds for ``momentum=None``, for buffers that are
    replaced instead of written to, and when nested.

    Example:
        >>> bn = nn.BatchNorm1d(2)
        >>> with kept_buffers(bn):
        ...     _ = bn(torch.randn(4, 2))
        >>> bn.num_batches_tracked.item()
        0
    """
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, name, buffer, _ in kept:
            module._buffers[name] = buffer
        if kept:
            with torch.no_grad():  # by .data, for graphs from before the block that have saved a buffer
                torch._foreach_copy_([buffer.data for *_, buffer, _ in kept], [copy for *_, copy in kept])


@contextmanager
def frozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """No gradient for some trainable parameters: autograd neither computes it nor goes deeper than it must."""
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


@contextmanager
def kept_grads(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Put the gradients of some parameters back afterwards; in between they start from none."""
    kept = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad


def rng_state(devices: set[torch.device]) -> RngState:
    """The state of torch's random number generators on the CPU and on these devices."""
    states = {torch.device("cpu"): torch.get_rng_state()}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


@contextmanager
def replayed_rng(states: RngState) -> Iterator[None]:
    """Draw the random numbers that followed a recorded state again, then go on where we were.

    Example:
        >>> start = rng_state(set())
        >>> mask = torch.rand(3)
        >>> with replayed_rng(start):
        ...     torch.equal(torch.rand(3), mask)
        True
    """
    now = rng_state(set(states))
    set_rng_state(states)
    try:
        yield
    finally:
        set_rng_state(now)


def set_rng_state(states: RngState) -> None:
    """Put generators into recorded states."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
