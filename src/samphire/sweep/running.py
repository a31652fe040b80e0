"""Running the jobs that are not done: in which order, how often, and what happens to failures."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samphire import records
from samphire.checks import check_one_of, check_whole
from samphire.progress import Progress
from samphire.sweep.executors import EXECUTORS, Outcome, Submit, Work
from samphire.sweep.trials import Trial, report_of, trial_of, trials

POLL = 1.0  # seconds between looks at runs that others are writing, and between calls of progress

__all__ = ["SweepResult", "run"]


@dataclass(frozen=True)
class SweepResult:
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
) -> SweepResult:
    """Run the jobs that are not done; their rows are the same wherever they are computed with equal threads.

    A job that raises, or whose process is killed, is tried once more after all others; if that fails too, its
    traceback is kept in ``out/failed/<key>.txt`` until it succeeds, and the sweep goes on. A run that another process
    is writing is left to it: its result is taken when it is done; if that process ends before, it is computed here.

    Args:
        jobs: Frozen dataclasses.
        work: Computes one of them by :func:`samphire.records.open_run` in ``out``. A function of an importable
            module, or a ``functools.partial`` of one: ``partial(fit, root=root, out=out)``.
        out: The folder of the runs. For Ray and SLURM every node must see it, and the data, under the same absolute
            path.
        on: ``"here"``, one by one; ``"processes"``, a :class:`samphire.pool.Pool` of one core each; ``"ray"``, tasks
            of one core, and of one GPU where the cluster has any; ``"slurm"``, a job of SLURM each, by submitit.
        workers: Jobs at once. By default one for each core, and as many as fit for Ray. Processes share a GPU: say
            how many it can hold.
        address: Of the Ray cluster, for instance ``"auto"``. By default the one running here, or one made for this.
            ``"local"`` tries SLURM's jobs on this machine, without SLURM.
        progress: Called about once a second, by a thread of its own, with what is done, epochs done and epochs to do.
        done: Called with each job that has ended.

    Example:
        >>> import tempfile
        >>> from samphire.sweep import grid
        >>> job = grid("cifar-mnist", rho=[0], lr=[0.1])[0]
        >>> def work(config):
        ...     with records.open_run(out, config) as run:
        ...         run.append({"val_error": config.lr})
        >>> with tempfile.TemporaryDirectory() as out:
        ...     [(trial.state, trial.row) for trial in run([job], work, out).trials]
        [('done', {'val_error': 0.1})]
    """
    _check(on, workers, address)
    Path(out).mkdir(parents=True, exist_ok=True)
    folders = {Path(out) / records.key(job): job for job in jobs}
    waiting = deque(folder for folder in folders if not records.is_done(folder))
    if waiting:
        with _watched(folders, progress), EXECUTORS[on](work, workers, address) as (submit, slots):
            for folder, error in _schedule(waiting, folders, submit, slots):
                _keep(folder, folders[folder], error)
                if done is not None:
                    done(trial_of(folder, folders[folder]))
    return SweepResult(trials(out, folders.values()))


def _schedule(
    waiting: deque[Path], jobs: Mapping[Path, Any], submit: Submit, slots: int
) -> Iterator[tuple[Path, str]]:
    """Folders whose job has ended, with the traceback if it failed twice."""
    running: dict[Future[Outcome], Path] = {}
    tried: set[Path] = set()
    resting: set[Path] = set()  # another process was writing it a moment ago
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
            if records.is_done(folder):
                yield folder, ""
            elif busy or folder not in tried:
                waiting.append(folder)
                (resting if busy else tried).add(folder)
            else:
                yield folder, error or f"the work ended without a finished run in {folder}; it must write there."
        if not ended:
            resting.clear()


def _outcome(future: Future[Outcome]) -> tuple[bool, str]:
    error = future.exception()
    return (False, str(error)) if error is not None else future.result() or (False, "")


def _keep(folder: Path, job: Any, error: str) -> None:
    """The traceback of a job that failed; none for one that did not."""
    report = report_of(folder)
    if error:
        report.parent.mkdir(exist_ok=True)
        records.write_atomic(report, f"{job}\n\n{error}".encode(errors="replace"))
    else:
        report.unlink(missing_ok=True)


@contextmanager
def _watched(jobs: Mapping[Path, Any], progress: Progress | None) -> Iterator[None]:
    """Report from the files how far the jobs are, whoever computes them."""
    if progress is None:
        yield
        return
    epochs = {folder: getattr(job, "epochs", 1) for folder, job in jobs.items()}
    done: set[Path] = set()
    ended = threading.Event()

    def report() -> None:
        done.update(folder for folder in epochs if folder not in done and records.is_done(folder))
        passed = sum(n if folder in done else min(records.count_rows(folder), n) for folder, n in epochs.items())
        progress(f"{len(done)} of {len(epochs)} runs", passed, sum(epochs.values()))

    def watch() -> None:
        report()
        while not ended.wait(POLL):
            report()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        report()


def _check(on: str, workers: int | None, address: str | None) -> None:
    check_one_of("executor", on, EXECUTORS)
    if workers is not None:
        check_whole("workers", workers)
    if workers is not None and on == "here":
        raise ValueError(f"on='here' runs one job at a time, got workers={workers}; take on='processes'.")
    if address is not None and on != "ray" and (on, address) != ("slurm", "local"):
        raise ValueError(
            f"address is that of a Ray cluster, or 'local' for SLURM's jobs without SLURM, got {address!r} and "
            f"on={on!r}; take on='ray'."
        )
