"""What an optimizer and its GradScaler tell each other, by the scaler's public face."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

__all__ = ["Overflow", "refuse_unscaled_twice"]


class Overflow:
    """Tells a GradScaler whether this step overflowed: an optimizer of one dummy gradient."""

    param_groups: list[dict[str, Any]]

    def report(self, scaler: torch.amp.GradScaler, overflowed: bool, device: torch.device) -> None:
        flag = nn.Parameter(torch.zeros((), device=device))
        flag.grad = torch.full((), math.inf if overflowed else 0.0, device=device)
        self.param_groups = [{"params": [flag]}]
        scaler.unscale_(self)  # type: ignore[arg-type]


def refuse_unscaled_twice(scaler: torch.amp.GradScaler, opt: Optimizer) -> None:
    """Refuse gradients that were never scaled, or that the caller has unscaled although every pass was.

    A scaler unscales an optimizer once between two updates; asking it to, while the gradients are set aside, tells.
    """
    try:
        scaler.unscale_(opt)
    except AssertionError as never_scaled:
        raise RuntimeError(
            "a scaler was given to SharpnessAware, but no pass scaled its loss; write p.backward(loss), or "
            "scaler.scale(loss).backward()."
        ) from never_scaled
    except RuntimeError as unscaled:
        raise RuntimeError(
            "the gradients of every pass are unscaled when it ends, and scaler.unscale_(opt) has divided them once "
            "more; leave it out, clip right away, and call scaler.update() after every step."
        ) from unscaled
