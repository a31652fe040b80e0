"""Frozen features: what any layer of a network says of its inputs, with the network left exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samphire.checks import check_one_of, check_whole
from samphire.optim.scopes import find_head
from samphire.progress import Progress, silent
from samphire.restore import untouched

Pool = Literal["flatten", "channels", "tokens", "cls"]
ANSWERS = ("label", "labels", "y", "target", "targets")  # entries of a batch that a network is not given

__all__ = ["Pool", "features"]


def features(
    model: nn.Module,
    images: Any,
    layer: str | nn.Module | None = None,
    *,
    pool: Pool = "flatten",
    prepare: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 256,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """The frozen features of images or other inputs, shape (n, d).

    The model runs in evaluation mode, on the device its parameters are on, without gradients. Afterwards the mode of
    each of its modules, its buffers and the state of the random number generators are what they were, also when a
    pass fails.

    Args:
        model: Any network.
        images: An array or tensor with one entry for each example, or an iterable of batches, such as a DataLoader:
            tensors, ``(input, label, ...)`` tuples, or dicts, which the model is given by name, without the labels.
        layer: ``None`` for what the last Linear is given; else a module or its name, for what it returns. The name
            ``""`` is the model itself: its logits.
        pool: What becomes of more than two dimensions. ``"flatten"`` keeps every entry. ``"channels"``: (n, channels,
            height, width) is averaged over height and width. ``"tokens"``: (n, tokens, d) is averaged over the tokens
            (those that ``attention_mask`` names, if the batch has one). ``"cls"``: the first token.
        prepare: From a batch of inputs to the network's; by default the model's ``normalize`` if it has one. Floats
            and whole numbers then stay as they are; bytes are refused, since their scale is not known.
        batch_size: Examples per pass, where ``images`` is not in batches already.
        progress: Counts examples; only of arrays, since an iterable does not say how many there are.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> images = np.zeros((5, 1, 2, 2), np.float32)
        >>> features(model, images).shape, features(model, images, "1").shape, features(model, images, "").shape
        ((5, 3), (5, 3), (5, 2))
        >>> tokens = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 2))
        >>> features(tokens, np.zeros((5, 3), np.int64), tokens[0], pool="tokens").shape
        (5, 4)
    """
    check_one_of("pool", pool, ("flatten", "channels", "tokens", "cls"))
    check_whole("batch_size", batch_size)
    total = len(images) if _is_array(images) else 0
    parts: list[NDArray[np.float32]] = []
    done = 0
    with untouched(model), _listening(model, layer) as calls:
        for batch in _batches(images, batch_size):
            mask = _run(model, batch, prepare)
            parts.append(_matrix(_only(calls, layer), pool, mask).float().cpu().numpy())
            calls.clear()
            done += len(parts[-1])
            if total:
                progress("features", done, total)
    if not done:
        raise ValueError("there are no images to compute features of; give at least one.")
    return np.concatenate(parts)


# A batch through the model


def _run(model: nn.Module, batch: Any, prepare: Callable[[Tensor], Tensor] | None) -> Tensor | None:
    """Run the model on a batch; returns the mask of its tokens, if the batch has one."""
    parameter = next(model.parameters(), torch.empty(0))
    if not isinstance(batch, Mapping):
        x = _prepared(model, _tensor(batch).to(parameter.device), prepare)
        model(x.to(parameter.dtype) if x.is_floating_point() else x)
        return None
    given = {name: _tensor(x).to(parameter.device) for name, x in batch.items() if name not in ANSWERS}
    named = {name: _prepared(model, x, prepare) if x.ndim > 2 else x for name, x in given.items()}
    model(**{name: x.to(parameter.dtype) if x.is_floating_point() else x for name, x in named.items()})
    return given.get("attention_mask")


def _prepared(model: nn.Module, x: Tensor, prepare: Callable[[Tensor], Tensor] | None) -> Tensor:
    if prepare is not None:
        return prepare(x)
    normalize: Any = getattr(model, "normalize", None)
    if callable(normalize):
        scaled: Tensor = normalize(x)
        return scaled
    if x.dtype == torch.uint8:
        raise ValueError(
            f"images are bytes from 0 to 255, but {type(model).__name__} does not say the scale of its inputs; set "
            "model.normalize = samphire.models.Normalize(mean, std), or pass prepare=, or give floats."
        )
    return x


def _is_array(images: Any) -> bool:
    """Whether there is an entry for each example; lists of dicts and of tuples are batches."""
    if isinstance(images, (list, tuple)):
        return not images or not isinstance(images[0], (Mapping, tuple, list))
    return isinstance(images, (np.ndarray, Tensor))


def _batches(images: Any, batch_size: int) -> Iterator[Any]:
    """Batches as they are given, without the labels of tuples; arrays are cut into some."""
    if _is_array(images):
        yield from (images[start : start + batch_size] for start in range(0, len(images), batch_size))
        return
    if not hasattr(images, "__iter__"):
        raise TypeError(
            f"images must be an array, a tensor or batches, got {type(images).__name__}; decode files first, "
            "see samphire.data.parts.at_size."
        )
    batches: Iterable[Any] = images
    yield from (batch[0] if isinstance(batch, (tuple, list)) else batch for batch in batches)


def _tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else torch.tensor(np.asarray(x))


# What a layer says


@contextmanager
def _listening(model: nn.Module, layer: str | nn.Module | None) -> Iterator[list[Any]]:
    """A list that is given what the layer returns (for ``None``, what the last Linear is given) at each call."""
    calls: list[Any] = []
    if layer is None:
        hook = model.get_submodule(find_head(model)).register_forward_pre_hook(lambda _, x: calls.append(x[0]))
    else:
        hook = _module(model, layer).register_forward_hook(lambda _, __, out: calls.append(out))
    try:
        yield calls
    finally:
        hook.remove()


def _module(model: nn.Module, layer: str | nn.Module) -> nn.Module:
    named = dict(model.named_modules())
    if not isinstance(layer, nn.Module):
        check_one_of("layer of the model", layer, named)
        return named[layer]
    if not any(layer is module for module in named.values()):
        raise ValueError(f"layer {type(layer).__name__} is no part of the model; give one of its modules, or a name.")
    return layer


def _only(calls: list[Any], layer: str | nn.Module | None) -> Tensor:
    name = (
        "the last Linear" if layer is None else f"layer {layer if isinstance(layer, str) else type(layer).__name__!r}"
    )
    if len(calls) != 1:
        raise ValueError(f"{name} ran {len(calls)} times in one pass; name a layer that runs once.")
    return _main_tensor(calls[0], name)


def _main_tensor(out: Any, name: str) -> Tensor:
    """A tensor; of outputs with names the logits or the last hidden state; of a tuple the first entry."""
    for field in ("logits", "last_hidden_state"):
        if isinstance(getattr(out, field, None), Tensor):
            return getattr(out, field)
        if isinstance(out, Mapping) and isinstance(out.get(field), Tensor):
            return out[field]
    if isinstance(out, (tuple, list)) and out:
        out = out[0]
    if not isinstance(out, Tensor):
        raise TypeError(f"{name} returned {type(out).__name__}, not a tensor; name a layer inside it.")
    return out


def _matrix(x: Tensor, pool: Pool, mask: Tensor | None) -> Tensor:
    """Features as one row for each example."""
    if x.ndim <= 2 or pool == "flatten":
        return x.reshape(len(x), -1)
    needed = {"channels": 4, "tokens": 3, "cls": 3}[pool]
    if x.ndim != needed:
        axes = {"channels": "(n, channels, height, width)", "tokens": "(n, tokens, d)", "cls": "(n, tokens, d)"}[pool]
        other = "channels" if x.ndim == 4 else "tokens" if x.ndim == 3 else "flatten"
        raise ValueError(f"pool={pool!r} needs features {axes}, got shape {tuple(x.shape)}; take pool={other!r}.")
    if pool == "channels":
        return x.mean((2, 3))
    if pool == "cls":
        return x[:, 0]
    if mask is None:
        return x.mean(1)
    weight = mask.to(x.dtype)[:, :, None]
    return (x * weight).sum(1) / weight.sum(1).clamp_min(1)
