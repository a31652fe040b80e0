r"""Reliance: how much the predictions follow an attribute, by its conflicts with the label and by its erasure.

**The test.** Within each class the error where attribute and label conflict is compared with the error where they
agree, and the differences are averaged over classes:

.. math:: \mathrm{gap} = \frac1K \sum_y
          \big(\mathrm{err}(y, \text{conflicting}) - \mathrm{err}(y, \text{aligned})\big).

For two classes and two values this is the average effect of the attribute on the prediction. What makes one value
harder for every class cancels. The label has the same measure, :math:`1 - \frac{K}{K-1}\,\mathrm{err}` with the
equal-group error: 1 if predictions follow the label, 0 if they ignore it.

Which cells conflict is decided without the test part (:func:`samphire.audits.association.alignment`), the gap is
measured on it. The interval is MOVER's at 95 % for all attributes together: with k of them each has the level
:math:`1 - 0.05/k` (Bonferroni). The alarm is raised if the whole interval lies above ``MARGIN``, 5 points of error;
"not relied on" needs the whole interval below it; otherwise it stays undecided. Where the true gap is at most the
margin an alarm is false in at most 2.5 % of audits, and less where it is far below. Classes with fewer than ``LEAST``
test examples on either side are left out; without any class left nothing is judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from samphire import records
from samphire.audits.association import Alignment, contrast
from samphire.audits.seen import Crossing, Seen, crossing, some_of_each
from samphire.probes.erasure import Erasure, erase, erase_random
from samphire.probes.logistic import Array, Linear
from samphire.statistics import LEVEL, Interval, verdict

__all__ = ["LEAST", "MARGIN", "Erased", "Judgment", "Reliance", "erasures", "label_reliance", "reliance"]

MARGIN = 0.05
LEAST = 5
RANDOM = 10  # erasures of random directions
Judgment = Literal["relied on", "not relied on", "undecided", "cannot be judged"]
_JUDGMENT: dict[str, Judgment] = {"contradicted": "relied on", "holds": "not relied on", "open": "undecided"}


@dataclass(frozen=True)
class Reliance:
    """How much predictions follow an attribute.

    Args:
        feature: Its name.
        gap: Conflicting minus aligned error, mean over classes; nan if it cannot be judged.
        interval: Of the gap, 95 % for all attributes together.
        aligned: Mean over classes of the error where they agree.
        conflicting: The same where they conflict.
        n: Test examples that agree, and that conflict.
        judgment: What the interval says.
        source: What decided which cells conflict, see :class:`samphire.audits.association.Alignment`.
        smallest: The smallest side: its name and examples.
    """

    feature: str
    gap: float
    interval: Interval
    aligned: float
    conflicting: float
    n: tuple[int, int]
    judgment: Judgment
    source: str
    smallest: tuple[str, int]


def reliance(test: Crossing, wrong: NDArray[np.bool_], aligned: Alignment, attributes: int = 1) -> Reliance:
    """The gap of one attribute on the test part, and what it says.

    Args:
        test: Label and attribute.
        wrong: For each row of ``test``, whether the prediction is wrong.
        aligned: Which cells agree.
        attributes: How many are judged together.

    Example:
        >>> y, a = np.repeat([0, 1], 200), np.tile([0, 1], 200)
        >>> from samphire.data.split import Split
        >>> test = crossing(Split(y, y, {"y": y, "a": a}), "y", "a")
        >>> follows = reliance(test, y != a, Alignment(np.array([[1, -1], [-1, 1]]), "training"))
        >>> follows.gap, follows.judgment
        (1.0, 'relied on')
    """
    n, k = test.count(), test.count(wrong.astype(float))
    sides = {s: ((n * (aligned.sign == s)).sum(1), (k * (aligned.sign == s)).sum(1)) for s in (1, -1)}
    smallest = _smallest(test, n, aligned)
    classes = np.flatnonzero((sides[1][0] >= LEAST) & (sides[-1][0] >= LEAST))
    source, feature = aligned.source, test.attribute
    if not len(classes):
        nothing = (math.nan, math.nan)
        return Reliance(feature, math.nan, nothing, *nothing, (0, 0), "cannot be judged", source, smallest)
    both = [(y, s) for y in classes for s in (1, -1)]
    k_of_n = [(int(sides[s][1][y]), int(sides[s][0][y])) for y, s in both]
    gap, interval = contrast(
        [k for k, _ in k_of_n],
        [n for _, n in k_of_n],
        [-s / len(classes) for _, s in both],
        level=1 - (1 - LEVEL) / attributes,
    )
    means = {s: float(np.mean(sides[s][1][classes] / sides[s][0][classes])) for s in (1, -1)}
    totals = tuple(int(sides[s][0][classes].sum()) for s in (1, -1))
    judged = _JUDGMENT[verdict(interval, MARGIN)]
    return Reliance(feature, gap, interval, means[1], means[-1], (totals[0], totals[1]), judged, source, smallest)


def label_reliance(test: Crossing, wrong: NDArray[np.bool_]) -> tuple[float, Interval]:
    """How much predictions follow the label: 1 minus the equal-group error over the error of guessing."""
    n, k = test.count(), test.count(wrong.astype(float))
    cells = n > 0
    classes = int((n.sum(1) > 0).sum())
    share = classes / (classes - 1) / cells.sum()
    error, (low, high) = contrast(k[cells].tolist(), n[cells].tolist(), [share] * int(cells.sum()))
    return 1 - error, (1 - high, 1 - low)


def _smallest(test: Crossing, n: NDArray[Any], aligned: Alignment) -> tuple[str, int]:
    """The conflicting or aligned cell with the fewest test examples."""
    counted = np.where((aligned.sign != 0) & (n.sum(1, keepdims=True) > 0), n, n.sum() + 1)
    y, a = np.unravel_index(int(counted.argmin()), n.shape)
    return test.name(int(y), int(a)), int(n[y, a])


# Erasure


@dataclass(frozen=True)
class Erased:
    """What becomes of the predictions when something is removed from the head's input.

    Args:
        what: The attribute, the label, or ``"random direction"``.
        flipped: Share of predictions that change, equal-weight mean over cells.
        gap: The attribute's gap afterwards.
        interval: Of the gap, 95 %; of random directions, the smallest and the largest of all draws.
        error: The equal-group error afterwards.
        worst: The worst cell's error afterwards.
    """

    what: str
    flipped: float
    gap: float
    interval: Interval
    error: float
    worst: float


def erasures(val: Seen, test: Seen, head: Linear, label: str, attribute: str, aligned: Alignment) -> list[Erased]:
    """Erase nothing, the attribute, random directions (mean over draws) and the label; count what changes.

    The maps are fitted on the validation part, weighted so that every cell counts the same: erasing the attribute
    then leaves the label's own directions alone.

    Args:
        val: Where the maps are fitted.
        test: Where predictions are counted.
        head: From features to logits.
        label: The label's name.
        attribute: The attribute's name.
        aligned: Which cells agree.
    """
    fitted, measured = crossing(val.split, label, attribute), crossing(test.split, label, attribute)
    fitted = fitted.subset(some_of_each(fitted.split.group, purpose="erasure"))
    x = np.asarray(val.features[fitted.rows], np.float64)
    weights = 1 / fitted.count()[fitted.y, fitted.a]
    removed = erase(x, fitted.a, weights, shrink=True)
    draw = np.random.default_rng(records.seed(0, "random erasure"))
    maps = [(attribute, removed)]
    maps += [
        ("random direction", erase_random(x, max(removed.rank, 1), draw, weights, shrink=True)) for _ in range(RANDOM)
    ]
    maps += [(label, erase(x, fitted.y, weights, shrink=True))]
    before = test.logits[measured.rows]
    results = [_counted("nothing", measured, before, before, aligned)]
    shifts = _shifts(test.features, measured.rows, [m for _, m in maps], head)
    each = [_counted(w, measured, before, before - s, aligned) for (w, _), s in zip(maps, shifts, strict=True)]
    random = [e for e in each if e.what == "random direction"]
    return [*results, each[0], _mean(random), each[-1]]


def _shifts(features: Any, rows: Any, maps: Sequence[Erasure], head: Linear, chunk: int = 4096) -> list[Array]:
    """How much each map lowers the logits, from features read piece by piece."""
    parts: list[list[Array]] = [[] for _ in maps]
    for start in range(0, len(rows), chunk):
        x = np.asarray(features[rows[start : start + chunk]], np.float64)
        for part, m in zip(parts, maps, strict=True):
            part.append(((x - m.mean) @ m.right.T) @ (head.weight @ m.left).T)
    return [np.concatenate(part) for part in parts]


def _counted(what: str, test: Crossing, before: Any, after: Any, aligned: Alignment) -> Erased:
    predicted = after.argmax(1)
    n = np.maximum(test.count(), 1)
    cells = test.count() > 0
    flipped = (test.count((predicted != before.argmax(1)).astype(float)) / n)[cells]
    error = (test.count((predicted != test.y).astype(float)) / n)[cells]
    relied = reliance(test, predicted != test.y, aligned)
    return Erased(what, float(flipped.mean()), relied.gap, relied.interval, float(error.mean()), float(error.max()))


def _mean(draws: Sequence[Erased]) -> Erased:
    flipped, gap, error, worst = (
        float(np.mean([getattr(draw, what) for draw in draws])) for what in ("flipped", "gap", "error", "worst")
    )
    gaps = [draw.gap for draw in draws]
    return Erased(draws[0].what, flipped, gap, (min(gaps), max(gaps)), error, worst)
