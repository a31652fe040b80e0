"""CelebA and Waterbirds: a label, an attribute that correlates with it, and the four groups of both.

Except for Hugging Face's, a layout is one or two text files of rows beside a folder of images: :class:`Lists` says
what the columns mean, and :func:`read` reads any of them.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samphire.data.files import Files
from samphire.data.layouts import DataSet, Layout, Parts, coded
from samphire.data.parquet import Columns, hugging_face
from samphire.data.split import Split
from samphire.data.tables import Table, present, read_rows, text_of

_PARTS = ("train", "val", "test")  # 0, 1 and 2 in the lists
HAIR = {"blond": ("not blond", "blond"), "male": ("female", "male")}
BIRDS = {"bird": ("landbird", "waterbird"), "place": ("land", "water")}

__all__ = ["BIRDS", "CELEBA", "HAIR", "WATERBIRDS"]


@dataclass(frozen=True)
class Lists:
    """The text files of a layout and the meaning of their columns.

    Args:
        files: One list, or two that are joined on the image.
        image: The column with the image's file name.
        part: The column with 0, 1 or 2 for train, val or test.
        features: Possible names of the column of each feature; the first feature is the label.
        folders: Where the images may be; the first folder that has the first image is used.
    """

    files: tuple[str, ...]
    image: str
    part: str
    features: Mapping[str, tuple[str, ...]]
    folders: tuple[str, ...] = (".",)


def read(place: Path, lists: Lists, values: Mapping[str, tuple[str, ...]]) -> Parts:
    """The parts of a listed set; every listed image must exist, but none is opened.

    Args:
        place: The folder of the lists.
        lists: Their names and columns.
        values: The names of each feature's values.
    """
    wanted = {lists.image, lists.part, *chain(*lists.features.values())}
    tables = [read_list(place / name, wanted) for name in lists.files]
    orders = [_matched(tables[0], table, lists.image) for table in tables]

    def column(what: str, names: Collection[str], codes: Mapping[str, int]) -> NDArray[np.int64]:
        """The first of these columns that exists, in the order of the first list."""
        for table, order in zip(tables, orders, strict=True):
            for name in names:
                if name in table.columns:
                    return coded(what, table.columns[name], codes, table.line)[order]
        raise ValueError(f"{tables[0].path} has no column {' or '.join(names)}, only {', '.join(tables[0].header)}.")

    features = {name: column(name, columns, {"-1": 0, "0": 0, "1": 1}) for name, columns in lists.features.items()}
    part = column("split", [lists.part], {"0": 0, "1": 1, "2": 2})
    _, paths = present(tables[0], tables[0].column(lists.image), [place / folder for folder in lists.folders])
    label, *_ = features
    whole = Split(Files(paths), features[label], features, classes=values[label], values=values)
    chosen = {name: np.flatnonzero(part == k) for k, name in enumerate(_PARTS)}
    return {name: replace(whole.subset(rows), ids=np.arange(len(rows))) for name, rows in chosen.items()}


def read_list(path: Path, wanted: Collection[str]) -> Table:
    """Some columns of a list: CSV with a header, or CelebA's text with a count, the names, and rows of words.

    Args:
        path: Ends with ``.csv``, or is one of CelebA's ``.txt`` files.
        wanted: The columns to keep; CelebA has 200 000 rows of 41.
    """
    with text_of(path) as file:
        rows = csv.reader(file) if path.suffix == ".csv" else (line.split() for line in file)
        rows = (row for row in rows if row)
        start: list[str] = next(rows, [])
        if path.suffix == ".csv":
            return read_rows(path, rows, start, wanted, first=2)
        if len(start) == 1 and start[0].isdigit():
            return read_rows(path, rows, ["image_id", *next(rows, [])], wanted, first=3, count=int(start[0]))
        return read_rows(path, chain([start], rows), ["image_id", "partition"], wanted, first=1)


def _matched(first: Table, other: Table, image: str) -> NDArray[np.int64]:
    """For each row of the first list, the row of another list with the same image; each has every image once."""
    rows = [{name: row for row, name in enumerate(listed.column(image))} for listed in (first, other)]
    for a, rows_a, b, rows_b in ((first, rows[0], other, rows[1]), (other, rows[1], first, rows[0])):
        for row, name in enumerate(a.column(image)):
            if rows_a[name] != row:
                raise ValueError(f"{a.line(rows_a[name])} lists {name} again, after line {a.first + row}.")
            if name not in rows_b:
                raise ValueError(f"{a.line(row)} lists {name}, which {b.path} lacks; get both again.")
    return np.array([rows[1][name] for name in rows[0]], np.int64)


# The layouts. Some archives nest CelebA's image folder in itself.

_PARQUET = ("train-*.parquet", "val*-*.parquet", "test-*.parquet")
_FACES = ("img_align_celeba/img_align_celeba", "img_align_celeba", ".")
_CELEBA = ("celeba", "celebA", "CelebA")
_ATTRIBUTES = {"blond": ("Blond_Hair",), "male": ("Male",)}


def _celeba(name: str, folders: tuple[str, ...], lists: Lists, *images: str) -> Layout:
    return Layout(name, folders, (*lists.files, *images), partial(read, lists=lists, values=HAIR))


def _official(name: str, folders: tuple[str, ...], end: str = "csv") -> Layout:
    """CelebA's own two lists beside the folder of images."""
    files = (f"list_attr_celeba.{end}", f"list_eval_partition.{end}")
    return _celeba(name, folders, Lists(files, "image_id", "partition", _ATTRIBUTES, _FACES), "img_align_celeba")


def _subpopbench(file: str, features: Mapping[str, tuple[str, ...]], *folders: str) -> Lists:
    return Lists((file,), "filename", "split", features, folders)


_DFR = Lists(("metadata.csv",), "img_filename", "split", {"blond": ("y",), "male": ("place", "spurious")}, _FACES)
_FACE_COLUMNS = Columns(
    ("image",), {"blond": {"Blond_Hair": None, "attributes": 9}, "male": {"Male": None, "attributes": 20}}, HAIR
)
_SUBPOP_FACES = {"blond": ("y",), "male": ("a",)}

CELEBA = DataSet(
    name="celeba",
    about="Faces; the label is blond hair, which correlates with being female",
    groups="blond x male",
    size="1.4 GB",
    sources=(
        "mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        "Kaggle jessicali9530/celeba-dataset",
        "Hugging Face flwrlabs/celeba",
    ),
    layouts=(
        _official("WILDS", ("celebA_v1.0",)),
        _official("group_DRO", ("celebA/data",)),
        _official("torchvision", (*_CELEBA, "."), "txt"),
        _official("Kaggle", (*_CELEBA, "celeba-dataset", "data", ".")),
        _celeba(
            "SubpopBench",
            ("celeba", "."),
            _subpopbench("metadata_celeba.csv", _SUBPOP_FACES, *_FACES, *(f"celeba/{f}" for f in _FACES)),
        ),
        _celeba("DFR metadata.csv", (*_CELEBA, "img_align_celeba", "celeba/img_align_celeba", "."), _DFR),
        hugging_face(
            ("flwrlabs/celeba", "eurecom-ds/celeba"), ("img_align+identity+attr", "data"), _PARQUET, _FACE_COLUMNS
        ),
    ),
    official={"train": (71629, 66874, 22880, 1387), "val": (8535, 8276, 2874, 182), "test": (9767, 7535, 2480, 180)},
)

_BIRDS = "waterbird_complete95_forest2water2"
_METADATA = Lists(("metadata.csv",), "img_filename", "split", {"bird": ("y",), "place": ("place", "spurious")})
_LOOKALIKE = (
    "its metadata.csv is a look-alike of Waterbirds: its splits have the same sizes but other groups (3525, 186, 54 "
    "and 1030 in train, where Waterbirds has 3498, 184, 56 and 1057); its numbers cannot be compared with published "
    "ones, so take metadata.csv from the original archive."
)
_BIRD_COLUMNS = Columns(("image",), {"bird": {"label": None}, "place": {"place": None}}, BIRDS)
_SUBPOP_BIRDS = {"bird": ("y",), "place": ("a",)}


def _waterbirds(name: str, folders: tuple[str, ...], lists: Lists = _METADATA) -> Layout:
    return Layout(name, folders, lists.files, partial(read, lists=lists, values=BIRDS))


WATERBIRDS = DataSet(
    name="waterbirds",
    about="Birds pasted on landscapes; the label is the bird, which correlates with the place",
    groups="bird x place",
    size="0.5 GB",
    sources=(
        f"nlp.stanford.edu/data/dro/{_BIRDS}.tar.gz (github.com/kohpangwei/group_DRO)",
        "Hugging Face grodino/waterbirds",
    ),
    layouts=(
        _waterbirds("WILDS", ("waterbirds_v1.0",)),
        _waterbirds("group_DRO", (f"cub/data/{_BIRDS}", f"data/{_BIRDS}", f"cub/{_BIRDS}")),
        _waterbirds(
            "SubpopBench",
            ("waterbirds", "."),
            _subpopbench("metadata_waterbirds.csv", _SUBPOP_BIRDS, _BIRDS, f"waterbirds/{_BIRDS}"),
        ),
        _waterbirds("DFR metadata.csv", (_BIRDS, f"waterbirds/{_BIRDS}", "waterbirds", ".")),
        hugging_face(("grodino/waterbirds",), ("data",), _PARQUET, _BIRD_COLUMNS),
    ),
    official={"train": (3498, 184, 56, 1057), "val": (467, 466, 133, 133), "test": (2255, 2255, 642, 642)},
    lookalikes={("train", (3525, 186, 54, 1030)): _LOOKALIKE},
)
