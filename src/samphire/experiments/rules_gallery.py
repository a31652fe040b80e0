"""Every rule on one small landscape, and the page of all rules in ``docs``.

The landscape has two weights with a product that must be 1. Its minima are a curve, sharp far out and flat in the
middle.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from samphire import optim, report
from samphire.optim.describe import describe, page
from samphire.optim.requests import At, drive
from samphire.optim.rules import rule_for_run
from samphire.records import write_atomic
from samphire.tree import Vector

__all__ = ["path", "picture", "write"]

PAGE, PICTURE = "rules.md", "rules.png"
RADIUS, RATE, STEPS, BATCH = 0.3, 0.05, 150, 32
STARTS, EDGES = ((3.0, 0.9), (0.4, 3.0)), (-0.4, 3.4)
SHOWN = (
    f"Every rule on one landscape, from two starts: *L* = ½ (*uv* − *y*)² with targets *y* around 1, {STEPS} steps "
    f"on batches of {BATCH} examples, learning rate {RATE:g}, ρ = {RADIUS:g} for all that have one, else the default "
    "settings. The minima are the dashed curve. Along it the Hessian's largest eigenvalue is *u*² + *v*²: 2 in the "
    "middle, growing outwards; the number in a title is its mean over the two ends. *u* (across) is the scale of a "
    "norm layer and *v* (up) the weight of the head, so `lsam` sees the landscape's sharpness in one direction and "
    "`sam_on` in the other. SGD stops where it meets the curve."
)

Point = tuple[float, float]
Weights = dict[str, torch.Tensor]


def write(folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write the page and its picture; returns both files.

    Args:
        folder: Made if absent.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = page([describe(name) for name in optim.RULES], PICTURE, SHOWN)
    write_atomic(folder / PAGE, text.encode())
    write_atomic(folder / PICTURE, report.png(picture()))
    return folder / PAGE, folder / PICTURE


class Product(nn.Module):
    """``u v``: the scale of a norm layer times the weight of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(1, bias=False), nn.Linear(1, 1, bias=False)


def path(rule: Any, start: Point) -> list[Point]:
    """Where a rule goes from a start, step by step; ``None`` is SGD."""
    source = torch.Generator().manual_seed(0)
    rule = optim.every(STEPS + 1, optim.sam(0.0)) if rule is None else optim.bind(rule, Product())
    memory = optim.Memory(labels=torch.arange(BATCH) % 2)
    w = {"norm.weight": torch.tensor([start[0]]), "head.weight": torch.tensor([[start[1]]])}
    points = [start]
    for _ in range(STEPS):
        descent = drive(rule, w, memory, _gradient_at(w, 1 + 0.3 * torch.randn(BATCH, generator=source)))
        g = (descent.gradient + descent.directly).dense()
        w = {name: t - RATE * g[name] if name in g else t for name, t in w.items()}
        points.append((w["norm.weight"].item(), w["head.weight"].item()))
    return points


def _gradient_at(w: Weights, y: torch.Tensor) -> Callable[[At], Any]:
    """The landscape's answers by hand; ``torch.func`` gives the same to the bit, six times slower on two weights."""
    slope = torch.zeros(())  # the loss's derivative by uv

    def answer(request: At) -> Any:
        nonlocal slope
        at = (Vector(w) + request.eps).dense()
        u, v = at["norm.weight"], at["head.weight"][0]
        residual = u * v - (y if request.examples is None else y[request.examples])
        if request.output_gradient == "here":
            slope = (residual if request.weights is None else residual * request.weights).mean()
        g = Vector({"norm.weight": slope * v, "head.weight": (slope * u)[None]})
        g = g if request.wrt is None else g.only(request.wrt)
        return (g, 0.5 * residual**2) if request.losses else g

    return answer


@cache  # a picture of any rule has SGD's beside it
def _paths(rule: Any, steps: int) -> list[list[Point]]:
    """From every start."""
    return [path(rule, start) for start in STARTS]


def _shown(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The rules of a picture, all with one radius, after SGD."""
    yield "sgd", None
    for name in names:
        rule = rule_for_run(name, STEPS, BATCH)
        climbs = hasattr(rule, "rho") or hasattr(rule, "rule")
        yield name, rule_for_run(name, STEPS, BATCH, rho=RADIUS) if climbs else rule


def picture(names: Iterable[str] = tuple(optim.RULES)) -> Any:
    """Small multiples, a panel for SGD and for each rule."""
    shown = dict(_shown(names))
    columns = min(6, len(shown))
    rows = math.ceil(len(shown) / columns)
    axis = np.linspace(*EDGES, 200)
    loss = 0.5 * (axis[None] * axis[:, None] - 1) ** 2
    minima = np.linspace(1 / EDGES[1], EDGES[1], 100)
    with report.figure(
        rows, columns, size=(11.0 * columns / 6, 1.95 * rows), squeeze=False, sharex=True, sharey=True
    ) as (figure, panels):
        for axes in panels.flat:
            axes.set_axis_off()
        for axes, (name, rule) in zip(panels.flat, shown.items(), strict=False):
            axes.imshow(-np.log10(loss + 0.02), cmap="Blues", alpha=0.5, origin="lower", extent=EDGES + EDGES)
            axes.plot(minima, 1 / minima, "--", color="black", linewidth=0.7)
            paths = _paths(rule, STEPS)
            for points, color in zip(paths, report.PALETTE[1:], strict=False):
                u, v = zip(*points, strict=True)
                axes.plot(u, v, color=color, linewidth=1.1)
                axes.plot(u[-1], v[-1], "o", color=color, markersize=5, markeredgecolor="white")
            sharp = sum(u * u + v * v for u, v in (points[-1] for points in paths)) / len(paths)
            axes.set_title(f"{name}   {sharp:.1f}")
            axes.set(xlim=EDGES, ylim=EDGES, aspect="equal")
    return figure
