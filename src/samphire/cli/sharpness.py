"""``samphire sharpness``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from samphire import data, landscape, records, report
from samphire.cli.probe import read_run
from samphire.cli.progress import bar
from samphire.data.cache import decoded
from samphire.data.parts import default_cache
from samphire.data.split import Split
from samphire.landscape import Landscape
from samphire.statistics import Estimate
from samphire.train.fit import load_weights
from samphire.tree import Vector

Advance = Callable[[str, int, int], None]
Measures = dict[str, Callable[[], Any]]


def sharpness(
    run: Annotated[Path, typer.Argument(help="A folder written by training, or a file with a state dict.")],
    data_name: Annotated[str | None, typer.Option("--data", help="Data set, where the run does not say.")] = None,
    root: Annotated[Path, typer.Option(help="The folder of the data set, or the one above it.")] = Path("data"),
    model: Annotated[str | None, typer.Option(help="Network, where the run does not say.")] = None,
    target: Annotated[str | None, typer.Option(help="Target domain, for sets with domains.")] = None,
    part: Annotated[str, typer.Option(help="Part of the data set to measure on.")] = "train",
    examples: Annotated[int, typer.Option(min=2, help="How many of its examples, chosen at random.")] = 2000,
    rho: Annotated[float, typer.Option(help="Radius of the ball.")] = 0.05,
    rho_scaled: Annotated[float, typer.Option(help="The same in ASAM's coordinates, T = |w| + 0.01.")] = 0.5,
    m: Annotated[list[int] | None, typer.Option("--m", help="Also m-sharpness; may be repeated.")] = None,
    k: Annotated[int, typer.Option("--k", help="Eigenvalues at either end of the Hessian's spectrum.")] = 5,
    groups: Annotated[bool, typer.Option("--groups", help="Also the sharpness of every group of examples.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Examples per pass; decides the memory.")] = 100,
    size: Annotated[int | None, typer.Option(help="Side of the images, where the run does not say.")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for decoded images; the user's cache by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write pictures to this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per measure instead.")] = False,
) -> None:
    """Say where a network sits: sharpness, Hessian and bound on its data, each with what it means."""
    given = {"data": data_name, "model": model, "target": target, "size": size}
    config = read_run(run, {name: value for name, value in given.items() if value is not None})
    with bar() as advance:
        split = load_split(config, root, part, examples, cache, advance)
        count = len(split.classes) or int(split.label.max()) + 1
        network = load_weights(config["model"], count, run / "model.pt" if run.is_dir() else run)
        found = measure(network, split, batch, rho, rho_scaled, m or [], k, groups, out is not None, advance)
    for name, result in found.items():
        if as_json:
            print(json.dumps({"measure": name, "words": result.in_words()} | plain(result)))
        else:
            Console().print(f"[bold]{name}[/]  {result.in_words()}", highlight=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures(found).items():
            records.write_atomic(out / f"{name}.png", picture)


def load_split(
    config: Mapping[str, Any], root: Path, part: str, examples: int, cache: Path | None, advance: Advance
) -> Split:
    """Some examples of one part of the run's data set, decoded; always the same ones."""
    parts = data.load(config["data"], root, **{name: config[name] for name in ("target",) if name in config})
    if part not in parts:
        raise ValueError(f"{config['data']} has no part {part!r}; it has {', '.join(parts)}.")
    whole = parts[part]
    chosen = np.random.default_rng(0).permutation(len(whole))[:examples]
    split = whole.subset(np.sort(chosen))
    if isinstance(split.images, np.ndarray):
        return split
    return decoded(split, config.get("size", 96), cache or default_cache(), progress=advance)


@dataclass(frozen=True)
class Batches:
    """A split as a network takes it, batch by batch; each pass over it is told to somebody."""

    split: Split
    prepare: Callable[[Tensor], Tensor]
    size: int
    passing: Callable[[], None]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passing()
        for start in range(0, len(self.split), self.size):
            here = slice(start, start + self.size)
            images = torch.from_numpy(np.array(self.split.images[here]))
            yield self.prepare(images), torch.from_numpy(self.split.label[here].astype(np.int64))


def measure(
    network: torch.nn.Module,
    split: Split,
    batch: int,
    rho: float,
    rho_scaled: float,
    m: list[int],
    k: int,
    groups: bool,
    pictured: bool,
    advance: Advance,
) -> dict[str, Any]:
    """Every measure by its name; the bar shows the measure and the passes over the data it has taken."""
    doing, done, passes = "the loss itself", 0, 0
    todo: Measures = {}

    def passing() -> None:
        nonlocal passes
        passes += 1
        advance(f"{doing}, pass {passes}", done, len(todo) or 1)

    batches = Batches(split, network.normalise, batch, passing)  # type: ignore[arg-type]
    of = Landscape.of(network, F.cross_entropy, batches)
    todo |= _measures(of, network, batches, rho, rho_scaled, m, k)
    if groups:
        todo |= _by_group(of, split, rho)
    if pictured:
        todo |= _surfaces(of)
    found: dict[str, Any] = {}
    for doing, compute in todo.items():
        passes = 0
        found[doing] = compute()
        done += 1
    return found


def _measures(
    of: Landscape, network: torch.nn.Module, batches: Batches, rho: float, rho_scaled: float, m: list[int], k: int
) -> Measures:
    bounded: Callable[[], Landscape] = lambda: Landscape.of(network, landscape.wrong_probability, batches)
    return {
        "sharpness": lambda: landscape.sharpness(of, rho),
        "sharpness, scaled": lambda: landscape.sharpness(of.scaled(), rho_scaled),
        "second order": lambda: landscape.second_order(of, rho),
        "average sharpness": lambda: landscape.average_sharpness(of, rho),
        **{f"m-sharpness, m={size}": partial(_m_sharpness, of, rho, size) for size in m},
        "eigenvalues, top": lambda: landscape.eigenvalues(of, k, tol=1e-2),
        "eigenvalues, bottom": lambda: landscape.eigenvalues(of, k, "bottom", tol=1e-2),
        "trace": lambda: landscape.trace(of, samples=16),
        "spectrum": lambda: landscape.density(of, steps=30, samples=2),
        "theorem 1's assumption": lambda: landscape.assumption(bounded(), rho),
        "theorem 1": lambda: landscape.bound(bounded(), rho),
    }


def _m_sharpness(of: Landscape, rho: float, m: int) -> Any:
    return landscape.m_sharpness(of, rho, [m])[0]


def _by_group(of: Landscape, split: Split, rho: float) -> Measures:
    sizes = tuple(split.sizes.values())
    names = {g: _group_name(split, np.unravel_index(g, sizes)) for g in np.unique(split.group).tolist()}
    parts = of.groups(split.group)
    return {f"sharpness, {names[g]}": partial(landscape.sharpness, p, rho) for g, p in parts.items()}


def _group_name(split: Split, digits: tuple[Any, ...]) -> str:
    named = zip(split.features, digits, strict=True)
    return ", ".join(f"{f} {split.values[f][i] if split.values.get(f) else i}" for f, i in named)


def _surfaces(of: Landscape) -> Measures:
    grid = np.linspace(-1, 1, 11)
    right, up = (landscape.random_direction(of, seed) for seed in (0, 1))
    return {
        "line": lambda: landscape.line(of, right, np.linspace(-1, 1, 41)),
        "plane": lambda: landscape.plane(of, right, up, grid, grid),
    }


def plain(result: Any) -> dict[str, Any]:
    """A result as JSON takes it: arrays as lists, what is not finite as null, without vectors of weights."""
    fields = {name: _plain(value) for name, value in vars(result).items() if not _is_weights(value)}
    derived = {
        name: _plain(getattr(result, name)) for name in ("total", "vacuous", "verdict") if hasattr(result, name)
    }
    return fields | derived


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Estimate):
        return plain(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_weights(value: Any) -> bool:
    return isinstance(value, Vector) or (isinstance(value, list) and bool(value) and isinstance(value[0], Vector))


def pictures(found: Mapping[str, Any]) -> dict[str, bytes]:
    """The ascents, the spectrum, the line and the plane, as PNG."""
    return {name: report.png(draw(found)) for name, draw in PICTURES.items()}


def _ascents(found: Mapping[str, Any]) -> Any:
    with report.figure(1, 2, size=(8, 3)) as (figure, panels):
        for axes, name in zip(panels, ("sharpness", "sharpness, scaled"), strict=True):
            for i, trace in enumerate(found[name].traces):
                axes.plot(trace, marker="o", label=f"random start {i}" if i else "from SAM's point")
            axes.axhline(found[name].first_order, linestyle="--", color="0.5", label="first order")
            axes.set(xlabel="step of the ascent", ylabel="rise of the loss", title=f"{name}, ρ = {found[name].rho:g}")
        panels[0].legend()
    return figure


def _spectrum(found: Mapping[str, Any]) -> Any:
    spectrum = found["spectrum"]
    low, high = spectrum.nodes.min(), spectrum.nodes.max()
    width = 0.01 * (high - low) or 1.0
    grid = np.linspace(low - 5 * width, high + 5 * width, 1000)
    with report.figure(size=(6, 3)) as (figure, axes):
        axes.plot(grid, np.maximum(spectrum.at(grid, width), 1e-12))
        axes.set(yscale="log", ylim=(1e-8, None), xlabel="eigenvalue of the Hessian", ylabel="density")
    return figure


def _line(found: Mapping[str, Any]) -> Any:
    with report.figure(size=(5, 3)) as (figure, axes):
        axes.plot(found["line"].at, found["line"].loss)
        axes.set(xlabel="along a filter-normalized random direction", ylabel="loss")
    return figure


def _plane(found: Mapping[str, Any]) -> Any:
    with report.figure(size=(5, 4)) as (figure, axes):
        lines = axes.contour(found["plane"].x, found["plane"].y, np.nan_to_num(found["plane"].loss), levels=15)
        axes.clabel(lines, fontsize=7, fmt="%.2g")
        axes.plot(0, 0, "k+")
        axes.set(xlabel="first filter-normalized direction", ylabel="second")
    return figure


PICTURES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "ascents": _ascents,
    "spectrum": _spectrum,
    "line": _line,
    "plane": _plane,
}
