"""``samphire reproduce``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samphire import report
from samphire.cli.options import AsJson
from samphire.cli.progress import bar

MARKS = {"holds": ("✓", "green"), "contradicted": ("✗", "red"), "open": ("○", "dim"), "failed": ("!", "red")}
OPENERS = {"darwin": "open", "win32": "start"}  # elsewhere xdg-open


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Figures; none for the paper's on the toy.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All: without --root, all that need no data.")] = False,
    scale: Annotated[str, typer.Option(help="tiny (seconds), quick (minutes), reduced (hours) or paper.")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for the page, pictures, tables and rows.")] = Path("report"),
    root: Annotated[Path | None, typer.Option(help="Folder with the data sets, for figures that need some.")] = None,
    rows: Annotated[
        Path | None, typer.Option(help="Compute nothing: write the page again from a rows.jsonl or rows.jsonl.xz.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every claim of each figure.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce figures: train, judge each claim, and write one page with everything. Resumes where it stopped."""
    from samphire import experiments

    chosen = experiments.runnable(root) if everything else names or experiments.TOY
    shown = None if as_json else _show_claims if verbose else _show_line
    if rows is not None:
        results = experiments.render(rows, out, shown)
    else:
        with bar() as progress:
            results = experiments.reproduce(
                chosen, scale=scale, out=out, data_root=root, progress=progress, done=shown, before=_show
            )
    if as_json:
        for row in report.summary(results):
            print(json.dumps(row))
    else:
        print(_ending(out / "index.html"))


def _show(table: report.Table) -> None:
    Console(stderr=True).print(report.rich_table(table))


def _show_line(result: report.Result) -> None:
    """One line on a terminal of any width: the verdicts, the number that matters, and what it says."""
    line = Text(f"{result.name:<10} ")
    for verdict, (mark, style) in MARKS.items():
        line.append(f"{mark} {result.counts[verdict]:<3}" if verdict in result.counts else " " * 5, style)
    if result.main:
        line.append(f" {result.main.ours.partition(';')[0]}")
        line.append(f"  {result.main.text}", "dim")
    if sys.stdout.isatty():
        _print(line, no_wrap=True, overflow="ellipsis")
    else:
        print(line.plain, flush=True)


def _show_claims(result: report.Result) -> None:
    table = Table("claim", "ours", "paper", "verdict", title=f"{result.name}: {result.title}", title_justify="left")
    for claim in result.claims:
        table.add_row(*map(Text, (claim.text, claim.ours, claim.paper, claim.verdict)))
    _print(table)


def _print(shown: Text | Table, **how: Any) -> None:
    """By print, which a bar on the same terminal keeps above itself; a console would write into the bar's line."""
    console = Console()
    with console.capture() as captured:
        console.print(shown, **how)
    print(captured.get(), end="", flush=True)


def _ending(page: Path) -> str:
    """Where the page is, how to open it, what to try next."""
    command = "samphire" if shutil.which("samphire") else sys.argv[0]
    marks = ", ".join(f"{mark} {verdict}" for verdict, (mark, _) in MARKS.items() if verdict != "failed")
    return f"""
{page} has every figure, table and claim ({marks}).
Open it:     {OPENERS.get(sys.platform, "xdg-open")} {page}
Try next:    {command} reproduce fig7 -v                 every claim of one figure
             {command} reproduce --all --scale paper     all seeds, the scoreboard of rules, the review"""
