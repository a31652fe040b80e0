"""The examples a run is trained and judged on, decoded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from samphire import data, records
from samphire.checks import check_one_of
from samphire.data.cache import decoded
from samphire.data.paired import paired_anew
from samphire.data.split import Split
from samphire.progress import Progress, silent

__all__ = ["PROBE_ON", "Parts", "ProbeOn", "at_size", "known", "load_parts", "some"]

ProbeOn = Literal["train", "val"]
PROBE_ON = ("train", "val")
ROOM = 4 / 3  # side of the stored images, in sides of the network's, where these are random crops


@dataclass(frozen=True)
class Parts:
    """The examples a run is trained and judged on.

    Args:
        train: What the network is trained on, at the size that crops are taken from.
        whole: The same examples at the network's size, as it is judged.
        val: Where settings are selected.
        test: Where group errors are measured.
        probe_train: Where probes are trained.
        probe_test: Where they are tested.
        domain: Whether the probing parts are another domain.
        probe_on: What ``probe_train`` is made of: ``"train"``, ``"val"``, or ``"target"`` for another domain.
    """

    train: Split
    whole: Split
    val: Split
    test: Split
    probe_train: Split
    probe_test: Split
    domain: bool
    probe_on: str


def load_parts(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    splits: Mapping[str, Split] | None = None,
    size: int = 96,
    target: str | None = None,
    augment: bool = False,
    examples: int | None = None,
    judged_only: bool = False,
    probe_on: ProbeOn = "val",
    cache: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Parts:
    """The parts of a data set that training and probing need.

    Args:
        name: Of the data set.
        root: Its folder, or the one above it.
        splits: The parts as opened, instead of a root.
        size: Side of the network's images, for sets of image files.
        target: Domain to transfer to, for sets with domains.
        augment: Store the training images larger, for random crops.
        examples: How many training examples to take, see :func:`some`; ``None`` for all.
        judged_only: Leave the training images encoded, for a run that is trained already.
        probe_on: The probing set: ``"train"``, the images the network was trained on, or ``"val"``, images it never
            saw; dominoes are paired anew. For sets with domains it is the target's training part.
        cache: Folder for decoded images; the user's cache by default.
        progress: Called with what is done, the images done and those to do.
    """
    check_one_of("probing set", probe_on, PROBE_ON)
    parts = data.load(name, _given(root), target=target) if splits is None else splits
    missing = [part for part in ("train", "val", "test") if part not in parts]
    if missing and "@" not in name:
        raise ValueError(f"{name} has one feature only; take a set with two, such as fmnist-mnist.")
    if missing:
        raise ValueError(
            f"{name} has no {' and no '.join(missing)} part, only {', '.join(parts)}; a run needs all three."
        )
    ready = partial(at_size, size=size, cache=cache, progress=progress)
    chosen = some(parts["train"], examples)
    domain = "target_train" in parts
    whole = chosen if judged_only and (domain or probe_on != "train") else ready(chosen)
    crops = augment and not judged_only and not isinstance(chosen.images, np.ndarray)
    val, test = ready(parts["val"]), ready(parts["test"])
    if domain:
        probe_train, probe_test = ready(parts["target_train"]), ready(parts["target_test"])
    elif "probe_test" in parts:
        fewer = probe_on == "train" and examples is not None
        probe_train = paired_anew(chosen) if fewer else parts[f"probe_{probe_on}"]
        probe_test = parts["probe_test"]
    else:
        pairs = {"train": (chosen, whole), "val": (parts["val"], val)}[probe_on], (parts["test"], test)
        probe_train, probe_test = (part if raw.known.all() else ready(known(raw)) for raw, part in pairs)
    return Parts(
        train=ready(chosen, size=round(ROOM * size)) if crops else whole,
        whole=whole,
        val=val,
        test=test,
        probe_train=probe_train,
        probe_test=probe_test,
        domain=domain,
        probe_on="target" if domain else probe_on,
    )


def some(split: Split, n: int | None) -> Split:
    """A given number of examples, in the groups' proportions, always the same ones; all of them for ``None``.

    Example:
        >>> y = np.repeat([0, 1], [60, 20])
        >>> np.bincount(some(Split(y, y, {"y": y}), 8).label)
        array([6, 2])
    """
    if n is None:
        return split
    if n > len(split):
        raise ValueError(f"examples must be at most the {len(split)} training examples, got {n}.")
    group = split.group + 1  # 0 for examples that belong to none
    draw = np.random.default_rng(records.seed(0, "examples")).random(len(split))
    order = np.lexsort((draw, group))
    size = np.bincount(group)
    rank = np.arange(len(split)) - np.repeat(np.cumsum(size) - size, size)
    place = np.empty(len(split))
    place[order] = (rank + 0.5) / size[group[order]]  # a group's examples, evenly over 0 to 1
    return split.subset(np.sort(np.argsort(place, kind="stable")[:n]))


def known(split: Split) -> Split:
    """The examples of which every feature is known."""
    return split.subset(np.flatnonzero(split.known))


def _given(root: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    if root is None:
        raise ValueError("a run needs its data: give root=, the folder of a built-in set, or parts=, your own.")
    return root


def at_size(
    split: Split, size: int, cache: str | os.PathLike[str] | None = None, progress: Progress = silent
) -> Split:
    """Examples with their images decoded at a size, once for each cache; arrays stay as they are."""
    if isinstance(split.images, np.ndarray):
        return split
    users = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "samphire"
    return decoded(split, size, users if cache is None else cache, progress=progress)
