"""Where a data set may lie on disk: each layout is a record, and one function finds the one that is there.

A layout says in which folders below the user's root it is usually found, which files tell it, and how it is read.
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


@dataclass(frozen=True)
class Layout:
    """One way in which a data set lies on disk.

    Args:
        name: Whose way it is, for instance ``"torchvision"``.
        folders: Where it is looked for below the root, patterns allowed; ``"."`` is the root itself. A root that
            is named like one of them is taken for it.
        files: What must be in the folder, patterns allowed; also what a message calls missing.
        read: From the folder to the parts.
    """

    name: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[Path], Parts]

    def places(self, root: Path) -> Iterator[Path]:
        """The folders in which this layout is looked for."""
        for folder in self.folders:
            yield from sorted(root.glob(folder)) if "*" in folder else [root / folder]
            if folder != "." and root.absolute().match(folder):
                yield root

    def lacks(self, place: Path) -> list[str]:
        """The files that are not in a folder and should be."""
        return [pattern for pattern in self.files if not any(place.glob(pattern))]


@dataclass(frozen=True)
class DataSet:
    """A data set: what it is, the layouts it is met in, and what a whole copy of it holds.

    Args:
        name: What users call it.
        about: One line.
        groups: What its groups are.
        size: Of the download.
        sources: Where to get it.
        layouts: In the order in which they are looked for.
        official: The published number of images in each group of each part; a single number is that of the part.
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
    """The layout in which a data set lies under a root, and the folder it was found in.

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
        >>> import numpy as np
        >>> y = np.array([0, 1, 1])
        >>> counted(Split(np.zeros((3, 1, 2, 2), np.uint8), y, {"digit": y}, values={"digit": ("0", "1", "2")}))
        (1, 2, 0)
    """
    return tuple(int(n) for n in np.bincount(split.group, minlength=int(np.prod(list(split.sizes.values())))))


def same_name(name: str) -> str:
    """What is left of a name when spelling does not count: ``Real World`` and ``real_world`` are ``realworld``."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def coded(column: str, found: list[Any], codes: Mapping[Any, int], where: Callable[[int], str]) -> NDArray[np.int64]:
    """Values as integers; an unknown one is an error that says where it stands.

    Args:
        column: What the values are, for the message.
        found: The values.
        codes: The integer for each known value.
        where: From a position to the file and row it was read from.
    """
    try:
        return np.array([codes[value] for value in found], np.int64)
    except KeyError:
        i = next(i for i, value in enumerate(found) if value not in codes)
        known = ", ".join(map(str, codes))
        raise ValueError(f"{where(i)}: {column} is {found[i]!r}, which is none of {known}.") from None


def _missing(dataset: DataSet, root: Path, tried: list[tuple[Layout, Path, list[str]]]) -> str:
    get = f"get it from {' or '.join(dataset.sources)}"
    layout, place, lacking = max(tried, key=lambda t: len(t[0].files) - len(t[2]))
    if len(lacking) < len(layout.files):
        return f"{dataset.name} in {place} ({layout.name} layout) lacks {' and '.join(lacking)}; {get}."
    known = ", ".join(f"{layout.name} in {layout.folders[0]}" for layout in dataset.layouts)
    return f"no {dataset.name} under {root} in any layout known ({known}); {get}."
