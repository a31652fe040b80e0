"""A model's features and logits, written to files as they are computed: flat memory, and a stopped audit goes on."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samphire import records
from samphire.audits.seen import Seen, two_columns
from samphire.baselines import refresh_batchnorm
from samphire.data.split import Split
from samphire.optim.scopes import find_head
from samphire.probes import features
from samphire.probes.logistic import Linear
from samphire.progress import Progress, named, silent, stretch

__all__ = ["Reader", "control_features", "fingerprint", "inputs", "plain_inputs", "untrained"]

CHUNK = 512
GRID = 8  # cells a side over which images are averaged


@dataclass(frozen=True)
class Reader:
    """Reads features and logits of one network.

    Args:
        model: The network.
        folder: Where its features are kept; rows that are there are not computed again.
        layer: Where features are read; by default the input of the last Linear.
        batch: Examples per pass.
    """

    model: nn.Module
    folder: Path
    layer: str | None = None
    batch: int = 128

    def head(self, images: Any) -> Linear | None:
        """The last Linear, if the model returns what it returns; single logits become two."""
        if self.layer is not None:
            return None
        linear: Any = self.model.get_submodule(find_head(self.model))
        weight = linear.weight.detach().double().cpu().numpy()
        bias = np.zeros(len(weight)) if linear.bias is None else linear.bias.detach().double().cpu().numpy()
        some = np.asarray(images[: min(len(images), 8)])
        phi, z = (features(self.model, some, layer).astype(np.float64) for layer in (None, ""))
        if phi.shape[1] != weight.shape[1] or z.shape[1] != len(weight):
            return None
        if np.abs(phi @ weight.T + bias - z).max() > 1e-3 * max(float(np.abs(z).max()), 1e-6):
            return None
        if len(weight) == 1:
            weight, bias = (np.concatenate([np.zeros_like(t), t]) for t in (weight, bias))
        return Linear(weight, bias)

    def read(self, part: str, split: Split, head: Linear | None, progress: Progress = silent) -> Seen:
        """Features and logits of a part."""
        phi = self.rows(f"{part}.features", split.images, self.layer, progress)
        if head is not None:
            z = np.concatenate([phi[i : i + 8192] @ head.weight.T + head.bias for i in range(0, len(phi), 8192)])
        else:
            z = two_columns(self.rows(f"{part}.logits", split.images, "", progress))
        return Seen(split, phi, z)

    def rows(self, name: str, images: Any, layer: str | None, progress: Progress = silent) -> NDArray[np.float32]:
        """What a layer says of images, as a map of a file that grows by some examples at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file, count = self.folder / f"{name}.npy", self.folder / f"{name}.rows"
        n = len(images)
        done = int(count.read_text()) if count.exists() and file.exists() else 0
        stored: Any = np.load(file, mmap_mode="r+") if done else None
        for start in range(done, n, CHUNK):
            chunk = features(self.model, images[start : start + CHUNK], layer, batch_size=self.batch)
            if stored is None:
                shape = (n, chunk.shape[1])
                stored = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
            stored[start : start + len(chunk)] = chunk
            stored.flush()
            records.write_atomic(count, str(start + len(chunk)).encode())
            progress(f"features ({name.partition('.')[0]})", start + len(chunk), n)
        result: NDArray[np.float32] = np.load(file, mmap_mode="r")
        return result


def fingerprint(model: nn.Module, *others: Any) -> str:
    """A name for a network's weights and for what else its features depend on."""
    summed = hashlib.sha256(repr(others).encode())
    for name, t in model.state_dict().items():
        summed.update(name.encode())
        summed.update(
            t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        )
    return summed.hexdigest()[:16]


def inputs(model: nn.Module, images: Any) -> Tensor:
    """Examples as the network takes them, on its device; :func:`samphire.probes.features` prepares them alike."""
    parameter = next(model.parameters())
    x = torch.as_tensor(np.array(images)).to(parameter.device)
    normalize: Any = getattr(model, "normalize", None)
    x = normalize(x) if callable(normalize) else x
    return x.to(parameter.dtype) if x.is_floating_point() else x


def untrained(model: nn.Module, images: Any, seed: int = 0) -> nn.Module:
    """The same network with fresh random weights: a control that has seen no data.

    Every layer that can draws its weights anew; a layer that cannot has the entries of its own parameters shuffled.
    BatchNorm takes its statistics from some images, or the signal would vanish on the way. The model itself is left
    as it is.

    Args:
        model: Any network.
        images: Some examples, as its parts have them.
        seed: Of the weights.
    """
    fresh: Any = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
            else:
                _shuffle(module.parameters(recurse=False))
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in fresh.modules()):
            refresh_batchnorm(fresh, inputs(model, images[: min(len(images), 256)]).split(64))
    control: nn.Module = fresh.eval()
    return control


@torch.no_grad()
def _shuffle(parameters: Iterable[nn.Parameter]) -> None:
    for p in parameters:
        p.copy_(p.flatten()[torch.randperm(p.numel())].view_as(p))


def plain_inputs(images: Any, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """The examples themselves as features: images as the means of 8 x 8 cells, rows of numbers as they are.

    What a linear probe reads here needs no network. A deep network with random weights shows less, since the signal
    fades from layer to layer. ``None`` for inputs that are neither, such as tokens.

    Args:
        images: The examples of a part.
        rows: Those to take.

    Example:
        >>> plain_inputs(np.full((5, 3, 16, 16), 7, np.uint8), np.array([0, 3])).shape
        (2, 192)
    """
    return np.concatenate(pieces) if (pieces := list(_pieces(images, rows))) else None


def _pieces(images: Any, rows: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(rows), CHUNK):
        x = torch.as_tensor(np.asarray(images[rows[start : start + CHUNK]]))
        if x.ndim == 4:
            height, width = (min(GRID, side) for side in x.shape[2:])
            yield nn.functional.adaptive_avg_pool2d(x.float(), (height, width)).flatten(1).numpy()
        elif x.ndim == 2 and x.is_floating_point():
            yield x.float().numpy()


def control_features(
    reader: Reader, parts: Mapping[str, Split], rows: Mapping[str, Mapping[str, Any]], progress: Progress = silent
) -> dict[str, dict[str, Any]]:
    """By attribute and part: a control's features of the probed rows, each image read once.

    Args:
        reader: Of the control.
        parts: ``val`` and ``test``.
        rows: By attribute and part: the rows that are probed.
        progress: Counts examples.
    """
    result: dict[str, dict[str, Any]] = {name: {} for name in rows}
    for i, (part, split) in enumerate(parts.items()):
        union = np.unique(np.concatenate([chosen[part] for chosen in rows.values()]))
        share = named(stretch(progress, i / len(parts), (i + 1) / len(parts)), "controls")
        phi = reader.rows(f"{part}.features", _Chosen(split.images, union), reader.layer, share)
        for name, chosen in rows.items():
            result[name][part] = phi[np.searchsorted(union, chosen[part])]
    return result


class _Chosen:
    """Some of the images, copied when they are asked for."""

    def __init__(self, images: Any, rows: NDArray[np.int64]) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Any:
        return self.images[self.rows[part]]
