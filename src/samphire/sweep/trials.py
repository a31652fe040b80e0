"""What is known of a job, from its files, at any time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from samphire import records
from samphire.records import Row

__all__ = ["State", "Trial", "report_of", "trial_of", "trials"]

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
    """What is known of each job, at any time and also while others write; trained on other data, they are refused.

    Args:
        out: The folder of the runs.
        jobs: Their configurations.
    """
    if not Path(out).is_dir():
        raise FileNotFoundError(f"no folder of runs at {out}; check the path, or run the sweep first.")
    listed = [trial_of(Path(out) / records.key(job), job) for job in jobs]
    _check_same_examples(listed)
    return listed


def trial_of(folder: Path, job: Any) -> Trial:
    """What is known of one job."""
    done = records.is_done(folder)  # checked first: then all rows are there
    row = records.last_row(folder)
    if done:
        return Trial(job, folder, "stopped" if row and row.get("stopped") else "done", row)
    if records.is_locked(folder):
        return Trial(job, folder, "running", row)
    error = report_of(folder).read_text(encoding="utf-8") if report_of(folder).exists() else ""
    return Trial(job, folder, "failed" if error else "missing", row, error)


def _check_same_examples(listed: Iterable[Trial]) -> None:
    """Those of trainings; whoever has such a job has loaded its module, and torch, which other jobs do not need."""
    if "samphire.train.configs" in sys.modules:
        from samphire.train.configs import Config
        from samphire.train.examples import check_same_examples

        check_same_examples((trial.folder, trial.config) for trial in listed if isinstance(trial.config, Config))


def report_of(folder: Path) -> Path:
    """Where the traceback of a failed run is kept."""
    return folder.parent / "failed" / f"{folder.name}.txt"
