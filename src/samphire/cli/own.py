"""Data of one's own on the command line: opened, with every guess printed."""

from __future__ import annotations

import sys

from samphire import data
from samphire.cli.progress import bar
from samphire.data.catalog import PAIRED

__all__ = ["own_data"]


def own_data(
    source: str | None, image: str | None, label: str | None, split: str | None, features: str | None
) -> data.Opened | None:
    """The user's data, or ``None`` for a built-in set, which has no columns to name.

    Args:
        source: A folder or file, or the name of a built-in set; ``None`` where the run says it.
        image: The column of the images.
        label: The column of the label.
        split: The column of the part.
        features: The columns of attributes, with commas between.
    """
    given = {"image": image, "label": label, "split": split, "features": features}
    if source is None or source in data.SETS or source in PAIRED:
        for option, value in given.items():
            if value is not None:
                raise ValueError(
                    f"--{option} is for data of your own, got {value!r}; give their folder, or leave it out."
                )
        return None
    with bar() as progress:
        opened = data.open(source, image=image, label=label, split=split, features=features, progress=progress)
    for note in opened.notes:
        print(note, file=sys.stderr)
    return opened
