"""Steps of several threads at once: they share torch's generators, so one may draw what another means to repeat."""

from __future__ import annotations

import threading
import weakref

__all__ = ["Overlap"]

# No lock, which an interrupt could leave closed for ever, and weak, since one may keep a run from ending.
_under_way: weakref.WeakValueDictionary[int, Overlap] = weakref.WeakValueDictionary()


class Overlap:
    """Whether runs of other threads were under way at any moment of a run.

    Example:
        >>> mine = Overlap()
        >>> mine.begin()
        >>> def step_elsewhere():
        ...     theirs = Overlap()
        ...     theirs.begin()
        ...     theirs.end()
        >>> other = threading.Thread(target=step_elsewhere)
        >>> other.start(), other.join()
        (None, None)
        >>> mine.end()
        >>> mine.seen
        True
    """

    def __init__(self) -> None:
        self.seen = False
        self._thread = threading.get_ident()

    def begin(self) -> None:
        """The run begins. It is entered before others are looked for, so of two that begin at once one sees both."""
        _under_way[id(self)] = self
        for other in (reference() for reference in _under_way.valuerefs()):
            if other is not None and other._thread != self._thread:
                self.seen = other.seen = True

    def end(self) -> None:
        """The run is over."""
        _under_way.pop(id(self), None)
