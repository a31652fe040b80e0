"""What a row holds: JSON data by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]

__all__ = ["Row", "plain_cell", "scalar"]


def scalar(value: Any) -> Any:
    """A NumPy or PyTorch scalar as a Python number; anything else as it is.

    Example:
        >>> import numpy as np
        >>> scalar(np.float32(0.5)), scalar("text")
        (0.5, 'text')
    """
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def plain_cell(value: Any, name: str = "value") -> Any:
    """A value as JSON data: scalars as numbers, tuples as lists, keys as text. NaN and infinities are kept.

    Args:
        value: Numbers, text, truth values, ``None``, and lists and mappings of these.
        name: What the message calls it.

    Example:
        >>> plain_cell((1, {2: None}))
        [1, {'2': None}]
    """
    value = scalar(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [plain_cell(v, name) for v in value]
    if isinstance(value, Mapping):
        return {str(k): plain_cell(v, name) for k, v in value.items()}
    raise TypeError(
        f"row entry {name!r} must be a number, text, list or mapping, got {type(value).__name__}; "
        "for an array, pass array.tolist()."
    )
