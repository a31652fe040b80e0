"""Sweeps: a grid of trainings, computed here, by local processes or by Ray; selection comes after.

The files are the database. A job is one run folder of :mod:`samphire.records`, so executors only schedule, a sweep
that is run again does what is missing, and every criterion selects from the same rows, also while they are written.
"""

from samphire.sweep.executors import EXECUTORS
from samphire.sweep.grids import GRIDS, grid
from samphire.sweep.running import SweepResult, run
from samphire.sweep.selection import CRITERIA, Choice, select, table
from samphire.sweep.trials import State, Trial, trials

__all__ = [
    "CRITERIA", "EXECUTORS", "GRIDS", "Choice", "State", "SweepResult", "Trial",
    "grid", "run", "select", "table", "trials",
]  # fmt: skip
