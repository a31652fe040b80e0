"""Data sets as Hugging Face stores them: parquet files with encoded images in one column."""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.checks import check_regular
from samphire.data.layouts import Layout, Parts, coded, same_name
from samphire.data.split import Split
from samphire.data.tables import Table

_PARTS = {"train": "train", "validation": "val", "valid": "val", "val": "val", "test": "test"}

__all__ = ["Columns", "ParquetImages", "check_whole", "columns_of", "hugging_face", "read_columns"]


class ParquetImages:
    """Encoded images in the rows of parquet or arrow files, with the interface of :class:`samphire.data.files.Files`.

    Row groups are read whole and the last few are kept, so reading in order costs one pass over the files.

    Args:
        files: In order.
        column: Of the images: bytes, or a struct with ``bytes`` in it.
    """

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self._files, self._column = tuple(files), column
        self._rows = np.concatenate([_numbered(k, _row_groups(path)) for k, path in enumerate(files)])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, chosen: NDArray[Any] | slice) -> ParquetImages:
        some = object.__new__(ParquetImages)
        some.__dict__ = self.__dict__ | {"_rows": self._rows[chosen]}
        return some

    def __repr__(self) -> str:
        return f"ParquetImages({len(self)} images)"

    def name(self, i: int) -> str:
        """The file and row of image ``i``, for messages."""
        return f"{self._files[self._rows[i, 0]]} row {self._rows[i, 3]}"

    def stamp(self, i: int) -> str:
        """The row of image ``i``, and path, size and time of modification of its file, which change with it."""
        path = self._files[self._rows[i, 0]]
        status = os.stat(path)
        return f"{path.absolute()} {status.st_size} {status.st_mtime_ns} {self._rows[i, 3]}"

    def size(self, i: int) -> int:
        """How many bytes image ``i`` has; different sizes are different images."""
        return len(self.read(i))

    def piece(self, i: int) -> bytes:
        """The bytes of image ``i``: they are in memory already."""
        return self.read(i)

    def read(self, i: int) -> bytes:
        """The bytes of image ``i``, still encoded."""
        file, group, row, _ = self._rows[i].tolist()
        path = self._files[file]
        value = _images(path, os.stat(path).st_mtime_ns, group, self._column)[row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise ValueError(f"{self.name(i)} holds no image in column {self._column!r}; get the file again.")
        return data


@dataclass(frozen=True)
class Columns:
    """What the columns of a set's parquet files mean.

    Args:
        images: Possible names of the column of encoded images.
        features: For each feature the possible names of its column, with a position if that column holds vectors;
            the first feature is the label.
        values: The names of each feature's values.
    """

    images: tuple[str, ...]
    features: Mapping[str, Mapping[str, int | None]]
    values: Mapping[str, tuple[str, ...]]


def hugging_face(
    repositories: tuple[str, ...],
    folders: tuple[str, ...],
    files: tuple[str, ...],
    columns: Columns,
    finish: Callable[[Parts], Parts] = lambda parts: parts,
) -> Layout:
    """The layout of Hugging Face repositories of parquet files: a clone of one, its cache, or the files alone.

    Args:
        repositories: Each as ``owner/name``.
        folders: Where in a repository the files may be.
        files: Patterns of the required files, one for each part.
        columns: Their meaning.
        finish: Applied to the parts.
    """
    clones = [
        clone
        for repository in repositories
        for owner, name in [repository.split("/")]
        for clone in (name, repository, f"datasets--{owner}--{name}/snapshots/*")
    ]
    places = [f"{clone}/{folder}" for clone in [*clones, "."] for folder in folders]
    return Layout("Hugging Face parquet", (*places, *clones, "."), files, lambda place: finish(_read(place, columns)))


def _read(place: Path, columns: Columns) -> Parts:
    """The parts of a set in the parquet files of a folder; the images stay in the files, encoded."""
    shards: dict[str, list[Path]] = {part: [] for part in dict.fromkeys(_PARTS.values())}
    for path in sorted(place.glob("*.parquet")):
        part = path.name.partition("-")[0]
        if part not in _PARTS:
            raise ValueError(f"{path} has split {part!r}, which is none of {', '.join(_PARTS)}; move it away.")
        shards[_PARTS[part]].append(path)
    for files in shards.values():
        check_whole(files)
    return {part: _split(files, columns) for part, files in shards.items() if files}


def _split(files: list[Path], columns: Columns) -> Split:
    images = ParquetImages(files, _first_column(files[0], columns.images))
    chosen = {feature: _first_column(files[0], names) for feature, names in columns.features.items()}
    table, names = _values(files, sorted(set(chosen.values())))
    features = {}
    for feature, column in chosen.items():
        values = _entries(files[0], column, table[column], columns.features[feature][column])
        features[feature] = coded(column, values, _codes(names.get(column), columns.values[feature]), images.name)
    label, *_ = features
    return Split(images, features[label], features, classes=columns.values[label], values=columns.values)


def _entries(path: Path, column: str, values: list[Any], position: int | None) -> list[Any]:
    """The values, or their entries at a position if they are vectors; names lose their spelling."""
    try:
        values = values if position is None else [vector[position] for vector in values]
    except (TypeError, LookupError):
        raise ValueError(f"{path}: column {column} has a row without an entry {position}; get it again.") from None
    return [same_name(value) if isinstance(value, str) else value for value in values]


def _first_column(path: Path, names: Iterable[str]) -> str:
    with _opened(path) as file:
        columns = list(file.schema_arrow.names)
    for name in names:
        if name in columns:
            return name
    raise ValueError(
        f"{path} has no column {' or '.join(names)}, only {', '.join(columns)}; it belongs to another data set."
    )


def _codes(names: list[str] | None, values: tuple[str, ...]) -> dict[Any, int]:
    """The integer for each value in a file: by name if the file has the names we know, else as it is."""
    known = {same_name(value): i for i, value in enumerate(values)}
    renamed = [known.get(same_name(name), -1) for name in names or ()]
    numbers = dict(enumerate(renamed if renamed and -1 not in renamed else range(len(values))))
    return numbers | known | ({-1: 0} if len(values) == 2 else {})


def check_whole(files: list[Path]) -> None:
    """Refuse a part with a missing shard; the name ``train-00001-of-00004`` has their number."""
    for path in files:
        if (match := re.search(r"-of-(\d+)", path.name)) and int(match[1]) != len(files):
            raise FileNotFoundError(
                f"{path.parent} has {len(files)} of the {int(match[1])} files of {path.name}; get the others."
            )


def _numbered(file: int, sizes: list[int]) -> NDArray[np.int64]:
    """For each row of a file: the file, the row group, the row within the group, the row within the file."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    row = np.arange(len(group))
    return np.stack([np.full_like(row, file), group, row - np.cumsum([0, *sizes])[group], row], 1)


# Reading files; everything that touches pyarrow


def columns_of(path: Path) -> dict[str, bool]:
    """The columns of a file, and whether each holds encoded images: bytes, or structs with bytes in them."""
    with _opened(path) as file:
        return {field.name: "binary" in str(field.type) for field in file.schema_arrow}


def read_columns(files: list[Path], columns: list[str]) -> Table:
    """Some columns of the files of one part."""
    values, names = _values(files, columns)
    return Table(files[0], 0, values, tuple(columns), names)


@dataclass(frozen=True)
class _Arrow:
    """A saved Hugging Face file, mapped into memory, with the interface of pyarrow's ``ParquetFile``."""

    table: Any

    @property
    def schema_arrow(self) -> Any:
        return self.table.schema

    def rows(self) -> list[int]:
        return [len(batch) for batch in self.table.to_batches()]

    def read(self, columns: list[str]) -> Any:
        return _valid(self.table.select(columns))

    def read_row_group(self, group: int, columns: list[str]) -> Any:
        return _valid(self.table.select(columns).to_batches()[group])


def _valid(values: Any) -> Any:
    """Values whose lengths and places are sound: arrow files have no checksums."""
    values.validate(full=True)
    return values


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"reading {path} needs pyarrow; pip install 'samphire[parquet]'.") from None
    check_regular(path, most=math.inf)
    try:
        if path.suffix == ".arrow":
            with pyarrow.memory_map(str(path)) as mapped:
                yield _Arrow(pyarrow.ipc.open_stream(mapped).read_all())
            return
        with parquet.ParquetFile(path) as file:
            yield file
    except (ValueError, OSError, pyarrow.ArrowException) as error:  # for damaged files
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]} ({error}); get it again.") from None


def _row_groups(path: Path) -> list[int]:
    with _opened(path) as file:
        if isinstance(file, _Arrow):
            return file.rows()
        return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]


@functools.lru_cache(maxsize=4)
def _images(path: Path, changed: int, group: int, column: str) -> Any:
    """The images of a row group; a changed file is read again."""
    with _opened(path) as file:
        return file.read_row_group(group, columns=[column]).column(column)


def _values(files: list[Path], columns: list[str]) -> tuple[dict[str, list[Any]], dict[str, list[str]]]:
    """The values of columns, and the names of their classes if the files have them."""
    values: dict[str, list[Any]] = {column: [] for column in columns}
    names: dict[str, list[str]] = {}
    for path in files:
        with _opened(path) as file:
            for column in columns:
                if file.schema_arrow.names.count(column) != 1:
                    n = file.schema_arrow.names.count(column)
                    raise ValueError(f"it has {n or 'no'} columns named {column}, and one is needed")
            table = file.read(columns=columns)
            described = _class_names(file.schema_arrow.metadata or {})
        for column in columns:
            values[column] += table.column(column).to_pylist()
            if column in described:
                names[column] = described[column]
    return values, names


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """The names of classes by column that Hugging Face's libraries note in a file; none where the note is damaged."""
    try:
        columns = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        named = {column: about["names"] for column, about in columns.items() if "names" in about}
    except (ValueError, RecursionError, AttributeError, TypeError):
        return {}
    return {
        column: names
        for column, names in named.items()
        if isinstance(names, list) and all(isinstance(name, str) for name in names)
    }
