"""``samphire probe``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from samphire import records, report
from samphire.cli.progress import bar
from samphire.probes.compare import compare
from samphire.report import probing
from samphire.train.finished import finished_run


def probe(
    run: Annotated[Path, typer.Argument(help="A folder written by training, or a file with a state dict.")],
    data: Annotated[str | None, typer.Option(help="Data set, where the run does not say.")] = None,
    root: Annotated[Path, typer.Option(help="The folder of the data set, or the one above it.")] = Path("data"),
    model: Annotated[str | None, typer.Option(help="Network, where the run does not say.")] = None,
    target: Annotated[str | None, typer.Option(help="Target domain, for sets with domains.")] = None,
    feature: Annotated[str | None, typer.Option(help="One feature instead of all.")] = None,
    layer: Annotated[str | None, typer.Option(help="A module's name instead of the last Linear's input.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Balanced samples to train probes on.")] = 20,
    pretrained: Annotated[str | None, typer.Option(help="Weights the training began with: a control.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images, where the run does not say.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded images; the user's cache if none.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a picture, with learning curves, to this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row instead.")] = False,
) -> None:
    """Say which features a network has learned: probe errors beside controls, and errors by group."""
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} in; make it first.")
    trained = finished_run(run, data=data, model=model, layer=layer, target=target, initial=pretrained, size=size)
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
