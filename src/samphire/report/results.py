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

VERDICTS = ("holds", "contradicted", "open", "failed")

__all__ = ["VERDICTS", "Claim", "Result", "Story", "count_verdicts", "summary"]


@dataclass(frozen=True)
class Claim:
    """Something the paper says a figure shows, and whether ours shows it.

    Args:
        text: The claim, one sentence.
        verdict: Whether it holds, is contradicted or stays open; see :mod:`samphire.statistics`.
        ours: What we measured, short.
        paper: What the paper has, short.
        detail: How it was judged, or why it does not hold.
        main: Whether its number is the one to show of a figure, where there is room for one.
    """

    text: str
    verdict: Verdict
    ours: str = ""
    paper: str = ""
    detail: str = ""
    main: bool = False

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
        settings: What was run, by name.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
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

    @property
    def main(self) -> Claim | None:
        """The claim whose number to show where there is room for one: the one marked so, else the first."""
        return next((claim for claim in self.claims if claim.main), next(iter(self.claims), None))

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each verdict, those without any left out; what could not be computed counts once.

        Example:
            >>> Result("fig2", "Error", claims=[Claim("a", "open"), Claim("b", "holds"), Claim("c", "open")]).counts
            {'holds': 1, 'open': 2}
        """
        return count_verdicts([self])


@dataclass(frozen=True)
class Story:
    """What a page tells before its figures.

    Args:
        question: What was asked.
        answer: One sentence.
        pictures: The figures that show it: the name of a result, which of its pictures, and what to look at.
        links: Files beside the page to go on with, and what they are.
        setting: What was done to find out, for readers who know nothing of it.

    Example:
        >>> Story("Does it help?", "Yes.", [("fig2", 0, "It falls.")]).pictures
        (('fig2', 0, 'It falls.'),)
    """

    question: str
    answer: str
    pictures: Sequence[tuple[str, int, str]] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    setting: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pictures", tuple(self.pictures))


def count_verdicts(results: Iterable[Result]) -> dict[str, int]:
    """How many claims of the results have each verdict; verdicts without any are left out."""
    verdicts = [row["verdict"] for row in summary(results)]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}


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
