"""How a GradScaler learns that a step overflowed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

__all__ = ["Overflow"]


class Overflow:
    """Tells a GradScaler, by its public face, whether this step overflowed: an optimizer of one dummy gradient."""

    param_groups: list[dict[str, Any]]

    def report(self, scaler: torch.amp.GradScaler, overflowed: bool, device: torch.device) -> None:
        flag = nn.Parameter(torch.zeros((), device=device))
        flag.grad = torch.full((), math.inf if overflowed else 0.0, device=device)
        self.param_groups = [{"params": [flag]}]
        try:
            scaler.unscale_(self)  # type: ignore[arg-type]
        except AssertionError as never_scaled:
            raise RuntimeError(
                "a scaler was given to SharpnessAware, but no pass scaled its loss; write p.backward(loss), or "
                "scaler.scale(loss).backward()."
            ) from never_scaled
