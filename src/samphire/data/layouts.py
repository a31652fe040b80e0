"""Where a data set is on disk: each layout is a record, and :func:`find` takes the first that fits.

A layout lists the usual folders below the user's root and the files that identify it, and says how it is read.
Reading gives the parts of the set (train, val and test, or all of it) as Splits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.data.split import Split

Parts = dict[str, Split]

__all__ = ["DataSet", "Layout", "Parts", "coded", "counted", "find", "lookalike", "read", "same_name"]


@dataclass(frozen=True)
class Layout:
    """One way in which a data set is stored.

    Args:
        name: Who stores it so, for instance ``"torchvision"``.
        folders: Below the root, patterns allowed; ``"."`` is the root itself. The root may also be one of them.
        files: What must be in the folder, patterns allowed; messages name them too.
        read: From the folder to the parts.
    """

    name: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[Path], Parts]

    def places(self, root: Path) -> Iterator[Path]:
        """The folders in which to look for this layout."""
        for folder in self.folders:
            yield from sorted(root.glob(folder)) if "*" in folder else [root / folder]
            if folder != "." and root.absolute().match(folder):
                yield root

    def lacks(self, place: Path) -> list[str]:
        """The required files that a folder does not have."""
        return [pattern for pattern in self.files if not any(place.glob(pattern))]


@dataclass(frozen=True)
class DataSet:
    """A data set: what it is, its layouts, and what a complete copy contains.

    Args:
        name: For users.
        about: One line.
        groups: What its groups are.
        size: Of the download.
        sources: Where to get it.
        layouts: In the order of the search.
        official: The published number of images in each group of each part, or a single number for the whole part.
        lookalikes: Counts of copies that must be refused, with the reason.
        content: :func:`samphire.data.arrays.digest` of each part, where the published pixels are known.
        published: From the parts as read to those that are counted.
        arrange: From the parts as read and the user's settings to the splits.
    """

    name: str
    about: str
    groups: str
    size: str
    sources: tuple[str, ...]
    layouts: tuple[Layout, ...]
    official: Mapping[str, tuple[int, ...]]
    lookalikes: Mapping[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)
    content: Mapping[str, str] = field(default_factory=dict)
    published: Callable[[Parts], Parts] = lambda parts: parts
    arrange: Callable[..., Parts] = lambda parts: parts


def find(dataset: DataSet, root: str | os.PathLike[str]) -> tuple[Layout, Path]:
    """The layout of a data set under a root, and its folder.

    Args:
        dataset: One of :data:`samphire.data.SETS`.
        root: The folder of the set, or the one above it.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}; give the one that holds {dataset.name}.")
    tried = [(layout, place, layout.lacks(place)) for layout in dataset.layouts for place in layout.places(root)]
    for layout, place, lacking in tried:
        if not lacking:
            return layout, place
    raise FileNotFoundError(_missing(dataset, root, tried))


def read(dataset: DataSet, root: str | os.PathLike[str]) -> tuple[Layout, Path, Parts]:
    """Find a data set and read its parts; a copy known to be another set is refused."""
    layout, place = find(dataset, root)
    parts = layout.read(place)
    reason = lookalike(dataset, parts)
    if reason:
        raise ValueError(f"{place} is not {dataset.name}: {reason}")
    for part, split in parts.items():
        if not len(split):
            raise ValueError(f"{dataset.name} in {place} has no examples in its part {part}; get it again.")
    return layout, place, parts


def lookalike(dataset: DataSet, parts: Mapping[str, Split]) -> str | None:
    """Why parts that look like a data set are not it, or None."""
    for (part, counts), reason in dataset.lookalikes.items():
        if part in parts and counted(parts[part]) == counts:
            return reason
    return None


def counted(split: Split) -> tuple[int, ...]:
    """How many images each group has.

    Example:
        >>> y = np.array([0, 1, 1])
        >>> counted(Split(np.zeros((3, 1, 2, 2), np.uint8), y, {"digit": y}, values={"digit": ("0", "1", "2")}))
        (1, 2, 0)
    """
    return tuple(int(n) for n in np.bincount(split.group, minlength=int(np.prod(list(split.sizes.values())))))


def same_name(name: str) -> str:
    """A name without spelling: ``Real World`` and ``real_world`` are both ``realworld``."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def coded(column: str, values: list[Any], codes: Mapping[Any, int], where: Callable[[int], str]) -> NDArray[np.int64]:
    """Values as integers; an unknown one is an error with its place.

    Args:
        column: What the values are, for the message.
        values: As read.
        codes: The integer for each known value.
        where: From a position to its file and row.
    """
    try:
        return np.array([codes[value] for value in values], np.int64)
    except KeyError:
        i = next(i for i, value in enumerate(values) if value not in codes)
        known = ", ".join(map(str, codes))
        raise ValueError(f"{where(i)}: {column} is {values[i]!r}, which is none of {known}.") from None


def _missing(dataset: DataSet, root: Path, tried: list[tuple[Layout, Path, list[str]]]) -> str:
    get = f"get it from {' or '.join(dataset.sources)}"
    layout, place, lacking = max(tried, key=lambda t: len(t[0].files) - len(t[2]))
    if len(lacking) < len(layout.files):
        return f"{dataset.name} in {place} ({layout.name} layout) lacks {' and '.join(lacking)}; {get}."
    known = ", ".join(f"{layout.name} in {layout.folders[0]}" for layout in dataset.layouts)
    return f"no {dataset.name} under {root} in any known layout ({known}); {get}."
