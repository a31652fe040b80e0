"""Experiments without what only costs time here: layouts of pictures nobody looks at, and starts of processes."""

import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

from samphire.report import pictures
from samphire.sweep.executors import EXECUTORS


@pytest.fixture
def rough_pictures(monkeypatch):
    """Everything is drawn, small and without arranging the panels: where test_runner draws the same as users do."""
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda self, figure: None)
    monkeypatch.setattr(pictures, "PIXELS", 0.5)


@pytest.fixture(scope="module")
def in_this_process():
    """Sweeps run here, not in processes; tests/sweep compares the rows of every executor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXECUTORS, "processes", EXECUTORS["here"])
        yield
