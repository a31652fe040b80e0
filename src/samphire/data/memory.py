"""Data that are in Python already as rows: arrays, frames, torch data sets and loaders."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.data.coding import plain_values
from samphire.data.files import Files
from samphire.data.folders import channels_first, from_columns
from samphire.data.rows import PART_OF, Rows, guessed, image_column, joined

Root = str | os.PathLike[str] | None

__all__ = ["read_memory"]


def read_memory(source: Any, *, image: str | None, features: Iterable[str] | str | None, root: Root) -> Rows:
    """The rows of data in memory.

    Args:
        source: See :func:`samphire.data.open`.
        image: The name of the inputs, where it is unusual.
        features: Names for the third and later entries of tuples.
        root: The folder of files that a frame names.
    """
    if isinstance(source, Mapping) and source and all(str(name) in PART_OF for name in source):
        parts = {PART_OF[str(name)]: part for name, part in source.items()}
        return joined({n: read_memory(p, image=image, features=features, root=root) for n, p in parts.items()})
    if isinstance(source, Mapping):
        return _named_columns(dict(source), image, root)
    if hasattr(source, "columns") and hasattr(source, "__getitem__"):
        return _named_columns({str(name): source[name] for name in source.columns}, image, root)
    if hasattr(source, "__iter__") or hasattr(source, "__getitem__"):
        return _items(source, image, features)
    raise TypeError(
        f"data must be a folder, a mapping of arrays, a frame, or a torch Dataset or DataLoader, "
        f"got {type(source).__name__}."
    )


def _named_columns(columns: dict[str, Any], image: str | None, root: Root) -> Rows:
    """Arrays by name, or the columns of a frame with names of files."""
    columns = {name: _array(values) for name, values in columns.items()}
    if any(array.ndim > 1 for array in columns.values()):
        return from_columns(columns, "the data", lambda i: f"row {i}", image)
    plain = {name: plain_values(values) for name, values in columns.items()}
    if not plain or not all(plain.values()):
        raise ValueError(f"the data must have one row or more, got columns {', '.join(plain) or 'none'}.")
    name, note = image_column(image, plain, "the data")
    paths = [_file(value, i, root) for i, value in enumerate(plain.pop(name))]
    rows = np.arange(len(paths))
    return Rows(Files(paths, rows, "row"), plain, lambda i: f"row {i}", "the data", notes=(note,) if note else ())


def _array(values: Any) -> Any:
    values = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    return np.asarray(values)


def _file(name: Any, row: int, root: Root) -> str:
    """The path of a named file; with a root it must be inside."""
    path = Path(root or ".") / str(name)
    if root is not None and not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root)):
        raise ValueError(f"row {row} names {name}, which is not in {root}; give files below it.")
    if not path.is_file():
        raise FileNotFoundError(f"row {row} names {name}, which is no file in {root or Path.cwd()}; give its root.")
    return str(path)


# Torch data sets and loaders: one pass; pixels go to a temporary file, so that memory does not grow with their number


def _items(source: Any, image: str | None, features: Iterable[str] | str | None) -> Rows:
    names = None if features is None or isinstance(features, str) else list(features)
    columns: dict[str, list[Any]] = {}
    key, note, hashes = "", "", list[str]()
    with tempfile.TemporaryFile() as file:
        inputs = _Spool(file)
        for n, item in enumerate(_each(source)):
            row = _by_name(item, names, n)
            if n == 0:
                key, note = _input_key(row, image)
                columns = {name: [] for name in row if name != key}
            if row.keys() != {key, *columns}:
                raise ValueError(f"example {n} has {', '.join(row)}, but the first has {', '.join([key, *columns])}.")
            pixels = row.pop(key)
            if _is_picture(pixels):
                _check_can_be_asked_again(source)
                hashes.append(hashlib.sha256(f"{pixels.mode} {pixels.size}".encode() + pixels.tobytes()).hexdigest())
            else:
                inputs.append(_array(pixels), n)
            for name, value in row.items():
                columns[name].append(value)
        if not columns:
            raise ValueError("the data have no examples, or no label beside the input; give (input, label) or dicts.")
        images, axes_note = (Pictures(source, key, hashes), "") if hashes else channels_first(inputs.array())
    plain = {name: plain_values(values) for name, values in columns.items() if np.ndim(values[0]) == 0}
    return Rows(images, plain, lambda i: f"example {i}", "the data", notes=tuple(filter(None, (note, axes_note))))


def _each(source: Any) -> Iterator[Any]:
    """The examples of a Dataset, or of the batches of a loader, one by one."""
    if not hasattr(source, "batch_size"):
        yield from (source[i] for i in range(len(source))) if hasattr(source, "__len__") else source
        return
    for batch in source:
        if isinstance(batch, Mapping):
            yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
        else:
            yield from zip(*batch, strict=True)


def _by_name(item: Any, names: list[str] | None, n: int) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        raise ValueError(f"example {n} must be a tuple (input, label, ...) or a dict, got {type(item).__name__}.")
    extra = len(item) - 2
    if names is None or len(names) != extra:
        names = [f"attribute{k}" for k in range(1, extra + 1)]
    return dict(zip(["image", "label", *names], item, strict=True))


def _input_key(row: Mapping[str, Any], image: str | None) -> tuple[str, str]:
    many = [name for name, value in row.items() if _is_picture(value) or np.ndim(value) > 0]
    key, note = guessed("image", image, many, "the data")
    if key is None and len(many) != 1:
        raise ValueError(f"the data must say which entry is the input, got {', '.join(row)}; name it with image=...")
    return key or many[0], note if len(many) > 1 else ""


def _check_can_be_asked_again(source: Any) -> None:
    if hasattr(source, "batch_size") or not hasattr(source, "__getitem__"):
        raise TypeError(
            f"images of Pillow are taken from a Dataset, one by one, got a {type(source).__name__}; "
            "give its dataset, or tensors."
        )


def _is_picture(value: Any) -> bool:
    """Whether a value is one of Pillow's images."""
    return hasattr(value, "convert") and hasattr(value, "getbands")


class _Spool:
    """Arrays of one shape, written to a file and mapped into memory; the map outlives the open file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._kind: tuple[Any, tuple[int, ...]] | None = None
        self._n = 0

    def append(self, array: NDArray[Any], n: int) -> None:
        self._kind = self._kind or (array.dtype, array.shape)
        if (array.dtype, array.shape) != self._kind:
            raise ValueError(
                f"example {n} is {array.dtype} of shape {array.shape}, but the first is {self._kind[0]} of shape "
                f"{self._kind[1]}; inputs need one shape and type."
            )
        self._file.write(array.tobytes())
        self._n += 1

    def array(self) -> NDArray[Any]:
        if self._kind is None:
            raise ValueError("the data have no examples; give at least one.")
        self._file.flush()
        dtype, shape = self._kind
        return np.memmap(self._file, dtype, "r", shape=(self._n, *shape))


class Pictures:
    """The Pillow images of a data set as :class:`samphire.data.files.Encoded`; each is asked for again when needed.

    Args:
        source: The data set.
        key: Where its examples have the image.
        hashes: Of the images' pixels.
    """

    def __init__(self, source: Any, key: str, hashes: Iterable[str]) -> None:
        self._source, self._key = source, key
        self._hashes = np.array(list(hashes))
        self._rows = np.arange(len(self._hashes))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, chosen: NDArray[Any] | slice) -> Pictures:
        some = object.__new__(Pictures)
        some.__dict__ = self.__dict__ | {"_rows": self._rows[chosen]}
        return some

    def name(self, i: int) -> str:
        """The example of image ``i``, for messages."""
        return f"example {self._rows[i]}"

    def read(self, i: int) -> bytes:
        """Image ``i`` as PNG, which loses nothing."""
        item = self._source[int(self._rows[i])]
        file = io.BytesIO()
        (item[self._key] if isinstance(item, Mapping) else item[0]).convert("RGB").save(file, "png")
        return file.getvalue()

    def stamp(self, i: int) -> str:
        """A hash of the pixels of image ``i``."""
        return str(self._hashes[self._rows[i]])

    def size(self, i: int) -> int:
        """The same for all: they are compared by their pixels."""
        return 0

    def piece(self, i: int) -> bytes:
        """The hash of the pixels of image ``i``."""
        return self.stamp(i).encode()
