"""Progress with time left, on stderr: a bar on a terminal, elsewhere a plain line now and then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from samphire.progress import Progress
from samphire.report import duration

__all__ = ["Lines", "bar"]


@contextmanager
def bar() -> Iterator[Progress]:
    """Show progress until the block ends; the first call begins."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    shown = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        redirect_stdout=sys.stdout.isatty(),  # what is printed meanwhile stands above the bar, or in its file
        speed_estimate_period=3600,  # seconds: an epoch may take minutes
    )

    def advance(what: str, done: int, total: int) -> None:
        if not shown.tasks:
            shown.start()
            shown.add_task(what, total=total)
        shown.update(shown.tasks[0].id, description=what, completed=done, total=total)

    try:
        yield advance
    finally:
        if shown.tasks:
            shown.stop()


class Lines:
    """Progress as lines on stderr: one at the first call, then at most one every few seconds.

    Args:
        every: Seconds between lines.
        clock: The time in seconds.
    """

    def __init__(self, every: float = 20.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._printed = -math.inf
        self._start, self._before = 0.0, 0  # when this work began, and how much was done then
        self._done, self._total = 0, -1

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        if total != self._total or done < self._done:  # other work begins
            self._start, self._before = now, done
        self._done, self._total = done, total
        if now - self._printed < self._every:
            return
        self._printed = now
        fresh = done - self._before
        left = duration((now - self._start) * (total - done) / fresh) if fresh else "not known yet"
        print(f"{what}: {done / max(total, 1):.0%} done, time left: {left}", file=sys.stderr, flush=True)
