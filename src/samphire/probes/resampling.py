"""Draws that respect groups: balanced samples, halves, and the bootstrap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire import records
from samphire.probes.groups import Codes

__all__ = ["balanced", "balanced_halves", "bootstrap", "halves", "members_of", "tenth"]


def balanced(group: Codes, draw: np.random.Generator) -> Codes:
    """Positions of as many examples of every group as the smallest has.

    Example:
        >>> group = np.array([0, 0, 0, 1, 1])
        >>> np.bincount(group[balanced(group, np.random.default_rng(0))])
        array([2, 2])
    """
    members = list(members_of(group))
    n = min(map(len, members))
    return np.concatenate([draw.permutation(m)[:n] for m in members])


def balanced_halves(group: Codes, per_group: int, draw: np.random.Generator) -> tuple[Codes, Codes]:
    """Positions of ``per_group`` examples of every group, and of as many others, without repetition.

    Example:
        >>> train, held = balanced_halves(np.array([0, 0, 0, 1, 1]), 1, np.random.default_rng(0))
        >>> len(train), len(held), len(np.intersect1d(train, held))
        (2, 2, 0)
    """
    drawn = [draw.permutation(members)[: 2 * per_group] for members in members_of(group)]
    return np.concatenate([d[:per_group] for d in drawn]), np.concatenate([d[per_group:] for d in drawn])


def halves(group: Codes, draw: np.random.Generator) -> tuple[Codes, Codes]:
    """Positions of all examples in two parts, each group split evenly (the first part has the odd one).

    Example:
        >>> first, second = halves(np.array([0, 0, 0, 1, 1]), np.random.default_rng(0))
        >>> len(first), len(second)
        (3, 2)
    """
    drawn = [np.array_split(draw.permutation(members), 2) for members in members_of(group)]
    return np.concatenate([a for a, _ in drawn]), np.concatenate([b for _, b in drawn])


def tenth(group: Codes, draw: np.random.Generator) -> tuple[Codes, Codes]:
    """Positions of nine tenths of every group, and of the tenth, which has one example of each at least.

    Example:
        >>> rest, held = tenth(np.repeat([0, 1], [20, 3]), np.random.default_rng(0))
        >>> len(rest), len(held)
        (20, 3)
    """
    drawn = [draw.permutation(members) for members in members_of(group)]
    parts = [np.split(members, [max(1, round(len(members) / 10))]) for members in drawn]
    return np.concatenate([rest for _, rest in parts]), np.concatenate([held for held, _ in parts])


def members_of(group: Codes) -> Iterator[Codes]:
    """The positions of each group's examples."""
    return (np.flatnonzero(group == g) for g in np.unique(group))


def bootstrap(wrong: NDArray[Any], group: Codes, *, draws: int = 1000) -> tuple[float, float]:
    """A 95 % interval for the equal-group error: resamples, and test examples within groups, are drawn again.

    Args:
        wrong: Of each resample (rows) and test example (columns), whether it was wrong.
        group: Of each test example.
        draws: How many.

    Example:
        >>> bootstrap(np.zeros((3, 4)), np.array([0, 0, 1, 1]))
        (0.0, 0.0)
    """
    draw = np.random.default_rng(records.seed(0, "bootstrap"))
    order = np.argsort(group, kind="stable")
    _, first, inverse, count = np.unique(group[order], return_index=True, return_inverse=True, return_counts=True)
    first, size = first[inverse], count[inverse]  # of each test example's group
    share = 1 / (len(count) * size)
    wrong = wrong[:, order].astype(np.float64)
    weights = draw.multinomial(len(wrong), np.full(len(wrong), 1 / len(wrong)), size=draws) / len(wrong)
    means = [share @ (w @ wrong)[first + (size * draw.random(len(size))).astype(np.int64)] for w in weights]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
