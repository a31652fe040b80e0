"""What stands in a cell: numbers, times, and data for other programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["duration", "show", "strict"]


def show(value: Any) -> str:
    """A cell as text: numbers with four significant digits, ``None`` and nan as a dash.

    Args:
        value: A number, text, truth value, estimate or ``None``.

    Example:
        >>> [show(v) for v in (0.123456, 3, True, None, "text", 6000.0)]
        ['0.1235', '3', 'yes', '–', 'text', '6000']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """A time as people say it.

    Args:
        seconds: nan for unknown.

    Example:
        >>> [duration(s) for s in (0.25, 12.3, 200, 3725, math.nan)]
        ['0.2 s', '12 s', '3 min 20 s', '1 h 02 min', '–']
    """
    if math.isnan(seconds):
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def strict(value: Any) -> Any:
    """Cells, arrays, records and what holds them as data for strict JSON, which has no nan and no infinity: null.

    Example:
        >>> from samphire.statistics import estimate
        >>> strict({"error": estimate([1.0])})
        {'error': {'mean': 1.0, 'error': None, 'n': 1}}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): strict(cell) for name, cell in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(cell) for cell in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
