"""Frozen features: what any layer of a network says of images, with the network left exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samphire.checks import check_one_of, check_whole
from samphire.models.layers import Normalize
from samphire.optim.scopes import find_head
from samphire.progress import Progress, silent
from samphire.restore import untouched

Pool = Literal["flatten", "mean"]

__all__ = ["Pool", "features"]


def features(
    model: nn.Module,
    images: Any,
    layer: str | None = None,
    *,
    pool: Pool = "flatten",
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 256,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """The frozen features of images, shape (n, d).

    The model runs in evaluation mode, on the device its parameters are on, without gradients. Afterwards the mode of
    each of its modules, its buffers and the state of the random number generators are what they were, also when a
    pass fails.

    Args:
        model: Any network.
        images: An array or tensor with one entry for each example, or an iterable of batches (tensors).
        layer: ``None`` for what the last Linear is given; else a module's name, for what it returns. The name ``""``
            is the model itself: its logits.
        pool: What becomes of more than two dimensions: ``"flatten"`` keeps every entry, ``"mean"`` averages all
            but the second dimension, the channels.
        prepare: From a batch of images to the network's input; by default the model's ``normalize`` if it has one,
            else bytes become floats from 0 to 1 and floats stay as they are.
        batch_size: Examples per pass, where ``images`` is not in batches already.
        progress: Counts examples; only of arrays, since an iterable does not say how many there are.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> images = np.zeros((5, 1, 2, 2), np.uint8)
        >>> features(model, images).shape, features(model, images, "1").shape, features(model, images, "").shape
        ((5, 3), (5, 3), (5, 2))
    """
    check_one_of("pool", pool, ("flatten", "mean"))
    check_whole("batch_size", batch_size)
    as_input: Callable[[Tensor], Tensor] = getattr(model, "normalize", _floats) if prepare is None else prepare
    parameter = next(model.parameters(), torch.empty(0))
    total = len(images) if hasattr(images, "__getitem__") else 0
    parts: list[NDArray[np.float32]] = []
    done = 0
    with untouched(model), _listening(model, layer) as calls:
        for batch in _batches(images, batch_size):
            x = as_input(batch.to(parameter.device))
            model(x.to(parameter.dtype) if x.is_floating_point() else x)
            parts.append(_matrix(_only(calls, layer), pool).float().cpu().numpy())
            calls.clear()
            done += len(batch)
            if total:
                progress("features", done, total)
    if not done:
        raise ValueError("there are no images to compute features of; give at least one.")
    return np.concatenate(parts)


@contextmanager
def _listening(model: nn.Module, layer: str | None) -> Iterator[list[Tensor]]:
    """A list that is given what the layer returns (for ``None``, what the last Linear is given) at each call."""
    calls: list[Tensor] = []
    if layer is None:
        hook = model.get_submodule(find_head(model)).register_forward_pre_hook(lambda _, x: calls.append(x[0]))
    else:
        named = dict(model.named_modules())
        check_one_of("layer of the model", layer, named)
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
