"""Every measure of where a network sits on its data, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire.data.split import Split
from samphire.landscape.bound import assumption, bound, wrong_probability
from samphire.landscape.hessian import density, eigenvalues, trace
from samphire.landscape.loss import Landscape
from samphire.landscape.sharpness import average_sharpness, m_sharpness, second_order, sharpness
from samphire.landscape.surfaces import line, plane, random_direction
from samphire.progress import Progress, silent

__all__ = ["measure_all"]

Measures = dict[str, Callable[[], Any]]


def measure_all(
    network: nn.Module,
    split: Split,
    prepare: Callable[[Tensor], Tensor],
    *,
    rho: float = 0.05,
    rho_scaled: float = 0.5,
    m: Sequence[int] = (),
    k: int = 5,
    groups: bool = False,
    surfaces: bool = False,
    batch: int = 100,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Sharpness, Hessian and bound of a network's cross-entropy; every result has ``in_words()``.

    Args:
        network: The network.
        split: Examples, decoded.
        prepare: From their images to the network's inputs.
        rho: Radius of the ball.
        rho_scaled: The same in ASAM's coordinates.
        m: Sizes of the parts for m-sharpness.
        k: Eigenvalues at either end of the Hessian's spectrum.
        groups: Also the sharpness of every group of examples.
        surfaces: Also the loss along a line and over a plane.
        batch: Examples per pass.
        progress: Called before each pass over the examples, with the measures done.
    """
    measures: Measures = {}
    results: dict[str, Any] = {}
    name, passes = "the loss itself", 0

    def count_pass() -> None:
        nonlocal passes
        passes += 1
        progress(f"{name}, pass {passes}", len(results), len(measures) or 1)

    batches = _Batches(split, prepare, batch, count_pass)
    here = Landscape.of(network, F.cross_entropy, batches)
    measures |= _measures(here, lambda: Landscape.of(network, wrong_probability, batches), rho, rho_scaled, m, k)
    if groups:
        measures |= _by_group(here, split, rho)
    if surfaces:
        measures |= _surfaces(here)
    for name, compute in measures.items():
        passes = 0
        results[name] = compute()
    return results


@dataclass(frozen=True)
class _Batches:
    """A split as a network takes it, batch by batch; each pass over it is counted."""

    split: Split
    prepare: Callable[[Tensor], Tensor]
    size: int
    count_pass: Callable[[], None]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.count_pass()
        for start in range(0, len(self.split), self.size):
            some = slice(start, start + self.size)
            images = torch.from_numpy(np.array(self.split.images[some]))
            yield self.prepare(images), torch.from_numpy(self.split.label[some].astype(np.int64))


def _measures(
    here: Landscape, bounded: Callable[[], Landscape], rho: float, rho_scaled: float, m: Sequence[int], k: int
) -> Measures:
    return {
        "sharpness": lambda: sharpness(here, rho),
        "sharpness, scaled": lambda: sharpness(here.scaled(), rho_scaled),
        "second order": lambda: second_order(here, rho),
        "average sharpness": lambda: average_sharpness(here, rho),
        **{f"m-sharpness, m={size}": partial(lambda size: m_sharpness(here, rho, [size])[0], size) for size in m},
        "eigenvalues, top": lambda: eigenvalues(here, k, tol=1e-2),
        "eigenvalues, bottom": lambda: eigenvalues(here, k, "bottom", tol=1e-2),
        "trace": lambda: trace(here, samples=16),
        "spectrum": lambda: density(here, steps=30, samples=2),
        "theorem 1's assumption": lambda: assumption(bounded(), rho),
        "theorem 1": lambda: bound(bounded(), rho),
    }


def _by_group(here: Landscape, split: Split, rho: float) -> Measures:
    sizes = tuple(split.sizes.values())
    names = {g: _group_name(split, np.unravel_index(g, sizes)) for g in np.unique(split.group[split.known]).tolist()}
    groups = here.groups(split.group)
    return {f"sharpness, {name}": partial(sharpness, groups[g], rho) for g, name in names.items()}


def _group_name(split: Split, digits: tuple[Any, ...]) -> str:
    named = zip(split.features, digits, strict=True)
    return ", ".join(f"{f} {split.values[f][i] if split.values.get(f) else i}" for f, i in named)


def _surfaces(here: Landscape) -> Measures:
    grid = np.linspace(-1, 1, 11)
    right, up = (random_direction(here, seed) for seed in (0, 1))
    return {
        "line": lambda: line(here, right, np.linspace(-1, 1, 41)),
        "plane": lambda: plane(here, right, up, grid, grid),
    }
