"""No attributes: groups inferred from the model's own features, to be looked at and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from samphire.audits.pictures import SHOWN, are_pictures, contact_sheet
from samphire.audits.results import Sheet
from samphire.audits.seen import Seen
from samphire.baselines.infer_groups import Clusters, Codes, infer_groups
from samphire.data.split import Split
from samphire.probes.logistic import Array, Scaler
from samphire.probes.softmax import softmax_regression

__all__ = ["CLUSTER", "HOW", "inferred", "inferred_sheets"]

CLUSTER = "cluster"
MOST = 4096  # examples that clusters are fitted to
HOW = (
    "Nobody has named attributes. Clusters of the last layer's input within each class stand for one (Sohoni et al. "
    "2020), numbered alike across classes; the examples that a biased linear model gets wrong (Liu et al. 2021) are "
    "shown beside them. The clusters come from the model under audit, so errors gather in them partly by "
    "construction: look at the contact sheets, name what they show, and confirm it with real annotations."
)


def inferred(seen: Mapping[str, Seen], names: Mapping[str, str]) -> dict[str, Seen]:
    """Every part with an attribute ``cluster``, fitted on the largest of them that is not the test part.

    Args:
        seen: The parts.
        names: By cluster (``"cluster3"``): what the user calls it.
    """
    fitted = max((s for part, s in seen.items() if part != "test"), key=len)
    rows = _evenly(np.arange(len(fitted)), MOST)
    clusters = Clusters.of(fitted.features[rows], fitted.split.label[rows])
    known = [f"{CLUSTER}{i}" for i in range(clusters.k)]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no group {name!r} to be named; the inferred groups are {', '.join(known)}.")
    values = tuple(names.get(name, name) for name in known)
    return {part: replace(s, split=_with(s.split, _assigned(clusters, s), values)) for part, s in seen.items()}


def _assigned(clusters: Clusters, seen: Seen, chunk: int = 4096) -> Codes:
    """The cluster of every example, from features read piece by piece."""
    pieces = [slice(i, i + chunk) for i in range(0, len(seen), chunk)]
    return np.concatenate([clusters(seen.features[piece], seen.split.label[piece]) for piece in pieces])


def _with(split: Split, codes: Codes, values: tuple[str, ...]) -> Split:
    return replace(split, features={**split.features, CLUSTER: codes}, values={**split.values, CLUSTER: values})


def inferred_sheets(seen: Mapping[str, Seen]) -> tuple[Sheet, ...]:
    """A contact sheet for each class and cluster, and one for each class of what a biased model gets wrong."""
    val = seen["val"]
    if not are_pictures(val.split.images):
        return ()
    sheets = []
    split = val.split
    for y in np.unique(split.label):
        for k, value in enumerate(split.values[CLUSTER]):
            rows = np.flatnonzero((split.label == y) & (split.features[CLUSTER] == k))
            title = f"{_class(split, int(y))}, {value}"
            caption = f"{len(rows)} validation examples; name this group with --name {CLUSTER}{k}=..."
            sheets.append(contact_sheet(title, caption, split, _evenly(rows), {}))
    some = _evenly(np.arange(len(val)), MOST)
    biased = infer_groups(split.label[some], logits=_biased(val, some), way="errors")
    for y in np.unique(split.label):
        rows = some[biased == 2 * y + 1]
        caption = (
            f"{len(rows)} of {len(some)} validation examples: a strongly penalized linear model gets them wrong."
        )
        sheets.append(
            contact_sheet(f"{_class(split, int(y))}, hard for a biased model", caption, split, _evenly(rows), {})
        )
    return tuple(sheets)


def _biased(val: Seen, rows: Codes) -> Array:
    """Logits of a linear model with a strong penalty: it can use little but what is most common."""
    x = np.asarray(val.features[rows], np.float64)
    x = Scaler.of(x)(x)
    fit = softmax_regression(x, val.split.label[rows], val.split.n_classes, [100.0])[0]
    return x @ fit.weight.T + fit.bias


def _evenly(rows: Codes, most: int = SHOWN) -> Codes:
    """Some of the rows, evenly over all."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)]


def _class(split: Split, y: int) -> str:
    return split.classes[y] if y < len(split.classes) else str(y)
