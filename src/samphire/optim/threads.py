"""Steps of several threads at once: they share torch's generators, so one may draw what another means to repeat."""

from __future__ import annotations

import threading
import weakref

__all__ = ["Overlap"]

_lock = threading.RLock()  # a run that is forgotten may end here while another begins
_under_way: weakref.WeakSet[Overlap] = weakref.WeakSet()  # weak, since an interrupt may keep a run from ending


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
        """The run begins."""
        with _lock:
            for other in tuple(_under_way):
                if other._thread != self._thread:
                    self.seen = other.seen = True
            _under_way.add(self)

    def end(self) -> None:
        """The run is over."""
        with _lock:
            _under_way.discard(self)
