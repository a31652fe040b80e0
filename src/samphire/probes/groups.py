"""Errors by group and their four averages, each under its own name, with intervals that hold for tiny groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.checks import check_one_of
from samphire.data.split import Split

Codes = NDArray[np.int64]

__all__ = ["Codes", "Errors", "GroupError", "errors", "joint_groups", "values_of", "worst_of"]


@dataclass(frozen=True)
class GroupError:
    """The error of one group.

    Args:
        name: Such as ``bird=water, place=land``.
        n: Its test examples.
        error: The share of them that is wrong.
        train_n: Its training examples; ``None`` where they play no part.

    Example:
        >>> GroupError("bird=1", 10, 0.0).interval
        (0.0, 0.2775...)
    """

    name: str
    n: int
    error: float
    train_n: int | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, which stays inside 0 to 1 and is right for small groups and errors near 0.

        References:
            Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 1927.
        """
        from scipy.stats import binomtest

        ends = binomtest(round(self.error * self.n), self.n).proportion_ci(method="wilson")
        return float(ends.low), float(ends.high)


@dataclass(frozen=True)
class Errors:
    """The error of each group and the four averages that papers call "the" error.

    Args:
        groups: Every group with test examples.
        train_weighted: Groups weighted by their share of the training set: the paper's test error, an estimate of
            the error in distribution.
        plain: The share of wrong test examples.
        equal_group: The unweighted mean over groups.

    Example:
        >>> Errors((GroupError("a", 4, 0.5), GroupError("b", 4, 0.25)), 0.4, 0.375, 0.375).worst.name
        'a'
    """

    groups: tuple[GroupError, ...]
    train_weighted: float
    plain: float
    equal_group: float

    @property
    def worst(self) -> GroupError:
        """The group with the highest error; ties go to the largest group."""
        return worst_of(self.groups)

    def row(self) -> dict[str, Any]:
        """The averages as cells of a table, each by its full name."""
        low, high = self.worst.interval
        return {
            "train-weighted error": self.train_weighted,
            "plain error": self.plain,
            "equal-group error": self.equal_group,
            "worst-group error": self.worst.error,
            "worst group": self.worst.name,
            "worst group's n": self.worst.n,
            "worst group's 95 % interval": f"{low:.3f} to {high:.3f}",
        }


def errors(predictions: Any, split: Split, train_split: Split, feature: str | None = None) -> Errors:
    r"""Test errors by group, and averaged in four ways.

    .. math:: \text{train-weighted} = \sum_g \frac{n_g^{train}}{n^{train}}\, \mathrm{err}_g.

    Args:
        predictions: A class for each example of ``split``.
        split: The examples; a group is a combination of its features. One of which a feature is not known belongs
            to none, and counts for the plain average alone.
        train_split: What the network was trained on: the weights of the first average.
        feature: Which feature was predicted; ``None`` for the label.

    Example:
        >>> y, place = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
        >>> split = Split(np.zeros(4), y, {"y": y, "place": place})
        >>> train = split.subset(np.array([0, 0, 0, 3]))
        >>> e = errors([0, 1, 1, 0], split, train)
        >>> e.train_weighted, e.plain, e.equal_group, e.worst.name
        (0.25, 0.5, 0.5, 'y=0, place=1')

    Differences:
        WILDS reports the first for Waterbirds and the second for CelebA; the paper, the first for both.
    """
    truth = split.label if feature is None else values_of(split, feature)
    predictions = np.asarray(predictions)
    if predictions.shape != truth.shape:
        raise ValueError(
            f"there must be one predicted class for each of {len(split)} examples, got shape {predictions.shape}."
        )
    wrong = predictions != truth
    if not len(split) or not len(train_split):
        raise ValueError(f"both splits must have examples, got {len(split)} and {len(train_split)} for training.")
    (test, train), names = joint_groups(split, train_split)
    known = test >= 0
    n = np.bincount(test[known], minlength=len(names))
    train_n = np.bincount(train[train >= 0], minlength=len(names))
    for name in (name for name, a, b in zip(names, n, train_n, strict=True) if b and not a):
        raise ValueError(
            f"group {name} is trained on but has no test example; its error cannot be averaged: take fewer features."
        )
    if not known.any():
        raise ValueError("no test example has all its features known, so there are no groups; take fewer features.")
    present = np.flatnonzero(n)
    error = np.bincount(test[known], wrong[known], len(names))[present] / n[present]
    groups = zip(present, error, strict=True)
    return Errors(
        tuple(GroupError(names[g], int(n[g]), float(e), int(train_n[g])) for g, e in groups),
        train_weighted=float(train_n[present] @ error / train_n.sum()),
        plain=float(wrong.mean()),
        equal_group=float(error.mean()),
    )


def worst_of(groups: Iterable[GroupError]) -> GroupError:
    """The group with the highest error; ties go to the largest group."""
    return max(groups, key=lambda group: (group.error, group.n))


def values_of(split: Split, feature: str) -> Codes:
    """A feature of a split by its name."""
    check_one_of("feature", feature, split.features)
    return split.features[feature]


def joint_groups(*splits: Split) -> tuple[list[Codes], list[str]]:
    """Group codes that mean the same in several splits (-1 where a feature is not known), and each group's name.

    A split counts its groups by the values it holds itself, so their numbers may differ from split to split.

    Args:
        splits: With the same features.

    Example:
        >>> a, b = np.array([0, 2]), np.array([1, 1])
        >>> codes, names = joint_groups(Split(a, a, {"a": a}), Split(b, b, {"a": b}))
        >>> codes, names
        ([array([0, 2]), array([1, 1])], ['a=0', 'a=1', 'a=2'])
    """
    features = tuple(splits[0].features)
    for split in splits:
        if set(split.features) != set(features):
            raise ValueError(
                f"splits must have the same features, got {', '.join(features)} and {', '.join(split.features)}."
            )
    sizes = tuple(max(split.sizes[name] for split in splits) for name in features)
    named = [next((s.values[f] for s in splits if s.values.get(f)), ()) for f in features]
    words = [
        [f"{f}={known[i] if i < len(known) else i}" for i in range(size)]
        for f, known, size in zip(features, named, sizes, strict=True)
    ]
    names = [", ".join(w[i] for w, i in zip(words, index, strict=True)) for index in np.ndindex(*sizes)]
    return [_codes(split, features, sizes) for split in splits], names


def _codes(split: Split, features: tuple[str, ...], sizes: tuple[int, ...]) -> Codes:
    """The features as digits; -1 where one is not known."""
    group = np.zeros(len(split), np.int64)
    for name, size in zip(features, sizes, strict=True):
        group = group * size + split.features[name]
    return np.where(split.known, group, -1)
