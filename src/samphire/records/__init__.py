"""Runs as files: a key for every configuration, seeds for every purpose, rows that survive a kill, provenance.

A run is the folder ``<out>/<key>/`` with ``config.json`` (written first), ``rows.jsonl`` (appended to),
``sessions.jsonl`` (who computed, where, how long) and ``done`` (written last). A kill can cost an appended file its
last line; every other file appears whole or not at all. Nothing here loads torch.
"""

from samphire.records.cells import Row, plain_cell, scalar
from samphire.records.files import write_atomic
from samphire.records.keys import added, canonical, generator, key, seed
from samphire.records.origin import provenance
from samphire.records.runs import Run, Stored, count_rows, is_done, is_locked, last_row, open_run, read

__all__ = [
    "Row", "Run", "Stored", "added", "canonical", "count_rows", "generator", "is_done", "is_locked", "key",
    "last_row", "open_run", "plain_cell", "provenance", "read", "scalar", "seed", "write_atomic",
]  # fmt: skip
