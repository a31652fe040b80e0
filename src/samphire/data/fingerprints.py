"""A name for the examples of a data set, which changes with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from samphire.data.split import Split

SAMPLED = 16  # images of each part whose content is looked at

__all__ = ["fingerprint"]


def fingerprint(parts: Mapping[str, Split]) -> str:
    """The first 16 hexadecimal digits of a SHA-256 over ids, labels, features, their names, and a sample of images.

    Only train, val and test count, where there are any: probing sets are made of these, or go with them.
    The sample is always the same, evenly over each part; arrays count by their numbers, encoded images by their
    bytes.

    Args:
        parts: By name; images need not be decoded.

    Example:
        >>> a = Split(np.zeros((2, 1, 2, 2), np.uint8), [0, 1], {})
        >>> fingerprint({"train": a}) == fingerprint({"train": a.subset(np.array([1, 0]))})
        False
    """
    summed = hashlib.sha256()
    for name in sorted(parts.keys() & {"train", "val", "test"} or parts):
        split = parts[name]
        summed.update(repr((name, len(split), split.classes, sorted(split.values.items()))).encode())
        for array in (split.ids, split.label):
            summed.update(array.tobytes())
        for feature in sorted(split.features):
            summed.update(feature.encode() + split.features[feature].tobytes())
        for i in np.unique(np.linspace(0, len(split) - 1, min(SAMPLED, len(split))).astype(int)):
            summed.update(_content(split.images, int(i)))
    return summed.hexdigest()[:16]


def _content(images: Any, i: int) -> bytes:
    if not isinstance(images, np.ndarray):
        data: bytes = images.read(i)
        return data
    return f"{images.dtype} {images.shape[1:]}".encode() + np.ascontiguousarray(images[i]).tobytes()
