"""Which examples a run was trained on: recorded in its folder, and compared whenever it is used again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samphire import data, records
from samphire.data.fingerprints import fingerprint
from samphire.data.opening import Opened
from samphire.data.split import Split

EXAMPLES = "examples.json"

__all__ = ["EXAMPLES", "check_examples", "note_examples", "splits_of"]


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
    path = folder / EXAMPLES
    if not path.exists():
        return False
    try:
        theirs = json.loads(path.read_bytes())
        known = theirs["fingerprint"]
        said = f"{theirs['data']} ({known}: {_sizes(theirs['parts'])})"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); move the run's folder away and compute it again.") from None
    ours = fingerprint(splits)
    if known != ours:
        sizes = _sizes({part: len(split) for part, split in splits.items()})
        raise ValueError(
            f"run {folder} was trained on other examples: {said}, and here are {name} ({ours}: {sizes}); "
            "give the data it was trained on, or choose another output folder."
        )
    return True


def _sizes(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{part} {n}" for part, n in parts.items())
