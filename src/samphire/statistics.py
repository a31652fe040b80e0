"""What several runs say: an estimate, a paired difference, and one verdict for every claim.

A claim about a mean *holds*, is *contradicted* (the opposite lies beyond the noise) or stays *open* (the noise hides
it). The noise is the 95 % interval of Student's t, so few runs make a wide interval and a lone run judges nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

LEVEL = 0.95  # of every interval
Verdict = Literal["holds", "contradicted", "open"]
Interval = tuple[float, float]

__all__ = [
    "LEVEL", "Difference", "Estimate", "Interval", "Verdict",
    "all_hold", "by_p", "equal", "estimate", "falling", "fact", "higher", "holm", "lower", "not_higher", "paired",
    "raised", "rising", "verdict",
]  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the number of runs behind it.

    Args:
        mean: Of the runs.
        error: Standard error of the mean; nan for fewer than two runs.
        n: Number of runs.

    Example:
        >>> print(Estimate(0.1234, 0.0101, 10))
        0.123 ± 0.010 (n=10)
    """

    mean: float
    error: float
    n: int

    @property
    def deviation(self) -> float:
        """The standard deviation of one run, divided by n - 1."""
        return self.error * math.sqrt(self.n)

    def spread(self, form: str = ".4f") -> str:
        """Mean and standard deviation as text; what is nan is left out.

        Example:
            >>> estimate([0.1, 0.2]).spread(), estimate([0.1]).spread(".1f"), estimate([]).spread()
            ('0.1500 ± 0.0707', '0.1', '–')
        """
        return " ± ".join(format(x, form) for x in (self.mean, self.deviation) if not math.isnan(x)) or "–"

    def interval(self, level: float = LEVEL) -> Interval:
        """Where the true mean lies, by Student's t; (nan, nan) for fewer than two runs.

        Example:
            >>> [round(end, 3) for end in estimate([1.0, 2.0, 3.0]).interval()]
            [-0.484, 4.484]
        """
        if self.n < 2:
            return math.nan, math.nan
        from scipy.special import stdtrit

        reach = float(stdtrit(self.n - 1, (1 + level) / 2)) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def p(self) -> float:
        """Of the two-sided t-test that the true mean is 0; nan for fewer than two runs."""
        if self.n < 2 or not math.isfinite(self.error):
            return math.nan
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        from scipy.special import stdtr

        return 2 * float(stdtr(self.n - 1, -abs(self.mean) / self.error))

    def __neg__(self) -> Estimate:
        return replace(self, mean=-self.mean)

    def __str__(self) -> str:
        if not (math.isfinite(self.mean) and math.isfinite(self.error) and self.error > 0):
            return f"{self.mean:.4g} (n={self.n})" if math.isfinite(self.mean) else f"– (n={self.n})"
        places = 1 - math.floor(math.log10(self.error))
        if places > 6:
            return f"{self.mean:.2e} ± {self.error:.0e} (n={self.n})"
        return f"{self.mean:.{max(places, 0)}f} ± {self.error:.{max(places, 0)}f} (n={self.n})"


def estimate(values: Iterable[Any]) -> Estimate:
    r"""Mean and standard error, :math:`s / \sqrt n` with :math:`s^2` divided by :math:`n - 1`, of some runs.

    Args:
        values: One number per run. A nan makes the mean nan: leave collapsed runs out yourself, and say how many.

    Example:
        >>> estimate([1.0, 2.0, 3.0])
        Estimate(mean=2.0, error=0.577350269189625..., n=3)
    """
    numbers = [float(v) for v in values]
    n = len(numbers)
    mean = math.fsum(numbers) / n if n else math.nan
    if n < 2 or not math.isfinite(mean):
        return Estimate(mean, math.nan, n)
    return Estimate(mean, statistics.stdev(numbers) / math.sqrt(n), n)


@dataclass(frozen=True)
class Difference:
    """Some runs minus others, in pairs.

    Attributes:
        estimate: Of the differences, after minus before; n counts pairs.
        pairs: How many there were before those with a collapsed or missing run were left out.
    """

    estimate: Estimate
    pairs: int

    @property
    def interval(self) -> Interval:
        """The 95 % interval; (nan, nan), which judges nothing, if fewer than half of the pairs are left."""
        return self.interval_at(LEVEL)

    def interval_at(self, level: float) -> Interval:
        """The interval of another level."""
        return self.estimate.interval(level) if 2 * self.estimate.n >= self.pairs else (math.nan, math.nan)

    @property
    def p(self) -> float:
        """Of the paired t-test."""
        return self.estimate.p

    def __neg__(self) -> Difference:
        return replace(self, estimate=-self.estimate)

    def __str__(self) -> str:
        left_out = self.pairs - self.estimate.n
        return f"{self.estimate}" + (f", {left_out} of {self.pairs} pairs left out: collapsed" if left_out else "")


def paired(
    before: Iterable[Mapping[str, Any]],
    after: Iterable[Mapping[str, Any]],
    column: str | tuple[str, str],
    by: str = "seed",
    within: Sequence[str] = (),
) -> Difference:
    """How much a column differs, after minus before, between runs that share a seed.

    Args:
        before: Rows of runs; those marked ``collapsed``, or whose value is nan, are left out and counted.
        after: Rows of the runs they are compared with. Equal seeds share data and initial weights.
        column: What is compared; two names where the column before is another than the column after.
        by: The column that makes a pair, and one observation.
        within: Further columns that must agree; what one seed has in several settings counts once, by its mean.

    Example:
        >>> a = [{"seed": s, "error": 0.3 + 0.1 * s} for s in (0, 1)]
        >>> b = [{"seed": s, "error": 0.1} for s in (0, 1)]
        >>> print(paired(a, b, "error"))
        -0.250 ± 0.050 (n=2)
    """

    def values(rows: Iterable[Mapping[str, Any]], column: str) -> dict[Any, dict[tuple[Any, ...], float]]:
        grouped: dict[Any, dict[tuple[Any, ...], float]] = {}
        for row in rows:
            value = math.nan if row.get("collapsed") else float(row[column])
            grouped.setdefault(row[by], {})[tuple(row[name] for name in within)] = value
        return grouped

    names = (column, column) if isinstance(column, str) else column
    first, second = values(before, names[0]), values(after, names[1])
    seeds = [seed for seed in first if seed in second]
    differences = []
    for seed in seeds:
        both = [second[seed][key] - value for key, value in first[seed].items() if key in second[seed]]
        usable = [difference for difference in both if math.isfinite(difference)]
        if usable:
            differences.append(math.fsum(usable) / len(usable))
    return Difference(estimate(differences), len(seeds))


# The verdict


def verdict(interval: Interval, below: float = 0.0) -> Verdict:
    """Whether an interval lies below a limit; the one place where noise becomes a verdict.

    Example:
        >>> verdict((-2, -1)), verdict((1, 2)), verdict((-1, 1)), verdict((math.nan, math.nan))
        ('holds', 'contradicted', 'open', 'open')
    """
    low, high = interval
    return "holds" if high < below else "contradicted" if low > below else "open"


def lower(difference: Difference | Estimate, limit: float = 0.0) -> Verdict:
    """Whether a mean difference is below a limit."""
    return verdict(_interval(difference), limit)


def higher(difference: Difference | Estimate, limit: float = 0.0) -> Verdict:
    """Whether a mean difference is above a limit."""
    return lower(-difference, -limit)


def not_higher(difference: Difference | Estimate, margin: float) -> Verdict:
    """Whether a mean difference is at most a margin that was stated beforehand."""
    return lower(difference, margin)


def equal(difference: Difference | Estimate, margin: float) -> Verdict:
    """Whether a mean difference lies within a margin that was stated beforehand.

    Example:
        >>> equal(estimate([0.01, 0.02, 0.0]), 0.05), equal(estimate([0.2, 0.21, 0.2]), 0.05)
        ('holds', 'contradicted')
    """
    return all_hold([lower(difference, margin), higher(difference, -margin)])


def raised(steps: Sequence[Difference]) -> list[bool]:
    """Which of some steps raise a value beyond the noise; the intervals are widened to hold together (Bonferroni)."""
    level = 1 - (1 - LEVEL) / max(len(steps), 1)
    return [verdict(step.interval_at(level)) == "contradicted" for step in steps]


def falling(steps: Sequence[Difference], total: Difference) -> Verdict:
    """Whether a value falls monotonically: from first to last it does, and no step raises it beyond the noise.

    Args:
        steps: From each setting to the next; see :func:`raised`.
        total: From the first setting to the last.
    """
    return "contradicted" if any(raised(steps)) else lower(total)


def rising(steps: Sequence[Difference], total: Difference) -> Verdict:
    """Whether a value rises monotonically; see :func:`falling`."""
    return falling([-step for step in steps], -total)


def fact(condition: bool) -> Verdict:
    """The verdict on what can be checked without noise: a count, a bound, an identity."""
    return "holds" if condition else "contradicted"


def by_p(value: float, p: float) -> Verdict:
    """Whether a value is positive, by the two-sided p-value of a test that gives no interval.

    Example:
        >>> by_p(0.7, 0.01), by_p(-0.7, 0.01), by_p(0.7, 0.2), by_p(math.nan, math.nan)
        ('holds', 'contradicted', 'open', 'open')
    """
    return fact(value > 0) if p < 1 - LEVEL else "open"


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number, so that the chance of any false finding stays below the level.

    Args:
        p: Of each test; a nan, which judges nothing, stays nan and does not count.

    Example:
        >>> holm([0.01, 0.04, 0.03, math.nan])
        [0.03, 0.06, 0.06, nan]

    References:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 1979.
    """
    order = sorted((i for i in range(len(p)) if not math.isnan(p[i])), key=lambda i: p[i])
    corrected, least = [math.nan] * len(p), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p[i]))
        corrected[i] = least
    return corrected


def all_hold(verdicts: Iterable[Verdict]) -> Verdict:
    """Of a claim with several parts: one that is contradicted contradicts it, one that is open leaves it open.

    Example:
        >>> all_hold(["holds", "open"]), all_hold(["open", "contradicted"]), all_hold(["holds"]), all_hold([])
        ('open', 'contradicted', 'holds', 'open')
    """
    verdicts = list(verdicts)
    if "contradicted" in verdicts:
        return "contradicted"
    return "holds" if verdicts and "open" not in verdicts else "open"


def _interval(value: Difference | Estimate) -> Interval:
    return value.interval if isinstance(value, Difference) else value.interval()
