"""Files that survive a kill: written whole or not at all, appended to line by line, locked while they are written."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from samphire.checks import check_regular, read_regular
from samphire.records.cells import Row

log = logging.getLogger(__name__)

PART = ".part-"  # how the name of a file begins until it is whole
LOCK = ".lock"

__all__ = [
    "PART", "append_row", "flocked", "is_locked", "locked", "parsed", "read_rows", "recovered_rows", "whole_lines",
    "write_atomic",
]  # fmt: skip


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that readers, also after a crash, see the old one or the new one, never a part.

    Args:
        path: Its folder must exist.
        data: The whole content.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     write_atomic(Path(out) / "a.txt", b"whole")
        ...     [(p.name, p.read_text()) for p in Path(out).iterdir()]
        [('a.txt', 'whole')]
    """
    part = path.with_name(f"{PART}{secrets.token_hex(8)}")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        sentence = f"cannot write {path}: {error.strerror}; free space or choose another folder."
        raise type(error)(error.errno, sentence) from None
    finally:
        with suppress(OSError):  # gone already, or where nothing can be written or removed
            part.unlink()
    if os.name == "posix":
        _sync(path.parent)


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# Rows, one line each


def append_row(file: int, row: Row) -> None:
    """Append one line by one write; if the disk is full, take back what was written of it."""
    line = json.dumps(row).encode() + b"\n"
    end = os.fstat(file).st_size
    try:
        written = os.write(file, line)
    except OSError as error:
        raise OSError(error.errno, f"a row could not be written: {error.strerror}; free space and resume.") from None
    if written < len(line):
        os.ftruncate(file, end)
        raise OSError("a row could not be written: the disk is full; free space and resume.")


def recovered_rows(path: Path) -> list[Row]:
    """The rows of a file, after its last line, if torn by a kill, has been removed from it."""
    data = read_regular(path) if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    torn = data[whole:]
    rows = read_rows(path)  # before anything is changed: what is no file of rows stays as it is
    if torn and parsed(torn) is None:
        log.warning("%s: dropped its last line, torn by a kill: %r", path, torn.decode(errors="replace"))
        os.truncate(path, whole)
    elif torn:
        with path.open("ab") as file:
            file.write(b"\n")
    return rows


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, without a last one that is torn or just being written."""
    rows = []
    for i, line in enumerate(whole_lines(path), 1):
        row = parsed(line)
        if row is None:
            text = line[:60].decode(errors="replace")
            raise ValueError(
                f"{path} is damaged: line {i} is no row ({text!r}); delete that line, or the run's folder."
            )
        rows.append(row)
    return rows


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, without a last one that is torn or just being written; none if there is no file."""
    try:
        *lines, last = read_regular(path).split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return lines if parsed(last) is None else [*lines, last]


def parsed(line: bytes) -> Row | None:
    """The row of a line; ``None`` if it is no row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


# Locks


@contextmanager
def flocked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock file, after a wait or at once; the system lifts the lock when this process ends, however it ends.

    Yields:
        Whether others are kept out: Windows has no such lock, so its users must avoid two writers themselves.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        if not path.exists():
            raise
        file = os.open(path, os.O_RDONLY)  # another user's; it can be held all the same
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    finally:
        os.close(file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder."""
    with ExitStack() as stack:
        try:
            stack.enter_context(flocked(folder / LOCK, wait=False))
        except BlockingIOError as error:
            raise BlockingIOError(
                error.errno, f"run folder {folder} is being written by another process; wait for it, then resume."
            ) from None
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process has the run of a folder open for writing."""
    try:
        import fcntl

        check_regular(folder / LOCK)
        file = os.open(folder / LOCK, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
