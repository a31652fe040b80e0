"""What is known of a job, read from its files at any time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from samphire import records
from samphire.records import Row

State = Literal["done", "stopped", "running", "failed", "missing"]


@dataclass(frozen=True)
class Trial:
    """A job and what is known of it.

    Attributes:
        config: What was to be run.
        folder: Where its rows are.
        state: ``"done"``; ``"stopped"``: done, but training broke off, as its row says, and would again;
            ``"running"``: some process is writing it; ``"failed"``: every attempt raised; ``"missing"``: not begun,
            or interrupted and to be resumed.
        row: Its last row, if there is one.
        error: The traceback of the last attempt, where all failed.
    """

    config: Any
    folder: Path
    state: State
    row: Row | None = None
    error: str = ""

    @property
    def report(self) -> Path:
        """The file with the traceback."""
        return report_of(self.folder)


def trials(out: str | os.PathLike[str], jobs: Iterable[Any]) -> list[Trial]:
    """What is known of each job, at any time and also while others write.

    Args:
        out: The folder of the runs.
        jobs: Their configurations.
    """
    if not Path(out).is_dir():
        raise FileNotFoundError(f"no folder of runs at {out}; check the path, or run the sweep first.")
    return [trial_of(Path(out) / records.key(job), job) for job in jobs]


def trial_of(folder: Path, job: Any) -> Trial:
    """What is known of one job."""
    done = is_done(folder)  # looked at first: then all rows are there
    rows = rows_of(folder)
    row: Row | None = json.loads(rows[-1]) if rows else None
    if done:
        return Trial(job, folder, "stopped" if row and row.get("stopped") else "done", row)
    if is_locked(folder):
        return Trial(job, folder, "running", row)
    error = report_of(folder).read_text(encoding="utf-8") if report_of(folder).exists() else ""
    return Trial(job, folder, "failed" if error else "missing", row, error)


def rows_of(folder: Path) -> list[bytes]:
    """The whole lines of rows, whether or not one is being written."""
    try:
        return (folder / "rows.jsonl").read_bytes().split(b"\n")[:-1]
    except OSError:  # not begun
        return []


def is_done(folder: Path) -> bool:
    """Whether a run is complete."""
    return (folder / "done").exists()


def is_locked(folder: Path) -> bool:
    """Whether a process has the run open for writing."""
    try:
        import fcntl

        file = os.open(folder / ".lock", os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def report_of(folder: Path) -> Path:
    """Where the traceback of a failed run is kept."""
    return folder.parent / "failed" / f"{folder.name}.txt"
