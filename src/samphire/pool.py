"""Other interpreters that work for this one: requests by their standard input, answers by their standard output."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, cast


class Interpreter:
    """A process that runs a function which answers; see :func:`requests`.

    It finds modules where this process does and, unlike :mod:`multiprocessing`, needs no main module to import.

    Args:
        serve: The function, as ``"module:function"``.
        environment: What differs from this process's.
    """

    def __init__(self, serve: str, environment: Mapping[str, str] | None = None) -> None:
        module, _, function = serve.partition(":")
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import {function}; {function}()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._answers, self._requests = cast(IO[bytes], self.process.stdout), cast(IO[bytes], self.process.stdin)

    def send(self, request: object) -> None:
        """Hand over a request; OSError if the process has ended."""
        pickle.dump(request, self._requests)
        self._requests.flush()

    def receive(self) -> Any:
        """The next answer; EOFError or OSError if the process ended before it."""
        return pickle.load(self._answers)

    def close(self) -> None:
        """Let it end, and wait until it has."""
        for stream in (self._answers, self._requests):
            with contextlib.suppress(OSError):
                stream.close()
        self.process.wait()


Send = Callable[[object], None]


def requests(pickler: type[pickle.Pickler] = pickle.Pickler) -> Iterator[tuple[Any, Send]]:
    """In the other process: every request, with the function that sends an answer.

    Interrupts are left to the process that asks, and whatever is printed goes to standard error. If that process is
    gone, killed perhaps, this one ends in the midst of its work.

    Args:
        pickler: Writes the answers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(answer: object) -> None:
        pickler(out).dump(answer)
        out.flush()

    with contextlib.suppress(EOFError):
        while True:
            yield pickle.load(sys.stdin.buffer), send


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
