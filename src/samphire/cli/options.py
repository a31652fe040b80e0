"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(help="A folder written by training, or a file with a state dict.")]
Root = Annotated[Path, typer.Option(help="The folder of the data set, or the one above it.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for decoded images; the user's cache if none.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per row instead of tables.")]
# Where the run does not say it:
Data = Annotated[str | None, typer.Option(help="Data set, where the run does not say.")]
Model = Annotated[str | None, typer.Option(help="Network, where the run does not say.")]
Target = Annotated[str | None, typer.Option(help="Target domain, for sets with domains.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code and fetch the addresses that the run names.")]
Size = Annotated[int | None, typer.Option(help="Side of the images, where the run does not say.")]
