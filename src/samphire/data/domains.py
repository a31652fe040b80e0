"""PACS, VLCS and OfficeHome: the same classes in four domains, arranged for transfer to one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.checks import read_regular
from samphire.data.drawing import chosen
from samphire.data.files import ENDINGS, Encoded, Files
from samphire.data.layouts import DataSet, Layout, Parts, same_name
from samphire.data.parquet import Columns, hugging_face
from samphire.data.split import Split

ANIMALS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SCENES = ("bird", "car", "chair", "dog", "person")
OFFICE = (
    "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar", "Candles",
    "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser", "Exit_Sign", "Fan",
    "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer", "Helmet", "Kettle", "Keyboard",
    "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse", "Mug", "Notebook", "Oven", "Pan",
    "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin", "Radio", "Refrigerator", "Ruler",
    "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda", "Speaker", "Spoon", "TV", "Table", "Telephone",
    "ToothBrush", "Toys", "Trash_Can", "Webcam",
)  # fmt: skip

__all__ = ["ANIMALS", "OFFICE", "OFFICEHOME", "PACS", "SCENES", "VLCS", "arrange"]


def read_folders(place: Path, classes: tuple[str, ...], domains: tuple[str, ...]) -> Parts:
    """Images in ``domain/class/`` folders as one part, in the order of domain, class and file name.

    Args:
        place: The folder of the domains.
        classes: Those of the set; another folder is an error.
        domains: Those of the set; other folders are ignored.
    """
    paths: list[str] = []
    pairs: list[tuple[int, int]] = []  # domain and class of each image
    of_domain = {same_name(name): i for i, name in enumerate(domains)}
    of_class = {same_name(name): i for i, name in enumerate(classes)}
    inside = [domain for domain in place.iterdir() if domain.is_dir() and same_name(domain.name) in of_domain]
    missing = of_domain.keys() - {same_name(domain.name) for domain in inside}
    if missing:
        lacking = ", ".join(name for name in domains if same_name(name) in missing)
        raise FileNotFoundError(f"{place} has no folder for the domain {lacking}; unpack it again.")
    for folder in (f for domain in inside for f in domain.iterdir() if f.is_dir()):
        if same_name(folder.name) not in of_class:
            raise ValueError(f"{folder} is none of the classes {', '.join(classes)}; move it away.")
        with os.scandir(folder) as entries:
            files = sorted(e.name for e in entries if e.is_file() and e.name.lower().endswith(ENDINGS))
        paths += [os.path.join(folder, name) for name in files]
        pairs += [(of_domain[same_name(folder.parent.name)], of_class[same_name(folder.name)])] * len(files)
    if not paths:
        raise FileNotFoundError(f"{place} has the folders of the domains but no images in them; unpack it again.")
    return _ordered(Files(paths), np.array(pairs), classes, domains)


def arrange(
    parts: Parts, target: str | None = None, seed: int = 0, lists: str | os.PathLike[str] | None = None
) -> Parts:
    """Split a set for transfer: training on all domains except the target, probing on the target.

    In each class of each domain a fifth is held out for testing, and a tenth of the rest for validation. In the
    target only the fifth is held out; the rest is ``target_train``. The choice depends on the seed and on the order
    of file names alone: neither the target nor a library's random numbers change it.

    Args:
        parts: As read.
        target: The domain to transfer to.
        seed: Of the choice.
        lists: A folder with PACS's own ``<domain>_train_kfold.txt`` and ``<domain>_crossval_kfold.txt``. Images in
            the latter are then held out for testing, and the seed chooses the validation part only.

    Returns:
        ``train``, ``val`` and ``test`` of the other domains, ``target_train`` and ``target_test``; together all
        images, with the ids of the whole set.

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendix F.

    Differences:
        The paper names the standard splits, which OfficeHome does not have.
    """
    whole = parts["all"]
    names, domain = whole.values["domain"], whole.features["domain"]
    known = {same_name(name): i for i, name in enumerate(names)}
    if target is None or same_name(target) not in known:
        raise ValueError(f"target must be one of the domains {', '.join(names)}, got {target!r}.")
    everywhere = np.ones(len(whole), bool)
    held = chosen(whole.group, everywhere, 0.2, f"test:{seed}") if lists is None else _listed(whole, Path(lists))
    val = chosen(whole.group, ~held, 0.1, f"val:{seed}")
    inside = domain == known[same_name(target)]
    masks = {
        "train": ~inside & ~held & ~val,
        "val": ~inside & val,
        "test": ~inside & held,
        "target_train": inside & ~held,
        "target_test": inside & held,
    }
    return {name: whole.subset(np.flatnonzero(mask)) for name, mask in masks.items()}


def _by_domain(parts: Parts) -> Parts:
    """The domains as parts, the classes as groups."""
    whole = parts["all"]
    only = replace(whole, features={"class": whole.label}, values={"class": whole.classes})
    return {name: only.subset(whole.features["domain"] == d) for d, name in enumerate(whole.values["domain"])}


def _ordered(images: Encoded, pairs: NDArray[np.int64], classes: tuple[str, ...], domains: tuple[str, ...]) -> Parts:
    """One part with features class and domain, sorted (stably) by domain and class."""
    domain, label = pairs.T
    features = {"class": label, "domain": domain}
    whole = Split(images, label, features, classes=classes, values={"class": classes, "domain": domains})
    whole = whole.subset(np.lexsort((label, domain)))
    return {"all": replace(whole, ids=np.arange(len(whole)))}


def _merged(parts: Parts, classes: tuple[str, ...], domains: tuple[str, ...]) -> Parts:
    """The single part of a Hugging Face repository, sorted as the folders are."""
    split = parts["train"]
    return _ordered(split.images, np.stack([split.features["domain"], split.label], 1), classes, domains)


def _listed(whole: Split, folder: Path) -> NDArray[np.bool_]:
    """The images that PACS's own lists hold out; every image must be in a list."""
    held: dict[str, int] = {}
    for domain in whole.values["domain"]:
        for kind, test in (("train", 0), ("crossval", 1)):
            path = folder / f"{domain}_{kind}_kfold.txt"
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing; it comes with the PACS archive, or leave out lists.")
            held |= {line.split()[0]: test for line in read_regular(path).decode().splitlines() if line.strip()}
    names = [_short(whole.images.name(i)) for i in range(len(whole))]
    unlisted = [name for name in names if name not in held]
    if unlisted:
        raise ValueError(f"{unlisted[0]} and {len(unlisted) - 1} others are in none of the lists in {folder}.")
    return np.array([held[name] for name in names], bool)


def _short(name: str) -> str:
    """``domain/class/file``."""
    return "/".join(PurePath(name).parts[-3:])


def _data_set(
    classes: tuple[str, ...],
    official: Mapping[str, tuple[int, ...]],
    folders: tuple[str, ...],
    repository: str = "",
    **about: Any,
) -> DataSet:
    """A set of some domains, as DomainBed's folders and, if there is one, as a Hugging Face repository."""
    named: Any = {"classes": classes, "domains": tuple(official)}
    files = tuple(domain.replace(" ", "*") for domain in official)
    layouts = [Layout("DomainBed folders", folders, files, partial(read_folders, **named))]
    if repository:
        features: dict[str, dict[str, int | None]] = {"class": {"label": None}, "domain": {"domain": None}}
        columns = Columns(("image",), features, {"class": classes, "domain": tuple(official)})
        merge = partial(_merged, **named)
        layouts.append(hugging_face((repository,), ("data",), ("train-*.parquet",), columns, merge))
    return DataSet(
        groups=f"{len(classes)} classes x {len(official)} domains",
        layouts=tuple(layouts),
        official=official,
        published=_by_domain,
        arrange=arrange,
        **about,
    )


PACS = _data_set(
    ANIMALS,
    {
        "art_painting": (379, 255, 285, 184, 201, 295, 449),
        "cartoon": (389, 457, 346, 135, 324, 288, 405),
        "photo": (189, 202, 182, 186, 199, 280, 432),
        "sketch": (772, 740, 753, 608, 816, 80, 160),
    },
    ("PACS", "pacs", "kfold", "PACS/kfold", "."),
    "flwrlabs/pacs",
    name="pacs",
    about="Animals, people and things as photos, art, cartoons and sketches",
    size="0.2 GB",
    sources=("github.com/facebookresearch/DomainBed (PACS.zip)", "Hugging Face flwrlabs/pacs"),
)
VLCS = _data_set(
    SCENES,
    {
        "Caltech101": (237, 123, 118, 67, 870),
        "LabelMe": (80, 1209, 88, 42, 1237),
        "SUN09": (20, 932, 1036, 30, 1264),
        "VOC2007": (330, 699, 428, 420, 1499),
    },
    ("VLCS", "vlcs", "."),
    name="vlcs",
    about="Animals, people and things from four collections of photos",
    size="3.6 GB",
    sources=("github.com/facebookresearch/DomainBed (VLCS.tar.gz)",),
)
OFFICEHOME = _data_set(
    OFFICE,
    {"Art": (2427,), "Clipart": (4365,), "Product": (4439,), "Real World": (4357,)},
    ("office_home", "OfficeHomeDataset_10072016", "OfficeHome", "office-home", "."),
    "flwrlabs/office-home",
    name="officehome",
    about="Things in office and home as art, clipart, products and photos",
    size="1.1 GB",
    sources=("www.hemanthdv.org/officeHomeDataset.html", "Hugging Face flwrlabs/office-home"),
)
