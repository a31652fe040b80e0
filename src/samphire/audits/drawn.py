"""Drawn birds with a shortcut, to try an audit on: ``python -m samphire.audits.drawn birds`` writes a folder."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samphire import records

__all__ = ["draw", "write"]

SIDE = 32
PARTS = {"train": (800, 0.95), "val": (400, 0.5), "test": (800, 0.5)}  # pictures, and how many are where one expects
BIRDS, PLACES = ("duck", "wren"), ("lake", "wood")
_COLORS = np.array([[70, 110, 170], [70, 130, 70]])  # of the places


def draw(bird: int, place: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """A picture (height, width, color): a duck is wide and a wren tall, on the blue of a lake or the green of a wood.

    Args:
        bird: Position in :data:`BIRDS`.
        place: Position in :data:`PLACES`.
        random: Source of shades, place and size.

    Example:
        >>> draw(0, 1, np.random.default_rng(0)).shape
        (32, 32, 3)
    """
    pixels = _COLORS[place] + random.normal(0, 25, 3) + random.normal(0, 12, (SIDE, SIDE, 3))
    long, short = random.uniform(8, 11), random.uniform(3, 5)
    high, wide = (short, long) if bird == 0 else (long, short)
    y, x = np.indices((SIDE, SIDE)) - random.uniform(10, 22, (2, 1, 1))
    body = (y / high) ** 2 + (x / wide) ** 2 < 1
    pixels[body] += random.normal(0, 20, 3) + random.choice([-70, 70])
    return pixels.clip(0, 255).astype(np.uint8)


def write(folder: str | os.PathLike[str], seed: int = 0) -> Path:
    """Write the pictures and ``birds.csv`` (file, bird, place, split) into a new folder; returns the table's path.

    Args:
        folder: Must not exist.
        seed: Of everything.
    """
    from PIL import Image

    random = np.random.default_rng(records.seed(seed, "drawn birds"))
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; choose another folder for the drawn birds.")
    folder.mkdir(parents=True)
    with (folder / "birds.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "bird", "place", "split"])
        for part, (n, expected) in PARTS.items():
            for i in range(n):
                bird = i % 2
                place = bird if random.random() < expected else 1 - bird
                name = f"{part}{i}.png"
                Image.fromarray(draw(bird, place, random)).save(folder / name)
                table.writerow([name, BIRDS[bird], PLACES[place], part])
    return folder / "birds.csv"


if __name__ == "__main__":
    print(write(sys.argv[1] if len(sys.argv) > 1 else "birds"))
