"""The verdict in words, with the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from samphire.audits.reliance import MARGIN, RANDOM, Reliance
from samphire.audits.results import Attribute, Audit
from samphire.statistics import Interval

NEAR_ZERO = 0.02  # an error so small that training need not lower it

__all__ = ["Verdict", "between", "cost", "listed", "percent", "points", "verdict_of"]


@dataclass(frozen=True)
class Verdict:
    """What an audit says.

    Args:
        level: ``"alarm"``, ``"clear"`` or ``"open"``.
        headline: The verdict in a sentence.
        sentences: What it costs, whether the real feature is there, what to do.
    """

    level: Literal["alarm", "clear", "open"]
    headline: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.headline, *self.sentences))


def verdict_of(audit: Audit) -> Verdict:
    """The verdict: by the judgment of each attribute's reliance, see :mod:`samphire.audits.reliance`."""
    by = {kind: [a for a in audit.attributes if a.reliance.judgment == kind] for kind in _KINDS}
    leaning = sorted(by["relied on"], key=lambda a: -a.reliance.gap)
    marked = " (groups inferred, not given)" if audit.inferred else ""
    if leaning:
        headline = f"The model leans on {listed([a.name for a in leaning])}{marked}."
        level: Literal["alarm", "clear", "open"] = "alarm"
    elif by["undecided"] or by["cannot be judged"]:
        level, headline = "open", f"{_undecided(by['undecided'], by['cannot be judged'])}{marked}."
    else:
        names = listed([a.name for a in audit.attributes])
        level, headline = (
            "clear",
            f"No shortcut found: predictions of {audit.label.name} do not lean on {names}{marked}.",
        )
    sentences = [cost(audit, a) for a in leaning or audit.attributes if not math.isnan(a.reliance.gap)]
    sentences += [_erasure(a) for a in leaning if a.erased]
    if leaning:
        sentences += [f"{_judged(a)}." for a in by["cannot be judged"] + by["undecided"]]
    return Verdict(level, headline, (*sentences, _real_feature(audit), _what_to_do(audit, level)))


_KINDS = ("relied on", "not relied on", "undecided", "cannot be judged")


def _undecided(undecided: Sequence[Attribute], unjudged: Sequence[Attribute]) -> str:
    return "; ".join(map(_judged, (*unjudged, *undecided)))


def _judged(a: Attribute) -> str:
    if a.reliance.judgment == "cannot be judged":
        name, n = a.reliance.smallest
        return f"Whether the model leans on {a.name} cannot be judged: {n} test example{'s' * (n != 1)} of {name}"
    return (
        f"Whether the model leans on {a.name} is not decided: {points(a.reliance.gap)} "
        f"({between(a.reliance.interval)}) may lie on either side of {MARGIN * 100:g} points"
    )


def cost(audit: Audit, a: Attribute) -> str:
    """What leaning on an attribute costs: the errors where it misleads and where it helps, in a sentence."""
    r = a.reliance
    agree, conflict = r.n
    where = _disagree(r, audit.label.name, a.name)
    return (
        f"Where {where[0]} it errs on {percent(r.conflicting)}, where {where[1]} on {percent(r.aligned)}: "
        f"a gap of {points(r.gap)} (95 %: {between(r.interval)}; n = {conflict} and {agree}, mean over classes)."
    )


def _disagree(r: Reliance, label: str, attribute: str) -> tuple[str, str]:
    if r.source == "training":
        return f"{attribute} and {label} disagree", "they agree"
    return f"{attribute} pulls the model away from the right {label}", "it pulls towards it"


def _erasure(a: Attribute) -> str:
    _, removed, random, _ = a.erased
    return (
        f"Erasing {a.name} from the last layer's input takes the gap to {points(removed.gap)} "
        f"(95 %: {between(removed.interval)}), erasing a random direction to {points(random.gap)} "
        f"({between(random.interval)} in {RANDOM} draws)."
    )


def _real_feature(audit: Audit) -> str:
    label, found = audit.label, audit.label.decodability
    if found.trained is None:
        return f"Whether {label.name} itself can be read off the network could not be probed: {found.problem}"
    p = found.trained
    sure = f"95 %: {between_percent(p.interval)}; n = {sum(g.n for g in p.groups)}"
    error = f"a linear probe on balanced examples errs on {percent(p.mean)} ({sure})"
    if label.corner == "never learned":
        return f"The real feature is not there: {error}, no better than guessing."
    name, untrained = found.untrained or ("", None)
    if label.corner == "lost":
        than = f", of {name} on {percent(untrained.mean)}" if untrained else ""
        return f"The real feature is lost: {error}{than}."
    if untrained is not None and p.interval[1] >= untrained.interval[0] and p.mean > NEAR_ZERO:
        return (
            f"The real feature is there to be used: {error}. But a probe of {name} is not decidedly "
            f"worse ({percent(untrained.mean)}): training may have added nothing to it; try another rule "
            "(samphire compare)."
        )
    return f"The real feature is there to be used: {error}."


def _what_to_do(audit: Audit, level: str) -> str:
    if level == "clear":
        return "Nothing needs to be done about these attributes."
    if level == "open":
        return "What to do: add test examples of the small groups and audit again."
    if audit.label.corner in ("lost", "never learned"):
        return (
            "Retraining the last layer cannot bring it back; train the network anew under another rule and compare: "
            "samphire compare."
        )
    if audit.remedy is None:
        return f"What to do: {audit.remedy_problem}"
    before, after = audit.remedy.worst_before, audit.remedy.worst_expected
    if after.expected >= before.error - 0.01:
        return (
            f"Retraining the last layer is not expected to help the worst group ({percent(before.error)} now, "
            f"{percent(after.expected)} expected)."
        )
    return (
        f"What to do: retrain the last layer on examples balanced over {audit.label.name} and "
        f"{audit.remedy.attribute} (--fix). The worst group's error, now {percent(before.error)} "
        f"({before.name}, n = {before.n}), is expected to be {percent(after.expected)} "
        f"(95 %: {between_percent(after.interval)})."
    )


def percent(share: float) -> str:
    """A share as text.

    Example:
        >>> percent(0.1234), percent(1.0)
        ('12.3 %', '100.0 %')
    """
    return "–" if math.isnan(share) else f"{_signed(share)} %"


def points(difference: float) -> str:
    """A difference of shares as text.

    Example:
        >>> points(-0.05)
        '−5.0 points'
    """
    return "–" if math.isnan(difference) else f"{_signed(difference)} points"


def between(interval: Interval) -> str:
    """An interval of differences, in points.

    Example:
        >>> between((-0.01, 0.2))
        '−1.0 to 20.0'
    """
    return "–" if math.isnan(interval[0]) else " to ".join(map(_signed, interval))


def between_percent(interval: Interval) -> str:
    """An interval of shares.

    Example:
        >>> between_percent((0.01, 0.2))
        '1.0 to 20.0 %'
    """
    return f"{between(interval)} %"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _signed(share: float) -> str:
    return f"{100 * share:.1f}".replace("-", "−").replace("−0.0", "0.0")
