"""``samphire probe``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

from samphire import records, report
from samphire.checks import check_one_of
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

if TYPE_CHECKING:
    from samphire.probes.logistic import Scaling


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
    probe_on: Annotated[
        str | None,
        typer.Option(help="Train probes on the images of train (dominoes: paired anew) or val; the run says."),
    ] = None,
    scaling: Annotated[str, typer.Option(help="Divide features by one number: global; or: each, none.")] = "global",
    resamples: Annotated[int, typer.Option(min=1, help="Balanced halves that choose the penalty.")] = 5,
    pretrained: Annotated[str | None, typer.Option(help="Weights the training began with: a control.")] = None,
    size: Size = None,
    cache: Cache = None,
    out: Annotated[Path | None, typer.Option(help="Write a picture, with learning curves, to this PNG file.")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Say which features a network has learned: probe errors beside controls, and errors by group.

    Example: samphire probe runs/1f6c... --root data --probe-on val
    """
    from samphire.probes.compare import compare
    from samphire.probes.logistic import SCALINGS
    from samphire.report import probing
    from samphire.train.saved import saved_network

    check_one_of("scaling", scaling, SCALINGS)
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} in; make it first.")
    own = own_data(data, image, label, split, features)
    given = {"data": data, "model": model, "layer": layer, "target": target, "initial": pretrained, "size": size}
    trained = saved_network(run, trust=trust, own=own, probe_on=probe_on, **given)
    with bar() as progress:
        parts = trained.parts(root, cache, progress)
        result = compare(
            trained.networks(parts.train),
            parts,
            layer=trained.layer,
            feature=feature,
            resamples=resamples,
            scaling=cast("Scaling", scaling),
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
