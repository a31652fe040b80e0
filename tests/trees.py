"""Small data sets as users have them on disk, with features that a small network can learn."""

import csv

import numpy as np
from PIL import Image

from samphire.data import arrays

SHAPES = [(20, 30), (30, 20), (16, 16), (7, 50), (64, 64), (20, 30)]


def dominoes(root, train=220, test=10):
    """MNIST and Fashion-MNIST: ``train`` and ``test`` images of each class, a bright row for the class among noise."""
    draw = np.random.default_rng(0)
    for source in ("MNIST", "FashionMNIST"):
        folder = root / source / "raw"
        folder.mkdir(parents=True)
        for part, n in (("train", train), ("t10k", test)):
            labels = np.repeat(np.arange(10, dtype=np.uint8), n)
            images = draw.integers(0, 120, (len(labels), 28, 28), np.uint8)
            images[np.arange(len(labels)), 2 * labels + 2] = 255
            arrays.write_idx(folder / f"{part}-images-idx3-ubyte", images)
            arrays.write_idx(folder / f"{part}-labels-idx1-ubyte", labels)
    return root


def waterbirds(root, train=(24, 4, 4, 24), held_out=8):
    """Birds by their brightness, places by their color; ``train`` images of each group, ``held_out`` of each for the rest."""
    place = root / "waterbird_complete95_forest2water2"
    draw, rows = np.random.default_rng(0), []
    for part, sizes in enumerate((train, (held_out,) * 4, (held_out,) * 4)):
        for group, n in enumerate(sizes):
            y, a = divmod(group, 2)
            for _ in range(n):
                name = f"{y:03d}.Bird/{len(rows)}.png"
                pixels = draw.integers(0, 100, (12, 16, 3), np.uint8)
                pixels[3:9, 4:12] += np.uint8(90 * y)
                pixels[..., 2 if a else 1] += np.uint8(50)
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(place / name)
                rows.append([len(rows), name, y, part, a, "/o/ocean.jpg"])
    with (place / "metadata.csv").open("w", newline="") as file:
        header = ["img_id", "img_filename", "y", "split", "place", "place_filename"]
        csv.writer(file).writerows([header, *rows])
    return root


def pacs(root, per_class=10):
    """``per_class`` images of each class in each domain, the class by a bright column."""
    draw = np.random.default_rng(0)
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for k, name in enumerate(("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")):
            folder = root / "PACS" / domain / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                pixels = draw.integers(0, 120, (16, 16, 3), np.uint8)
                pixels[:, 2 * k + 1] = 255
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


def pictures(folder, shapes=SHAPES):
    """Random images in several shapes, formats and modes."""
    kinds = [("RGB", "jpg"), ("L", "png"), ("RGBA", "png"), ("P", "png"), ("L", "jpg"), ("RGB", "png")]
    draw = np.random.default_rng(0)
    paths = []
    for i, shape in enumerate(shapes):
        mode, ending = kinds[i % len(kinds)]
        image = Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8)).convert(mode)
        paths.append(folder / f"{i}.{ending}")
        image.save(paths[-1])
    return paths
