"""Claims, and the results that support or contradict them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from samphire.report.pictures import png
from samphire.report.tables import Table
from samphire.statistics import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Claim", "Result", "summary"]


@dataclass(frozen=True)
class Claim:
    """Something the paper says a figure shows, and whether ours shows it.

    Args:
        text: The claim, one sentence.
        verdict: Whether it holds, is contradicted or stays open; see :mod:`samphire.statistics`.
        ours: What we measured, short.
        paper: What the paper has, short.
        detail: How it was judged, or why it does not hold.
    """

    text: str
    verdict: Verdict
    ours: str = ""
    paper: str = ""
    detail: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            raise ValueError(f"a verdict must be one of {', '.join(get_args(Verdict))}, got {self.verdict!r}.")


@dataclass(frozen=True)
class Result:
    """One figure or table of the paper, reproduced.

    Args:
        name: Short and unique on a page, for instance ``"fig2"``; names its files.
        title: One line.
        paper_says: What the paper reports, one or two sentences.
        figures: matplotlib figures, or PNG images as bytes.
        tables: Ours beside theirs.
        claims: What must hold.
        notes: Where we differ from the paper, one sentence each.
        provenance: From :func:`samphire.records.provenance`, or a part of it.
        seconds: What it took to compute.
        error: Why it could not be computed, if it could not.
        source: Whose claims these are; on a page of several sources each has a heading.
    """

    name: str
    title: str
    paper_says: str = ""
    figures: Sequence[Figure | bytes] = ()
    tables: Sequence[Table] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = math.nan
    error: str = ""
    source: str = "the paper"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", self.name):
            raise ValueError(f"a result's name may have letters, digits, '_' and '-', got {self.name!r}.")
        for name in ("tables", "claims", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "figures", tuple(png(figure) for figure in self.figures))


def summary(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One row per claim: figure, claim, ours, the paper's, verdict, seconds; a result without claims has one row.

    Args:
        results: In the order of the rows.

    Example:
        >>> summary([Result("fig2", "Error against rho", claims=[Claim("It falls.", "holds", ours=".28 to .01")])])
        [{'figure': 'fig2', 'claim': 'It falls.', 'ours': '.28 to .01', 'paper': '', 'verdict': 'holds',
          'seconds': nan}]
    """
    return [
        {
            "figure": result.name,
            "claim": claim.text,
            "ours": claim.ours,
            "paper": claim.paper,
            "verdict": "failed" if result.error else claim.verdict,
            "seconds": result.seconds,
        }
        for result in results
        for claim in result.claims or (Claim(result.title, "open"),)
    ]
