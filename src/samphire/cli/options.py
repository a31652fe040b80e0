"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from samphire.integrations.trackers import Tracker

Run = Annotated[Path, typer.Argument(help="A folder written by training, or a file with a state dict.")]
Root = Annotated[Path, typer.Option(help="The folder of the data set, or the one above it.")]
Image = Annotated[str | None, typer.Option(help="Own data: the column of the images.")]
Label = Annotated[str | None, typer.Option(help="Own data: the column of the label.")]
Split = Annotated[str | None, typer.Option(help="Own data: the column of the part (train, val, test).")]
Features = Annotated[
    str | None, typer.Option(help="Own data: the columns of attributes, with commas between, or none.")
]
Cache = Annotated[Path | None, typer.Option(help="Folder for decoded images; the user's cache if none.")]
LogTo = Annotated[
    str | None, typer.Option("--log", help="Show rows as they come: tensorboard, wandb, mlflow or csv.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per row instead of tables.")]
# Where the run does not say it:
Data = Annotated[str | None, typer.Option(help="Data set, or a folder of your own, where the run does not say.")]
Model = Annotated[str | None, typer.Option(help="Network, where the run does not say.")]
Target = Annotated[str | None, typer.Option(help="Target domain, for sets with domains.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code and fetch the addresses that the run names.")]
Size = Annotated[int | None, typer.Option(help="Side of the images, where the run does not say.")]


def tracker_of(kind: str | None) -> Tracker | None:
    """The tracker of ``--log``."""
    if kind is None:
        return None
    from samphire.integrations.trackers import Tracker

    return Tracker(kind)
