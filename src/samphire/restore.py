"""Leave a model as it was: its modes, buffers, gradients, random numbers and threads, also after an exception.

What changes something for a while notes the way back in an :class:`Undo` first, so that no interrupt, wherever it
comes, finds a change that nobody can take back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

RngState = dict[torch.device, Tensor]

__all__ = [
    "RngState", "Undo", "data_parallel", "evaluation_mode", "freeze", "has_drawn", "keep_buffers", "kept_grad_mode",
    "kept_modes", "replay_rng", "replayed_rng", "rng_state", "set_grads_aside", "set_rng_state", "threads",
    "undone", "untouched", "unwrapped",
]  # fmt: skip


class Undo:
    """The way back: each step is noted before the change that it undoes, and taken in reverse order.

    A step must do no harm when it is taken twice: an interrupt may come between taking it and forgetting it. Then the
    rest of the way is still noted, and :meth:`back` can be called again.

    Example:
        >>> undo, lights = Undo(), ["on"]
        >>> undo.note(lambda: lights.__setitem__(0, "on"))
        >>> lights[0] = "off"
        >>> undo.back()
        >>> lights, len(undo)
        (['on'], 0)
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def note(self, step: Callable[[], object]) -> None:
        """Note how to undo what comes next."""
        self._steps.append(step)

    def back(self, to: int = 0) -> None:
        """Go back until only this many steps are left."""
        while len(self._steps) > to:
            self._steps[-1]()
            del self._steps[-1]

    def forget(self) -> None:
        """The changes are meant to stay."""
        self._steps.clear()


@contextmanager
def undone() -> Iterator[Undo]:
    """Undo at the end of a block what was noted in it."""
    undo = Undo()
    try:
        yield undo
    finally:
        undo.back()


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
    with torch.no_grad(), evaluation_mode(model), undone() as undo, replayed_rng(state):
        keep_buffers(model, undo)
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


def keep_buffers(model: nn.Module, undo: Undo) -> None:
    """Have every buffer put back, bit for bit: BatchNorm of any kind, EMAs, observers, spectral norm.

    Copies, rather than momentum set to zero, so that it holds for ``momentum=None``, for buffers that are
    replaced instead of written to, and when nested.

    Example:
        >>> bn = nn.BatchNorm1d(2)
        >>> with undone() as undo:
        ...     keep_buffers(bn, undo)
        ...     _ = bn(torch.randn(4, 2))
        >>> bn.num_batches_tracked.item()
        0
    """
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    def put_back() -> None:
        for module, name, buffer, _ in kept:
            module._buffers[name] = buffer
        # By .data, for a graph from before that has saved a buffer: to autograd the buffer has not changed.
        torch._foreach_copy_([buffer.data for *_, buffer, _ in kept], [copy for *_, copy in kept])

    if kept:
        undo.note(put_back)


def freeze(parameters: Sequence[nn.Parameter], undo: Undo) -> None:
    """No gradient for some trainable parameters: autograd neither computes it nor goes deeper than it must."""
    undo.note(lambda: [p.requires_grad_(True) for p in parameters])
    for p in parameters:
        p.requires_grad_(False)


def set_grads_aside(parameters: Sequence[nn.Parameter], undo: Undo) -> None:
    """Let the gradients of some parameters start from none; those they have come back."""
    kept = [p.grad for p in parameters]

    def put_back() -> None:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad

    undo.note(put_back)
    for p in parameters:
        p.grad = None


def rng_state(devices: set[torch.device]) -> RngState:
    """The state of torch's random number generators on the CPU and on these devices."""
    states = {torch.device("cpu"): torch.get_rng_state()}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


def has_drawn(states: RngState) -> bool:
    """Whether random numbers were drawn since a recorded state."""
    now = rng_state(set(states))
    return any(not torch.equal(state, now[device]) for device, state in states.items())


def replay_rng(states: RngState, undo: Undo) -> None:
    """Draw the random numbers that followed a recorded state again; the way back leads to where we are now."""
    now = rng_state(set(states))
    undo.note(lambda: set_rng_state(now))
    set_rng_state(states)


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
    with undone() as undo:
        replay_rng(states, undo)
        yield


@contextmanager
def kept_grad_mode(enabled: bool | None = None) -> Iterator[None]:
    """Put torch's recording of gradients back as it was; within the block on, off or as it is.

    An interrupt inside torch's own ``no_grad`` can leave it off for good.
    """
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(before if enabled is None else enabled)
        yield
    finally:
        torch.set_grad_enabled(before)


def set_rng_state(states: RngState) -> None:
    """Put generators into recorded states."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Let torch use some threads in a block; small operations are faster on one than waiting for a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
