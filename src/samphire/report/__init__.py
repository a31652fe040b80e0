"""Results as tables, pictures and one self-contained page that opens anywhere, offline.

A :class:`Result` is immutable and does not know how it was computed. :func:`page` escapes every text and puts
pictures inside the file; :func:`write` also writes every picture as PNG and every table as CSV beside it.
"""

from samphire.report.cells import duration, show, strict
from samphire.report.pictures import PALETTE, curve, figure, png
from samphire.report.results import Claim, Result, Story, count_verdicts, summary
from samphire.report.tables import Table, rich_table, table, to_csv, to_json
from samphire.report.webpage import page, write

__all__ = [
    "PALETTE", "Claim", "Result", "Story", "Table", "count_verdicts", "curve", "duration", "figure", "page", "png",
    "rich_table", "show", "strict", "summary", "table", "to_csv", "to_json", "write",
]  # fmt: skip
