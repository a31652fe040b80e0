"""How long work tells how far it is: a function of what is being done, how much is done and how much there is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]

__all__ = ["Progress", "named", "silent", "stretch"]


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""


def named(progress: Progress, what: str) -> Progress:
    """The same progress under another name.

    Example:
        >>> named(lambda what, done, total: print(what, done, total), "features (trained)")("features", 3, 6)
        features (trained) 3 6
    """
    return lambda _, done, total: progress(what, done, total)


def stretch(progress: Progress, start: float, end: float, total: int = 1000) -> Progress:
    """The progress of a part of longer work, which takes it from one share to another.

    Args:
        progress: Of the whole.
        start: The share done before, from 0 to 1.
        end: The share done after.
        total: The units in which the whole is counted.

    Example:
        >>> stretch(lambda what, done, total: print(what, done, total), 0.5, 1.0, total=100)("epochs", 3, 6)
        epochs 75 100
    """
    return lambda what, done, of: progress(what, round(total * (start + (end - start) * done / max(of, 1))), total)
