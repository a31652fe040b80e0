"""The claim that most experiments make: some runs have a lower value than others with the same seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from samphire import report
from samphire.experiments.rows import Row
from samphire.statistics import lower, paired

__all__ = ["lower_claim"]


def lower_claim(
    text: str,
    before: Iterable[Row],
    after: Iterable[Row],
    column: str,
    *,
    says: str,
    ours: str = "",
    detail: str = "",
    limit: float = 0.0,
    by: str = "seed",
    within: Sequence[str] = (),
) -> report.Claim:
    """A claim that a column is lower after than before, in pairs.

    Args:
        text: The claim.
        before: Runs to compare with.
        after: Runs that should have the lower values.
        column: What is compared.
        says: What the paper or the review says.
        ours: What we measured, without the difference.
        detail: More on how it was judged.
        limit: The difference must be below it; a margin stated beforehand, for "not higher".
        by: The column that makes an observation.
        within: Further columns that must agree in a pair; see :func:`samphire.statistics.paired`.

    Example:
        >>> sgd, sam = ([{"seed": s, "error": e + 0.01 * s} for s in range(3)] for e in (0.3, 0.2))
        >>> claim = lower_claim("SAM's error is lower.", sgd, sam[::-1], "error", says="lower")
        >>> claim.verdict, claim.ours
        ('holds', 'difference -0.1 (n=3), p = 0')
    """
    difference = paired(before, after, column, by, within)
    p = f", p = {difference.p:.2g}" if math.isfinite(difference.p) else ""
    return report.Claim(
        text,
        lower(difference, limit),
        ours=f"{ours}; difference {difference}{p}".removeprefix("; "),
        paper=says,
        detail=f"Judged by the 95 % interval of the paired difference over {by}s. {detail}".rstrip(),
    )
