"""Where a network sits, as rows for other programs and as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from samphire.records import Row
from samphire.report.cells import strict
from samphire.report.pictures import figure
from samphire.tree import Vector

__all__ = ["pictures", "row"]

DERIVED = ("total", "vacuous", "verdict")


def row(result: Any) -> Row:
    """A measure of :mod:`samphire.landscape` as data for strict JSON, without vectors of weights.

    Example:
        >>> from samphire import landscape
        >>> row(landscape.lemma_1(1.0, 100))["vacuous"]
        False
    """
    values = vars(result) | {name: getattr(result, name) for name in DERIVED if hasattr(result, name)}
    return {name: strict(value) for name, value in values.items() if not _has_weights(value)}


def pictures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The ascents, the spectrum, the line and the plane of :func:`measure_all`, as figures."""
    return {
        "ascents": _ascents(results["sharpness"], results["sharpness, scaled"]),
        "spectrum": _spectrum(results["spectrum"]),
        "line": _line(results["line"]),
        "plane": _plane(results["plane"]),
    }


def _has_weights(value: Any) -> bool:
    return isinstance(value, Vector) or (isinstance(value, list) and bool(value) and isinstance(value[0], Vector))


def _ascents(plain: Any, scaled: Any) -> Any:
    with figure(1, 2, size=(8, 3)) as (fig, panels):
        for axes, name, result in zip(panels, ("sharpness", "sharpness, scaled"), (plain, scaled), strict=True):
            for i, trace in enumerate(result.traces):
                axes.plot(trace, marker="o", label=f"random start {i}" if i else "from SAM's point")
            axes.axhline(result.first_order, linestyle="--", color="0.5", label="first order")
            axes.set(xlabel="step of the ascent", ylabel="rise of the loss", title=f"{name}, ρ = {result.rho:g}")
        panels[0].legend()
    return fig


def _spectrum(spectrum: Any) -> Any:
    low, high = spectrum.nodes.min(), spectrum.nodes.max()
    width = 0.01 * (high - low) or 1.0
    grid = np.linspace(low - 5 * width, high + 5 * width, 1000)
    with figure(size=(6, 3)) as (fig, axes):
        axes.plot(grid, np.maximum(spectrum.at(grid, width), 1e-12))
        axes.set(yscale="log", ylim=(1e-8, None), xlabel="eigenvalue of the Hessian", ylabel="density")
    return fig


def _line(line: Any) -> Any:
    with figure(size=(5, 3)) as (fig, axes):
        axes.plot(line.at, line.loss)
        axes.set(xlabel="along a filter-normalized random direction", ylabel="loss")
    return fig


def _plane(plane: Any) -> Any:
    with figure(size=(5, 4)) as (fig, axes):
        lines = axes.contour(plane.x, plane.y, np.nan_to_num(plane.loss), levels=15)
        axes.clabel(lines, fontsize=7, fmt="%.2g")
        axes.plot(0, 0, "k+")
        axes.set(xlabel="first filter-normalized direction", ylabel="second")
    return fig
