"""``samphire train``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from samphire import records, report
from samphire.cli.options import AsJson, Cache, Features, Image, Label, LogTo, Root, Split, tracker_of
from samphire.cli.own import own_data
from samphire.cli.progress import bar
from samphire.sweep import GRIDS

if TYPE_CHECKING:
    from samphire.train import TrainedRun


def train(
    data: Annotated[str, typer.Argument(help=f"{', '.join(GRIDS)}, or your own folder.", show_default=False)],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Instead of the paper's; see --settings.")
    ] = None,
    root: Root = Path("data"),
    image: Image = None,
    label: Label = None,
    split: Split = None,
    features: Features = None,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    cache: Cache = None,
    device: Annotated[str | None, typer.Option(help="Where to compute; a GPU if there is one.")] = None,
    show: Annotated[bool, typer.Option("--settings", help="Print the settings and do not train.")] = False,
    log: LogTo = None,
    as_json: AsJson = False,
) -> None:
    """Train a network by any rule and say what it learned. Goes on where it was stopped; runs under torchrun too.

    Settings of the rule and of the method have a dot: rule=looksam rule.k=10 method=jtt method.times=20.
    Your own data: samphire train birds/ --label bird --features place model=timm:resnet18.
    """
    from samphire.report import training
    from samphire.train import fit, parse

    own = own_data(data, image, label, split, features)
    config = parse(data if own is None else own.name, settings or [])
    if show:
        Console().print(report.rich_table(training.settings(config)))
        return
    with bar() as progress:
        trained = fit(
            config, root, out, parts=own, cache=cache, device=device, log=tracker_of(log), progress=progress
        )
    if int(os.environ.get("RANK", 0)) == 0:
        _show(trained, as_json)
    if trained.stopped:
        print(f"samphire: {trained.stopped}", file=sys.stderr)
        raise typer.Exit(1)


def _show(trained: TrainedRun, as_json: bool) -> None:
    if as_json:
        for row in trained.rows:
            print(json.dumps(report.strict(row)))
        return
    from samphire.report import training

    for table in training.tables(trained):
        Console().print(report.rich_table(table))
    try:
        records.write_atomic(trained.folder / "curves.png", report.png(training.curves(trained)))
    except OSError as error:  # a finished run can be shown where nothing can be written
        print(f"samphire: {error.strerror}", file=sys.stderr)
    print(trained.folder)
