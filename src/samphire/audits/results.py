"""What an audit found: everything its page and its verdict are made of."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samphire.audits.association import Alignment, Association
from samphire.audits.decodability import Corner, Decodability
from samphire.audits.reliance import Erased, Reliance
from samphire.audits.remedy import Remedy
from samphire.audits.upweighting import Upweighting
from samphire.probes import Errors
from samphire.report.tables import Table
from samphire.statistics import Interval

if TYPE_CHECKING:
    from samphire.audits.words import Verdict

__all__ = ["Attribute", "Audit", "Label", "Picture", "Sheet", "largest_gap"]


@dataclass(frozen=True)
class Attribute:
    """One attribute.

    Args:
        name: Its name.
        association: With the label in the training part, or in the validation part where there is none.
        alignment: Which cells agree with the label.
        errors: Of every cell on the test part, and their four averages.
        reliance: By conflicts with the label.
        erased: Before and after erasing it, random directions and the label; empty without a linear head.
        decodability: In the network and its controls.
        label: The label's decodability, balanced over label and this attribute.
        corner: Where it lies on the map.
        missing: Test examples for which it is not known.
        classes: The names of the label's values.
        values: The names of its own.
        signs: By name of a cell: aligned (1), conflicting (-1) or neither (0).
    """

    name: str
    association: Association
    alignment: Alignment
    errors: Errors
    reliance: Reliance
    erased: tuple[Erased, ...]
    decodability: Decodability
    label: Decodability
    corner: Corner
    missing: int
    classes: tuple[str, ...]
    values: tuple[str, ...]
    signs: Mapping[str, int]


def largest_gap(attributes: Sequence[Attribute]) -> Attribute:
    """The attribute that predictions follow most; those that cannot be judged come last."""
    return max(attributes, key=lambda a: -math.inf if math.isnan(a.reliance.gap) else a.reliance.gap)


@dataclass(frozen=True)
class Label:
    """The label, as one more feature.

    Args:
        name: Its name.
        decodability: Balanced over label and the attribute with the largest gap.
        reliance: How much predictions follow it, from 0 to 1.
        interval: Of that, 95 %.
        corner: Where it lies on the map.
        beside: That attribute.
    """

    name: str
    decodability: Decodability
    reliance: float
    interval: Interval
    corner: Corner
    beside: str


@dataclass(frozen=True)
class Picture:
    """A thumbnail with what is known about it.

    Args:
        jpeg: The image.
        lines: Label, attributes, prediction.
    """

    jpeg: bytes
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Sheet:
    """Some pictures under a title.

    Args:
        title: What they share.
        caption: How they were chosen.
        pictures: The thumbnails.
    """

    title: str
    caption: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Args:
        label: The label.
        attributes: All that were audited, as given.
        remedy: What retraining the last layer would do; ``None`` with the reason in ``remedy_problem``.
        remedy_problem: The reason.
        upweighting: What SAM would do to batches, where there are training features and a linear head; the last
            layer alone first, then all layers where there is a model.
        sheets: Pictures.
        groups: Contact sheets of inferred groups.
        inferred: How the groups were inferred, where the attributes are not the user's.
        n: Examples of each part.
        notes: Guesses and limits, one sentence each.
        origin: Model, data, time, versions.
    """

    label: Label
    attributes: tuple[Attribute, ...]
    remedy: Remedy | None
    remedy_problem: str
    upweighting: tuple[Upweighting, ...]
    sheets: tuple[Sheet, ...] = ()
    groups: tuple[Sheet, ...] = ()
    inferred: str = ""
    n: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> Attribute:
        """The attribute with the largest gap."""
        return largest_gap(self.attributes)

    @property
    def judged(self) -> Verdict:
        """The verdict in parts: level, headline, sentences."""
        from samphire.audits.words import verdict_of

        return verdict_of(self)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return str(self.judged)

    def table(self) -> Table:
        """One row for the label and each attribute: where it lies on the map, and the numbers behind that."""
        from samphire.audits.tables import summary

        return summary(self)

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows with numbers for other programs."""
        from samphire.audits.tables import rows

        return rows(self)

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write everything as one page that opens anywhere, offline; returns its path."""
        from samphire.audits.page import html, write_page

        return write_page(path, html(self))

    def __str__(self) -> str:
        return self.verdict
