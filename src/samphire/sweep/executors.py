"""Where a job is computed. An executor is a function that starts a job, and how many jobs it may have at once."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, cast

import torch

CRASHES = 3  # of a node or worker of Ray that one attempt survives

Work = Callable[[Any], object]
Outcome = tuple[bool, str] | None
"""``None`` for a job that was done; else whether another process is at it, and the traceback."""
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
            [sys.executable, "-c", "from samphire.sweep.executors import _serve; _serve()"],
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
