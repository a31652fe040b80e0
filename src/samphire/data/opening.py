"""One door for data: a built-in set by its name, or the user's own, whatever they are stored in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.checks import hint
from samphire.data.catalog import PAIRED, SETS, load
from samphire.data.coding import MISSING, MOST_VALUES, Codes, coded_column
from samphire.data.drawing import chosen
from samphire.data.duplicates import shared_between
from samphire.data.fingerprints import fingerprint
from samphire.data.folders import read_folder
from samphire.data.memory import read_memory
from samphire.data.rows import PART_OF, PARTS, Rows, guessed, split_column
from samphire.data.split import Split
from samphire.progress import Progress, silent

HELD = 0.2  # share of each group for test, and as much for val, where the user has no split

__all__ = ["Opened", "open"]


@dataclass(frozen=True)
class Opened:
    """Data as they were opened.

    Attributes:
        title: What the data are called, for instance the folder's name.
        parts: ``train``, ``val`` and ``test``, those that exist; images stay encoded until they are needed, see
            :func:`samphire.data.parts.at_size`.
        notes: Every guess: what the columns are taken for, how the split was drawn, what is missing, what is twice.
        logits: What a network said of the examples of each part, where the source has it.
        built_in: Whether they are a set of :data:`samphire.data.SETS` or made of some.
    """

    title: str
    parts: Mapping[str, Split]
    notes: tuple[str, ...] = ()
    logits: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    built_in: bool = False

    @property
    def name(self) -> str:
        """What a run calls them: the name of a built-in set, or title and fingerprint, so that others are others."""
        return self.title if self.built_in else f"{self.title}@{self.fingerprint[:8]}"

    @cached_property
    def fingerprint(self) -> str:
        """A name for the examples, see :func:`samphire.data.fingerprints.fingerprint`."""
        return fingerprint(self.parts)


def open(
    source: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    split: str | None = None,
    features: Iterable[str] | str | None = None,
    seed: int = 0,
    root: str | os.PathLike[str] | None = None,
    target: str | None = None,
    progress: Progress = silent,
) -> Opened:
    """Data of one's own, or a built-in set, as parts that every command and measure takes.

    Columns that are not named are guessed by their usual names; every guess is a sentence in ``notes``. Without a
    split, a fifth of each group (label and attributes) is drawn for test and a fifth for val. Missing and damaged
    files are errors that name the file and row; a path that leads out of the folder is refused. Images that are in
    two parts are counted.

    Args:
        source: A name of :func:`samphire.data.load`, with ``root``. A folder with a table (csv, tsv, jsonl, parquet)
            beside its images, with one table for each part, with a saved Hugging Face set, or with folders of
            classes, in train, val and test or not; a table; an ``.npz`` file with inputs or features, label,
            attributes and perhaps logits. In Python also a mapping of arrays by column, a pandas frame, a torch
            Dataset or DataLoader of tuples or dicts, or a mapping of any of these by part.
        image: The column with the images.
        label: The column with the label.
        split: The column with the part: train, val and test, or 0, 1 and 2.
        features: The columns with attributes; ``None`` for all that may be one, ``()`` or ``"none"`` for none. Words
            or numbers of few values; numbers of many become quarters. Gaps are -1.
        seed: Of the split, where it is drawn.
        root: The folder of a built-in set, or of the files that a frame names.
        target: Domain to transfer to, for built-in sets with domains.
        progress: Counts images that are looked at, to find those in two parts.

    Example:
        >>> y, place = ["duck", "wren"] * 50, ["water", "land", "land", "water"] * 25
        >>> opened = open({"image": np.zeros((100, 1, 2, 2), np.uint8), "label": y, "place": place})
        >>> {name: len(part) for name, part in opened.parts.items()}
        {'train': 60, 'val': 20, 'test': 20}
        >>> opened.parts["train"].classes, opened.parts["train"].values["place"]
        (('duck', 'wren'), ('land', 'water'))
    """
    if isinstance(source, str) and (source in SETS or source in PAIRED):
        _refuse_columns(source, image=image, label=label, split=split, features=features)
        return Opened(source, load(source, "data" if root is None else root, target=target), built_in=True)
    if target is not None:
        raise ValueError(f"target is for built-in sets with domains, got {target!r}; leave it out.")
    if isinstance(source, (str, os.PathLike)):
        path = Path(source).expanduser()
        rows, name = _known(path, image), path.absolute().name
    else:
        rows, name = read_memory(source, image=image, features=features, root=root), "data"
    opened = _interpreted(rows, name, label, split, features, seed)
    return replace(opened, notes=(*opened.notes, *shared_between(opened.parts, progress)))


def _refuse_columns(source: str, **columns: Any) -> None:
    for what, value in columns.items():
        if value is not None:
            raise ValueError(
                f"{source} is a built-in set with columns of its own, got {what}={value!r}; leave it out, "
                f"or open the folder ./{source}."
            )


def _known(path: Path, image: str | None) -> Rows:
    if not path.exists() and path.name == str(path):
        raise ValueError(
            f"no data set is named {str(path)!r}; {hint(path, [*SETS, *PAIRED])} "
            "For data of your own, there is no such folder either."
        )
    return read_folder(path, image)


def _interpreted(
    rows: Rows, name: str, label: str | None, split: str | None, features: Iterable[str] | str | None, seed: int
) -> Opened:
    """Rows as parts: what each column means, coded; the split drawn if there is none; gaps counted."""
    if not len(rows):
        raise ValueError(f"{rows.source} has no examples; give at least one.")
    label_column, label_note = guessed("label", label or rows.roles.get("label"), rows.columns, rows.source)
    if label_column is None:
        raise ValueError(
            f"{rows.source} must say which column is the label, got {', '.join(rows.columns)}; "
            "name it with --label (in Python label=...)."
        )
    others = [column for column in rows.columns if column != label_column]
    others_by_name = {column: rows.columns[column] for column in others}
    part_column, split_note = split_column(split or rows.roles.get("split"), others_by_name, rows.source)
    others = [column for column in others if column != part_column]
    notes = [*rows.notes, label_note, split_note]
    coded, values, feature_notes = _features(rows, label_column, others, features)
    classes = values[label_column]
    whole = Split(rows.images, coded[label_column], coded, classes=classes, values=values)
    group = np.unique(np.stack(list(coded.values())), axis=1, return_inverse=True)[1].ravel()
    parts, split_notes = _parts(rows, part_column, group, seed)
    shown = ", ".join(classes[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")
    notes += [f"The classes of {label_column} are {shown}.", *feature_notes, *split_notes]
    splits = {part: _renumbered(whole.subset(np.flatnonzero(parts == part))) for part in PARTS if part in set(parts)}
    logits = {} if rows.logits is None else {part: rows.logits[parts == part] for part in splits}
    return Opened(name, splits, tuple(note for note in notes if note), logits)


# Attributes


def _features(
    rows: Rows, label: str, others: Sequence[str], wanted: Iterable[str] | str | None
) -> tuple[dict[str, Codes], dict[str, tuple[str, ...]], list[str]]:
    """The label and the attributes as codes, the names of their values, and what is to be said of them."""
    names = _named(wanted, [*others, label], rows.source)
    coded: dict[str, Codes] = {}
    values: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    coded[label], values[label], note = _coded(rows, label, is_label=True)
    notes.append(note)
    if len(values[label]) < 2:
        raise ValueError(f"{label} has one value only, {values[label][0]!r}; a label needs two classes or more.")
    left_out: list[str] = []
    for name in others if names is None else names:
        if name == label:
            continue
        if names is None and not _may_be_attribute(rows.columns[name]):
            left_out.append(name)
            continue
        coded[name], values[name], note = _coded(rows, name)
        gaps = int((coded[name] == MISSING).sum())
        notes += [note, f"{gaps} of {len(rows)} examples have no {name}." if gaps else ""]
    if names is None:
        taken = [name for name in coded if name != label]
        notes.append(f"Attributes: {', '.join(taken) or 'none'}." + _left(left_out))
    return coded, values, notes


def _coded(rows: Rows, name: str, is_label: bool = False) -> tuple[Codes, tuple[str, ...], str]:
    names = rows.names.get(name, ())
    codes, values, note = coded_column(name, rows.columns[name], rows.where, names, label=is_label)
    if is_label and len(values) > max(2, len(rows) // 2):
        raise ValueError(
            f"{name} has {len(values)} classes for {len(rows)} examples; name the label's column with --label."
        )
    return codes, values, note


def _left(names: Sequence[str]) -> str:
    return f" Not taken, having one value or too many: {', '.join(names)}." if names else ""


def _named(wanted: Iterable[str] | str | None, known: Sequence[str], source: str) -> list[str] | None:
    if wanted is None:
        return None
    names = [part.strip() for part in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    names = [] if names == ["none"] else [name for name in names if name]
    for name in names:
        if name not in known:
            raise ValueError(f"{source} has no column {name!r} for an attribute; {hint(name, known)}")
    return list(dict.fromkeys(names))


def _may_be_attribute(column: Sequence[Any]) -> bool:
    """Whether a column that nobody named has a few values, each more than once on average."""
    try:
        values = {value for value in column if value is not None}
    except TypeError:  # lists and the like
        return False
    plain = all(isinstance(value, (str, int, float)) for value in values)
    return plain and 2 <= len(values) <= min(MOST_VALUES, max(2, len(column) // 2))


# The split


def _parts(rows: Rows, column: str | None, group: NDArray[Any], seed: int) -> tuple[NDArray[Any], list[str]]:
    """The part of each row, and how it was drawn if it was."""
    if column is None:
        parts = np.full(len(rows), "train", object)
    else:
        words = [str(value if value is not None else "").strip().casefold() for value in rows.columns[column]]
        words = [word.removesuffix(".0") for word in words]
        for i, word in enumerate(words):
            if word not in PART_OF:
                known = "train, val, test, or 0, 1, 2"
                raise ValueError(f"{rows.where(i)}: {column} is {rows.columns[column][i]!r}, none of {known}.")
        parts = np.array([PART_OF[word] for word in words], object)
    return _completed(parts, group, seed)


def _completed(parts: NDArray[Any], group: NDArray[Any], seed: int) -> tuple[NDArray[Any], list[str]]:
    """Draw the parts that training needs and the user does not have; test examples alone stay as they are."""
    given = set(parts)
    how = f"drawn within groups with seed {seed}"
    if given == {"train"}:
        everything = np.ones(len(parts), bool)
        test = chosen(group, everything, HELD, f"own test:{seed}", least=1)
        val = chosen(group, ~test, HELD / (1 - HELD), f"own val:{seed}", least=1)
        parts = np.where(test, "test", np.where(val, "val", "train")).astype(object)
        seen = "A network that was trained on some of these examples already seems better on them than it is."
        return parts, [f"There is no split: a fifth is test and a fifth val, {how}.", seen]
    if given == {"train", "test"}:
        val = chosen(group, parts == "train", HELD, f"own val:{seed}", least=1)
        return np.where(val, "val", parts), [f"There is no val part: a fifth of train is val, {how}."]
    if given == {"train", "val"}:
        test = chosen(group, parts == "val", 0.5, f"own test:{seed}", least=1)
        return np.where(test, "test", parts), [f"There is no test part: half of val is test, {how}."]
    return parts, []


def _renumbered(split: Split) -> Split:
    return replace(split, ids=np.arange(len(split)))
