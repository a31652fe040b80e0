"""Images that are in two parts of a data set, found by their content."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from samphire.data.split import Split
from samphire.progress import Progress, silent

__all__ = ["shared_between"]


def shared_between(splits: Mapping[str, Split], progress: Progress = silent) -> list[str]:
    """A sentence for every two parts that share images.

    Images are compared by their bytes: files first by their sizes, then by a piece, and only in doubt as a whole.

    Args:
        splits: By name.
        progress: Counts images looked at.

    Example:
        >>> a, b = np.zeros((3, 1, 2, 2), np.uint8), np.ones((2, 1, 2, 2), np.uint8)
        >>> train, test = Split(a, [0, 0, 1], {}), Split(np.concatenate([a[:1], b]), [0, 0, 1], {})
        >>> shared_between({"train": train, "test": test})
        ['1 of 3 images of test are in train too, with the same content (the first: row 0).']
    """
    twins = _twins(splits, progress)
    contents = {name: [twins.get((name, i)) for i in range(len(split))] for name, split in splits.items()}
    sentences = []
    for first, second in combinations(splits, 2):
        known = set(contents[first]) - {None}
        twice = [i for i, content in enumerate(contents[second]) if content in known]
        if twice:
            images = splits[second].images
            name = f"row {twice[0]}" if isinstance(images, np.ndarray) else images.name(twice[0])
            sentences.append(
                f"{len(twice)} of {len(images)} images of {second} are in {first} too, with the same content "
                f"(the first: {name})."
            )
    return sentences


def _twins(splits: Mapping[str, Split], progress: Progress) -> dict[tuple[str, int], Any]:
    """The content of every image that another one equals; each look is at those that the one before left in doubt."""
    seen: dict[tuple[str, int], Any] = {(name, i): () for name, split in splits.items() for i in range(len(split))}
    for look in (_size, _piece, _content):
        total = len(seen)
        for n, ((name, i), before) in enumerate(seen.items(), 1):
            seen[name, i] = (*before, look(splits[name].images, i))
            progress("looking for images in two parts", n, total)
        often = Counter(seen.values())
        seen = {at: now for at, now in seen.items() if often[now] > 1}
    return seen


def _size(images: Any, i: int) -> int:
    return 0 if isinstance(images, np.ndarray) else images.size(i)


def _piece(images: Any, i: int) -> bytes:
    return b"" if isinstance(images, np.ndarray) else hashlib.sha256(images.piece(i)).digest()


def _content(images: Any, i: int) -> bytes:
    data = np.ascontiguousarray(images[i]).tobytes() if isinstance(images, np.ndarray) else images.read(i)
    return hashlib.sha256(data).digest()
