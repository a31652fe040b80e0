"""Rows of runs in groups, their means and tables of them, and how claims about them are judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from samphire import report
from samphire.statistics import Estimate, estimate

Row = dict[str, Any]
JUDGED = "Judged by the 95 % interval over seeds; runs that are compared are paired by seed."

__all__ = ["JUDGED", "Row", "by", "collapsed", "mean", "mean_table", "usable"]


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


def usable(rows: Sequence[Row], column: str) -> Estimate:
    """The mean over runs that did not collapse; nan, which judges nothing, if most of them did."""
    known = mean(rows, column)
    return known if 2 * known.n >= len(rows) else Estimate(math.nan, math.nan, known.n)


def collapsed(rows: Iterable[Row]) -> str:
    """How many of the runs collapsed, for a table: ``"2 of 10"``."""
    rows = list(rows)
    return f"{sum(row['collapsed'] for row in rows)} of {len(rows)}"


def mean_table(
    cells: Mapping[Any, list[Row]],
    heads: Iterable[str],
    columns: Mapping[str, str],
    caption: str = "Mean over seeds ± standard error.",
) -> report.Table:
    """The means of every setting, and how many of its runs collapsed.

    Args:
        cells: Runs of each setting, which is a tuple.
        heads: The names of what is in the tuple.
        columns: What is shown of the runs, with the heads of the table.
        caption: One sentence.
    """
    lines = [[*key, *(mean(cell, column) for column in columns), collapsed(cell)] for key, cell in cells.items()]
    return report.Table([*heads, *columns.values(), "collapsed"], lines, caption)
