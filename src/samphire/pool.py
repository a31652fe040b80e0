"""Worker processes of one core each, which end when the process that started them ends, however it ends.

A worker is a fresh interpreter: unlike :mod:`multiprocessing` it needs no importable main module. It reads tasks from
its standard input and writes answers to its standard output. This file uses the standard library alone, because every
worker runs it before it imports anything else.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, TypeVar, cast

__all__ = ["Pool", "WorkerDied", "cores", "in_turn"]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
KEEP_MEMORY = {  # glibc keeps what a training step frees for the next; benchmarks/worker.py has what that saves
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
POLL = 0.5  # seconds between a worker's looks at whether its parent lives

T = TypeVar("T")
Tell = Callable[[Any], None]


class WorkerDied(RuntimeError):
    """A worker process ended before its task did."""


class Pool:
    """Workers that run functions of importable modules; leaving the ``with`` block ends them, at work or not.

    A worker whose task raised is replaced, so that what broke one task cannot break the next.

    Args:
        workers: How many.

    Example:
        >>> with Pool(2) as pool:
        ...     list(pool.map(divmod, [(7, 2), (9, 4)]))
        [(3, 1), (2, 1)]
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers)  # each waits for a worker of its own
        self._own = threading.local()
        self._started: list[_Worker] = []
        self._ending = False

    def submit(self, function: Callable[..., Any], *args: Any, listen: Tell | None = None) -> Future[Any]:
        """Run a function in a worker.

        Args:
            function: Pickled by its name.
            *args: Its arguments.
            listen: Called with every message of the task, which then gets a last argument: the function that sends
                them.
        """
        return self._threads.submit(self._run, function, args, listen)

    def map(
        self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], listen: Tell | None = None
    ) -> Iterator[Any]:
        """The results of many tasks, in order; at most twice as many as there are workers wait to be taken."""
        return in_turn((self.submit(function, *args, listen=listen) for args in tasks), 2 * self.workers - 1)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], listen: Tell | None) -> Any:
        task = pickle.dumps((function, args, listen is not None))
        worker = getattr(self._own, "worker", None) or self._start()
        self._own.worker = None
        try:
            result = worker.run(task, listen)
        except BaseException:
            worker.close()
            raise
        self._own.worker = worker
        return result

    def _start(self) -> _Worker:
        worker = _Worker()
        self._started.append(worker)
        if self._ending:
            worker.process.terminate()
        return worker

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending = True
        for worker in self._started:
            worker.process.terminate()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._started:
            worker.close()


class _Worker:
    """The parent's side of one worker."""

    def __init__(self) -> None:
        code = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**KEEP_MEMORY, **os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._tasks, self._answers = cast(IO[bytes], self.process.stdin), cast(IO[bytes], self.process.stdout)

    def run(self, task: bytes, listen: Tell | None) -> Any:
        try:
            pickle.dump(task, self._tasks)
            self._tasks.flush()
            while (answer := pickle.load(self._answers))[0] == "message":
                cast(Tell, listen)(answer[1])
        except (EOFError, OSError):
            raise WorkerDied(
                f"a worker process ended with exit code {self.process.wait()} before its task did; -9 often means "
                "too little memory: take fewer workers."
            ) from None
        kind, value = answer
        if kind == "error":
            raise value
        return value

    def close(self) -> None:
        for stream in (self._answers, self._tasks):
            with contextlib.suppress(OSError):
                stream.close()
        self.process.wait()


def in_turn(futures: Iterable[Future[T]], ahead: int) -> Iterator[T]:
    """The results of futures, in their order; at most ``ahead`` more are made before the first is taken."""
    waiting: deque[Future[T]] = deque()
    for future in futures:
        waiting.append(future)
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# The worker's side


def _serve(parent: int) -> None:
    """Answer tasks until there are no more. Interrupts are left to the parent; what is printed goes to stderr."""
    _let_the_kernel_end_this_with_its_parent()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(kind: str, value: Any) -> None:
        out.write(pickle.dumps((kind, value)))  # whole or not at all, should the value not be picklable
        out.flush()

    with contextlib.suppress(EOFError):
        while True:
            task = pickle.load(sys.stdin.buffer)
            try:
                function, args, tells = pickle.loads(task)
                send("result", function(*args, *([lambda message: send("message", message)] if tells else [])))
            except Exception as error:
                try:
                    send("error", error)
                except Exception:  # it cannot be pickled
                    send("error", RuntimeError(repr(error)))


def _let_the_kernel_end_this_with_its_parent() -> None:
    """On Linux. A thread that looks, as elsewhere, waits for what holds Python's lock: an import, a long product."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL)
    os._exit(1)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
