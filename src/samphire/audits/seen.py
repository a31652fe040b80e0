"""What a model makes of each part of a data set: the head's input and the logits, beside label and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire import records
from samphire.checks import check_one_of
from samphire.data.split import Split
from samphire.probes.groups import Codes
from samphire.probes.logistic import Linear

__all__ = ["Crossing", "Seen", "check_parts", "crossing", "head_from", "named", "some_of_each", "two_columns"]

ENOUGH = 1500  # rows that probes are trained or tested on: more would cost time and narrow no verdict


@dataclass(frozen=True)
class Seen:
    """One part of a data set as a model sees it.

    Args:
        split: Label and attributes; its images are needed for pictures alone.
        features: What the last layer is given (n, d); an array or a map of a file.
        logits: What it returns (n, classes).

    Example:
        >>> y = np.array([0, 1])
        >>> Seen(Split(y, y, {"y": y}), np.eye(2), np.array([[2.0, 0.0], [3.0, 0.0]])).wrong
        array([False,  True])
    """

    split: Split
    features: Any
    logits: NDArray[Any]

    def __len__(self) -> int:
        return len(self.split)

    @property
    def predicted(self) -> Codes:
        """The class with the largest logit."""
        classes: Codes = np.argmax(self.logits, 1)
        return classes

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Which predictions differ from the label."""
        return self.predicted != self.split.label


@dataclass(frozen=True)
class Crossing:
    """Label and one attribute of the examples whose attribute is known.

    Args:
        split: These examples with these two features; ``images`` are their positions in the part.
        label: The label's name.
        attribute: The attribute's name.
    """

    split: Split
    label: str
    attribute: str

    @property
    def rows(self) -> Codes:
        """Positions in the part."""
        positions: Codes = self.split.images
        return positions

    @property
    def y(self) -> Codes:
        """The label of each example."""
        return self.split.features[self.label]

    @property
    def a(self) -> Codes:
        """The attribute of each example."""
        return self.split.features[self.attribute]

    def count(self, of: NDArray[Any] | None = None) -> NDArray[Any]:
        """Examples of every class (rows) and value (columns); with ``of``, the sum of these numbers instead."""
        shape = self.split.sizes[self.label], self.split.sizes[self.attribute]
        flat = np.ravel_multi_index((self.y, self.a), shape)
        return np.bincount(flat, of, minlength=shape[0] * shape[1]).reshape(shape)

    def subset(self, chosen: NDArray[Any]) -> Crossing:
        """Some of the examples, by position or mask."""
        return Crossing(self.split.subset(chosen), self.label, self.attribute)

    def name(self, y: int, a: int) -> str:
        """A cell as in ``bird=water, place=land``."""
        return f"{named(self.split, self.label, y)}, {named(self.split, self.attribute, a)}"


def crossing(split: Split, label: str, attribute: str) -> Crossing:
    """The examples of a split whose attribute is known (not -1), with label and this attribute alone.

    Example:
        >>> y, place = np.array([0, 1, 1]), np.array([0, -1, 1])
        >>> crossing(Split(y, y, {"y": y, "place": place}), "y", "place").count()
        array([[1, 0],
               [0, 1]])
    """
    rows = np.flatnonzero(split.features[attribute] >= 0)
    features = {name: split.features[name][rows] for name in (label, attribute)}
    values = {name: split.values[name] for name in (label, attribute) if split.values.get(name)}
    return Crossing(Split(rows, split.label[rows], features, rows, split.classes, values), label, attribute)


def named(split: Split, feature: str, value: int) -> str:
    """A feature's value as in ``place=land``."""
    words = split.values.get(feature, ())
    return f"{feature}={words[value] if value < len(words) else value}"


def some_of_each(group: Codes, most: int = ENOUGH, purpose: str = "rows") -> Codes:
    """Positions of at most ``most`` examples, small groups first: all groups are cut at one size.

    Example:
        >>> np.bincount(np.repeat([0, 1], [100, 3])[some_of_each(np.repeat([0, 1], [100, 3]), 10)])
        array([7, 3])
    """
    draw = np.random.default_rng(records.seed(0, purpose)).random(len(group))
    order = np.lexsort((draw, group))
    size = np.bincount(group)
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    return np.sort(np.lexsort((draw, rank))[:most])


def two_columns(logits: Any) -> NDArray[Any]:
    """Logits (n, classes); a single logit z of a binary model becomes (0, z), which has the same probabilities.

    Example:
        >>> two_columns(np.array([3.0, -1.0]))
        array([[ 0.,  3.],
               [ 0., -1.]])
    """
    z = np.asarray(logits)
    z = z[:, None] if z.ndim == 1 else z
    return np.concatenate([np.zeros_like(z), z], 1) if z.shape[1] == 1 else z


def head_from(seen: Mapping[str, Seen], tolerance: float = 1e-3) -> Linear | None:
    """The linear layer between features and logits, by least squares; ``None`` if there is no such layer.

    It is fitted on one part and must give the logits of another up to a small share of their spread.

    Args:
        seen: Parts; two of them are used.
        tolerance: The share.
    """
    by_size = sorted(seen.values(), key=len)
    fitted, checked = by_size[-1], by_size[0]
    x = np.column_stack([fitted.features[:8192], np.ones(min(len(fitted), 8192))])
    w = np.linalg.lstsq(x.astype(np.float64), fitted.logits[:8192].astype(np.float64), rcond=None)[0]
    head = Linear(w[:-1].T, w[-1])
    z = checked.logits[:2000]
    off = np.asarray(checked.features[:2000]) @ head.weight.T + head.bias - z
    return head if np.abs(off).max() <= tolerance * max(float(np.std(z)), 1e-12) else None


def check_parts(seen: Mapping[str, Seen], label: str, attributes: Sequence[str]) -> None:
    """Refuse what cannot be audited, in one sentence."""
    for part, s in seen.items():
        for name in (label, *attributes):
            check_one_of(f"feature of part {part!r}", name, s.split.features)
        if len(s.features) != len(s) or len(s.logits) != len(s):
            raise ValueError(
                f"part {part!r} has {len(s)} labels for {len(s.features)} rows of features and {len(s.logits)} of "
                "logits; give one for each."
            )
        for what, array in (("logits", s.logits), ("features", s.features)):
            bad = _first_not_finite(array)
            if bad is not None:
                raise ValueError(f"the {what} of part {part!r} must be finite, but row {bad} is not; did it diverge?")
    classes = max(s.split.n_classes for s in seen.values())
    outputs = next(iter(seen.values())).logits.shape[1]
    if outputs != classes:
        raise ValueError(
            f"the model has {outputs} outputs but the label {label!r} has {classes} classes; "
            "give the model and the label that belong together."
        )
    test = seen["test"].split
    if len(np.unique(test.label)) < 2:
        raise ValueError(f"the label {label!r} has one class only in the test part; an audit needs two or more.")
    for name in attributes:
        _check_attribute(test, label, name)


def _check_attribute(test: Split, label: str, name: str) -> None:
    values = test.features[name]
    known = values >= 0
    if not known.any() or len(np.unique(values[known])) < 2:
        raise ValueError(f"attribute {name!r} has fewer than two values in the test part; leave it out.")
    pairs = np.unique(np.stack([test.label[known], values[known]]), axis=1).shape[1]
    if pairs == len(np.unique(values[known])) == len(np.unique(test.label[known])):
        raise ValueError(
            f"attribute {name!r} is equal to the label {label!r} in the test part: they never disagree, so nothing "
            "can tell them apart; leave it out, or add examples in which they differ."
        )


def _first_not_finite(array: Any, chunk: int = 8192) -> int | None:
    for start in range(0, len(array), chunk):
        bad = ~np.isfinite(np.asarray(array[start : start + chunk])).all(1)
        if bad.any():
            return start + int(np.flatnonzero(bad)[0])
    return None
