"""Runs as files: a key for every configuration, seeds for every purpose, rows that survive a kill, provenance.

A run is the folder ``<out>/<key>/`` with ``config.json`` (written first), ``rows.jsonl`` (appended to), arrays as
``<name>.npz``, ``sessions.jsonl`` (who computed, where, how long) and ``done`` (written last). Every file but the
two appended ones appears whole or not at all; an appended file can lose its last line to a kill, nothing else.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import io
import json
import logging
import math
import os
import platform
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

Row = dict[str, Any]


def key(config: Any) -> str:
    """A short name for a configuration: equal configurations have equal keys, on any machine and version.

    The first 16 hexadecimal digits of the SHA-256 of :func:`canonical` as JSON with sorted keys.

    Args:
        config: A frozen dataclass of numbers, strings, booleans, ``None``, enums, tuples, lists, sets, mappings,
            functions with a name, and frozen dataclasses. Fields annotated as, or holding, a path do not count.

    Example:
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     rho: float
        >>> key(Config(1.0)), key(Config(1)) == key(Config(1.0))
        ('32f74a4593246acd', True)
    """
    return hashlib.sha256(_dumps(canonical(config)).encode()).hexdigest()[:16]


def canonical(config: Any) -> dict[str, Any]:
    """A configuration as plain JSON data, without its paths; what :func:`key` hashes and ``config.json`` holds.

    The dataclass's module and name are part of it, so that two experiments with like fields stay apart.

    Args:
        config: As for :func:`key`.

    Example:
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     rho: float
        ...     root: Path
        >>> canonical(Config(0.05, Path("data")))
        {'__type__': 'samphire.records.Config', 'rho': 0.05}
    """
    if not is_dataclass(config) or isinstance(config, type) or not _frozen(config):
        raise TypeError(f"a configuration must be an instance of a frozen dataclass, got {config!r}.")
    plain: dict[str, Any] = _plain(config, type(config).__name__)
    return plain


def seed(source: Any, purpose: str) -> int:
    """A seed for one purpose, so that adding a random choice does not shift the others.

    Args:
        source: An integer, or a configuration. For comparisons with paired seeds pass the integer that the
            compared configurations share: ``seed(config.seed, "init")``.
        purpose: What is drawn, for instance ``"init"`` or ``"data"``.

    Returns:
        An integer in 0 to 2**63 - 1, the same in every process and version of Python.

    Example:
        >>> seed(0, "init")
        3598610026517748695
        >>> seed(0, "init") == seed(0, "data")
        False
    """
    if isinstance(source, bool) or not (isinstance(source, int) or is_dataclass(source)):
        raise TypeError(f"a seed comes from an integer or a frozen dataclass, got {source!r}.")
    base = str(source) if isinstance(source, int) else key(source)
    return int.from_bytes(hashlib.sha256(f"{base}:{purpose}".encode()).digest()[:8], "big") >> 1


@dataclass
class Run:
    """A run folder open for writing; made by :func:`open`.

    Attributes:
        folder: Where it is.
        rows: All rows, those of earlier sessions first.
        done: Whether the run was complete when opened.
        complete: Whether the end of the block completes it; set it to False where rows are still to come.
    """

    folder: Path
    rows: list[Row]
    done: bool
    _file: int = field(repr=False)
    complete: bool = True

    def append(self, row: Mapping[str, Any]) -> None:
        """Store one row; it is safe from a kill of this process once this returns.

        Args:
            row: JSON data by name. NaN and infinities are kept; NumPy and PyTorch scalars become numbers.
        """
        if self.done:
            raise RuntimeError(
                f"run {self.folder} is done and takes no more rows; delete the folder to compute it anew."
            )
        stored = {name: _cell(value, name) for name, value in row.items()}
        _append(self._file, stored)
        self.rows.append(stored)

    def save(self, name: str, arrays: Mapping[str, Any]) -> Path:
        """Store arrays beside the rows as ``<name>.npz``, whole or not at all; an older one is replaced.

        Args:
            name: Letters, digits, ``_``, ``-`` and ``.``, for instance ``"epoch-5"``.
            arrays: NumPy arrays or tensors by name.
        """
        import numpy as np

        plain = {n: np.asarray(a.detach().cpu() if hasattr(a, "detach") else a) for n, a in arrays.items()}
        for n, a in plain.items():
            if a.dtype == object:
                raise TypeError(f"array {n!r} must hold numbers or text, got objects; store numbers only.")
        file = io.BytesIO()
        np.savez(file, **plain)  # type: ignore[arg-type]
        path = _array_path(self.folder, name)
        write_atomic(path, file.getvalue())
        return path

    def load(self, name: str) -> dict[str, np.ndarray]:
        """The arrays stored under a name."""
        return load(self.folder, name)


@contextmanager
def open(out: str | os.PathLike[str], config: Any) -> Iterator[Run]:
    """Open the run of a configuration for writing, new or to be resumed; ``done`` is written on a clean exit.

    A last line torn by a kill is dropped and said so in the log. A folder that holds another configuration, that
    another process is writing, or whose files are damaged is refused and left as it is.

    Args:
        out: The folder that holds the runs.
        config: A frozen dataclass, see :func:`key`.

    Example:
        >>> import tempfile
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     rho: float
        >>> with tempfile.TemporaryDirectory() as out:
        ...     with open(out, Config(0.1)) as run:
        ...         if not run.done:
        ...             run.append({"epoch": 1, "error": float("nan")})
        ...     with open(out, Config(0.1)) as run:
        ...         run.done, run.rows
        (True, [{'epoch': 1, 'error': nan}])
    """
    folder = Path(out) / key(config)
    with contextlib.ExitStack() as stack:
        with _writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder))
            _claim(folder, canonical(config))
            file = os.open(folder / "rows.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            stack.callback(os.close, file)
        run = Run(folder, _recover(folder / "rows.jsonl"), (folder / "done").exists(), file)
        started, before = time.perf_counter(), len(run.rows)
        try:
            yield run
        finally:
            if not run.done:
                session = provenance() | {
                    "seconds": time.perf_counter() - started,
                    "rows": len(run.rows) - before,
                }
                _append_to(folder / "sessions.jsonl", session)
        if run.complete and not run.done:
            os.fsync(file)
            total = sum(s["seconds"] for s in _lines(folder / "sessions.jsonl"))
            write_atomic(folder / "done", _dumps({"rows": len(run.rows), "seconds": total}).encode() + b"\n")


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

    def load(self, name: str) -> dict[str, np.ndarray]:
        """The arrays stored under a name."""
        return load(self.folder, name)


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
    return [_stored(path.parent) for path in sorted(Path(out).glob("*/config.json"))]


def load(folder: str | os.PathLike[str], name: str) -> dict[str, np.ndarray]:
    """The arrays a run stored under a name.

    Args:
        folder: The run's folder.
        name: As given to :meth:`Run.save`.
    """
    import zipfile

    import numpy as np

    path = _array_path(Path(folder), name)
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.npz"))) or "none"
        raise FileNotFoundError(f"run {folder} has no arrays {name!r}; it has {known}.")
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return dict(arrays)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it and compute it again.") from None


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that readers, and whoever comes after a crash, see the old one or the new one, never a part.

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
    part = path.with_name(f"{_PART}{secrets.token_hex(8)}")
    try:
        with io.open(part, "xb") as file:  # noqa: UP020
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def provenance() -> dict[str, Any]:
    """Where a number comes from: versions, commit, machine, threads and time.

    Example:
        >>> sorted(provenance())
        ['commit', 'cores', 'cpu', 'numpy', 'platform', 'python', 'samphire', 'threads', 'time', 'torch']
    """
    return {
        "samphire": _version("samphire"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": _cores(),
        "threads": _threads(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


# Configurations as plain data

_PATH = re.compile(r"\b(Pure)?(Posix|Windows)?Path(Like)?\b")


def _plain(value: Any, where: str) -> Any:
    value = _number(value)
    if isinstance(value, enum.Enum):
        return {"__type__": _name(type(value)), "name": value.name}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _plain_float(value)
    if is_dataclass(value) and not isinstance(value, type):
        counted = [f for f in fields(value) if not _is_path(f, getattr(value, f.name))]
        return {"__type__": _name(type(value))} | {
            f.name: _plain(getattr(value, f.name), f"{where}.{f.name}") for f in counted
        }
    if isinstance(value, (tuple, list)):
        return [_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(v, where) for v in value), key=_dumps)
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: _plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    if callable(value) and "<" not in getattr(value, "__qualname__", "<"):
        return {"__function__": _name(value)}
    raise TypeError(
        f"{where} cannot be part of a configuration's key: {value!r} has no stable form; "
        "use numbers, strings, tuples, named functions or frozen dataclasses."
    )


def _plain_float(x: float) -> Any:
    """One form for equal numbers: 1.0 is 1, as in Python; JSON has no word for what is not finite."""
    if not math.isfinite(x):
        return {"__float__": repr(x)}
    return int(x) if x.is_integer() and abs(x) < 2**53 else x


def _is_path(f: Any, value: Any) -> bool:
    return isinstance(value, PurePath) or bool(_PATH.search(str(f.type)))


def _frozen(config: Any) -> bool:
    return bool(type(config).__dataclass_params__.frozen)


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# Rows


def _number(value: Any) -> Any:
    """A NumPy or PyTorch scalar as a Python number; anything else as it is."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _cell(value: Any, name: str) -> Any:
    value = _number(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_cell(v, name) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _cell(v, name) for k, v in value.items()}
    raise TypeError(
        f"row entry {name!r} must be a number, text, list or mapping, got {type(value).__name__}; "
        "store arrays with run.save, or pass array.tolist()."
    )


def _append(file: int, row: Row) -> None:
    """One line by one write; what a full disk took only in part is taken back."""
    line = json.dumps(row).encode() + b"\n"
    end = os.fstat(file).st_size
    try:
        written = os.write(file, line)
    except OSError as error:
        raise OSError(error.errno, f"a row could not be written: {error.strerror}; free space and resume.") from None
    if written < len(line):
        os.ftruncate(file, end)
        raise OSError("a row could not be written: the disk is full; free space and resume.")


def _append_to(path: Path, row: Row) -> None:
    _recover(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        _append(file, row)
    finally:
        os.close(file)


def _recover(path: Path) -> list[Row]:
    """The rows of a file, which is first freed of a last line torn by a kill."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    torn = data[whole:]
    if torn and _row(torn) is None:
        log.warning("%s: dropped its last line, torn by a kill: %r", path, torn.decode(errors="replace"))
        os.truncate(path, whole)
    elif torn:
        with path.open("ab") as file:
            file.write(b"\n")
    return _lines(path)


def _lines(path: Path) -> list[Row]:
    """The rows of a file; a torn last line, or one just being written, is not among them."""
    data = path.read_bytes() if path.exists() else b""
    *lines, last = data.split(b"\n")
    if _row(last) is not None:
        lines.append(last)
    rows = []
    for i, line in enumerate(lines, 1):
        row = _row(line)
        if row is None:
            text = line[:60].decode(errors="replace")
            raise ValueError(
                f"{path} is damaged: line {i} is no row ({text!r}); delete that line, or the run's folder."
            )
        rows.append(row)
    return rows


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


# Folders

_PART = ".part-"


def _claim(folder: Path, config: dict[str, Any]) -> None:
    """Make the folder this configuration's, or refuse it if it is another's."""
    for part in folder.glob(f"{_PART}*"):
        part.unlink()
    path = folder / "config.json"
    if not path.exists():
        if (folder / "rows.jsonl").exists():
            raise ValueError(f"run folder {folder} has rows but no config.json to say of what; move it elsewhere.")
        write_atomic(path, json.dumps(config, indent=1, sort_keys=True).encode() + b"\n")
        return
    theirs = _config(path)
    if theirs != config:
        name = next(n for n in sorted(config.keys() | theirs.keys()) if config.get(n) != theirs.get(n))
        raise ValueError(
            f"run folder {folder} holds another configuration: {name} is {theirs.get(name)!r} there and "
            f"{config.get(name)!r} here; choose another output folder, or move that one away."
        )


def _config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); move the run's folder away and compute it again.") from None
    return config


def _stored(folder: Path) -> Stored:
    done = (folder / "done").exists()  # looked at first: then all rows are there
    return Stored(
        folder=folder,
        config=_config(folder / "config.json"),
        rows=tuple(_lines(folder / "rows.jsonl")),
        done=done,
        sessions=tuple(_lines(folder / "sessions.jsonl")),
    )


def _array_path(folder: Path, name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(f"a name for arrays may have letters, digits, '_', '-' and '.', got {name!r}.")
    return folder / f"{name}.npz"


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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out; the system lifts the lock when this process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: there, two writers are the user's to avoid
        yield
        return
    file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                error.errno, f"run folder {folder} is being written by another process; wait for it, then resume."
            ) from None
        yield
    finally:
        os.close(file)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# Provenance


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _commit() -> str | None:
    """The commit of this source file, with a ``+`` if tracked files have changed; None if git does not know it."""
    here = Path(__file__).parent
    git: Callable[..., str] = lambda *args: subprocess.run(
        ["git", "-C", str(here), *args], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> int:
    """Threads of PyTorch if it is loaded, else the cores: layer 0 does not load it."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else _cores()
