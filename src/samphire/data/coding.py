"""Words, numbers and gaps as codes counted from 0, with the names of the values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = -1  # the code of a value that is not known
MOST_VALUES = 20  # of an attribute; more are grouped, if they are numbers
GROUPS = 4  # that numbers of many values become
_GAPS = {"", "na", "n/a", "nan", "null"}  # in any spelling; "none" may be a value

Codes = NDArray[np.int64]

__all__ = ["MISSING", "MOST_VALUES", "Codes", "as_codes", "coded_column", "plain_values"]


def plain_values(values: Any) -> list[Any]:
    """The values of a list, array, tensor or series as plain Python: text, numbers, and ``None`` for gaps.

    Example:
        >>> plain_values(np.array([1.0, np.nan])), plain_values(["a", "", b"b"])
        ([1.0, None], ['a', None, 'b'])
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    return [_plain(value) for value in listed]


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return None if value.strip().casefold() in _GAPS else value.strip()
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if value is None or type(value).__name__ in ("NAType", "NaTType") else value


def as_codes(
    what: str, values: Any, names: Sequence[str] = (), *, gaps: bool = False
) -> tuple[Codes, tuple[str, ...]]:
    """Whole numbers as the codes they are, words as their positions among the names.

    Args:
        what: The values are, for messages.
        values: A list, array or tensor with one entry for each example.
        names: Of the codes; for words, unless given, the words in their order.
        gaps: Whether values may be missing: -1, ``None``, NaN or an empty word.

    Example:
        >>> as_codes("place", ["water", "land", ""], gaps=True)
        (array([ 1,  0, -1]), ('land', 'water'))
        >>> as_codes("label", [0.5, 1])
        Traceback (most recent call last):
            ...
        ValueError: label must be classes, words or whole numbers from 0, got 0.5 in row 0.
    """
    if not hasattr(values, "__len__"):
        raise TypeError(f"{what} must be a list, array or tensor of one entry for each example, got {values!r}.")
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1:
        codes = values.astype(np.int64, copy=False)
    else:
        listed = plain_values(values)
        if any(isinstance(value, str) for value in listed):
            known = list(names) or sorted({value for value in listed if isinstance(value, str)})
            position = {name: i for i, name in enumerate(known)}
            names = known
        else:
            position = {}
        codes = np.array([_code(what, value, i, position, gaps) for i, value in enumerate(listed)], np.int64)
    _check_range(what, codes, len(names), gaps)
    return codes, tuple(names)


def _code(what: str, value: Any, row: int, position: dict[str, int], gaps: bool) -> int:
    if value is None and gaps:
        return MISSING
    if position and isinstance(value, str):
        if value not in position:
            raise ValueError(f"{what} is {value!r} in row {row}, which is none of {', '.join(position)}.")
        return position[value]
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not position and whole and abs(value) < 2**62:
        return int(value)
    raise ValueError(f"{what} must be classes, words or whole numbers from 0, got {value!r} in row {row}.")


def _check_range(what: str, codes: Codes, names: int, gaps: bool) -> None:
    wrong = (codes < (MISSING if gaps else 0)) | (codes >= (names or np.inf))
    if wrong.any():
        row = int(wrong.argmax())
        most = f" to {names - 1}" if names else ""
        raise ValueError(f"{what} must be whole numbers from 0{most}, got {codes[row]} in row {row}.")


# Columns of tables, whose numbers may stand for anything


def coded_column(
    what: str, values: Sequence[Any], where: Callable[[int], str], names: Sequence[str] = (), *, label: bool = False
) -> tuple[Codes, tuple[str, ...], str]:
    """A column of a table as codes, the names of its values, and a sentence if numbers were changed.

    Whole numbers that count from 0 stay as they are, since a network's outputs may be meant. Other numbers and words
    are counted in their order. Numbers of more than 20 values, where the column is no label, become quarters.

    Args:
        what: Name of the column.
        values: As :func:`plain_values` gives them.
        where: From a row to its place, for messages.
        names: Of whole numbers, where the source has them.
        label: Whether a gap is an error, and numbers are classes however many there are.

    Example:
        >>> coded_column("age", list(range(40)), str)[1]
        ('0 to 9', '10 to 19', '20 to 29', '30 to 39')
    """
    if label and None in values:
        raise ValueError(f"{where(list(values).index(None))} has no {what}; every example needs a label.")
    known = [_number(value) for value in values]
    present = sorted({value for value in known if value is not None}, key=_order)
    if not present:
        raise ValueError(f"{what} has no values in any row; leave it out.")
    numbers = not any(isinstance(value, str) for value in present)
    whole = numbers and all(float(value).is_integer() for value in present)
    if label and numbers and not whole:
        row = next(i for i, value in enumerate(known) if not float(value).is_integer())
        raise ValueError(f"{where(row)}: {what} is {known[row]}, not a class; a label is words or whole numbers.")
    if len(present) > MOST_VALUES and not label:
        if not numbers:
            raise ValueError(
                f"{what} has {len(present)} different words, more than the {MOST_VALUES} of an attribute; "
                "group them in the table, or leave the column out."
            )
        return _grouped(what, known, present)
    if whole and (names or (present[0] == 0 and present[-1] < 2 * len(present))):
        shown = tuple(names) or tuple(str(i) for i in range(int(present[-1]) + 1))
        for i, value in enumerate(known):
            if value is not None and not 0 <= value < len(shown):
                raise ValueError(f"{where(i)}: {what} is {value}, but only 0 to {len(shown) - 1} have names.")
        return np.array([MISSING if value is None else int(value) for value in known], np.int64), shown, ""
    position = {value: i for i, value in enumerate(present)}
    codes = np.array([MISSING if value is None else position[value] for value in known], np.int64)
    shown = tuple(_text(value) for value in present)
    note = f"{what} has the values {', '.join(shown)}; they are counted from 0 in this order." if numbers else ""
    return codes, shown, note


def _number(value: Any) -> Any:
    """A number where a text reads as one."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        if "_" in value:
            return value
        try:
            return int(value)
        except ValueError:
            pass
        try:
            number = float(value)
        except ValueError:
            return value
        if not math.isfinite(number):
            return value
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    if value is None or isinstance(value, (int, float)):
        return value
    return str(value)


def _order(value: Any) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _grouped(what: str, known: list[Any], present: list[Any]) -> tuple[Codes, tuple[str, ...], str]:
    """Numbers of many values as groups of about equal size."""
    values = np.array([np.nan if value is None else float(value) for value in known])
    inside = values[~np.isnan(values)]
    ends = np.unique(np.quantile(inside, np.arange(1, GROUPS) / GROUPS))
    codes = np.where(np.isnan(values), MISSING, np.searchsorted(ends, values, side="left"))
    used, codes_of_used = np.unique(codes[codes >= 0], return_inverse=True)
    codes[codes >= 0] = codes_of_used
    names = tuple(f"{_text(values[codes == g].min())} to {_text(values[codes == g].max())}" for g in range(len(used)))
    note = f"{what} has {len(present)} values; they are grouped in {len(used)} of about equal size."
    return codes.astype(np.int64), names, note
