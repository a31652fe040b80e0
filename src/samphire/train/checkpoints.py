"""A training's state on disk: written whole, checked when it is read, and passed over when it is damaged."""

from __future__ import annotations

import io
import logging
import math
from pathlib import Path
from typing import Any

import torch

from samphire import records
from samphire.checks import check_regular
from samphire.models.weights import check_archive, first_line

log = logging.getLogger(__name__)

__all__ = ["passed_over", "read", "store"]


def store(path: Path, state: Any) -> None:
    """Write tensors and plain data; torch's archive holds a checksum of each tensor."""
    file = io.BytesIO()
    torch.save(state, file)
    records.write_atomic(path, file.getvalue())


def read(path: Path) -> dict[str, Any] | None:
    """What was stored; ``None``, with a line in the log, if there is nothing or if any bit of it changed.

    Args:
        path: Of a state; no code in it is run.
    """
    if not path.exists():
        return None
    try:
        check_regular(path, most=math.inf)
        check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"it holds {type(state).__name__}")
    except Exception as error:  # damaged bytes raise anything
        passed_over(path, error)
        return None
    return state


def passed_over(path: Path, error: Exception) -> None:
    """Say that a state cannot be used; what follows from it is computed again."""
    log.warning("%s cannot be used (%s); training begins again from the start.", path, first_line(error))
