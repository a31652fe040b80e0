"""All measures of one model on one data set, from features and logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from samphire.audits.association import Alignment, alignment, association
from samphire.audits.decodability import Decodability, corner, decodability
from samphire.audits.reliance import MARGIN, erasures, label_reliance, reliance
from samphire.audits.remedy import Remedy, remedy
from samphire.audits.results import Attribute, Audit, Label, largest_gap
from samphire.audits.seen import Crossing, Seen, check_parts, crossing, head_from, named
from samphire.audits.upweighting import Upweighting, upweighting
from samphire.probes.groups import Errors, errors, joint_groups
from samphire.probes.logistic import Linear
from samphire.progress import Progress, silent, stretch

__all__ = ["Controls", "audit_seen"]

Controls = Mapping[str, Mapping[str, Mapping[str, Any]]]


def audit_seen(
    seen: Mapping[str, Seen],
    label: str,
    attributes: Sequence[str],
    *,
    train: Any = None,
    head: Linear | None = None,
    controls: Controls | None = None,
    resamples: int = 5,
    progress: Progress = silent,
) -> Audit:
    """Audit a model from what it makes of the examples.

    Args:
        seen: By part: ``val`` and ``test``, and ``train`` if its features are at hand.
        label: The name of the label among the splits' features.
        attributes: The names of the attributes.
        train: The whole training split, where ``seen`` has some of its examples or none: for co-occurrence.
        head: The last layer; found by least squares unless given.
        controls: By attribute, network and part: features of the probed rows, see
            :func:`samphire.audits.decodability.probed_rows`.
        resamples: Of every probe.
        progress: Counts measures.
    """
    check_parts(seen, label, attributes)
    val, test = seen["val"], seen["test"]
    train = seen["train"].split if train is None and "train" in seen else train
    head = head_from(seen) if head is None else head
    steps = 1 + len(attributes)
    found: dict[str, dict[str, Decodability]] = {}
    for i, name in enumerate(attributes):
        part = stretch(progress, i / steps, (i + 1) / steps)
        others = (controls or {}).get(name, {})
        found[name] = decodability(val, test, label, name, others, resamples=resamples, progress=part)
    measured = [_attribute(seen, label, name, len(attributes), train, head, found[name]) for name in attributes]
    largest = largest_gap(measured)
    main = largest.name
    fixed, problem = _remedy(val, test, label, main, stretch(progress, 1 - 1 / steps, 1))
    notes = [] if head is not None else ["The logits are no linear function of the features, so nothing was erased."]
    weighed: tuple[Upweighting, ...] = ()
    if head is not None and "train" in seen:
        crossed = crossing(seen["train"].split, label, main)
        (codes,), names = joint_groups(crossed.split)
        one = upweighting(_rows(seen["train"], crossed), head, codes, names)
        weighed = (replace(one, shares={int(crossed.rows[i]): both for i, both in one.shares.items()}),)
    return Audit(
        attributes=tuple(measured),
        label=_label(test, label, main, largest.label),
        remedy=fixed,
        remedy_problem=problem,
        upweighting=weighed,
        n={part: len(s) for part, s in seen.items()} | ({} if train is None else {"train": len(train)}),
        notes=tuple(notes) + tuple(_entangled(test, attributes)),
    )


def _attribute(
    seen: Mapping[str, Seen],
    label: str,
    name: str,
    attributes: int,
    train: Any,
    head: Linear | None,
    found: Mapping[str, Decodability],
) -> Attribute:
    val, test = seen["val"], seen["test"]
    crossed = {part: crossing(s.split, label, name) for part, s in (("val", val), ("test", test))}
    trained = None if train is None else crossing(train, label, name)
    aligned = alignment(trained, crossed["val"], val.predicted[crossed["val"].rows])
    wrong = test.wrong[crossed["test"].rows]
    relied = reliance(crossed["test"], wrong, aligned, attributes)
    counted = crossed["val"] if trained is None else trained
    return Attribute(
        name,
        association(counted.count()),
        aligned,
        _errors(test.predicted[crossed["test"].rows], crossed["test"], counted),
        relied,
        () if head is None else tuple(erasures(val, test, head, label, name, aligned)),
        found[name],
        found[label],
        corner(found[name], relied.judgment),
        len(test) - len(crossed["test"].rows),
        *_names(crossed["test"], aligned),
    )


def _names(test: Crossing, aligned: Alignment) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]:
    """The names of classes, values and cells, the cells with their sign."""
    classes, values = (
        tuple(named(test.split, feature, i) for i in range(test.split.sizes[feature]))
        for feature in (test.label, test.attribute)
    )
    signs = {test.name(y, a): int(s) for (y, a), s in np.ndenumerate(aligned.sign)}
    return classes, values, signs


def _errors(predicted: Any, test: Crossing, train: Crossing) -> Errors:
    """Errors by cell; training examples of cells that the test part lacks have no weight."""
    (codes, train_codes), _ = joint_groups(test.split, train.split)
    return errors(predicted, test.split, train.split.subset(np.isin(train_codes, codes)))


def _label(test: Seen, label: str, beside: str, found: Decodability) -> Label:
    crossed = crossing(test.split, label, beside)
    value, interval = label_reliance(crossed, test.wrong[crossed.rows])
    judged = "relied on" if interval[0] > MARGIN else "not relied on" if interval[1] < MARGIN else "undecided"
    return Label(label, found, value, interval, corner(found, judged), beside)  # type: ignore[arg-type]


def _remedy(val: Seen, test: Seen, label: str, name: str, progress: Progress) -> tuple[Remedy | None, str]:
    try:
        return remedy(val, test, label, name, progress), ""
    except ValueError as problem:
        return None, str(problem)


def _rows(seen: Seen, crossed: Crossing) -> Seen:
    """The rows of a crossing, with its split; all rows need no copy of the features."""
    if len(crossed.rows) == len(seen):
        return replace(seen, split=crossed.split)
    return Seen(crossed.split, seen.features[crossed.rows], seen.logits[crossed.rows])


def _entangled(test: Seen, attributes: Sequence[str]) -> list[str]:
    """A sentence for each pair of attributes that go together: what is said of one may be due to the other."""
    sentences = []
    for i, a in enumerate(attributes):
        for b in attributes[i + 1 :]:
            known = np.flatnonzero((test.split.features[a] >= 0) & (test.split.features[b] >= 0))
            pair = crossing(test.split.subset(known), a, b) if len(known) else None
            v = association(pair.count()).v if pair is not None else 0.0
            if v > 0.3:
                sentences.append(
                    f"{a} and {b} go together in the test part (Cramer's V {v:.2f}): what is said of one may be due "
                    "to the other."
                )
    return sentences
