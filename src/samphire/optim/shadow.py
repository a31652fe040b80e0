"""A pass that leaves no trace: buffers as they were, and the same random numbers as the pass before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

RngState = dict[torch.device, Tensor]

_in_shadow_pass: ContextVar[bool] = ContextVar("in_shadow_pass", default=False)


def in_shadow_pass() -> bool:
    """Whether the code that asks runs in a repeat at displaced weights, whatever loop it is called from.

    What must happen once per step (the state of a loss, a meter) happens when this is False.

    Example:
        >>> in_shadow_pass()
        False
    """
    return _in_shadow_pass.get()


@contextmanager
def marked() -> Iterator[None]:
    """Mark a block as a shadow pass."""
    before = _in_shadow_pass.get()
    _in_shadow_pass.set(True)
    try:
        yield
    finally:
        _in_shadow_pass.set(before)


@contextmanager
def frozen_buffers(model: nn.Module) -> Iterator[None]:
    """Put every buffer back afterwards, bit for bit: BatchNorm of any kind, EMAs, observers, spectral norm.

    Copies, rather than momentum set to zero, so that it holds for ``momentum=None``, for buffers that are
    replaced instead of written to, and when nested.

    Example:
        >>> bn = nn.BatchNorm1d(2)
        >>> with frozen_buffers(bn):
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
            with torch.no_grad():
                torch._foreach_copy_([buffer for *_, buffer, _ in kept], [copy for *_, copy in kept])


def rng_state(devices: set[torch.device]) -> RngState:
    """The state of torch's random number generators on the CPU and on these devices."""
    states = {torch.device("cpu"): torch.get_rng_state()}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_rng_state(states: RngState) -> None:
    """Put generators into recorded states."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


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
