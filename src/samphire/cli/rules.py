"""``samphire rules``."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from samphire import optim


def rules(as_json: Annotated[bool, typer.Option("--json", help="One JSON object per rule instead.")] = False) -> None:
    """List the rules: what each does, and what a step costs in passes of forward and backward (SGD: 1)."""
    rows = [describe(name) for name in optim.RULES]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    table = Table("rule", "passes", "what it does", "settings", title="Rules (passes at the default settings)")
    for row in rows:
        table.add_row(str(row["name"]), f"{row['passes']:g}", str(row["summary"]), str(row["settings"]))
    Console().print(table)


def describe(name: str) -> dict[str, object]:
    """A rule as a row: name, passes at the defaults, first line of its docstring, settings."""
    factory = optim.RULES[name]
    summary = inspect.getdoc(factory).split("\n")[0].split(".  ")[0]  # type: ignore[union-attr]
    settings = [
        f"{p.name}={p.default!r}"
        for p in inspect.signature(factory).parameters.values()
        if isinstance(p.default, (int, float, str))
    ]
    return {"name": name, "passes": factory().passes, "summary": summary, "settings": ", ".join(settings)}
