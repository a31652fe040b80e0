"""What a probe says: its errors over resamples, by group, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.probes.groups import Codes, GroupError, worst_of
from samphire.probes.resampling import bootstrap, members_of
from samphire.probes.tuning import Tuned

__all__ = ["Probe", "probe_of"]


@dataclass(frozen=True)
class Probe:
    """The probe error of one feature.

    Args:
        feature: Its name.
        errors: The error of each resample's probe: the equal-weight mean over groups of their test errors.
        tuned: The penalty, and the errors it was chosen by.
        scaling: How features were scaled before they were penalized.
        per_group: Examples of each group it was trained on.
        groups: Test error of each group, averaged over resamples.
        interval: 95 % of bootstrap means, over resamples and over test examples within groups, lie in it.
        average: Which average the errors are; ``"plain"`` for a domain's.

    Example:
        >>> tuned = Tuned(0.1, {0.01: 0.2, 0.1: 0.15, 1.0: 0.3})
        >>> probe = Probe("place", (0.1, 0.2), tuned, "global", 50, (GroupError("place=0", 20, 0.15),), (0.05, 0.3))
        >>> round(probe.mean, 3), round(probe.std, 3)
        (0.15, 0.071)
    """

    feature: str
    errors: tuple[float, ...]
    tuned: Tuned
    scaling: str
    per_group: int
    groups: tuple[GroupError, ...]
    interval: tuple[float, float]
    average: str = "equal-group"

    @property
    def mean(self) -> float:
        """Of the errors of the resamples."""
        return float(np.mean(self.errors))

    @property
    def std(self) -> float:
        """Of the errors of the resamples (n - 1 below); nan for a single one."""
        return float(np.std(self.errors, ddof=1)) if len(self.errors) > 1 else float("nan")

    def row(self) -> dict[str, Any]:
        """The probe as cells of a table."""
        worst = worst_of(self.groups)
        return {
            "feature": self.feature,
            f"{self.average} probe error": self.mean,
            "std over resamples": self.std if len(self.errors) > 1 else None,
            "low": self.interval[0],
            "high": self.interval[1],
            "worst-group probe error": worst.error,
            "worst group": worst.name,
            "worst group's n": worst.n,
            "n per group": self.per_group,
            "scaling": self.scaling,
            "l2": self.tuned.l2,
            "l2 tried": self.tuned.tried,
            "resamples": len(self.errors),
        }


def probe_of(
    feature: str,
    wrong: NDArray[np.bool_],
    tuned: Tuned,
    scaling: str,
    per_group: int,
    group: Codes,
    names: Sequence[str],
    average: str = "equal-group",
) -> Probe:
    """The errors of the resamples' probes, from which test examples (columns) each resample (rows) got wrong."""
    by_group = np.stack([wrong[:, members].mean(1) for members in members_of(group)], 1)
    codes, n = np.unique(group, return_counts=True)
    return Probe(
        feature,
        errors=tuple(by_group.mean(1).tolist()),
        tuned=tuned,
        scaling=scaling,
        per_group=per_group,
        groups=tuple(
            GroupError(names[g], int(k), float(e)) for g, k, e in zip(codes, n, by_group.mean(0), strict=True)
        ),
        interval=bootstrap(wrong, group),
        average=average,
    )
