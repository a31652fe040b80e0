"""Tables, for the terminal, for spreadsheets and for other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from samphire.records import scalar
from samphire.report.cells import show, strict
from samphire.statistics import Estimate

if TYPE_CHECKING:
    import rich.table

__all__ = ["Table", "rich_table", "table", "to_csv", "to_json"]


@dataclass(frozen=True)
class Table:
    """Columns and rows of cells.

    Args:
        columns: Their heads.
        rows: One cell for each column: numbers, text, truth values, :class:`Estimate` or ``None``.
        caption: One sentence.

    Example:
        >>> Table(["rho", "error"], [[0.0, Estimate(0.28, 0.02, 3)]])
        Table(columns=('rho', 'error'), rows=((0.0, Estimate(mean=0.28, error=0.02, n=3)),), caption='')
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(scalar(cell) for cell in row) for row in self.rows))
        for i, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {i} of the table must have {len(self.columns)} cells, one for each of "
                    f"{', '.join(self.columns)}, got {len(row)}."
                )

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """For each column, whether it has only numbers."""
        return tuple(
            any(cell is not None for cell in column) and all(cell is None or _is_number(cell) for cell in column)
            for column in zip(*self.rows, strict=True)
        ) or (False,) * len(self.columns)


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None, caption: str = "") -> Table:
    """A table from rows as :mod:`samphire.records` stores them.

    Args:
        rows: Cells by column; a column that a row lacks is left empty.
        columns: Which, in this order; by default all, in order of appearance.
        caption: One sentence.

    Example:
        >>> table([{"rho": 0.0}, {"rho": 0.5, "error": 0.2}]).rows
        ((0.0, None), (0.5, 0.2))
    """
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
    return Table(names, [[row.get(name) for name in names] for row in rows], caption)


def rich_table(table: Table) -> rich.table.Table:
    """A table for the terminal, to be printed by rich.

    Args:
        table: Its texts are shown as they are, brackets included.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=Text(table.caption) if table.caption else None, title_justify="left")
    for name, numeric in zip(table.columns, table.numeric, strict=True):
        shown.add_column(Text(name), justify="right" if numeric else "left")
    for row in table.rows:
        shown.add_row(*(Text(show(cell)) for cell in row))
    return shown


def to_csv(table: Table) -> str:
    """A table as CSV in full precision; an estimate takes three columns: mean, standard error and n.

    Text that a spreadsheet would run as a formula (it begins with =, +, - or @) is quoted by an apostrophe.

    Args:
        table: The table.

    Example:
        >>> print(to_csv(Table(["rho", "error"], [[0.5, Estimate(0.2, 0.1, 3)]])), end="")
        rho,error,error_se,error_n
        0.5,0.2,0.1,3
    """
    wide = [any(isinstance(row[i], Estimate) for row in table.rows) for i in range(len(table.columns))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [
            _text(h)
            for c, w in zip(table.columns, wide, strict=True)
            for h in (c, f"{c}_se", f"{c}_n")[: 3 if w else 1]
        ]
    )
    for row in table.rows:
        writer.writerow([_text(part) for cell, w in zip(row, wide, strict=True) for part in _parts(cell, w)])
    return file.getvalue()


def to_json(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as strict JSON for other programs: nan and infinities, which JSON lacks, become null.

    Args:
        rows: Cells by name; an :class:`Estimate` becomes its mean, error and n.

    Example:
        >>> print(to_json([{"rho": 0.5, "error": float("nan")}]))
        [
         {
          "rho": 0.5,
          "error": null
         }
        ]
    """
    return json.dumps([strict(row) for row in rows], indent=1, ensure_ascii=False, allow_nan=False)


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float, Estimate)) and not isinstance(cell, bool)


def _text(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip().startswith(("=", "+", "-", "@")) else cell


def _parts(cell: Any, wide: bool) -> list[Any]:
    if not wide:
        return [cell]
    return [cell.mean, cell.error, cell.n] if isinstance(cell, Estimate) else [cell, None, None]
