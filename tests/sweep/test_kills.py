"""A small rehearsal of kills.py: workers and parents killed at random moments lose nothing."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import kills


def test_a_sweep_through_kills_ends_with_every_row_once(tmp_path):
    killed = kills.rehearse(12, tmp_path, workers=2, seed=1, rows=(5, 25))
    assert sum(killed.values()) >= 2
    runs = kills.stored(tmp_path)
    assert len(runs) == 12
    assert all(rows == list(range(kills.ROWS)) for rows in runs.values())
