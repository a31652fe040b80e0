"""How label and attribute occur together, which cells agree with that, and intervals for sums of proportions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.audits.seen import Crossing
from samphire.probes.groups import Codes
from samphire.statistics import LEVEL, Interval

__all__ = ["Alignment", "Association", "alignment", "association", "contrast"]

ASSOCIATED = 0.01  # p-value below which the training part's co-occurrence says which cells agree


@dataclass(frozen=True)
class Association:
    """How strongly label and attribute go together.

    Args:
        counts: Examples of every class (rows) and value (columns).
        v: Cramer's V, corrected for chance: 0 for independence, 1 if one tells the other.
        interval: Of V, 95 %.
        p: Of the chi-squared test of independence.
    """

    counts: NDArray[np.int64]
    v: float
    interval: Interval
    p: float


def association(counts: NDArray[Any]) -> Association:
    r"""Cramer's V of a table of counts, with an interval.

    .. math:: V = \sqrt{\frac{\max(0,\ \chi^2 - df)}{n\,(\min(r, c) - 1)}},

    where subtracting the degrees of freedom takes out what chance alone would give. The interval inverts the
    noncentral chi-squared distribution of :math:`\chi^2`.

    Args:
        counts: Classes by values; empty rows and columns are left out.

    Example:
        >>> strong = association(np.array([[90, 10], [10, 90]]))
        >>> round(strong.v, 2), [round(end, 2) for end in strong.interval], association(np.full((2, 2), 50)).v
        (0.8, [0.66, 0.94], 0.0)

    References:
        Cramer, Mathematical Methods of Statistics, 1946; Smithson, Confidence Intervals, 2003, chapter 4.
    """
    from scipy.optimize import brentq
    from scipy.special import chdtrc, chndtr

    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    n, df = table.sum(), (table.shape[0] - 1) * (table.shape[1] - 1)
    if df == 0 or not n:
        return Association(counts, math.nan, (math.nan, math.nan), math.nan)
    expected = table.sum(1, keepdims=True) * table.sum(0) / n
    statistic = float(((table - expected) ** 2 / expected).sum())
    most = n * (min(table.shape) - 1)

    def noncentrality(share: float) -> float:
        if chndtr(statistic, df, 1e-9) <= share:
            return 0.0
        end = statistic + 20 * math.sqrt(statistic + df) + 50
        return float(brentq(lambda nc: chndtr(statistic, df, nc) - share, 1e-9, end))

    low, high = (min(1.0, math.sqrt(noncentrality(share) / most)) for share in ((1 + LEVEL) / 2, (1 - LEVEL) / 2))
    v = math.sqrt(max(0.0, statistic - df) / most)
    return Association(counts, v, (low, high), float(chdtrc(df, statistic)))


@dataclass(frozen=True)
class Alignment:
    """Which cells of label and attribute are aligned (1), conflicting (-1) or neither (0).

    Args:
        sign: Classes by values.
        source: ``"training"``: aligned cells are more frequent in the training part than independence would make
            them. ``"model"``: label and attribute are not associated there (or there is no training part), so a
            cell is aligned if the model favors its class, on the validation part, where the attribute has its value.
    """

    sign: Codes
    source: str


def alignment(train: Crossing | None, val: Crossing, predicted: Codes) -> Alignment:
    """Which cells are aligned, without looking at the test part.

    Args:
        train: Of the training part, if there is one.
        val: Of the validation part.
        predicted: The model's class for each row of ``val``.
    """
    if train is not None:
        counts = train.count()
        if association(counts).p < ASSOCIATED:
            return Alignment(_more_than_independent(counts), "training")
    return Alignment(_favored(val, predicted), "model")


def _more_than_independent(counts: NDArray[Any]) -> Codes:
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    sign: Codes = np.sign(counts - expected).astype(np.int64)
    return sign


def _favored(val: Crossing, predicted: Codes) -> Codes:
    """Whether a class is predicted more often where the attribute has a value than elsewhere, within true classes."""
    n = val.count()
    classes = n.shape[0]
    lean = np.zeros(n.shape)
    for k in range(classes):
        hits = val.count((predicted == k).astype(float))
        with np.errstate(invalid="ignore"):
            rate = hits / n  # of predicting k, by true class and value
            overall = hits.sum(1, keepdims=True) / n.sum(1, keepdims=True)
        lean[k] = np.nansum(rate - overall, 0)
    sign: Codes = np.sign(np.round(lean, 12)).astype(np.int64)
    even = ~sign.any(1)  # classes that no value favors: any choice will do that does not look at the test part
    own = np.arange(classes)[:, None] % n.shape[1] == np.arange(n.shape[1])
    sign[even] = np.where(own, 1, -1)[even]
    return sign


def contrast(
    wrong: Sequence[int], n: Sequence[int], coefficients: Sequence[float], level: float = LEVEL
) -> tuple[float, Interval]:
    r"""A weighted sum of proportions, and its interval from the proportions' own Wilson intervals (MOVER).

    .. math:: L = \hat\theta - \sqrt{\sum_i (c_i \hat p_i - l_i)^2}, \qquad \hat\theta = \sum_i c_i \hat p_i,

    with :math:`l_i` the lower end of :math:`c_i p_i`; the upper end is alike. It stays honest for small groups and
    errors of 0, where the normal interval has no width.

    Args:
        wrong: Of each proportion, how many.
        n: Of how many.
        coefficients: Its weight in the sum.
        level: Of the interval.

    Example:
        >>> value, (low, high) = contrast([30, 10], [100, 100], [1, -1])
        >>> round(value, 3), round(low, 3), round(high, 3)  # Newcombe's interval for a difference
        (0.2, 0.09, 0.306)

    References:
        Zou, Huang, Zhang, A note on confidence interval estimation for a linear function of binomial proportions,
        Computational Statistics and Data Analysis 2009; Newcombe, Statistics in Medicine 1998.
    """
    from scipy.stats import binomtest

    value, below, above = 0.0, 0.0, 0.0
    for k, m, c in zip(wrong, n, coefficients, strict=True):
        p, ends = k / m, binomtest(int(k), int(m)).proportion_ci(level, "wilson")
        low, high = sorted((c * ends.low, c * ends.high))
        value += c * p
        below += (c * p - low) ** 2
        above += (high - c * p) ** 2
    return value, (value - math.sqrt(below), value + math.sqrt(above))
