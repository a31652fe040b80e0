"""Where numbers go while a network trains: TensorBoard, MLflow, Weights & Biases, a CSV file."""

from __future__ import annotations

import math

from samphire.optim import Report

__all__ = ["step_numbers"]


def step_numbers(report: Report) -> dict[str, float]:
    """What an optimizer saw in its last step, as far as it was measured: the gap, gradient norms, the cosine, ...

    Example:
        >>> step_numbers(Report(loss=1.0, perturbed_loss=1.5, passes=2))["sharpness/gap"]
        0.5
    """
    numbers = report.numbers()
    return {
        f"sharpness/{name}": numbers[name]
        for name in ("perturbed_loss", "gap", "grad_norm", "perturbed_grad_norm", "cosine", "radius")
        if math.isfinite(numbers[name])
    }
