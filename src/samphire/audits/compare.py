"""Rules, or checkpoints, side by side: each network audited, differences in pairs of equal seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samphire.audits.page import render, write_page
from samphire.audits.results import Audit
from samphire.audits.words import between, points
from samphire.records import Row
from samphire.report.tables import Table
from samphire.statistics import Difference, Verdict, estimate, lower, paired

__all__ = ["MEASURES", "Contest", "contest", "measures"]

MEASURES = {
    "worst-group error": "the error of the worst group",
    "equal-group error": "the mean of the groups' errors",
    "gap": "conflicting minus aligned error",
    "label probe error": "how badly the real feature can be read",
    "attribute probe error": "how badly the attribute can be read",
}
_WORDS: dict[Verdict, str] = {"holds": "lower", "contradicted": "higher", "open": "not decided"}


@dataclass(frozen=True)
class Contest:
    """What several networks were found to be.

    Args:
        attribute: The attribute that groups are made of.
        rows: One for each network: its ``name`` (the rule or the file), its ``seed``, and :data:`MEASURES`.
        verdicts: By network's name: the verdict of its first audit.
        pages: By name and seed: the page of that audit, relative to this one's.
        notes: One sentence each.
    """

    attribute: str
    rows: tuple[Row, ...]
    verdicts: Mapping[str, str]
    pages: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of the rules or files, in order; the first is what the others are compared with."""
        return list(dict.fromkeys(row["name"] for row in self.rows))

    def of(self, name: str) -> list[Row]:
        """The rows of one rule or file."""
        return [row for row in self.rows if row["name"] == name]

    def difference(self, name: str, measure: str) -> Difference:
        """How much a measure differs from the first rule's, in pairs of equal seeds."""
        return paired(self.of(self.names[0]), self.of(name), measure)

    def table(self) -> Table:
        """Means over seeds with their standard errors."""
        lines = [[n, *(estimate(row[m] for row in self.of(n)) for m in MEASURES)] for n in self.names]
        return Table(["network", *MEASURES], lines, "Test part; mean ± standard error over seeds.")

    def pairs(self) -> Table:
        """Differences from the first rule, and whether they are beyond the noise."""
        lines = []
        for name in self.names[1:]:
            for measure in MEASURES:
                d = self.difference(name, measure)
                lines.append(
                    [name, measure, points(d.estimate.mean), between(d.interval), d.estimate.n, _WORDS[lower(d)]]
                )
        return Table(
            ["network", "measure", "difference", "95 %", "pairs", "verdict"],
            lines,
            f"Against {self.names[0]}, in points, pairs of equal seeds; Student's 95 % interval.",
        )

    @property
    def verdict(self) -> str:
        """Which rule has a lower worst-group error than the first, in words."""
        first, sentences = self.names[0], []
        for name in self.names[1:]:
            d = self.difference(name, "worst-group error")
            how = {"holds": "has a lower", "contradicted": "has a higher", "open": "has no decidedly other"}[lower(d)]
            sentences.append(
                f"{name} {how} worst-group error than {first}: {points(d.estimate.mean)} ({between(d.interval)}; "
                f"{d.estimate.n} pair{'s' * (d.estimate.n != 1)})."
            )
        return " ".join(sentences) or f"There is only {first}; nothing to compare it with."

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write one page; returns its path."""
        return write_page(path, render("compare.html", contest=self))


def measures(audit: Audit, attribute: str) -> Row:
    """What one audit says of an attribute: the worst group, the gap, and what can be read off the network."""
    found = next(a for a in audit.attributes if a.name == attribute)
    probes = {"label probe error": found.label.trained, "attribute probe error": found.decodability.trained}
    return {
        "worst-group error": found.errors.worst.error,
        "equal-group error": found.errors.equal_group,
        "gap": found.reliance.gap,
        **{measure: float("nan") if p is None else p.mean for measure, p in probes.items()},
    }


def contest(
    networks: Mapping[tuple[str, int], Callable[[], Any]],
    examine: Callable[[Any], Audit],
    out: str | os.PathLike[str] | None = None,
) -> Contest:
    """Audit networks one after the other, each let go before the next is loaded.

    All are compared in the groups of one attribute: the one that the first network leans on most.

    Args:
        networks: By name and seed: a function that trains or loads the network.
        examine: Audits one.
        out: A folder for the page of every audit.
    """
    if not networks:
        raise ValueError("there is nothing to compare; give two rules, or two checkpoints, or more.")
    rows: list[Row] = []
    verdicts: dict[str, str] = {}
    pages: dict[str, str] = {}
    attribute, notes = "", dict[str, None]()
    for (name, seed), load in networks.items():
        audit = examine(load())
        attribute = attribute or audit.main.name
        rows.append({"name": name, "seed": seed, **measures(audit, attribute)})
        verdicts.setdefault(name, audit.verdict)
        if audit.inferred:
            notes["The groups were inferred from each network by itself, so they are not the same examples."] = None
        if out is not None:
            file = _file_name(name, seed, pages.values())
            audit.page(Path(out) / file)
            pages[f"{name}, seed {seed}"] = file
    if len(rows) == len(verdicts):
        notes["One network of each kind: a difference may be one of seeds alone, so nothing is decided."] = None
    return Contest(attribute, tuple(rows), verdicts, pages, tuple(notes))


def _file_name(name: str, seed: int, taken: Collection[str]) -> str:
    """A file for an audit: the last part of the name, with a number where two networks share it."""
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(name).stem) or "network"
    numbered = (f"{stem}{number}-{seed}.html" for number in ("", *range(2, len(taken) + 3)))
    return next(file for file in numbered if file not in taken)
