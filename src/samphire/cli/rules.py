"""``samphire rules``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from samphire import report
from samphire.cli.options import AsJson


def rules(
    as_json: AsJson = False,
    to: Annotated[
        Path | None, typer.Option("--page", help="Write the rules' page and picture to this folder.")
    ] = None,
) -> None:
    """List the rules: paper, passes of forward and backward a step (SGD: 1), memory kept, what is perturbed."""
    from samphire import optim
    from samphire.optim.describe import describe, table

    if to is not None:
        from samphire.experiments import rules_gallery

        page, picture = rules_gallery.write(to)
        print(f"{page} and {picture} have {len(optim.RULES)} rules.")
        return
    described = [describe(name) for name in optim.RULES]
    if as_json:
        for d in described:
            row = {name: getattr(d, name) for name in ("name", "paper", "passes", "memory", "perturbs", "summary")}
            print(json.dumps(row | {"settings": ", ".join(f"{s.name}={s.default}" for s in d.settings)}))
        return
    columns, rows = table(described)
    caption = "Rules at their default settings (memory in copies of the parameters)"
    fits = report.Table(columns[:-1], [row[:-1] for row in rows], caption)
    Console().print(report.rich_table(fits))
