"""``samphire data``: list, check, get."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from samphire import data
from samphire.cli.options import AsJson, Root
from samphire.cli.progress import bar
from samphire.data.catalog import PAIRED
from samphire.data.check import Count

app = typer.Typer(no_args_is_help=True, help="Data sets: list them, check a copy, fetch one.")

Name = Annotated[str, typer.Argument(help="As `samphire data list` has it.", show_default=False)]
COLORS = {"complete": "green", "subset": "yellow", "wrong": "red"}


@app.command("list", epilog="Example:  samphire data list --json")
def list_sets(as_json: AsJson = False) -> None:
    """List the data sets: what each is, how large, and where it comes from."""
    rows = _rows()
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    console = Console()
    table = Table("name", "what it is", "images", "groups", "size", title="Data sets")
    for row in rows:
        table.add_row(*(str(row[column]) for column in ("name", "about", "images", "groups", "size")))
    console.print(table)
    for row in rows:
        console.print(f"{row['name']}: {row['from']}", highlight=False, markup=False, soft_wrap=True)


@app.command(epilog="Example:  samphire data check waterbirds --root data --images")
def check(
    name: Name,
    root: Root = Path("data"),
    images: Annotated[bool, typer.Option("--images", help="Decode every image too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a copy with the published data set; the exit code is 1 if it is something else."""
    with bar() as progress:
        checked = data.check(name, root, images=images, progress=progress)
    if as_json:
        print(json.dumps(asdict(checked) | {"place": str(checked.place)}))
    else:
        _show(checked)
    if checked.verdict == "wrong":
        raise typer.Exit(1)


@app.command(epilog="Example:  samphire data get mnist --root data")
def get(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.", show_default=False)],
    root: Annotated[Path, typer.Option(help="Where the folder of the data set is made.")] = Path("data"),
    as_json: AsJson = False,
) -> None:
    """Fetch a data set from the first source that answers; a complete copy is left as it is."""
    with bar() as progress:
        place = data.get(name, root, progress=progress)
    print(json.dumps({"name": name, "place": str(place)}) if as_json else place)


def _rows() -> list[dict[str, object]]:
    """The data sets as rows: name, what it is, images, groups, size, sources."""
    rows: list[dict[str, object]] = [
        {
            "name": d.name,
            "about": d.about,
            "images": sum(sum(counts) for counts in d.official.values()),
            "groups": d.groups,
            "size": d.size,
            "from": "; ".join(d.sources),
        }
        for d in data.SETS.values()
    ]
    for name, (bottom, top) in PAIRED.items():
        about, sources = f"Dominoes: {top.name} above {bottom.name}", f"{bottom.name} and {top.name}"
        rows.append({"name": name, "about": about, "images": "", "groups": "", "size": "", "from": sources})
    return rows


def _show(checked: data.CheckResult) -> None:
    """Print the verdict, the counts and the notes of a check."""
    console = Console()
    color = COLORS[checked.verdict]
    console.print(f"{checked.name}: [bold {color}]{checked.verdict}[/], layout: {checked.layout}", highlight=False)
    console.print(str(checked.place), highlight=False, markup=False, soft_wrap=True)
    cells = {(c.group, c.part): _cell(c, color) for c in checked.counts}
    parts = dict.fromkeys(part for _, part in cells)
    table = Table("images", *parts)
    for group in dict.fromkeys(group for group, _ in cells):
        table.add_row(group, *(cells[group, part] for part in parts))
    console.print(table)
    for note in checked.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _cell(count: Count, color: str) -> str:
    same = count.found == count.official
    return str(count.found) if same else f"[{color}]{count.found} of {count.official}[/]"
