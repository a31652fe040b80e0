"""The data sets by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from samphire.checks import check_one_of
from samphire.data import layouts
from samphire.data.arrays import CIFAR10, FASHION_MNIST, MNIST
from samphire.data.celeba_waterbirds import CELEBA, WATERBIRDS
from samphire.data.domains import OFFICEHOME, PACS, VLCS
from samphire.data.layouts import DataSet, Parts
from samphire.data.paired import cifar_mnist, fmnist_mnist

SETS = {d.name: d for d in (MNIST, FASHION_MNIST, CIFAR10, CELEBA, WATERBIRDS, PACS, VLCS, OFFICEHOME)}
PAIRED = {"cifar-mnist": (CIFAR10, MNIST), "fmnist-mnist": (FASHION_MNIST, MNIST)}
_DOMINOES: dict[str, Callable[..., Parts]] = {"cifar-mnist": cifar_mnist, "fmnist-mnist": fmnist_mnist}

__all__ = ["PAIRED", "SETS", "load", "named"]


def load(name: str, root: str | os.PathLike[str], **settings: Any) -> Parts:
    """The splits of a data set, in whatever layout it has under a root.

    Images of MNIST, Fashion-MNIST and CIFAR-10 are arrays; those of the larger sets are files still to be decoded
    (see :func:`samphire.data.cache.decoded`). Every list, and every file that a list names, must exist and be sound.

    Args:
        name: ``mnist``, ``fashion-mnist``, ``cifar10`` (train, test); ``celeba``, ``waterbirds`` (train, val, test);
            ``pacs``, ``vlcs``, ``officehome`` (see :func:`samphire.data.domains.arrange`); ``cifar-mnist``,
            ``fmnist-mnist`` (see :mod:`samphire.data.paired`).
        root: The folder of the set, or the one above it.
        settings: Those of the set: ``target`` and ``seed`` for the sets with domains. ``None`` is as not given.

    Example:
        >>> load("waterbird", ".")
        Traceback (most recent call last):
        ValueError: no data set is named 'waterbird'; did you mean 'waterbirds'?
    """
    make = _DOMINOES[name] if name in PAIRED else named(name).arrange
    known = [setting for setting in inspect.signature(make).parameters if setting not in ("root", "parts")]
    settings = {setting: value for setting, value in settings.items() if value is not None}
    for setting in settings:
        check_one_of(f"setting of {name}", setting, known)
    if name in PAIRED:
        return make(root, **settings)
    _, _, parts = layouts.read(named(name), root)
    return make(parts, **settings)


def named(name: str) -> DataSet:
    """The data set of a name; a paired one has no files of its own and is refused."""
    check_one_of("data set", name, [*SETS, *PAIRED])
    if name in PAIRED:
        first, second = (d.name for d in PAIRED[name])
        raise ValueError(f"{name} is made of {first} and {second} and has no files of its own; name one of these.")
    return SETS[name]
