"""What the paper asks, and what our runs of figures 1 and 2 answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from samphire.experiments.paper.fig1 import RHO
from samphire.experiments.rows import Row, by, mean
from samphire.report import Story
from samphire.statistics import Estimate, lower, paired

__all__ = ["tell"]

QUESTION = "Does sharpness-aware training learn better features, or only better predictions?"
SETTING = (
    "How it was found out: every example has two features, and either alone tells its label: an easy one, a line, "
    "and a hard one, a spiral. Small networks are trained by SGD and by LSAM, which takes each gradient after moving "
    "the last layer a length ρ uphill. Probes then read each feature off the network by itself."
)
PICTURES = (
    ("fig1", 1, "Each column is one network; black is its decision boundary. Both predict the label, but only LSAM "
     "follows the spiral, the hard one of the two features."),
    ("fig2", 0, "The error of the hard feature against LSAM's radius ρ; ρ = 0 is SGD. Each curve is a spiral of "
     "another complexity, with its standard error over seeds."),
)  # fmt: skip


def tell(rows: Mapping[str, list[Row]], judged: bool, links: Mapping[str, str]) -> Story | None:
    """Question, the answer in one sentence, the two pictures that show it, and what was done; None without figure 1.

    Args:
        rows: Of each figure, by its name.
        judged: Whether the runs are long enough for an answer.
        links: Files beside the page to go on with, and what they are.
    """
    if "fig1" not in rows:
        return None
    sgd, lsam = (by(rows["fig1"], "rho")[rho] for rho in (0.0, RHO))
    answer = _answer(sgd, lsam) if judged else "The tiny scale is too short for an answer."
    return Story(QUESTION, answer, PICTURES, links, SETTING)


def _answer(sgd: list[Row], lsam: list[Row]) -> str:
    start = {
        "holds": "Better features: the hard feature's error falls",
        "contradicted": "Not here: the hard feature's error rises",
        "open": "These runs cannot tell: the hard feature's error goes",
    }[lower(paired(sgd, lsam, "probe_hard"))]
    hard, test = ([mean(group, column) for group in (sgd, lsam)] for column in ("probe_hard", "test_error"))
    return (
        f"{start} from {_percent(hard[0])} with SGD to {_percent(hard[1])} with LSAM, while the test error is "
        f"{_percent(test[0])} and {_percent(test[1])} (n={hard[0].n} seeds, ± one standard error)."
    )


def _percent(share: Estimate) -> str:
    """Without its n, which the sentence has once.

    Example:
        >>> _percent(Estimate(0.237, 0.034, 5)), _percent(Estimate(0.0, 0.0, 5))
        ('23.7 ± 3.4 %', '0 %')
    """
    return str(replace(share, mean=100 * share.mean, error=100 * share.error)).rpartition(" (")[0] + " %"
