"""``samphire compare``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from samphire.cli.audit import Network, Out, Side, Source, loaded, opened_data, show
from samphire.cli.options import AsJson, Cache, Features, Image, Label, Split
from samphire.cli.progress import bar
from samphire.sweep.plans import listed, whole_numbers

Networks = dict[tuple[str, int], Callable[[], Any]]


def compare(
    source: Source,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of training; or more checkpoints.")
    ] = None,
    model: Network = None,
    rules: Annotated[
        str, typer.Option(help="Rules to train by, with commas; the first is the baseline.")
    ] = "sgd,sam",
    seeds: Annotated[str, typer.Option(help="Seeds of each rule, with commas.")] = "0,1,2",
    checkpoints: Annotated[list[Path] | None, typer.Option(help="Compare these files instead of training.")] = None,
    label: Label = None,
    features: Features = None,
    image: Image = None,
    split: Split = None,
    root: Annotated[Path, typer.Option(help="The folder of a built-in set, or the one above it.")] = Path("data"),
    size: Side = 224,
    no_images: Annotated[bool, typer.Option("--no-images", help="Show no example on the pages.")] = False,
    cache: Cache = None,
    out: Out = Path("compare"),
    as_json: AsJson = False,
) -> None:
    """Train by several rules, audit every network and compare in pairs: one page. Goes on where it was stopped."""
    from samphire.audits import audit
    from samphire.audits.compare import contest

    opened = opened_data(source, label=label, features=features, image=image, split=split, root=root)
    with bar() as progress:
        networks = (
            _checkpoints(opened, model, [*checkpoints, *map(Path, settings or ())])
            if checkpoints
            else _trained(source, opened, model, settings or [], rules, seeds, size, out, root, cache, progress)
        )
        examine = partial(
            audit, data=opened, label=label, features=features, size=size, images=not no_images,
            folder=out, cache=cache, progress=progress,
        )  # fmt: skip
        result = contest(networks, examine, out)
    page = result.page(out / "index.html")
    show({"verdict": result.verdict, "page": str(page)}, result.table(), result.rows, as_json)


def _checkpoints(opened: Any, model: str | None, files: list[Path]) -> Networks:
    if model is None:
        raise ValueError("checkpoints need the network they are of; name it with --model.")
    classes = next(iter(opened.parts.values())).n_classes
    return {(str(file), 0): partial(loaded, model, classes, file) for file in files}


def _trained(
    source: str, opened: Any, model: str | None, settings: list[str], rules: str, seeds: str, size: int, *where: Any
) -> Networks:
    from samphire.audits.audit import is_built_in
    from samphire.train import fit, load_network, parse

    out, root, cache, progress = where
    own = None if is_built_in(source) else opened
    given = [*settings, *([] if model is None else [f"model={model}"]), *([] if own is None else [f"size={size}"])]

    def train(rule: str, seed: int) -> Any:
        config = parse(source if own is None else own.name, [*given, f"rule={rule}", f"seed={seed}"])
        run = fit(config, root, out / "runs", parts=own, cache=cache, progress=progress)
        if run.stopped:
            raise ValueError(f"training by {rule} with seed {seed} ended early: {run.stopped}")
        return load_network(run.folder)

    return {
        (rule, seed): partial(train, rule, seed) for rule in listed(rules) for seed in whole_numbers("seeds", seeds)
    }
