"""The tables of an audit's page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samphire.audits.association import contrast
from samphire.audits.decodability import Decodability
from samphire.audits.results import Attribute, Audit
from samphire.audits.words import between, between_percent, percent, points
from samphire.probes import Errors
from samphire.report.tables import Table
from samphire.statistics import Interval

__all__ = ["averages", "cells", "cooccurrence", "erased", "predicted", "probed", "rows", "spreads", "summary"]


def summary(audit: Audit) -> Table:
    """Where label and attributes lie on the map."""
    label = audit.label
    lines = [
        [
            label.name,
            "label",
            label.corner,
            *_probe(label.decodability),
            percent(label.reliance),
            between_percent(label.interval),
            sum(g.n for g in audit.main.errors.groups),
        ]
    ]
    lines += [
        [
            a.name,
            "attribute",
            a.corner,
            *_probe(a.decodability),
            percent(a.reliance.gap),
            between_percent(a.reliance.interval),
            sum(a.reliance.n),
        ]
        for a in audit.attributes
    ]
    return Table(["feature", "role", "corner", "probe error", "95 %", "reliance", "95 % ", "n test"], lines, _SUMMARY)


_SUMMARY = (
    "Probe error: equal-weight mean over cells of label and attribute, test part. Reliance of an attribute: "
    "conflicting minus aligned error, mean over classes; of the label: 1 minus its error over that of guessing."
)


def rows(audit: Audit) -> list[dict[str, Any]]:
    """The summary with numbers."""
    label = audit.label

    def row(name: str, role: str, corner: str, found: Decodability, value: float, interval: Any) -> dict[str, Any]:
        p = found.trained
        return {
            "feature": name,
            "role": role,
            "corner": corner,
            "equal-group probe error": None if p is None else p.mean,
            "probe low": None if p is None else p.interval[0],
            "probe high": None if p is None else p.interval[1],
            **{f"probe error, {control}": q.mean for control, q in found.controls.items()},
            "reliance": value,
            "reliance low": interval[0],
            "reliance high": interval[1],
        }

    return [
        row(label.name, "label", label.corner, label.decodability, label.reliance, label.interval),
        *(
            row(a.name, "attribute", a.corner, a.decodability, a.reliance.gap, a.reliance.interval)
            | {"judgment": a.reliance.judgment}
            | {f"test {name}": value for name, value in a.errors.row().items()}
            for a in audit.attributes
        ),
    ]


def probed(audit: Audit) -> Table:
    """Probe errors beside the controls."""
    lines: list[list[Any]] = []
    for name, found in [(audit.label.name, audit.label.decodability)] + [
        (a.name, a.decodability) for a in audit.attributes
    ]:
        if found.trained is None:
            lines.append([name, "this model", "–", found.problem, None])
            continue
        for network, p in [("this model", found.trained), *found.controls.items()]:
            lines.append([name, network, percent(p.mean), between_percent(p.interval), p.per_group])
    return Table(
        ["feature", "network", "probe error", "95 %", "n per cell"],
        lines,
        "Equal-weight mean over cells. Labels shuffled: what a probe reaches without any information.",
    )


def cells(a: Attribute) -> Table:
    """Every cell with its error."""
    agrees = {1: "aligned", -1: "conflicting", 0: "neither"}
    return Table(
        ["group", "", "n train", "n test", "error", "95 % (Wilson)"],
        [
            [g.name, agrees[a.signs.get(g.name, 0)], g.train_n, g.n, percent(g.error), between_percent(g.interval)]
            for g in a.errors.groups
        ],
        "Test errors by group.",
    )


def averages(a: Attribute) -> Table:
    """Four averages, each by its name."""
    e = a.errors
    n = sum(g.n for g in e.groups)
    trained = sum(g.train_n or 0 for g in e.groups)
    equal, weighted, plain = (
        between_percent(_interval_of_mean(e, weights))
        for weights in (
            [1 / len(e.groups)] * len(e.groups),
            [(g.train_n or 0) / trained for g in e.groups],
            [g.n / n for g in e.groups],
        )
    )
    lines = [
        ["worst-group", percent(e.worst.error), between_percent(e.worst.interval), e.worst.n, e.worst.name],
        ["equal-group", percent(e.equal_group), equal, n, "every group counts the same"],
        ["train-weighted", percent(e.train_weighted), weighted, n, "groups count as often as in training"],
        ["plain", percent(e.plain), plain, n, "every test example counts the same"],
    ]
    return Table(["average", "error", "95 %", "n test", "what it is"], lines, "Four averages of the same errors.")


def _interval_of_mean(e: Errors, weights: Sequence[float]) -> Interval:
    return contrast([round(g.error * g.n) for g in e.groups], [g.n for g in e.groups], weights)[1]


def cooccurrence(a: Attribute) -> Table:
    """Counts of label and attribute."""
    lines = [[name, *map(int, row)] for name, row in zip(a.classes, a.association.counts, strict=True)]
    v, (low, high) = a.association.v, a.association.interval
    return Table(
        ["", *a.values], lines, f"Training examples together. Cramer's V {v:.2f} (95 %: {low:.2f} to {high:.2f})."
    )


def erased(a: Attribute) -> Table:
    """Predictions before and after erasure."""
    return Table(
        ["erased", "predictions changed", "gap", "95 %", "equal-group error", "worst-group error"],
        [
            [e.what, percent(e.flipped), points(e.gap), between(e.interval), percent(e.error), percent(e.worst)]
            for e in a.erased
        ],
        f"Means over groups, {sum(g.n for g in a.errors.groups)} test examples; random direction: mean of ten draws, "
        "with the smallest and the largest gap.",
    )


def predicted(audit: Audit) -> Table:
    """The remedy's cells."""
    assert audit.remedy is not None
    return Table(
        ["group", "n test", "error now", "expected", "95 %", "measured"],
        [
            [
                c.before.name,
                c.before.n,
                percent(c.before.error),
                percent(c.expected),
                between_percent(c.interval),
                percent(c.after),
            ]
            for c in audit.remedy.cells
        ],
        f"Expected: cross-fitted on the validation part, {audit.remedy.per_cell} examples of each group; the "
        "interval is for the error on the test part, measured in the last column.",
    )


def spreads(audit: Audit, i: int) -> Table:
    """Importance weights over radii."""
    weighed = audit.upweighting[i]
    groups = list(weighed.frequency)
    lines = [
        ["real" if s.rho == 0 else f"ρ = {s.rho:g}", f"{s.gini:.3f}", percent(s.effective), f"{s.mean:.3f}"]
        + [percent(s.share[g]) for g in groups]
        for s in weighed.spreads
    ]
    lines.append(["share of examples", "", "", "", *(percent(weighed.frequency[g]) for g in groups)])
    return Table(
        ["parameters", "Gini", "effective sample", "mean weight", *groups],
        lines,
        f"Importance weights of {weighed.n} training examples, means over batches; {weighed.rule}. "
        "The last columns are each group's share of all weight.",
    )


def _probe(found: Decodability) -> tuple[str, str]:
    p = found.trained
    return ("–", "–") if p is None else (percent(p.mean), between_percent(p.interval))
