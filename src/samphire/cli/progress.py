"""Progress with time left, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def bar() -> Iterator[Callable[[str, int, int], None]]:
    """A function of what is being done, how much is done and how much there is; its first call shows the bar."""
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
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
