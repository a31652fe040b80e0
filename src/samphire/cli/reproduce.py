"""``samphire reproduce``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from samphire import experiments, report
from samphire.cli.options import AsJson
from samphire.cli.progress import bar


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Figures; none for all, without --root for all that need no data.")
    ] = None,
    scale: Annotated[str, typer.Option(help="tiny (seconds), quick (minutes), reduced (hours) or paper.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for the page, pictures, tables and rows.")] = Path("report"),
    root: Annotated[Path | None, typer.Option(help="Folder with the data sets, for figures that need some.")] = None,
    rows: Annotated[
        Path | None, typer.Option(help="Compute nothing: write the page again from a rows.jsonl or rows.jsonl.xz.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce figures: train, judge each claim, and write one page with everything. Resumes where it stopped."""
    done = None if as_json else lambda result: Console().print(_claims(result))
    if rows is not None:
        results = experiments.render(rows, out, done)
    else:
        with bar() as progress:
            results = experiments.reproduce(
                names or (), scale=scale, out=out, data_root=root, progress=progress, done=done, before=_show
            )
    if as_json:
        for row in report.summary(results):
            print(json.dumps(row))
    else:
        print(f"{out / 'index.html'} has every figure and table.")


def _show(table: report.Table) -> None:
    Console(stderr=True).print(report.rich_table(table))


def _claims(result: report.Result) -> Table:
    table = Table("claim", "ours", "paper", "verdict", title=f"{result.name}: {result.title}", title_justify="left")
    for claim in result.claims:
        table.add_row(claim.text, claim.ours, claim.paper, claim.verdict)
    return table
