"""The command line: one command, one library function."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from samphire import experiments, optim, report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sharpness-aware training and feature quality for PyTorch.",
)


@app.callback()
def samphire() -> None:
    """Sharpness-aware training and feature quality for PyTorch."""


@app.command(epilog="Example:  samphire rules --json")
def rules(as_json: Annotated[bool, typer.Option("--json", help="One JSON object per rule instead.")] = False) -> None:
    """List the rules: what each does, and what a step costs in passes of forward and backward (SGD: 1)."""
    rows = [describe_rule(name) for name in optim.RULES]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    table = Table("rule", "passes", "what it does", "settings", title="Rules (passes at the default settings)")
    for row in rows:
        table.add_row(str(row["name"]), f"{row['passes']:g}", str(row["summary"]), str(row["settings"]))
    Console().print(table)


@app.command(epilog="Example:  samphire reproduce fig2 fig3 --scale paper --out report")
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Figures; none for all that need no data.")] = None,
    scale: Annotated[str, typer.Option(help="tiny (seconds), quick (minutes) or paper.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for the page, pictures, tables and rows.")] = Path("report"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per claim instead.")] = False,
) -> None:
    """Reproduce figures: train, judge each claim, and write one page with everything. Resumes where it stopped."""
    bar = _bar()
    try:
        results = experiments.reproduce(
            names or (),
            scale=scale,
            out=out,
            progress=lambda what, done, total: _advance(bar, what, done, total),
            done=None if as_json else lambda result: Console().print(_claims(result)),
        )
    finally:
        if bar.tasks:
            bar.stop()
    if as_json:
        for row in report.summary(results):
            print(json.dumps(row))
    else:
        print(f"{out / 'index.html'} has every figure and table.")


def _bar() -> Progress:
    """Progress with time left, on stderr."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _advance(bar: Progress, what: str, done: int, total: int) -> None:
    if not bar.tasks:
        bar.start()
        bar.add_task(what, total=total)
    bar.update(bar.tasks[0].id, description=what, completed=done)


def _claims(result: report.Result) -> Table:
    table = Table("claim", "ours", "paper", "verdict", title=f"{result.name}: {result.title}", title_justify="left")
    for claim in result.claims:
        table.add_row(claim.text, claim.ours, claim.paper, claim.verdict)
    return table


def describe_rule(name: str) -> dict[str, object]:
    """A rule as a row: name, passes at the defaults, first line of its docstring, settings."""
    factory = optim.RULES[name]
    summary = inspect.getdoc(factory).split("\n")[0].split(".  ")[0]  # type: ignore[union-attr]
    settings = [
        f"{p.name}={p.default!r}"
        for p in inspect.signature(factory).parameters.values()
        if isinstance(p.default, (int, float, str))
    ]
    return {"name": name, "passes": factory().passes, "summary": summary, "settings": ", ".join(settings)}


def main() -> None:
    """Run the command line; bad input ends with one sentence and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        print(f"samphire: {error}", file=sys.stderr)
        sys.exit(2)
