"""The data sets by name."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from typing import Any

from samphire.data import layouts
from samphire.data.arrays import CIFAR10, FASHION_MNIST, MNIST
from samphire.data.celeba_waterbirds import CELEBA, WATERBIRDS
from samphire.data.domains import OFFICEHOME, PACS, VLCS
from samphire.data.layouts import DataSet, Parts

SETS = {d.name: d for d in (MNIST, FASHION_MNIST, CIFAR10, CELEBA, WATERBIRDS, PACS, VLCS, OFFICEHOME)}
PAIRED = {"cifar-mnist": (CIFAR10, MNIST), "fmnist-mnist": (FASHION_MNIST, MNIST)}


def load(name: str, root: str | os.PathLike[str], **settings: Any) -> Parts:
    """The splits of a data set in whatever layout it lies under a root.

    Images of MNIST, Fashion-MNIST and CIFAR-10 are arrays; those of the larger sets are files still to be decoded
    (see :func:`samphire.data.cache.decoded`). Nothing is returned unless every list and every file that it names is
    there and sound.

    Args:
        name: ``mnist``, ``fashion-mnist``, ``cifar10`` (train, test); ``celeba``, ``waterbirds`` (train, val, test);
            ``pacs``, ``vlcs``, ``officehome`` (see :func:`samphire.data.domains.arrange`); ``cifar-mnist``,
            ``fmnist-mnist`` (see :mod:`samphire.data.paired`).
        root: The folder of the set, or the one above it.
        settings: Those of the set: ``target`` and ``seed`` for the sets with domains.

    Example:
        >>> load("waterbird", ".")
        Traceback (most recent call last):
        ValueError: no data set is named 'waterbird'; did you mean 'waterbirds'?
    """
    if name in PAIRED:
        from samphire.data.paired import cifar_mnist, fmnist_mnist

        make: Callable[..., Parts] = {"cifar-mnist": cifar_mnist, "fmnist-mnist": fmnist_mnist}[name]
        _check_settings(name, set(inspect.signature(make).parameters) - {"root"}, settings)
        return make(root, **settings)
    dataset = named(name)
    _check_settings(name, set(inspect.signature(dataset.arrange).parameters) - {"parts"}, settings)
    _, _, parts = layouts.read(dataset, root)
    return dataset.arrange(parts, **settings)


def named(name: str) -> DataSet:
    """The data set of a name; a paired one has no files of its own."""
    if name in SETS:
        return SETS[name]
    if name in PAIRED:
        first, second = (d.name for d in PAIRED[name])
        raise ValueError(f"{name} is made of {first} and {second}, not kept in files of its own; name one of these.")
    close = difflib.get_close_matches(name, [*SETS, *PAIRED], 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join([*SETS, *PAIRED])}."
    raise ValueError(f"no data set is named {name!r}; {hint}")


def _check_settings(name: str, known: set[str], settings: dict[str, Any]) -> None:
    for setting in settings:
        if setting not in known:
            raise ValueError(f"{name} has no setting {setting!r}; it has {', '.join(sorted(known)) or 'none'}.")
