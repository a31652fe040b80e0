"""The rows of a user's data as read, whatever their source: columns of values, before anything is coded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.checks import hint
from samphire.data.files import ENDINGS, Joined
from samphire.data.layouts import same_name

PARTS = {
    "train": ("train", "training", "tr", "0"),
    "val": ("val", "valid", "validation", "dev", "1"),
    "test": ("test", "testing", "eval", "evaluation", "2"),
}
PART_OF = {word: part for part, words in PARTS.items() for word in words}
USUAL = {
    "image": ("image", "img", "imgfilename", "imagepath", "imgpath", "imagefile", "filename", "filepath", "file",
              "path", "picture", "photo", "imageid", "pixelvalues", "input", "inputs", "x", "images", "features",
              "embeddings"),
    "label": ("label", "y", "class", "target", "labels", "category", "classname"),
    "split": ("split", "part", "partition", "subset", "set", "fold"),
}  # fmt: skip
"""Names of columns, without spelling, that are taken for what they say; the first that exists counts."""

__all__ = ["PARTS", "PART_OF", "Rows", "guessed", "image_column", "joined", "split_column"]


@dataclass(frozen=True)
class Rows:
    """A source as read.

    Args:
        images: One for each row: encoded, or an array.
        columns: What else is known of each row: text, numbers, or ``None`` for gaps.
        where: From a row to its place, for messages.
        source: What was read, for messages.
        names: Of a column's whole numbers, where the source has them.
        roles: Columns whose meaning the source fixes, for instance ``{"label": "class"}`` for a tree of folders.
        logits: What a network said of each row, if the source has it.
        notes: What was guessed, a sentence each.
    """

    images: Any
    columns: Mapping[str, Sequence[Any]]
    where: Callable[[int], str]
    source: str
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    logits: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)


def guessed(role: str, given: str | None, columns: Iterable[str], source: str) -> tuple[str | None, str]:
    """The column with a role, as given or by its usual name, and a sentence if it was guessed.

    Args:
        role: ``"image"``, ``"label"`` or ``"split"``.
        given: What the user says.
        columns: Those there are.
        source: What has them, for messages.

    Example:
        >>> guessed("label", None, ["img_filename", "y", "place"], "birds.csv")
        ('y', 'birds.csv: column y is taken for the label.')
    """
    columns = list(columns)
    if given is not None:
        if given not in columns:
            raise ValueError(f"{source} has no column {given!r} for the {role}; {hint(given, columns)}")
        return given, ""
    by_name = {same_name(name): name for name in reversed(columns)}
    name = next((by_name[usual] for usual in USUAL[role] if usual in by_name), None)
    return name, "" if name is None else f"{source}: column {name} is taken for the {role}."


def split_column(given: str | None, columns: Mapping[str, Sequence[Any]], source: str) -> tuple[str | None, str]:
    """The column with the part: as given, by its usual name, or one whose words are all names of parts.

    Example:
        >>> split_column(None, {"bird": ["a", "b"], "fold2": ["train", "test"]}, "birds.csv")
        ('fold2', 'birds.csv: column fold2 is taken for the split, since its values are train, test.')
    """
    name, note = guessed("split", given, columns, source)
    for other in columns if name is None else ():
        words = dict.fromkeys(columns[other])
        if len(words) > 1 and all(isinstance(w, str) and w.casefold() in PART_OF and w.isalpha() for w in words):
            return other, f"{source}: column {other} is taken for the split, since its values are {', '.join(words)}."
    return name, note


def image_column(given: str | None, columns: Mapping[str, Sequence[Any]], source: str) -> tuple[str, str]:
    """The column with the images' file names: as given, by its usual name, or the only one whose values end so."""
    likely = [name for name, values in columns.items() if str(values[0]).lower().endswith(ENDINGS)]
    name, note = guessed("image", given, columns if given is not None else likely, source)
    if name is None and len(likely) == 1:
        name, note = (
            likely[0],
            f"{source}: column {likely[0]} is taken for the image, since its values end as files do.",
        )
    if name is None:
        raise ValueError(
            f"{source} must say which column has the images' file names, got {', '.join(columns)}; "
            "name it with --image (in Python image=...)."
        )
    return name, note


def joined(parts: Mapping[str, Rows]) -> Rows:
    """The rows of several parts as one, with a column ``split`` that says which is which."""
    sources = list(parts.values())
    lengths = [len(rows) for rows in sources]
    logits = [rows.logits for rows in sources if rows.logits is not None]
    ends = np.cumsum(lengths)
    columns = {
        name: [value for rows in sources for value in rows.columns.get(name, [None] * len(rows))]
        for name in dict.fromkeys(name for rows in sources for name in rows.columns)
        if name != "split"
    }

    def where(i: int) -> str:
        k = int(np.searchsorted(ends, i, side="right"))
        return sources[k].where(i - int(ends[k] - lengths[k]))

    return Rows(
        images=_joined_images([rows.images for rows in sources]),
        columns={**columns, "split": list(np.repeat(list(parts), lengths))},
        where=where,
        source=sources[0].source,
        names={name: words for rows in sources for name, words in rows.names.items()},
        roles={**sources[0].roles, "split": "split"},
        logits=np.concatenate(logits) if len(logits) == len(sources) else None,
        notes=tuple(dict.fromkeys(note for rows in sources for note in rows.notes)),
    )


def _joined_images(images: Sequence[Any]) -> Any:
    if len(images) == 1:
        return images[0]
    if not all(isinstance(one, np.ndarray) for one in images):
        return Joined(images)
    if len({one.shape[1:] for one in images}) > 1:
        shapes = ", ".join(str(one.shape[1:]) for one in images)
        raise ValueError(f"the images of all parts must have one shape, got {shapes}; resize them.")
    return np.concatenate(images)
