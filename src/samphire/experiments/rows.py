"""Rows of runs in groups, and their means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from samphire.statistics import Estimate, estimate

Row = dict[str, Any]

__all__ = ["Row", "by", "collapsed", "mean"]


def by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Rows in groups of equal values, in order of appearance; with one column the keys are plain values.

    Example:
        >>> by([{"rho": 0, "e": 1}, {"rho": 1, "e": 2}, {"rho": 0, "e": 3}], "rho")[0]
        [{'rho': 0, 'e': 1}, {'rho': 0, 'e': 3}]
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[c] for c in columns)
        groups.setdefault(key[0] if len(columns) == 1 else key, []).append(row)
    return groups


def mean(rows: Iterable[Row], column: str) -> Estimate:
    """The mean over runs that did not collapse, with its standard error and their number."""
    return estimate(row[column] for row in rows if not row["collapsed"])


def collapsed(rows: Iterable[Row]) -> str:
    """How many of the runs collapsed, for a table: ``"2 of 10"``."""
    rows = list(rows)
    return f"{sum(row['collapsed'] for row in rows)} of {len(rows)}"
