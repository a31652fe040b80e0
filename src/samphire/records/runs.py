"""The folder of a run: opened for writing, read back, looked at while others write."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samphire.checks import read_regular
from samphire.records.cells import Row, plain_cell
from samphire.records.files import (
    PART,
    append_row,
    is_locked,
    locked,
    parsed,
    read_rows,
    recovered_rows,
    whole_lines,
    write_atomic,
)
from samphire.records.keys import canonical, key
from samphire.records.origin import provenance

ROWS, SESSIONS, CONFIG, DONE = "rows.jsonl", "sessions.jsonl", "config.json", "done"

__all__ = ["Run", "Stored", "count_rows", "is_done", "is_locked", "last_row", "open_run", "read"]


@dataclass
class Run:
    """A run folder open for writing; see :func:`open_run`.

    Attributes:
        folder: Where it is.
        rows: All rows, those of earlier sessions first.
        done: Whether the run was complete when opened.
        complete: Whether the end of the block completes it; set it to False if rows are still missing.
        listeners: Called with all rows after each that is stored.
    """

    folder: Path
    rows: list[Row]
    done: bool
    _file: int = field(default=-1, repr=False)
    complete: bool = True
    listeners: list[Callable[[list[Row]], object]] = field(default_factory=list, repr=False)

    def append(self, row: Mapping[str, Any]) -> None:
        """Store one row; it is safe from a kill of this process once this returns.

        Args:
            row: JSON data by name. NaN and infinities are kept; NumPy and PyTorch scalars become numbers.
        """
        if self.done:
            raise RuntimeError(
                f"run {self.folder} is done and takes no more rows; delete the folder to compute it again."
            )
        stored = {name: plain_cell(value, name) for name, value in row.items()}
        append_row(self._file, stored)
        self.rows.append(stored)
        for listener in self.listeners:
            listener(self.rows)


@contextmanager
def open_run(out: str | os.PathLike[str], config: Any) -> Iterator[Run]:
    """Open the run of a configuration for writing, new or to be resumed; ``done`` is written on a clean exit.

    A last line torn by a kill is dropped, with a line in the log. A folder that holds another configuration, that
    another process is writing, or whose files are damaged is refused and left as it is. A run that is done is only
    read, also from a disk that cannot be written to.

    Args:
        out: The folder that holds the runs.
        config: A frozen dataclass, see :func:`key`.

    Example:
        >>> import tempfile
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     rho: float
        >>> with tempfile.TemporaryDirectory() as out:
        ...     with open_run(out, Config(0.1)) as run:
        ...         if not run.done:
        ...             run.append({"epoch": 1, "error": float("nan")})
        ...     with open_run(out, Config(0.1)) as run:
        ...         run.done, run.rows
        (True, [{'epoch': 1, 'error': nan}])
    """
    folder = Path(out) / key(config)
    if is_done(folder):
        _check_owner(folder, canonical(config))
        yield Run(folder, _finished_rows(folder), done=True)
        return
    with contextlib.ExitStack() as stack:
        with _writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            _refuse_links(folder)
            file = stack.enter_context(_appended(folder / ROWS))
        _claim(folder, canonical(config))
        run = Run(folder, recovered_rows(folder / ROWS), is_done(folder), file)
        started, before = time.perf_counter(), len(run.rows)
        try:
            yield run
        finally:
            if not run.done:
                seconds = time.perf_counter() - started
                _note_session(folder, provenance() | {"seconds": seconds, "rows": len(run.rows) - before})
        if run.complete and not run.done:
            os.fsync(file)
            done = {"rows": len(run.rows), "seconds": _stored(folder).seconds}
            write_atomic(folder / DONE, json.dumps(done).encode() + b"\n")


@contextmanager
def _appended(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _note_session(folder: Path, session: Row) -> None:
    recovered_rows(folder / SESSIONS)
    with _appended(folder / SESSIONS) as file:
        append_row(file, session)


@dataclass(frozen=True)
class Stored:
    """A run as read from its folder.

    Attributes:
        folder: Where it is.
        config: The configuration as plain data, see :func:`canonical`.
        rows: Its rows.
        done: Whether it is complete.
        sessions: Provenance, seconds and number of rows of each session that ended by itself, not by a kill.
    """

    folder: Path
    config: dict[str, Any]
    rows: tuple[Row, ...]
    done: bool
    sessions: tuple[Row, ...]

    @property
    def key(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def seconds(self) -> float:
        """Time spent over all sessions that ended by themselves."""
        return float(sum(s["seconds"] for s in self.sessions))


def read(out: str | os.PathLike[str]) -> list[Stored]:
    """All runs in a folder, complete or not, ordered by key; a run being written is read up to its last whole row.

    Args:
        out: The folder that holds the runs.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     read(out)
        []
    """
    if not Path(out).is_dir():
        raise FileNotFoundError(f"no folder of runs at {out}; check the path, or compute the runs first.")
    return [_stored(path.parent) for path in sorted(Path(out).glob(f"*/{CONFIG}"))]


def _stored(folder: Path) -> Stored:
    done = is_done(folder)  # checked first: then all rows are there
    return Stored(
        folder=folder,
        config=_config(folder / CONFIG),
        rows=tuple(_finished_rows(folder) if done else read_rows(folder / ROWS)),
        done=done,
        sessions=tuple(_sessions(folder / SESSIONS)),
    )


def _finished_rows(folder: Path) -> list[Row]:
    """The rows of a complete run, which must be as many as it ended with."""
    rows, ended = read_rows(folder / ROWS), parsed(read_regular(folder / DONE)) or {}
    if ended.get("rows") != len(rows):
        raise ValueError(
            f"run {folder} is damaged: it ended with {ended.get('rows', 'an unknown number of')} rows and has "
            f"{len(rows)}; restore {ROWS} and {DONE} from a copy, or delete the folder to compute it again."
        )
    return rows


def _refuse_links(folder: Path) -> None:
    """A folder that came from elsewhere must not have us write to another file."""
    for path in (folder / ROWS, folder / SESSIONS):
        if path.is_symlink():
            raise ValueError(f"{path} is a link, and a run writes to files of its own; put the file in its place.")


def _sessions(path: Path) -> list[Row]:
    sessions = read_rows(path)
    for i, session in enumerate(sessions, 1):
        if not isinstance(session.get("seconds"), (int, float)):
            raise ValueError(f"{path} is damaged: line {i} has no seconds; delete that line, or the file.")
    return sessions


def is_done(folder: Path) -> bool:
    """Whether the run of a folder is complete."""
    return (folder / DONE).exists()


def count_rows(folder: Path) -> int:
    """How many rows a run has, also while it is written; 0 for one that has not begun."""
    return len(whole_lines(folder / ROWS))


def last_row(folder: Path) -> Row | None:
    """The last row of a run, also while it is written; ``None`` if there is none."""
    lines = whole_lines(folder / ROWS)
    return parsed(lines[-1]) if lines else None


def _claim(folder: Path, config: dict[str, Any]) -> None:
    """Make the folder this configuration's, or refuse it if it is another's."""
    for part in folder.glob(f"{PART}*"):
        part.unlink()
    path = folder / CONFIG
    if path.exists():
        _check_owner(folder, config)
    elif count_rows(folder):
        raise ValueError(
            f"run folder {folder} has rows but no config.json that says whose they are; move it elsewhere."
        )
    else:
        write_atomic(path, json.dumps(config, indent=1, sort_keys=True).encode() + b"\n")


def _check_owner(folder: Path, config: dict[str, Any]) -> None:
    """Refuse a folder that holds another configuration."""
    theirs = _config(folder / CONFIG)
    if theirs != config:
        name = next(n for n in sorted(config.keys() | theirs.keys()) if config.get(n) != theirs.get(n))
        raise ValueError(
            f"run folder {folder} holds another configuration: {name} is {theirs.get(name)!r} there and "
            f"{config.get(name)!r} here; choose another output folder, or move that one away."
        )


def _config(path: Path) -> dict[str, Any]:
    config = parsed(read_regular(path))
    if config is None:
        raise ValueError(f"{path} is damaged: it holds no configuration; move the run's folder away.")
    return config


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Say in one sentence that a folder cannot be written to."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        message = f"cannot write to run folder {folder}: {error.strerror}; choose another output folder."
        raise type(error)(error.errno, message) from None
