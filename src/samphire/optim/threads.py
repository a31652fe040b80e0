"""Steps of several threads at once: they share torch's generators, so one may draw what another means to repeat."""

from __future__ import annotations

import threading

__all__ = ["Overlap"]

# By thread: passes begun and runs ended. Each thread writes its own entry, so there is no lock, which an interrupt
# could leave closed for ever; and a run that was left in the middle counts for nothing.
_moves: dict[int, int] = {}


class Overlap:
    """Whether other threads began a pass, or ended a run, since this run began.

    Example:
        >>> mine = Overlap()
        >>> other = threading.Thread(target=lambda: Overlap().move())
        >>> other.start(), other.join()
        (None, None)
        >>> mine.seen
        True
    """

    def __init__(self) -> None:
        self._before = _others()

    def move(self) -> None:
        """A pass of this run begins, or the run is over."""
        me = threading.get_ident()
        _moves[me] = _moves.get(me, 0) + 1

    @property
    def seen(self) -> bool:
        """Whether they did."""
        return _others() != self._before


def _others() -> dict[int, int]:
    moves = _moves.copy()
    moves.pop(threading.get_ident(), None)
    return moves
