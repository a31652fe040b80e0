"""Tables of a data set: csv, tsv, jsonl and parquet files as columns, each row with its place."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from samphire.checks import check_regular

LOOKED_FOR = 16  # images, to find the folder that has them
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

__all__ = ["ENDINGS", "Table", "present", "read_rows", "read_table"]


@dataclass(frozen=True)
class Table:
    """A file of rows, by column.

    Args:
        path: The file.
        first: The line of the first row, counted from 1.
        columns: The values of the wanted columns.
        header: The names of all columns.
        names: Of a column's whole numbers, where the file has them.
    """

    path: Path
    first: int
    columns: Mapping[str, list[Any]]
    header: tuple[str, ...]
    names: Mapping[str, Sequence[str]] | None = None

    def line(self, row: int) -> str:
        """The place of a row, for messages."""
        return f"{self.path} line {self.first + row}"

    def column(self, name: str) -> list[Any]:
        """A required column."""
        if name not in self.columns:
            raise ValueError(f"{self.path} has no column {name}, only {', '.join(self.header)}.")
        return self.columns[name]


def read_table(path: Path) -> Table:
    """The columns of a csv, tsv or jsonl file; a csv file may have semicolons or tabs instead of commas.

    Args:
        path: Its ending says what it is.
    """
    with text_of(path) as file:
        if path.suffix in (".jsonl", ".ndjson"):
            return _objects(path, file)
        start = file.readline()
        marks = ["\t"] if path.suffix == ".tsv" else [",", ";", "\t"]
        delimiter = max(marks, key=start.count)  # the first of them if there is none
        rows = csv.reader(chain([start], file), delimiter=delimiter)
        header = next((row for row in rows if row), [])
        return read_rows(path, (row for row in rows if row), header, header, first=2)


@contextmanager
def text_of(path: Path) -> Iterator[Any]:
    """A list opened as text; what is none, or no regular file, is refused in one sentence."""
    check_regular(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield file
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a list in text ({error}); get it again.") from None


def read_rows(
    path: Path,
    rows: Iterator[list[str]],
    header: Sequence[str],
    wanted: Collection[str],
    first: int,
    count: int | None = None,
) -> Table:
    """Rows of words as columns.

    Args:
        path: Of the file, for messages.
        rows: Its rows after the header.
        header: The names of its columns.
        wanted: The columns to keep.
        first: The line of the first row.
        count: How many rows the file promises, if it does.
    """
    for name in header:
        if list(header).count(name) > 1:
            raise ValueError(f"{path} has two columns named {name!r}; rename one of them.")
    kept = [(header.index(name), name) for name in wanted if name in header]
    columns: dict[str, list[str]] = {name: [] for _, name in kept}
    total = 0
    for total, row in enumerate(rows, 1):
        if len(row) != len(header):
            line = first + total - 1
            raise ValueError(f"{path} line {line} has {len(row)} entries for {len(header)} columns; get it again.")
        for i, name in kept:
            columns[name].append(row[i])
    if not total or total != (count or total):
        promised = f"the {count} rows its first line promises" if count else "one row or more"
        raise ValueError(f"{path} holds {total} rows instead of {promised}; get it again.")
    return Table(path, first, columns, tuple(header))


def _objects(path: Path, file: Any) -> Table:
    """A file with a JSON object on each line; a key that a line lacks is a gap."""
    rows = []
    for number, line in enumerate(file, 1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} line {number} is no JSON ({error}); mend it.") from None
        if (row is None and line.strip()) or not isinstance(row, (dict, type(None))):
            raise ValueError(f'{path} line {number} is no JSON object such as {{"image": ..., "label": ...}}.')
        if row is not None:
            rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds 0 rows instead of one row or more; get it again.")
    header = tuple(dict.fromkeys(chain.from_iterable(rows)))
    return Table(path, 1, {name: [row.get(name) for row in rows] for name in header}, header)


def present(table: Table, names: Sequence[Any], folders: Sequence[Path]) -> tuple[Path, list[str]]:
    """The folder that has the images, and the path of every one of them.

    Folders are listed once instead of asking for each file. A name that leads out of the folder is refused.

    Args:
        table: For messages.
        names: Of the images, one for each row.
        folders: Where they may be; the one that has most of some images is used, the first of several.
    """
    for row, name in enumerate(names):
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError(f"{table.line(row)} names no image, but {name!r}.")
    some = names[:: -(-len(names) // LOOKED_FOR)]
    folder = max(folders, key=lambda f: sum((f / name).exists() for name in some)) if len(folders) > 1 else folders[0]
    parents = [os.path.split(name) for name in names]
    inside = {parent: _listing(folder, parent) for parent in {parent for parent, _ in parents}}
    missing = [row for row, (parent, base) in enumerate(parents) if base not in inside[parent]]
    if missing:
        others = f", and {len(missing) - 1} of {len(names)} others are missing too" if len(missing) > 1 else ""
        raise FileNotFoundError(
            f"{table.line(missing[0])} lists {names[missing[0]]}, which is not in {folder}{others}; "
            "put the images there."
        )
    return folder, [os.path.join(folder, name) for name in names]


def _listing(folder: Path, parent: str) -> set[str]:
    """The files in a folder, folders not counted; none if it is outside of the data set's folder."""
    if os.path.isabs(parent) and not Path(parent).is_relative_to(folder.absolute()):
        return set()
    if ".." in Path(parent).parts or not (folder / parent).is_dir():
        return set()
    with os.scandir(folder / parent) as entries:
        return {entry.name for entry in entries if entry.is_file()}
