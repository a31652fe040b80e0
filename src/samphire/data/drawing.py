"""A stated, seeded choice of examples within groups, the same on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["chosen"]


def chosen(
    group: NDArray[Any], among: NDArray[np.bool_], share: float, purpose: str, least: int = 0
) -> NDArray[np.bool_]:
    """A share of each group: the positions in it with the smallest hashes.

    The choice depends on the purpose and on the order of the examples alone, not on a library's random numbers.

    Args:
        group: Of each example.
        among: Which examples may be chosen.
        share: Of each group's examples among these, rounded.
        purpose: What is drawn, with its seed, for instance ``"test:0"``.
        least: How many of each group at least, if it has as many.

    Example:
        >>> group = np.repeat([0, 1], [10, 2])
        >>> np.bincount(group[chosen(group, group >= 0, 0.2, "test:0", least=1)])
        array([2, 1])
    """
    picked = np.zeros(len(group), bool)
    for g in np.unique(group):
        rows = np.flatnonzero((group == g) & among)
        keys = [hashlib.sha256(f"{purpose}:{g}:{k}".encode()).digest() for k in range(len(rows))]
        picked[rows[np.argsort(keys)[: max(round(share * len(rows)), least)]]] = True
    return picked
