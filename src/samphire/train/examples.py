"""Which examples a run was trained on: recorded in its folder, and compared whenever it is used again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from samphire import data, records
from samphire.checks import read_regular
from samphire.data.fingerprints import fingerprint
from samphire.data.opening import Opened
from samphire.data.split import Split
from samphire.records.files import parsed

EXAMPLES = "examples.json"

__all__ = ["EXAMPLES", "check_examples", "check_same_examples", "note_examples", "splits_of"]


def splits_of(name: str, root: str | os.PathLike[str] | None, target: str | None, own: Any) -> Mapping[str, Split]:
    """The parts of a data set: a built-in one under a root, or one's own.

    Args:
        name: Of the data set.
        root: Its folder, or the one above it.
        target: Domain to transfer to, for sets with domains.
        own: Opened data, splits by part, or anything that :func:`samphire.data.open` takes; ``None`` for a built-in.
    """
    if own is None:
        if "@" in name:
            raise ValueError(f"{name} are data of your own; give them again, as the folder or, in Python, as parts=.")
        if root is None:
            raise ValueError("a run needs its data: give root=, the folder of a built-in set, or parts=, your own.")
        return data.load(name, root, target=target)
    if isinstance(own, Mapping) and own and all(isinstance(part, Split) for part in own.values()):
        return own
    return own.parts if isinstance(own, Opened) else data.open(own).parts


def note_examples(folder: Path, name: str, splits: Mapping[str, Split]) -> None:
    """Record in a run's folder which examples it is trained on; refuse a folder that has others.

    Args:
        folder: Of the run.
        name: Of the data set.
        splits: By part.
    """
    if not check_examples(folder, name, splits):
        about = {
            "data": name,
            "fingerprint": fingerprint(splits),
            "parts": {part: len(split) for part, split in splits.items()},
            "values": {feature: list(words) for feature, words in next(iter(splits.values())).values.items()},
        }
        records.write_atomic(folder / EXAMPLES, json.dumps(about, indent=1).encode() + b"\n")


def check_examples(folder: Path, name: str, splits: Mapping[str, Split]) -> bool:
    """Refuse examples that are not those a run was trained on, with both named.

    Args:
        folder: Of the run.
        name: Of the data set.
        splits: By part.

    Returns:
        Whether the folder says; runs of earlier versions do not.
    """
    theirs = _noted(folder)
    if theirs is None:
        return False
    ours = fingerprint(splits)
    if theirs[0] != ours:
        sizes = _sizes({part: len(split) for part, split in splits.items()})
        raise ValueError(
            f"run {folder} was trained on other examples: {theirs[1]}, and here are {name} ({ours}: {sizes}); "
            "give the data it was trained on, or choose another output folder."
        )
    return True


def check_same_examples(runs: Iterable[tuple[Path, Any]]) -> None:
    """Refuse to compare runs of one data set that were trained on different examples.

    Args:
        runs: Folder and configuration of each; those that do not say their examples are not compared.
    """
    first: dict[tuple[Any, Any], tuple[Path, str, str]] = {}
    for folder, config in runs:
        noted = _noted(folder)
        if noted is None:
            continue
        other, known, said = first.setdefault((config.data, config.target), (folder, *noted))
        if known != noted[0]:
            raise ValueError(
                f"runs {other} and {folder} cannot be compared: they were trained on {said} and {noted[1]}; "
                "move one of them away and train it again."
            )


def _noted(folder: Path) -> tuple[str, str] | None:
    """The fingerprint of a run's examples, and what they are in words; ``None`` if its folder does not say."""
    path = folder / EXAMPLES
    try:
        noted = parsed(read_regular(path)) or {}
    except (FileNotFoundError, NotADirectoryError):
        return None
    kinds = {"fingerprint": str, "data": str, "parts": dict}
    for name, kind in kinds.items():
        if not isinstance(noted.get(name), kind):
            raise ValueError(f"{path} is damaged: it has no {name}; move the run's folder away and compute it again.")
    return noted["fingerprint"], f"{noted['data']} ({noted['fingerprint']}: {_sizes(noted['parts'])})"


def _sizes(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{part} {n}" for part, n in parts.items())
