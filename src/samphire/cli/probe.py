"""``samphire probe``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from samphire import records, report
from samphire.cli.options import (
    AsJson,
    Cache,
    Data,
    Features,
    Image,
    Label,
    Model,
    Root,
    Run,
    Size,
    Split,
    Target,
    Trust,
)
from samphire.cli.own import own_data
from samphire.cli.progress import bar
from samphire.probes.compare import compare
from samphire.report import probing
from samphire.train.saved import saved_network


def probe(
    run: Run,
    data: Data = None,
    root: Root = Path("data"),
    image: Image = None,
    label: Label = None,
    split: Split = None,
    features: Features = None,
    model: Model = None,
    target: Target = None,
    feature: Annotated[str | None, typer.Option(help="One feature instead of all.")] = None,
    layer: Annotated[str | None, typer.Option(help="A module's name instead of the last Linear's input.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Balanced samples to train probes on.")] = 20,
    pretrained: Annotated[str | None, typer.Option(help="Weights the training began with: a control.")] = None,
    size: Size = None,
    cache: Cache = None,
    out: Annotated[Path | None, typer.Option(help="Write a picture, with learning curves, to this PNG file.")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Say which features a network has learned: probe errors beside controls, and errors by group."""
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} in; make it first.")
    own = own_data(data, image, label, split, features)
    trained = saved_network(
        run, trust=trust, data=data, own=own, model=model, layer=layer, target=target, initial=pretrained, size=size
    )
    with bar() as progress:
        parts = trained.parts(root, cache, progress)
        result = compare(
            trained.networks(parts.train),
            parts,
            layer=trained.layer,
            feature=feature,
            resamples=resamples,
            curves=out is not None,
            progress=progress,
        )
    if as_json:
        for row in (result.errors, *result.probes):
            print(json.dumps(row))
    else:
        for table in probing.tables(result):
            Console().print(report.rich_table(table))
    if out is not None:
        records.write_atomic(out, report.png(probing.picture(result)))
