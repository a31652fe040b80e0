"""Frozen features: what any layer of a network says of images, with the network left exactly as it was."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samphire.models.layers import Normalize
from samphire.optim.scopes import last_linear
from samphire.restore import untouched

Pool = Literal["flatten", "mean"]


def features(
    model: nn.Module,
    images: Any,
    layer: str | None = None,
    *,
    pool: Pool = "flatten",
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """The frozen features of images, shape (n, d).

    The model runs in evaluation mode, on the device its parameters are on, without gradients. Afterwards the mode of
    each of its modules, its buffers and the state of the random number generators are what they were, also when a
    pass fails.

    Args:
        model: Any network.
        images: An array or tensor whose first dimension counts examples, or an iterable of batches (tensors).
        layer: ``None`` for what the last Linear is given; else a module's name, for what it returns. The name ``""``
            is the model itself: its logits.
        pool: What becomes of more than two dimensions: ``"flatten"`` keeps every entry, ``"mean"`` averages all
            but the second dimension, the channels.
        prepare: From a batch of images to the network's input; by default the model's ``normalize`` if it has one,
            else bytes become floats from 0 to 1 and floats stay as they are.
        batch_size: Examples per pass, where ``images`` is not in batches already.
        progress: Called with the examples done and their number; only for arrays, whose number is known.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> images = np.zeros((5, 1, 2, 2), np.uint8)
        >>> features(model, images).shape, features(model, images, "1").shape, features(model, images, "").shape
        ((5, 3), (5, 3), (5, 2))
    """
    options: dict[str, Any] = {"pool": pool, "prepare": prepare, "batch_size": batch_size, "progress": progress}
    return activations(model, images, (layer,), **options)[0]


def activations(
    model: nn.Module,
    images: Any,
    layers: Sequence[str | None],
    *,
    pool: Pool = "flatten",
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """The features of several layers in one pass over the images; see :func:`features`.

    Args:
        model: As there.
        images: As there.
        layers: Their names, or ``None`` for what the last Linear is given.
        pool: As there.
        prepare: As there.
        batch_size: As there.
        progress: As there.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        >>> hidden, logits = activations(model, torch.ones(5, 4), [None, ""])
        >>> hidden.shape, logits.shape
        ((5, 3), (5, 2))
    """
    if pool not in ("flatten", "mean"):
        raise ValueError(f"pool must be 'flatten' or 'mean', got {pool!r}.")
    if not batch_size >= 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size!r}.")
    as_input: Callable[[Tensor], Tensor] = getattr(model, "normalize", _floats) if prepare is None else prepare
    parameter = next(model.parameters(), torch.empty(0))
    total = len(images) if hasattr(images, "__getitem__") else None
    parts: list[list[NDArray[np.float32]]] = [[] for _ in layers]
    done = 0
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        caught = [stack.enter_context(_listening(model, layer)) for layer in layers]
        for batch in _batches(images, batch_size):
            x = as_input(batch.to(parameter.device))
            model(x.to(parameter.dtype) if x.is_floating_point() else x)
            for layer, calls, part in zip(layers, caught, parts, strict=True):
                part.append(_matrix(_only(calls, layer), pool).float().cpu().numpy())
                calls.clear()
            done += len(batch)
            if progress is not None and total is not None:
                progress(done, total)
    if not done:
        raise ValueError("there are no images to compute features of; give at least one.")
    return [np.concatenate(part) for part in parts]


@contextmanager
def _listening(model: nn.Module, layer: str | None) -> Iterator[list[Tensor]]:
    """A list that is given what the layer returns (for ``None``, what the last Linear is given) at each call."""
    calls: list[Tensor] = []
    if layer is None:
        hook = model.get_submodule(last_linear(model)).register_forward_pre_hook(lambda _, x: calls.append(x[0]))
    else:
        named = dict(model.named_modules())
        if layer not in named:
            close = difflib.get_close_matches(layer, named, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(filter(None, named))}."
            raise ValueError(f"the model has no layer named {layer!r}; {hint}")
        hook = named[layer].register_forward_hook(lambda _, __, out: calls.append(out))
    try:
        yield calls
    finally:
        hook.remove()


def _only(calls: list[Any], layer: str | None) -> Tensor:
    name = "the last Linear" if layer is None else f"layer {layer!r}"
    if len(calls) != 1:
        raise ValueError(f"{name} ran {len(calls)} times in one pass; name a layer that runs once.")
    if not isinstance(calls[0], Tensor):
        raise TypeError(f"{name} returned {type(calls[0]).__name__}, not a tensor; name a layer inside it.")
    return calls[0]


def _matrix(x: Tensor, pool: Pool) -> Tensor:
    if pool == "mean" and x.ndim > 2:
        return x.flatten(2).mean(2)
    return x.reshape(len(x), -1)


def _batches(images: Any, batch_size: int) -> Iterator[Tensor]:
    if not hasattr(images, "__getitem__"):
        batches: Iterable[Any] = images
        yield from (torch.as_tensor(batch) for batch in batches)
        return
    for start in range(0, len(images), batch_size):
        part = images[start : start + batch_size]
        yield part if isinstance(part, Tensor) else torch.tensor(np.asarray(part))


def _floats(images: Tensor) -> Tensor:
    return Normalize()(images) if images.dtype == torch.uint8 else images
