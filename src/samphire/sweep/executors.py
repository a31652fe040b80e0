"""Where a job is computed. An executor is a function that starts a job, and how many jobs it may have at once."""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from samphire import pool

CRASHES = 3  # of a node or worker of Ray that one attempt survives
LIMIT = 24 * 60  # minutes of a SLURM job, unless SBATCH_TIMELIMIT says otherwise
LIMITS = 100  # how many such limits a run may meet; one whose epoch takes longer than that would meet them for ever
POLL = 1.0  # seconds between looks at SLURM's jobs

__all__ = ["EXECUTORS", "Outcome", "Submit", "Work"]

Work = Callable[[Any], object]
Outcome = tuple[bool, str] | None
"""``None`` for a job that was done; else whether another process is computing it, and the traceback."""
Submit = Callable[[Any], "Future[Outcome]"]


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
    with pool.Pool(workers or pool.cores()) as processes:
        yield lambda job: processes.submit(_attempt_or_raise, work, job), processes.workers


def _attempt_or_raise(work: Work, job: Any) -> Outcome:
    """In a worker of a pool, which is replaced if its job raises: what broke this job must not break the next."""
    outcome = _attempt(work, job)
    if outcome is not None and not outcome[0]:
        raise RuntimeError(outcome[1])
    return outcome


@contextmanager
def _ray(work: Work, workers: int | None, address: str | None) -> Iterator[tuple[Submit, int]]:
    """Ray runs a task again if its node or worker is lost; the run's own checkpoint is where it resumes."""
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ValueError("on='ray' needs Ray; pip install 'samphire[ray]', or take on='processes'.") from None
    own = not ray.is_initialized()
    if own:
        ray.init(address, log_to_driver=False, logging_level="warning", include_dashboard=False)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=CRASHES)(_attempt_elsewhere)
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


def _attempt_elsewhere(request: bytes, path: list[str]) -> Outcome:
    """On another machine, or in a worker that may look for modules in other places than this process."""
    sys.path += [place for place in path if place not in sys.path]
    _use_one_thread()

    def unpacked(request: bytes) -> None:
        work, job = pickle.loads(request)
        work(job)

    return _attempt(unpacked, request)


def _use_one_thread() -> None:
    """Also in what is loaded later; torch itself, which takes seconds to load, is left to the jobs that need it."""
    os.environ.update(pool.ONE_THREAD)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@contextmanager
def _slurm(work: Work, workers: int | None, address: str | None) -> Iterator[tuple[Submit, int]]:
    """Jobs of SLURM by submitit: one that meets its time limit is queued again and resumes from its checkpoint.

    What sbatch needs to know (partition, account, time limit, GPUs) it reads from its own variables:
    SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, SBATCH_GPUS.
    """
    try:
        submitit: Any = importlib.import_module("submitit")
    except ModuleNotFoundError:
        raise ValueError(
            "on='slurm' needs submitit; pip install 'samphire[slurm]', or take on='processes'."
        ) from None
    if address is None and shutil.which("sbatch") is None:
        raise ValueError("on='slurm' needs sbatch, and there is none here; run it where SLURM is, or on='processes'.")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    cluster = address or "slurm"
    often = {f"{cluster}_max_num_timeout": LIMITS}
    executor = submitit.AutoExecutor(cache / "samphire" / "jobs" / "%j", cluster=cluster, **often)
    executor.update_parameters(name="samphire", timeout_min=LIMIT, cpus_per_task=1)
    jobs: dict[Future[Outcome], Any] = {}

    def submit(job: Any) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        request = importlib.import_module("cloudpickle").dumps((work, job))
        jobs[future] = executor.submit(_Resumable(), request, sys.path)
        return future

    def watch() -> None:
        while not left.wait(POLL):
            for future, job in list(jobs.items()):
                if not future.done() and job.done():
                    error = job.exception()
                    future.set_result(job.result() if error is None else (False, str(error)))

    left = threading.Event()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield submit, workers or sys.maxsize
    finally:
        left.set()
        watcher.join()
        for future, job in jobs.items():
            if not future.done():
                job.cancel()


class _Resumable:
    """What submitit calls: shortly before the time limit it asks for what is to be queued again."""

    def __call__(self, request: bytes, path: list[str]) -> Outcome:
        return _attempt_elsewhere(request, path)

    def checkpoint(self, *arguments: Any) -> Any:
        return importlib.import_module("submitit.helpers").DelayedSubmission(self, *arguments)


Executor = Callable[[Work, int | None, str | None], AbstractContextManager[tuple[Submit, int]]]
EXECUTORS: dict[str, Executor] = {"here": _here, "processes": _processes, "ray": _ray, "slurm": _slurm}
