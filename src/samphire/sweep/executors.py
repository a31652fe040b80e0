"""Where a job is computed. An executor is a function that starts a job, and how many jobs it may have at once."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import torch

from samphire.pool import Interpreter, requests

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
    started: list[Interpreter] = []
    ending = threading.Event()
    own = threading.local()

    def start() -> Interpreter:
        worker = _started()
        started.append(worker)
        if ending.is_set():
            worker.process.terminate()
        return worker

    def call(job: Any) -> Outcome:
        request = pickle.dumps((work, job))
        worker = getattr(own, "worker", None) or start()
        own.worker = None
        outcome = _ask(worker, request)
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


def _started() -> Interpreter:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return Interpreter(f"{__name__}:_serve", threads)


def _ask(worker: Interpreter, request: bytes) -> Outcome:
    try:
        worker.send(request)
        return cast(Outcome, worker.receive())
    except (EOFError, OSError):
        worker.close()
        raise RuntimeError(
            f"the process of this run ended with code {worker.process.wait()}; -9 is often the system's answer to "
            "too little memory: take fewer workers."
        ) from None


def _serve() -> None:
    """A worker's side: jobs, and what became of them."""
    torch.set_num_threads(1)
    for request, send in requests():
        send(_attempt(_unpacked, request))


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
