"""Thumbnails: what the worst group and SAM's favorites look like."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from samphire.audits.results import Attribute, Audit, Picture, Sheet
from samphire.audits.seen import Seen, crossing, named
from samphire.audits.upweighting import BATCH
from samphire.audits.words import percent
from samphire.data.split import Split

__all__ = ["are_pictures", "contact_sheet", "sheets", "thumbnail"]

SHOWN = 12
SIDE = 112  # pixels


def are_pictures(images: Any) -> bool:
    """Whether a split's images can be shown: bytes (n, 1 or 3, height, width)."""
    shape: tuple[int, ...] = getattr(images, "shape", ())
    return len(shape) == 4 and shape[1] in (1, 3) and getattr(images, "dtype", None) == np.uint8


def thumbnail(image: Any) -> bytes:
    """An image (channels, height, width) as a small JPEG, without anything that a file may have said beside it."""
    from PIL import Image

    pixels = np.asarray(image).transpose(1, 2, 0)
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels)).convert(
        "RGB"
    )
    scale = SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    file = io.BytesIO()
    resample = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
    picture.resize(size, resample).save(file, "JPEG", quality=80)
    return file.getvalue()


def sheets(audit: Audit, test: Seen, train: Seen | None) -> tuple[Sheet, ...]:
    """The most confident errors of the worst group, and the training examples that SAM would up-weight most."""
    results = []
    if are_pictures(test.split.images):
        results.append(_confident_errors(audit, test))
    if train is not None and are_pictures(train.split.images) and audit.upweighting:
        results.append(_upweighted(audit, train))
    return tuple(results)


def contact_sheet(
    title: str, caption: str, split: Split, rows: Iterable[int], lines: Mapping[int, Sequence[str]]
) -> Sheet:
    """Some rows of a split as pictures."""
    pictures = [Picture(thumbnail(split.images[i]), (*_facts(split, i), *lines.get(int(i), ()))) for i in rows]
    return Sheet(title, caption, tuple(pictures))


def _confident_errors(audit: Audit, test: Seen) -> Sheet:
    attribute: Attribute = audit.main
    worst = attribute.errors.worst
    crossed = crossing(test.split, audit.label.name, attribute.name)
    here = np.array([crossed.name(int(y), int(a)) == worst.name for y, a in zip(crossed.y, crossed.a, strict=True)])
    rows = crossed.rows[here & test.wrong[crossed.rows]]
    sure = softmax(test.logits[rows].astype(np.float64), 1).max(1)
    order = np.argsort(-sure, kind="stable")[:SHOWN]
    classes = test.split.classes
    said = {
        int(rows[i]): (f"predicted {_class(classes, int(test.predicted[rows[i]]))}, {percent(float(sure[i]))} sure",)
        for i in order
    }
    caption = (
        f"{len(rows)} of {worst.n} test examples of the worst group are wrong; these are the surest."
        if len(rows)
        else ("No test example of the worst group is wrong.")
    )
    return contact_sheet(f"Most confident errors: {worst.name}", caption, test.split, said, said)


def _upweighted(audit: Audit, train: Seen) -> Sheet:
    weighed = audit.upweighting[0]
    shares = weighed.shares
    best = sorted(shares, key=lambda i: shares[i][0] - shares[i][1])[:SHOWN]
    said = {i: (f"weight {percent(shares[i][0])} → {percent(shares[i][1])}",) for i in best}
    caption = (
        f"Of {weighed.n} training examples those whose share of the weight of their batch ({BATCH} examples) grows "
        f"most in one step at ρ = {weighed.proposed[0]:g}, the last layer perturbed."
    )
    return contact_sheet("What one SAM step would up-weight most", caption, train.split, best, said)


def _facts(split: Split, i: int) -> tuple[str, ...]:
    return tuple(named(split, name, int(codes[i])) for name, codes in split.features.items() if codes[i] >= 0)


def _class(classes: Sequence[str], k: int) -> str:
    return classes[k] if k < len(classes) else str(k)
