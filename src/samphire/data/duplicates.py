"""Images that are in two parts of a data set, found by their content."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from samphire.data.split import Split

__all__ = ["shared_between"]


def shared_between(splits: Mapping[str, Split]) -> list[str]:
    """A sentence for every two parts that share images.

    Images are compared by their bytes. Files are read only if another one has the same size.

    Args:
        splits: By name.

    Example:
        >>> a, b = np.zeros((3, 1, 2, 2), np.uint8), np.ones((2, 1, 2, 2), np.uint8)
        >>> shared_between({"train": Split(a, [0, 0, 1], {}), "test": Split(np.concatenate([a[:1], b]), [0, 0, 1], {})})
        ['1 of 3 images of test are in train too, with the same content (the first: row 0).']
    """
    sizes = Counter(size for split in splits.values() for size in _sizes(split.images))
    contents = {name: list(_contents(split.images, sizes)) for name, split in splits.items()}
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


def _sizes(images: Any) -> Iterator[int]:
    if not isinstance(images, np.ndarray):
        yield from (images.size(i) for i in range(len(images)))


def _contents(images: Any, sizes: Counter[int]) -> Iterator[bytes | None]:
    """A hash of each image; ``None`` for a file that is the only one of its size."""
    if isinstance(images, np.ndarray):
        yield from (hashlib.sha256(np.ascontiguousarray(image).tobytes()).digest() for image in images)
        return
    for i in range(len(images)):
        alone = sizes[images.size(i)] == 1
        yield None if alone else hashlib.sha256(images.read(i)).digest()
