"""How the radius rho changes during training: functions of the step ``t`` (from 0) and the learning rate.

A schedule holds no state of its own, so saving the step counter saves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from samphire.checks import AtLeastZero, Count, check_fields

__all__ = ["Rho", "Schedule", "inverse_sqrt", "ramp", "tied"]


@runtime_checkable
class Schedule(Protocol):
    """Anything that gives rho at step ``t`` and learning rate ``lr``."""

    def __call__(self, t: int, lr: float | None) -> float: ...


Rho = AtLeastZero | Tensor | Schedule


@dataclass(frozen=True)
class inverse_sqrt:
    """``rho0 / sqrt(t + 1)``: the decay under which SAM provably converges (theorem 2 of the review).

    Args:
        rho0: Radius of the first step.

    Example:
        >>> inverse_sqrt(0.2)(3, None)
        0.1
    """

    rho0: AtLeastZero

    def __post_init__(self) -> None:
        check_fields(self, "inverse_sqrt")

    def __call__(self, t: int, lr: float | None) -> float:
        return self.rho0 / math.sqrt(t + 1)


@dataclass(frozen=True)
class ramp:
    """Linear from ``start`` to ``rho`` over the first ``steps`` steps, then constant.

    Under Adam with learning-rate warm-up a full radius from the first step hurts (Zhao et al. 2022 report
    a ViT at 10.83 % error without, 12.36 % with, 9.42 % with the penalty off during warm-up).

    Args:
        rho: Final radius.
        steps: Length of the ramp; as long as the learning rate's warm-up.
        start: Radius of the first step.

    Example:
        >>> [ramp(0.1, steps=4)(t, None) for t in (0, 2, 4, 9)]
        [0.0, 0.05, 0.1, 0.1]
    """

    rho: AtLeastZero
    steps: Count
    start: AtLeastZero = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "ramp")

    def __call__(self, t: int, lr: float | None) -> float:
        return self.start + (self.rho - self.start) * min(1.0, t / self.steps)


@dataclass(frozen=True)
class tied:
    """Tied to the learning rate, as GSAM has it.

    ``rho_min + (rho_max - rho_min) * (lr - lr_min) / (lr_max - lr_min)``, held within ``[rho_min, rho_max]``.

    Differences: both released GSAM codes extrapolate below ``lr_min``, where the radius can turn negative
    during warm-up; here it stops at ``rho_min``.

    Args:
        rho_max: Radius at ``lr_max``.
        rho_min: Radius at ``lr_min``.
        lr_max: Largest learning rate of the run.
        lr_min: Smallest one.

    Example:
        >>> tied(0.6, 0.1, lr_max=1.0)(0, 0.5)
        0.35

    References:
        Zhuang et al., Surrogate Gap Minimization Improves Sharpness-Aware Training, ICLR 2022.
    """

    rho_max: AtLeastZero
    rho_min: AtLeastZero
    lr_max: AtLeastZero
    lr_min: AtLeastZero = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "tied")
        if self.lr_max < self.lr_min:
            raise ValueError(f"tied: lr_max must be at least lr_min = {self.lr_min!r}, got {self.lr_max!r}.")

    def __call__(self, t: int, lr: float | None) -> float:
        if lr is None:
            raise ValueError("tied: the radius follows a learning rate, but this engine has none; use a number.")
        if self.lr_max == self.lr_min:
            return self.rho_max
        share = (lr - self.lr_min) / (self.lr_max - self.lr_min)
        return self.rho_min + (self.rho_max - self.rho_min) * min(1.0, max(0.0, share))
