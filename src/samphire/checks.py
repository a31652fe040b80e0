"""Bad input, in one sentence: the thing, the condition, the value received, the way out.

Ranges are declared beside the fields they limit, and :func:`check_fields` enforces them; the tests generate values
that must be refused from the same declarations.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache, wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = [
    "AtLeastZero", "BelowOne", "Count", "Fraction", "Positive", "PositiveFraction", "Range", "Whole",
    "check_fields", "check_flag", "check_indices", "check_number", "check_one_of", "check_regular", "check_value",
    "check_whole", "declared_ranges", "hint", "read_regular", "suggest_keywords",
]  # fmt: skip

MOST_BYTES = 2**28  # of a file that is read at once
T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The numbers a setting may be.

    Args:
        least: The smallest.
        most: The largest.
        above: Below the smallest, excluded itself.
        below: Above the largest, excluded itself.
        whole: Whether only whole numbers will do.

    Example:
        >>> print(Range(least=0, below=1)), 0.5 in Range(least=0, below=1), 1 in Range(least=0, below=1)
        in [0, 1)
        (None, True, False)
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        kinds = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not abs(value) <= sys.float_info.max:
            return False
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        low, high = max(self.least, self.above), min(self.most, self.below)
        bottom, top = "(" if low == self.above else "[", ")" if high == self.below else "]"
        if math.isinf(high):
            return "" if math.isinf(low) else f"{'>' if bottom == '(' else '>='} {low:g}"
        if math.isinf(low):
            return f"{'<' if top == ')' else '<='} {high:g}"
        return f"in {bottom}{low:g}, {high:g}{top}"

    def outside(self) -> list[Any]:
        """Values that must be refused, for tests."""
        ends = [self.least - 1, self.most + 1, self.above, self.below]
        some = [int(end) if self.whole else end for end in ends if math.isfinite(end)]
        between = [0.5 + max(self.least, self.above, 0)] if self.whole else []
        return [*some, *between, math.nan, math.inf, 10**400, "1", True]


Positive = Annotated[float, Range(above=0)]
AtLeastZero = Annotated[float, Range(least=0)]
Fraction = Annotated[float, Range(least=0, most=1)]
PositiveFraction = Annotated[float, Range(above=0, most=1)]
BelowOne = Annotated[float, Range(least=0, below=1)]
Whole = Annotated[int, Range(least=0, whole=True)]
Count = Annotated[int, Range(least=1, whole=True)]


SHOWN = 12  # names in a message


def hint(value: object, known: Iterable[str]) -> str:
    """What was probably meant, or what exists: of many, the first and the last (a model's head among them).

    Example:
        >>> hint("sma", ["sam", "asam"]), hint("x", ["sam", "asam"])
        ("did you mean 'sam'?", 'there are sam, asam.')
    """
    known = [name for name in known if name]
    close = difflib.get_close_matches(str(value), known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    if len(known) > SHOWN:
        known = [*known[: SHOWN // 2], f"... ({len(known) - SHOWN} more)", *known[-SHOWN // 2 :]]
    return f"there are {', '.join(known) or 'none'}."


def check_one_of(what: str, value: object, known: Iterable[str]) -> None:
    """Refuse a name that is not known.

    Example:
        >>> check_one_of("rule", "sma", ["sam", "asam"])
        Traceback (most recent call last):
            ...
        ValueError: no rule is named 'sma'; did you mean 'sam'?
    """
    known = list(known)
    if value not in known:
        raise ValueError(f"no {what} is named {value!r}; {hint(value, known)}")


def suggest_keywords(made: T) -> T:
    """Let a class or function say what a misspelt keyword was probably meant to be.

    Example:
        >>> @suggest_keywords
        ... @dataclass(frozen=True)
        ... class gsam:
        ...     alpha: float = 0.4
        >>> gsam(alhpa=1)
        Traceback (most recent call last):
            ...
        TypeError: gsam takes no 'alhpa'; did you mean 'alpha'?
    """
    called: Any = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]
    known = list(inspect.signature(made).parameters)  # type: ignore[arg-type]
    owner = made.__name__  # type: ignore[attr-defined]

    @wraps(called)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                raise TypeError(f"{owner} takes no {name!r}; {hint(name, known)}")
        return called(*args, **kwargs)

    if not isinstance(made, type):
        return checked  # type: ignore[return-value]
    made.__init__ = checked  # type: ignore[misc]
    return made


def check_number(name: str, value: object, limits: Range = Range()) -> None:  # noqa: B008
    """Refuse what is no finite number of a range.

    Example:
        >>> check_number("lr", -1.0, Range(above=0))
        Traceback (most recent call last):
            ...
        ValueError: lr must be a finite number > 0, got -1.0.
    """
    if value not in limits:
        kind = "a whole number" if limits.whole else "a finite number"
        raise ValueError(f"{' '.join(filter(None, (name, 'must be', kind, str(limits))))}, got {value!r}.")


def check_whole(name: str, value: object, least: int = 1, most: float = math.inf) -> None:
    """Refuse what is no whole number from ``least`` to ``most``."""
    check_number(name, value, Range(least=least, most=most, whole=True))


def check_indices(name: str, values: Any, n: int) -> None:
    """Refuse classes, groups or positions (a tensor or array of whole numbers) outside 0 to ``n - 1``.

    Example:
        >>> import numpy as np
        >>> check_indices("labels", np.array([0, 3]), 3)
        Traceback (most recent call last):
            ...
        ValueError: labels must be whole numbers from 0 to 2, got 0 to 3.
    """
    if len(values) and not 0 <= values.min() <= values.max() < n:
        raise ValueError(f"{name} must be whole numbers from 0 to {n - 1}, got {values.min()} to {values.max()}.")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither true nor false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}.")


def check_value(name: str, value: object, kind: Any) -> None:
    """Refuse what a type does not allow: a number outside its range, an unknown word, a flag that is none.

    Args:
        name: What the message begins with.
        value: The value.
        kind: The type: a declared range, a ``Literal`` or ``bool``, alone or as ``T | Other``, which also allows
            instances of ``Other`` (such as ``None``). Other types are not checked.

    Example:
        >>> check_value("clip", None, Union[Positive, None])
        >>> check_value("rng", "now", Literal["replay", "fresh"])
        Traceback (most recent call last):
            ...
        ValueError: rng must be 'replay' or 'fresh', got 'now'.
    """
    _check(name, value, *_limit(kind))


def check_fields(record: Any, owner: str = "") -> None:
    """Check every field of a dataclass by its type, as :func:`check_value` does.

    Args:
        record: The dataclass.
        owner: What the message begins with, for instance the name of a rule.

    Example:
        >>> @dataclass(frozen=True)
        ... class gsam:
        ...     alpha: AtLeastZero = 0.4
        ...     descend: Literal["perturbed", "clean"] = "perturbed"
        ...     def __post_init__(self):
        ...         check_fields(self, "gsam")
        >>> gsam(alpha=-1)
        Traceback (most recent call last):
            ...
        ValueError: gsam: alpha must be a finite number >= 0, got -1.
    """
    before = f"{owner}: " if owner else ""
    kind: Any = type(record)
    for name, limits in _limits(kind).items():
        _check(before + name, getattr(record, name), *limits)


def declared_ranges(record: type) -> dict[str, Range]:
    """The fields of a dataclass that must lie in a range."""
    return {name: limits for name, (limits, _) in _limits(record).items() if isinstance(limits, Range)}


def _check(name: str, value: object, limits: Any, others: tuple[type, ...]) -> None:
    if limits is None or isinstance(value, others):
        return
    if isinstance(limits, Range):
        check_number(name, value, limits)
    elif limits is bool:
        check_flag(name, value)
    elif value not in limits:
        raise ValueError(f"{name} must be {' or '.join(map(repr, limits))}, got {value!r}.")


def check_regular(path: str | Path, most: float = MOST_BYTES) -> None:
    """Refuse what is no ordinary file, such as a pipe or a device, and one of too many bytes; nothing is read.

    Args:
        path: It may be a link.
        most: Bytes.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} must be an ordinary file, got a folder, pipe or device; replace it by the file.")
    if status.st_size > most:
        raise ValueError(
            f"{path} has {status.st_size} bytes, more than the {most:.0f} allowed; is it the right file?"
        )


def read_regular(path: Path) -> bytes:
    """The bytes of an ordinary file; a pipe would be waited for, and a device read, without end."""
    check_regular(path)
    return path.read_bytes()


@cache
def _limits(record: Any) -> dict[str, tuple[Any, tuple[type, ...]]]:
    no_type = {"KW_ONLY": None}  # what dataclasses read as a mark, Python 3.10 refuses
    hints = get_type_hints(record, localns=no_type, include_extras=True)
    return {field.name: _limit(hints[field.name]) for field in fields(record)}


def _limit(kind: Any) -> tuple[Any, tuple[type, ...]]:
    """What a type says of its values (``None`` for nothing we check), and the classes it allows beside them."""
    if get_origin(kind) in (Union, UnionType):
        parts = get_args(kind)
        limits = [_limit(part)[0] for part in parts]
        others = tuple(part for part, limit in zip(parts, limits, strict=True) if limit is None)
        if not all(isinstance(part, type) for part in others):
            return None, ()
        return next((limit for limit in limits if limit is not None), None), others
    if get_origin(kind) is Annotated:
        return next((part for part in get_args(kind)[1:] if isinstance(part, Range)), None), ()
    if get_origin(kind) is Literal:
        return get_args(kind), ()
    return (bool if kind is bool else None), ()
