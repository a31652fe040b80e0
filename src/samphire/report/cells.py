"""What stands in a cell: numbers, times, and means of several runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and the number of runs behind it.

    Args:
        mean: Of the runs.
        error: Standard error of the mean; nan for fewer than two runs.
        n: Number of runs.

    Example:
        >>> print(Estimate(0.1234, 0.0101, 10))
        0.123 ± 0.010 (n=10)
    """

    mean: float
    error: float
    n: int

    def __str__(self) -> str:
        if not (math.isfinite(self.mean) and math.isfinite(self.error) and self.error > 0):
            return f"{show(self.mean)} (n={self.n})"
        places = 1 - math.floor(math.log10(self.error))
        if places > 6:
            return f"{self.mean:.2e} ± {self.error:.0e} (n={self.n})"
        return f"{self.mean:.{max(places, 0)}f} ± {self.error:.{max(places, 0)}f} (n={self.n})"


def estimate(values: Iterable[Any]) -> Estimate:
    r"""Mean and standard error, :math:`s / \sqrt n` with :math:`s^2` divided by :math:`n - 1`, of some runs.

    Args:
        values: One number per run. A nan makes the mean nan: leave collapsed runs out yourself, and say how many.

    Example:
        >>> estimate([1.0, 2.0, 3.0])
        Estimate(mean=2.0, error=0.577350269189625..., n=3)
    """
    numbers = [float(v) for v in values]
    n = len(numbers)
    mean = math.fsum(numbers) / n if n else math.nan
    if n < 2 or not math.isfinite(mean):
        return Estimate(mean, math.nan, n)
    return Estimate(mean, statistics.stdev(numbers) / math.sqrt(n), n)


def show(value: Any) -> str:
    """A cell as text: numbers with four significant digits, ``None`` and nan as a dash.

    Args:
        value: A number, text, truth value, :class:`Estimate` or ``None``.

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


def scalar(value: Any) -> Any:
    """A NumPy or PyTorch scalar as a Python number."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def strict(value: Any) -> Any:
    """A cell, or cells in lists and by name, as data that strict JSON can hold; see :func:`to_json`."""
    value = scalar(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Estimate):
        return strict({"mean": value.mean, "error": value.error, "n": value.n})
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    return [strict(v) for v in value] if isinstance(value, (list, tuple)) else value
