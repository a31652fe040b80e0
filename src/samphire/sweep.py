"""Sweeps: a grid of trainings, computed here, by local processes or by Ray, and selected from afterwards.

The files are the database. A job is one run folder of :mod:`samphire.records`, so executors only schedule, a sweep
that is run again does what is missing, and every criterion selects from the same rows, also while they are written.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import os
import pickle
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Literal, cast, get_args

import torch

from samphire import records
from samphire.data.domains import OFFICEHOME, PACS, VLCS
from samphire.records import Row
from samphire.train.config import Config, appendix_b

POLL = 1.0  # seconds between looks at runs that others are writing, and between calls of progress
CRASHES = 3  # of a node or worker of Ray that one attempt survives


# What to run

Grid = dict[str, Sequence[Any]]  # learning rates, radii and, for sets with domains, targets
DOMINOES: Grid = {"lr": (0.01, 0.05, 0.1), "rho": (0, 0.01, 0.03, 0.05, 0.07, 0.1, 0.2), "targets": (None,)}
GROUPS: Grid = {"lr": (0.0005, 0.001, 0.005, 0.01), "rho": (0, 0.01, 0.02, 0.05, 0.07), "targets": (None,)}
DOMAINS: Grid = {"lr": (0.005, 0.01, 0.02), "rho": (0, 0.03, 0.05, 0.1)}
GRIDS: dict[str, Grid] = {
    "cifar-mnist": DOMINOES,
    "fmnist-mnist": DOMINOES,
    "celeba": GROUPS,
    "waterbirds": GROUPS,
    "pacs": DOMAINS | {"targets": tuple(PACS.official)},
    "vlcs": DOMAINS | {"targets": tuple(VLCS.official)},
    "officehome": DOMAINS | {"targets": tuple(OFFICEHOME.official)},
}


def grid(
    data: str,
    rules: Sequence[str] = ("sam", "lsam"),
    seeds: Sequence[int] = (0,),
    *,
    lr: Sequence[float] | None = None,
    rho: Sequence[float] | None = None,
    targets: Sequence[str] | None = None,
    **settings: Any,
) -> list[Config]:
    """The trainings that the paper tunes over. A radius of 0 is SGD, which all rules share.

    Those of the first seed come first, so that a sweep that is stopped early has something of every setting.

    Args:
        data: The data set.
        rules: Names of rules.
        seeds: Each setting is run with each.
        lr: Learning rates instead of the paper's.
        rho: Radii instead of the paper's; SGD is run if 0 is among them.
        targets: Domains to transfer to, for sets with domains; all of the set by default.
        **settings: Other fields of :class:`samphire.train.Config`, the same for all. SGD has no ``rule_settings``.

    Example:
        >>> jobs = grid("cifar-mnist", rules=["sam"])
        >>> len(jobs), [(job.rule, job.radius) for job in jobs[:3]]
        (21, [('sgd', 0.0), ('sam', 0.01), ('sam', 0.03)])

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendices B and F.
    """
    if data not in GRIDS:
        raise ValueError(f"there is no grid for {data!r}; there are grids for {', '.join(GRIDS)}.")
    given = {"lr": lr, "rho": rho, "targets": targets}
    lists = GRIDS[data] | {name: values for name, values in given.items() if values is not None}
    plain = {name: value for name, value in settings.items() if name != "rule_settings"}
    sides = [plain | {"rule": "sgd"}] if 0 in lists["rho"] else []
    sides += [settings | {"rule": rule, "rho": radius} for rule in rules for radius in lists["rho"] if radius]
    jobs = [
        appendix_b(data, seed=seed, target=target, lr=rate, **side)
        for seed, target, rate, side in itertools.product(seeds, lists["targets"], lists["lr"], sides)
    ]
    if not jobs:
        raise ValueError(f"a grid must have a job, got {seeds=}, {rules=} and {lists}; give each a value.")
    return jobs


# What there is

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
        return _report(self.folder)


def trials(out: str | os.PathLike[str], jobs: Iterable[Any]) -> list[Trial]:
    """What is known of each job, at any time and also while others write.

    Args:
        out: The folder of the runs.
        jobs: Their configurations.
    """
    if not Path(out).is_dir():
        raise FileNotFoundError(f"no folder of runs at {out}; check the path, or run the sweep first.")
    return [_trial(Path(out) / records.key(job), job) for job in jobs]


def _trial(folder: Path, job: Any) -> Trial:
    done = _is_done(folder)  # looked at first: then all rows are there
    rows = _rows(folder)
    row: Row | None = json.loads(rows[-1]) if rows else None
    if done:
        return Trial(job, folder, "stopped" if row and row.get("stopped") else "done", row)
    error = _report(folder).read_text(encoding="utf-8") if _report(folder).exists() else ""
    state: State = "running" if _is_locked(folder) else "failed" if error else "missing"
    return Trial(job, folder, state, row, error)


def _rows(folder: Path) -> list[bytes]:
    """The whole lines of rows, whether or not one is being written."""
    try:
        return (folder / "rows.jsonl").read_bytes().split(b"\n")[:-1]
    except OSError:  # not begun
        return []


def _is_done(folder: Path) -> bool:
    return (folder / "done").exists()


def _is_locked(folder: Path) -> bool:
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


def _report(folder: Path) -> Path:
    return folder.parent / "failed" / f"{folder.name}.txt"


# Running

Work = Callable[[Any], object]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Swept:
    """A sweep that has ended.

    Attributes:
        trials: One for each job.
    """

    trials: list[Trial]

    @property
    def failed(self) -> list[Trial]:
        """The jobs that have no result, each with its traceback."""
        return [trial for trial in self.trials if trial.error]


def run(
    jobs: Iterable[Any],
    work: Work,
    out: str | os.PathLike[str],
    *,
    on: str = "here",
    workers: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    done: Callable[[Trial], None] | None = None,
) -> Swept:
    """Do the jobs that are not done; wherever they are computed, their rows are the same for equal threads.

    A job that raises, or whose process is killed, is tried once more after all others; if that fails too, its
    traceback is kept in ``out/failed/<key>.txt`` until it succeeds, and the sweep goes on. A run that another process
    is writing is left to it: its result is taken when it is done, and if that process ends before, it is done here.

    Args:
        jobs: Frozen dataclasses.
        work: Computes one of them by :func:`samphire.records.open` in ``out``. A function of an importable module, or
            a ``functools.partial`` of one: ``partial(fit, root=root, out=out)``.
        out: The folder of the runs. For Ray every node must see it, and the data, under the same absolute path.
        on: ``"here"``, one by one; ``"processes"``, interpreters of their own with one thread each; ``"ray"``, tasks
            of one core, and of one GPU where the cluster has any.
        workers: Jobs at once. By default one for each core, and as many as fit for Ray. Processes share a GPU, so say
            how many it can hold.
        address: Of the Ray cluster, for instance ``"auto"``. By default the one running here, or one made for this.
        progress: Called about once a second, by a thread of its own, with what is done, epochs done and epochs to do.
        done: Called with each job that has come to an end.

    Example:
        >>> import tempfile
        >>> job = grid("cifar-mnist", rho=[0], lr=[0.1])[0]
        >>> def work(config):
        ...     with records.open(out, config) as run:
        ...         run.append({"val_error": config.lr})
        >>> with tempfile.TemporaryDirectory() as out:
        ...     [(trial.state, trial.row) for trial in run([job], work, out).trials]
        [('done', {'val_error': 0.1})]
    """
    _check(on, workers, address)
    Path(out).mkdir(parents=True, exist_ok=True)
    folders = {Path(out) / records.key(job): job for job in jobs}
    waiting = deque(folder for folder in folders if not _is_done(folder))
    if waiting:
        with _watched(folders, progress), EXECUTORS[on](work, workers, address) as (submit, slots):
            for folder, error in _schedule(waiting, folders, submit, slots):
                _keep(folder, folders[folder], error)
                if done is not None:
                    done(_trial(folder, folders[folder]))
    return Swept(trials(out, folders.values()))


Outcome = tuple[bool, str] | None
"""``None`` for a job that was done; else whether another process is at it, and the traceback."""
Submit = Callable[[Any], "Future[Outcome]"]


def _schedule(
    waiting: deque[Path], jobs: Mapping[Path, Any], submit: Submit, slots: int
) -> Iterator[tuple[Path, str]]:
    """Folders whose job has come to an end, with the traceback if it failed, twice."""
    running: dict[Future[Outcome], Path] = {}
    tried: set[Path] = set()
    resting: set[Path] = set()  # others were at it a moment ago
    while waiting or running:
        ready = [folder for folder in waiting if folder not in resting]
        for folder in ready[: slots - len(running)]:
            waiting.remove(folder)
            running[submit(jobs[folder])] = folder
        if not running:
            time.sleep(POLL)
        ended = wait(running, POLL, FIRST_COMPLETED).done
        for future in ended:
            folder, (busy, error) = running.pop(future), _outcome(future)
            if _is_done(folder):
                yield folder, ""
            elif busy or folder not in tried:
                waiting.append(folder)
                (resting if busy else tried).add(folder)
            else:
                yield folder, error or f"the work ended without a finished run in {folder}; it must write there."
        if not ended:
            resting.clear()


def _outcome(future: Future[Outcome]) -> tuple[bool, str]:
    error = future.exception()  # not the work's, but of the process it ran in
    return (False, str(error)) if error is not None else future.result() or (False, "")


def _keep(folder: Path, job: Any, error: str) -> None:
    """The traceback of a job that failed; none for one that did not."""
    report = _report(folder)
    if error:
        report.parent.mkdir(exist_ok=True)
        records.write_atomic(report, f"{job}\n\n{error}".encode(errors="replace"))
    else:
        report.unlink(missing_ok=True)


@contextmanager
def _watched(jobs: Mapping[Path, Any], progress: Progress | None) -> Iterator[None]:
    """Tell from the files how far the jobs are, whoever does them."""
    if progress is None:
        yield
        return
    epochs = {folder: getattr(job, "epochs", 1) for folder, job in jobs.items()}
    done: set[Path] = set()
    ended = threading.Event()

    def tell() -> None:
        done.update(folder for folder in epochs if folder not in done and _is_done(folder))
        passed = sum(n if folder in done else min(len(_rows(folder)), n) for folder, n in epochs.items())
        progress(f"{len(done)} of {len(epochs)} runs", passed, sum(epochs.values()))

    def watch() -> None:
        tell()
        while not ended.wait(POLL):
            tell()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        tell()


def _check(on: str, workers: int | None, address: str | None) -> None:
    if on not in EXECUTORS:
        raise ValueError(f"on must be one of {', '.join(EXECUTORS)}, got {on!r}.")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be >= 1, got {workers!r}.")
    if workers is not None and on == "here":
        raise ValueError(f"here is one job at a time, got workers={workers}; take on='processes'.")
    if address is not None and on != "ray":
        raise ValueError(f"an address is of a Ray cluster, got {address!r} and on={on!r}; take on='ray'.")


# Executors: a function that starts a job, and how many it may have at once


def _attempt(work: Work, job: Any) -> Outcome:
    try:
        work(job)
    except Exception as error:
        return isinstance(error, BlockingIOError), traceback.format_exc()
    return None


@contextmanager
def _here(work: Work, workers: int | None, address: str | None) -> Iterator[tuple[Submit, int]]:
    def submit(job: Any) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        future.set_result(_attempt(work, job))
        return future

    yield submit, 1


@contextmanager
def _processes(work: Work, workers: int | None, address: str | None) -> Iterator[tuple[Submit, int]]:
    """A thread for each worker, which waits for it."""
    n = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    started: list[_Worker] = []
    ending = threading.Event()
    own = threading.local()

    def start() -> _Worker:
        worker = _Worker()
        started.append(worker)
        if ending.is_set():
            worker.process.terminate()
        return worker

    def call(job: Any) -> Outcome:
        request = pickle.dumps((work, job))
        worker = getattr(own, "worker", None) or start()
        own.worker = None
        outcome = worker.attempt(request)
        if outcome is None or outcome[0]:
            own.worker = worker
        else:
            worker.close()  # what broke this job must not break the next
        return outcome

    pool = ThreadPoolExecutor(n)
    try:
        yield lambda job: pool.submit(call, job), n
    finally:
        ending.set()
        for worker in started:
            worker.process.terminate()
        pool.shutdown(cancel_futures=True)
        for worker in started:
            worker.close()


class _Worker:
    """Another interpreter with one thread. It finds modules where this one does and needs no main module."""

    def __init__(self) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from samphire.sweep import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.inbox, self.outbox = cast(IO[bytes], self.process.stdout), cast(IO[bytes], self.process.stdin)

    def attempt(self, request: bytes) -> Outcome:
        try:
            pickle.dump(request, self.outbox)
            self.outbox.flush()
            outcome: Outcome = pickle.load(self.inbox)
        except (EOFError, OSError):
            self.close()
            raise RuntimeError(
                f"the process of this run ended with code {self.process.wait()}; -9 is often the system's answer to "
                "too little memory: take fewer workers."
            ) from None
        return outcome

    def close(self) -> None:
        for stream in (self.inbox, self.outbox):
            with contextlib.suppress(OSError):
                stream.close()
        self.process.wait()


def _serve() -> None:
    """A worker's side: jobs by standard input, outcomes by standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not mix with the answers
    with contextlib.suppress(EOFError):
        while True:
            pickle.dump(_attempt(_unpacked, pickle.load(sys.stdin.buffer)), out)
            out.flush()


def _unpacked(request: bytes) -> None:
    work, job = pickle.loads(request)
    work(job)


@contextmanager
def _ray(work: Work, workers: int | None, address: str | None) -> Iterator[tuple[Submit, int]]:
    """Ray runs a task again if its node or worker is lost; the run's own checkpoint is where it goes on."""
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ValueError("on='ray' needs Ray; pip install 'samphire[ray]', or take on='processes'.") from None
    own = not ray.is_initialized()
    if own:
        ray.init(address, log_to_driver=False, logging_level="warning", include_dashboard=False)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=CRASHES)(_attempt_there)
    tasks: list[Any] = []

    def submit(job: Any) -> Future[Outcome]:
        tasks.append(task.remote(ray.cloudpickle.dumps((work, job)), sys.path))
        future: Future[Outcome] = tasks[-1].future()
        return future

    try:
        yield submit, workers or sys.maxsize
    finally:
        for unfinished in ray.wait(tasks, num_returns=len(tasks), timeout=0)[1] if tasks else ():
            ray.cancel(unfinished, force=True)
        if own:
            ray.shutdown()


def _attempt_there(request: bytes, path: list[str]) -> Outcome:
    """In a worker of Ray, which need not look for modules where this process does."""
    sys.path += [place for place in path if place not in sys.path]
    torch.set_num_threads(1)
    return _attempt(_unpacked, request)


Executor = Callable[[Work, int | None, str | None], AbstractContextManager[tuple[Submit, int]]]
EXECUTORS: dict[str, Executor] = {"here": _here, "processes": _processes, "ray": _ray}


# Selection


def _probe(row: Row) -> float:
    errors = row.get("probe_val") or {}
    return statistics.fmean(errors.values()) if errors else math.nan


CRITERIA: dict[str, Callable[[Row], float]] = {
    "val_error": lambda row: row.get("val_error", math.nan),
    "probe": _probe,
    "worst_group": lambda row: row.get("val_worst", math.nan),
}
"""What settings are selected by, from a run's last row, and none of it from test examples; the least is best.

``val_error``: validation error, groups weighted as in training. ``probe``: mean over features of the probe error on
held-out examples of the probing part. ``worst_group``: validation error of the worst group.
"""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation, divided by n - 1, over seeds.

    Example:
        >>> print(Spread.of([0.1, 0.2]), Spread.of([0.1]), Spread.of([]))
        0.1500 ± 0.0707 0.1000 –
    """

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        mean = statistics.fmean(values) if values else math.nan
        several = len(values) > 1 and math.isfinite(mean)
        return cls(mean, statistics.stdev(values) if several else math.nan, len(values))

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:.4f}" if math.isnan(self.std) else f"{self.mean:.4f} ± {self.std:.4f}"


@dataclass(frozen=True)
class Choice:
    """The best setting of one side, and what it was chosen from.

    Attributes:
        side: The rule, ``"sgd"`` for radius 0, and whatever else tells the sides apart.
        by: The criterion.
        lr: Learning rate, ``None`` if nothing could be chosen.
        rho: Radius, likewise.
        score: The criterion over the seeds.
        rows: The last rows of its runs, one for each seed.
        settings: How many there were to choose from.
        runs: How many of the side's runs are in each state.
    """

    side: str
    by: str
    lr: float | None
    rho: float | None
    score: Spread
    rows: tuple[Row, ...]
    settings: int
    runs: Mapping[State, int]

    @property
    def count(self) -> str:
        """How many runs are done and what became of the others, as in ``"18 of 21 (1 stopped, 2 failed)"``."""
        others = ", ".join(f"{n} {state}" for state, n in self.runs.items() if n and state != "done")
        return f"{self.runs['done']} of {sum(self.runs.values())}" + (f" ({others})" if others else "")


def select(found: Iterable[Trial], by: str = "val_error") -> list[Choice]:
    """The best learning rate and radius of every side, by one criterion.

    A side is everything but learning rate, radius and seed: SGD, which is radius 0, SAM with a radius above 0, and so
    on. A setting's score is the mean over its seeds. Only settings with the most finished seeds compete, so a lucky
    seed of an unfinished setting cannot win; one with a stopped seed does not compete at all. Of equal scores
    the one with the lower validation loss is taken (small networks often have no validation error at all), then the
    smaller radius, then the smaller learning rate.

    Args:
        found: From :func:`trials`.
        by: A key of :data:`CRITERIA`.

    Example:
        >>> jobs = grid("cifar-mnist", ["sam"], lr=[0.1], rho=[0, 0.01, 0.03])
        >>> found = [Trial(j, Path(), "done", {"val_error": e}) for j, e in zip(jobs, [0.3, 0.2, 0.1])]
        >>> [(c.side, c.rho, c.settings, c.count) for c in select(found)]
        [('sgd', 0.0, 1, '1 of 1'), ('sam', 0.03, 2, '2 of 2')]
    """
    if by not in CRITERIA:
        raise ValueError(f"no criterion is named {by!r}; there are {', '.join(CRITERIA)}.")
    sides: dict[Config, list[Trial]] = {}
    for trial in found:
        sides.setdefault(_side(trial.config), []).append(trial)
    differing = [f.name for f in fields(Config) if len({getattr(side, f.name) for side in sides}) > 1]
    return [_choice(_label(side, differing), group, by) for side, group in sides.items()]


def _side(config: Config) -> Config:
    """What is compared: the configuration without what is tuned and without the seed."""
    plain: dict[str, Any] = {"rule": "sgd", "rule_settings": ()} if config.radius == 0 else {}
    return replace(config, rho=None, lr=1.0, seed=0, **plain)


def _label(side: Config, differing: Sequence[str]) -> str:
    shown = [f"{name} {getattr(side, name)}" for name in differing if name not in ("rule", "rule_settings")]
    settings = [f"{name}={value}" for name, value in side.rule_settings]
    return ", ".join([side.rule, *settings, *shown])


def _choice(side: str, group: Sequence[Trial], by: str) -> Choice:
    runs: dict[State, int] = {state: sum(trial.state == state for trial in group) for state in get_args(State)}
    settings: dict[Config, list[Trial]] = {}
    for trial in group:
        same = replace(_side(trial.config), lr=trial.config.lr, rho=trial.config.rho or None)
        settings.setdefault(same, []).append(trial)
    rows = {
        setting: tuple(trial.row for trial in seeds if trial.state == "done" and trial.row)
        for setting, seeds in settings.items()
        if all(trial.state != "stopped" for trial in seeds)
    }
    most = max(map(len, rows.values()), default=0)
    scores = {s: Spread.of([CRITERIA[by](row) for row in found]) for s, found in rows.items() if len(found) == most}
    known = [setting for setting in scores if math.isfinite(scores[setting].mean)]
    if not known:
        return Choice(side, by, None, None, Spread.of([]), (), len(settings), runs)
    losses = {s: Spread.of([row.get("val_loss", math.inf) for row in rows[s]]).mean for s in known}
    best = min(known, key=lambda setting: (scores[setting].mean, losses[setting], setting.radius, setting.lr))
    return Choice(side, by, best.lr, best.radius, scores[best], rows[best], len(settings), runs)


def table(found: Iterable[Trial], by: str = "val_error") -> list[Row]:
    """Rows for :func:`samphire.report.table`: what the criterion chooses for every side, then what others would.

    Test and probe errors are those of the chosen setting, mean and standard deviation over its seeds. ``settings`` is
    how many each side had to choose from, and ``runs`` how many of its runs are done.

    Args:
        found: From :func:`trials`.
        by: The criterion that comes first.
    """
    found = list(found)
    criteria = dict.fromkeys((by, *CRITERIA))
    choices = [choice for criterion in criteria for choice in select(found, criterion)]
    features = dict.fromkeys(name for choice in choices for row in choice.rows for name in row.get("probe", ()))
    return [_row(choice, list(features)) for choice in choices]


def _row(choice: Choice, features: Sequence[str]) -> Row:
    def spread(read: Callable[[Row], float | None]) -> Spread:
        return Spread.of([value for value in map(read, choice.rows) if value is not None])

    return {
        "chosen by": choice.by,
        "side": choice.side,
        "lr": choice.lr,
        "rho": choice.rho,
        "score": choice.score,
        "test error": spread(lambda row: row.get("test_error")),
        "worst group": spread(lambda row: row.get("test_worst")),
        **{f"probe {name}": spread(lambda row, n=name: row.get("probe", {}).get(n)) for name in features},  # type: ignore[misc]
        "seeds": choice.score.n,
        "settings": choice.settings,
        "runs": choice.count,
    }
