"""Results as tables, pictures and one self-contained page that opens anywhere, offline.

A :class:`Result` is immutable and knows nothing of how it was computed. :func:`page` escapes every text it is given
and puts pictures inside the file; :func:`write` also leaves every picture as PNG and every table as CSV beside it.
"""

from samphire.report.cells import Estimate, duration, estimate, show, strict
from samphire.report.pictures import PALETTE, curve, figure, png
from samphire.report.results import Claim, Result, summary
from samphire.report.tables import Table, rich_table, table, text, to_csv, to_json
from samphire.report.webpage import page, write

__all__ = [
    "PALETTE",
    "Claim",
    "Estimate",
    "Result",
    "Table",
    "curve",
    "duration",
    "estimate",
    "figure",
    "page",
    "png",
    "rich_table",
    "show",
    "strict",
    "summary",
    "table",
    "text",
    "to_csv",
    "to_json",
    "write",
]
