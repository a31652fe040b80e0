"""Is the copy of a data set on this disk the published one?"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from samphire.data import layouts
from samphire.data.arrays import digest
from samphire.data.catalog import named
from samphire.data.files import Encoded, decode
from samphire.data.layouts import DataSet, Parts, counted
from samphire.progress import Progress, silent

Verdict = Literal["complete", "subset", "wrong"]
_MOST_NAMED = 10

__all__ = ["CheckResult", "Count", "Verdict", "check"]


@dataclass(frozen=True)
class Count:
    """The images of one group.

    Attributes:
        part: The part or domain.
        group: The group's name, or ``all``.
        found: Their number in this copy.
        official: Their number in the published set.
    """

    part: str
    group: str
    found: int
    official: int


@dataclass(frozen=True)
class CheckResult:
    """How a copy compares with the published data set.

    Attributes:
        name: Of the data set.
        layout: Of the copy.
        place: Its folder.
        verdict: ``complete``: as published; ``subset``: no group has more images than published, some have fewer;
            ``wrong``: it is something else.
        counts: Group by group.
        notes: Further findings, a sentence each.
    """

    name: str
    layout: str
    place: Path
    verdict: Verdict
    counts: tuple[Count, ...]
    notes: tuple[str, ...]


def check(
    name: str, root: str | os.PathLike[str], *, images: bool = False, progress: Progress = silent
) -> CheckResult:
    """Compare a copy of a data set with the published one: the images of each part and group.

    Missing and damaged files, lists that disagree with the images and unknown values are errors that name the file
    and row, as in :func:`samphire.data.load`. A copy that is known to be another set is ``wrong``.

    Args:
        name: As for :func:`samphire.data.load`.
        root: The folder of the set, or the one above it.
        images: Whether to decode every image too; the notes name damaged ones.
        progress: Counts images.
    """
    dataset = named(name)
    layout, place = layouts.find(dataset, root)
    parts = layout.read(place)
    published = dataset.published(parts)
    counts = tuple(_counts(dataset, published))
    faults = [*_faults(dataset, published, counts), *(_damaged(parts, progress) if images else ())]
    if faults:
        return CheckResult(name, layout.name, place, "wrong", counts, tuple(faults))
    if all(count.found == count.official for count in counts):
        return CheckResult(name, layout.name, place, "complete", counts, ())
    return CheckResult(name, layout.name, place, "subset", counts, tuple(_whole(counts)))


def _counts(dataset: DataSet, parts: Parts) -> Iterator[Count]:
    for part, official in dataset.official.items():
        numbers = counted(parts[part]) if part in parts else (0,) * len(official)
        if len(official) == 1:
            yield Count(part, "all", sum(numbers), *official)
            continue
        names = [" ".join(values) for values in itertools.product(*next(iter(parts.values())).values.values())]
        yield from map(Count, itertools.repeat(part), names, numbers, official)


def _faults(dataset: DataSet, parts: Parts, counts: tuple[Count, ...]) -> Iterator[str]:
    """Why a copy is neither the data set nor a part of it."""
    reason = layouts.lookalike(dataset, parts)
    if reason:
        yield reason
    excess = [c for c in counts if c.found > c.official]
    for c in excess[:1]:
        yield (
            f"{len(excess)} of {len(counts)} counts are above the published ones; "
            f"{c.part} has {c.found} images of {c.group}, not {c.official}."
        )
    if all(c.found == c.official for c in counts):
        for part, published in dataset.content.items():
            if digest(parts[part]) != published:
                yield f"the numbers of images in {part} are right, but pixels, labels or their order are not."


def _whole(counts: tuple[Count, ...]) -> Iterator[str]:
    """Which groups of a subset have all their images in every part."""
    groups = dict.fromkeys(c.group for c in counts)
    whole = [g for g in groups if all(c.found == c.official for c in counts if c.group == g)]
    if whole:
        yield f"All images of {', '.join(whole)} are present."


def _damaged(parts: Parts, progress: Progress) -> Iterator[str]:
    """The images that cannot be decoded; arrays have none."""
    encoded = [split.images for split in parts.values() if hasattr(split.images, "read")]
    total, done, damaged = sum(map(len, encoded)), 0, 0
    with ThreadPoolExecutor() as threads:
        for images in encoded:
            for fault in threads.map(partial(_fault, images), range(len(images))):
                done += 1
                progress("decoding images", done, total)
                damaged += fault is not None
                if fault is not None and damaged <= _MOST_NAMED:
                    yield fault
    if damaged > _MOST_NAMED:
        yield f"{damaged - _MOST_NAMED} more images cannot be decoded."


def _fault(images: Encoded, i: int) -> str | None:
    try:
        decode(images.read(i), images.name(i))
    except (ValueError, OSError) as error:
        return str(error)
    return None
