"""The front door: a model and data in, an audit out."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import samphire.data
from samphire import records
from samphire.audits.decodability import INPUT, RANDOM_WEIGHTS, probed_rows
from samphire.audits.inference import CLUSTER, HOW, inferred, inferred_sheets
from samphire.audits.measuring import Controls, audit_seen
from samphire.audits.pictures import sheets
from samphire.audits.reading import Reader, control_features, fingerprint, plain_inputs, untrained
from samphire.audits.results import Audit
from samphire.audits.seen import Seen, crossing, two_columns
from samphire.audits.upweighting import MOST, Upweighting, upweighting_everywhere
from samphire.checks import check_one_of
from samphire.data.catalog import PAIRED
from samphire.data.opening import Opened
from samphire.data.parts import at_size
from samphire.data.split import Split
from samphire.probes.groups import joint_groups
from samphire.probes.logistic import Linear
from samphire.progress import Progress, silent, stretch

__all__ = ["audit", "is_built_in"]

PathLike = str | os.PathLike[str]


def audit(
    model: nn.Module | None,
    data: Any,
    *,
    label: str | None = None,
    features: Iterable[str] | str | None = None,
    pretrained: nn.Module | None = None,
    layer: str | None = None,
    size: int = 224,
    names: Mapping[str, str] | None = None,
    images: bool = True,
    folder: PathLike | None = None,
    cache: PathLike | None = None,
    progress: Progress = silent,
) -> Audit:
    """What a model leans on, what it costs, whether the real feature is there, and what to do.

    Every example is read once. Features go to files, so memory does not grow with their number; with ``folder`` they
    stay there, and an audit that was stopped goes on. The model is left exactly as it was.

    Args:
        model: Any classifier; ``None`` where the data have features and logits (an ``.npz`` file, arrays).
        data: Whatever :func:`samphire.data.open` takes, or what it returned.
        label: The label's name or column.
        features: The attributes to audit; ``None`` for all there are, ``"none"`` to infer groups.
        pretrained: The network that training began with, as one more control.
        layer: Where features are read; by default the input of the last Linear.
        size: Side to which image files are resized.
        names: Of inferred groups, such as ``{"cluster1": "beach"}``.
        images: Whether the page may show examples.
        folder: Where features are kept.
        cache: Folder of decoded images; the user's cache by default.
        progress: Counts everything, in thousandths.

    Example:
        >>> from samphire.audits.example import example
        >>> arrays = {part: {"x": seen.features, "logits": seen.logits, **seen.split.features}
        ...     for part, seen in example(test=400).items()}
        >>> report = audit(None, arrays, label="bird", features=["place"])
        >>> print(report.verdict)
        The model leans on place. ...
        >>> [a.corner for a in report.attributes]
        ['used']
    """
    began = time.monotonic()
    opened = data if isinstance(data, Opened) else _open(data, label, features)
    parts, label, attributes = _parts(opened, label, features)
    with _kept(folder) as place:
        whole, key = parts.get("train"), (opened.fingerprint, size, layer)
        if model is None:
            seen, head = _given(opened, parts), None
        else:
            parts = _decoded(parts, size, cache, stretch(progress, 0, 0.1))
            reader = Reader(model, place / fingerprint(model, *key), layer)
            seen, head = _read(reader, parts, stretch(progress, 0.1, 0.6))
        if not attributes:
            seen, attributes, whole = inferred(seen, names or {}), [CLUSTER], None
        controls: Controls = {}
        if model is not None:
            networks = {RANDOM_WEIGHTS: untrained(model, parts["val"].images)}
            networks |= {} if pretrained is None else {"pretrained": pretrained}
            controls = _controls(networks, place, key, seen, label, attributes, stretch(progress, 0.6, 0.7))
        result = audit_seen(
            seen, label, attributes, train=whole, head=head, controls=controls, progress=stretch(progress, 0.7, 0.95)
        )
        if model is not None and result.upweighting:
            progress("one SAM step", 950, 1000)
            result = replace(
                result, upweighting=(*result.upweighting, _everywhere(model, seen["train"].split, result))
            )
        progress("pictures", 990, 1000)
        by_cluster = attributes == [CLUSTER]
        shown = sheets(result, seen["test"], seen.get("train")) if images else ()
        groups = inferred_sheets(seen) if images and by_cluster else ()
    return replace(
        result,
        sheets=shown,
        groups=groups,
        inferred=HOW if by_cluster else "",
        notes=(*result.notes, *opened.notes),
        origin=_origin(model, opened, time.monotonic() - began),
    )


def is_built_in(data: Any) -> bool:
    """Whether data are named that come with the package."""
    return isinstance(data, str) and (data in samphire.data.SETS or data in PAIRED)


def _open(data: Any, label: str | None, features: Any) -> Opened:
    """Data by any door; a built-in set has columns of its own, and the wanted ones are chosen afterwards."""
    if is_built_in(data):
        return samphire.data.open(data)
    return samphire.data.open(data, label=label, features=features)


def _parts(opened: Opened, label: str | None, features: Any) -> tuple[dict[str, Split], str, list[str]]:
    """The parts to train on, to fit on and to test on; the label's name; the attributes' names."""
    given = opened.parts
    found = {
        "train": given.get("train"),
        "val": given.get("probe_val", given.get("val")),
        "test": given.get("probe_test", given.get("test")),
    }
    for part in ("val", "test"):
        if found[part] is None:
            raise ValueError(
                f"an audit needs a part {part!r} that the model was not trained on, got {', '.join(given)}; name the "
                "column that says it with --split, or leave it out and a split is drawn."
            )
    parts = {part: split for part, split in found.items() if split is not None}
    test = parts["test"]
    if label is None:
        label = next((n for n, codes in test.features.items() if np.array_equal(codes, test.label)), None)
        if label is None:
            raise ValueError(f"name the label: label=... (--label), one of {', '.join(test.features)}.")
    check_one_of("column of the data", label, test.features)
    wanted = [n for n in test.features if n != label] if features is None else features
    wanted = [part.strip() for part in wanted.split(",")] if isinstance(wanted, str) else list(wanted)
    wanted = [] if wanted == ["none"] else wanted
    for name in wanted:
        check_one_of("column of the data", name, test.features)
        if name == label:
            raise ValueError(f"attribute {name!r} is the label itself; leave it out.")
    kept = (label, *wanted)
    return {part: _relabeled(split, label, kept) for part, split in parts.items()}, label, wanted


def _relabeled(split: Split, label: str, kept: Iterable[str]) -> Split:
    features = {name: split.features[name] for name in kept}
    codes = features[label]
    if (codes < 0).any():
        raise ValueError(
            f"the label {label!r} must be known for every example, but row {int(np.argmin(codes))} lacks it."
        )
    classes = split.values.get(label, split.classes if np.array_equal(codes, split.label) else ())
    return replace(split, label=codes, features=features, classes=tuple(classes))


def _given(opened: Opened, parts: Mapping[str, Split]) -> dict[str, Seen]:
    """Parts that come with features and logits."""
    seen = {}
    for part, split in parts.items():
        source = {"val": "probe_val", "test": "probe_test"}.get(part, part)
        logits = opened.logits.get(source, opened.logits.get(part))
        if logits is None or np.ndim(split.images) != 2:
            raise ValueError(
                "without a model the data must have features (n, d) and logits (n, classes); give the model, or an "
                ".npz file with both."
            )
        seen[part] = Seen(split, split.images, two_columns(logits))
    return seen


def _decoded(parts: Mapping[str, Split], size: int, cache: PathLike | None, progress: Progress) -> dict[str, Split]:
    """The examples to read, decoded: all of val and test, and as many of train as are weighed."""
    todo = dict(parts)
    if "train" in todo:
        order = np.random.default_rng(records.seed(0, "weighed")).permutation(len(todo["train"]))
        todo["train"] = todo["train"].subset(np.sort(order[:MOST]))
    shares = _shares(todo)
    return {part: at_size(split, size, cache, stretch(progress, *shares[part])) for part, split in todo.items()}


def _read(reader: Reader, parts: Mapping[str, Split], progress: Progress) -> tuple[dict[str, Seen], Linear | None]:
    head, shares = reader.head(parts["val"].images), _shares(parts)
    return {
        part: reader.read(part, split, head, stretch(progress, *shares[part])) for part, split in parts.items()
    }, head


def _shares(parts: Mapping[str, Split]) -> dict[str, tuple[float, float]]:
    """Where each part begins and ends, in shares of all examples."""
    ends = np.cumsum([0, *map(len, parts.values())])
    return {part: (ends[i] / ends[-1], ends[i + 1] / ends[-1]) for i, part in enumerate(parts)}


def _everywhere(model: nn.Module, train: Split, result: Audit) -> Upweighting:
    crossed = crossing(train, result.label.name, result.main.name)
    (codes,), names = joint_groups(crossed.split)
    known = (
        replace(crossed.split, images=train.images) if len(crossed.rows) == len(train) else train.subset(crossed.rows)
    )
    return upweighting_everywhere(model, known, codes, names)


def _controls(
    networks: Mapping[str, nn.Module],
    place: Path,
    key: tuple[Any, ...],
    seen: Mapping[str, Seen],
    label: str,
    attributes: Sequence[str],
    progress: Progress,
) -> Controls:
    """By attribute, network and part: features of the rows that are probed."""
    rows = {
        name: {part: probed_rows(seen[part], label, name).rows for part in ("val", "test")} for name in attributes
    }
    splits = {part: seen[part].split for part in ("val", "test")}
    result: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in rows}
    for name, by_part in rows.items():
        plain = {part: plain_inputs(splits[part].images, chosen) for part, chosen in by_part.items()}
        if all(features is not None for features in plain.values()):
            result[name][INPUT] = plain
    for i, (network, control) in enumerate(networks.items()):
        reader = Reader(control, place / fingerprint(control, *key, label, *attributes), key[-1])
        share = stretch(progress, i / len(networks), (i + 1) / len(networks))
        for name, features in control_features(reader, splits, rows, share).items():
            result[name][network] = features
    return result


@contextmanager
def _kept(folder: PathLike | None) -> Any:
    if folder is not None:
        yield Path(folder) / "features"
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _origin(model: nn.Module | None, opened: Opened, seconds: float) -> dict[str, Any]:
    note = getattr(model, "note", type(model).__name__) if model is not None else "features and logits as given"
    facts = {"data": opened.name, "model": note, "seconds": round(seconds, 1)}
    return facts | {
        k: v for k, v in records.provenance().items() if k in ("samphire", "torch", "python", "commit", "time")
    }
