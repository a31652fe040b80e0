"""What the figures of the toy share: grids, so that a run is trained once for all of them; rows; paired gains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from samphire import mechanisms, report
from samphire.experiments import Row, by, collapsed, mean
from samphire.report import Estimate
from samphire.train import Result, ToyConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RHOS = {
    "paper": (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    "quick": (0.0, 0.5, 1.0, 1.5, 2.0),
    "tiny": (0.0, 2.0),
}
SEEDS = {"paper": 10, "quick": 5, "tiny": 2}
EPOCHS = {"paper": 100, "quick": 100, "tiny": 3}

SPIRAL = "The arms of the spiral are point reflections of each other: as printed (equations 43-44) they cross."
RHO_AXIS = "ρ (0 is SGD)"
HARD_AXIS = "hard probe error"
CAPTION = "Mean over seeds ± standard error, 2000 test points. Collapsed runs are counted, not averaged."
JUDGED = "Judged by the paired difference over seeds: it must exceed two of its standard errors."


def sweep(rhos: Iterable[float], seeds: int, epochs: int, **settings: Any) -> list[ToyConfig]:
    """LSAM over rho and seeds; rho=0 is SGD.

    Args:
        rhos: Radii.
        seeds: How many, from 0.
        epochs: Of training.
        **settings: Of every run.
    """
    return [ToyConfig(rho=rho, seed=seed, epochs=epochs, **settings) for rho in rhos for seed in range(seeds)]


def summary_row(result: Result) -> Row:
    """Settings, final errors, and the ratio of the heads over training.

    Ratios are medians, since v~_easy may cross zero; for the phantom head there is the mean over steps too.
    """
    assert result.v is not None
    assert result.phantom is not None
    phantom, real = mechanisms.summarize_ratio(result.phantom), mechanisms.summarize_ratio(result.v)
    return {
        **asdict(result.config),
        **result.final,
        "collapsed": result.collapsed,
        "phantom_ratio": float(phantom.median),
        "phantom_mean": float(mechanisms.ratio(result.phantom).mean()),
        "phantom_share": float(phantom.share),
        "phantom_crossed": float(phantom.crossed),
        "real_ratio": float(real.median),
        "real_share": float(real.share),
    }


@dataclass(frozen=True)
class Gain:
    """By how much a column falls from some runs to others, over seeds.

    Attributes:
        estimate: Of the paired difference; n counts seeds.
        seeds: How many there were before collapsed runs were left out.
    """

    estimate: Estimate
    seeds: int

    @property
    def clear(self) -> bool | None:
        """Whether it exceeds two standard errors; no if most seeds collapsed, not judged with fewer than two."""
        if 2 * self.estimate.n < self.seeds:
            return False
        return None if self.estimate.n < 2 else self.estimate.mean > 2 * self.estimate.error

    def __str__(self) -> str:
        left = self.seeds - self.estimate.n
        return f"{self.estimate}" + (f", {left} of {self.seeds} seeds left out: collapsed" if left else "")


def paired_gain(before: Iterable[Row], after: Iterable[Row], *settings: str, column: str = "probe_hard") -> Gain:
    """How much a column falls, paired by seed: seeds share data, initial weights and order of the batches.

    Args:
        before: Runs.
        after: Runs with the same seeds.
        *settings: Further columns to pair by; what one seed has in several settings counts as one, its mean.
        column: What is compared.

    Example:
        >>> a = [{"seed": s, "e": 0.3 + 0.1 * s, "collapsed": False} for s in (0, 1)]
        >>> b = [{"seed": s, "e": 0.1, "collapsed": False} for s in (0, 1)]
        >>> print(paired_gain(a, b, column="e"))
        0.250 ± 0.050 (n=2)
    """
    there = by(after, "seed", *settings)
    fell: dict[int, list[float]] = {}
    for row in before:
        pairs = fell.setdefault(row["seed"], [])
        for other in there.get(tuple(row[name] for name in ("seed", *settings)) if settings else row["seed"], []):
            if not (row["collapsed"] or other["collapsed"]):
                pairs.append(row[column] - other[column])
    return Gain(report.estimate(math.fsum(d) / len(d) for d in fell.values() if d), len(fell))


def usable(rows: Sequence[Row], column: str = "probe_hard") -> Estimate:
    """The mean over the runs that trained, or nan if most of them collapsed."""
    estimate = mean(rows, column)
    return estimate if 2 * estimate.n >= len(rows) else Estimate(math.nan, math.nan, estimate.n)


def best_rho(rows: Iterable[Row]) -> float:
    """The radius with the lowest mean hard error among those at which most runs trained; 0 if there is none."""
    errors = {rho: usable(cell).mean for rho, cell in by(rows, "rho").items()}
    return min((rho for rho, error in errors.items() if not math.isnan(error)), key=lambda r: errors[r], default=0.0)


def draw(axes: Axes, rows: Iterable[Row], label: str, column: str = "probe_hard", **kwargs: Any) -> None:
    """A curve against rho; it has a gap where most runs collapsed."""
    cells = by(rows, "rho")
    report.curve(axes, list(cells), [usable(cell, column) for cell in cells.values()], label, **kwargs)


def from_zero(panels: Any) -> None:
    """Let the vertical axis, which the panels share, start at 0; after drawing, since this ends its scaling."""
    next(iter(getattr(panels, "flat", [panels]))).set_ylim(bottom=0)


def error_table(rows: Iterable[Row], columns: dict[str, str], caption: str = CAPTION) -> report.Table:
    """Errors of every setting.

    Args:
        rows: Of the runs.
        columns: What tells the settings apart, by column, with the heads of the table.
        caption: One or two sentences.
    """
    lines = [
        [*key, mean(cell, "probe_hard"), mean(cell, "probe_easy"), mean(cell, "test_error"), collapsed(cell)]
        for key, cell in by(rows, *columns).items()
    ]
    heads = [*columns.values(), "hard probe error", "easy probe error", "test error", "collapsed"]
    return report.Table(heads, lines, caption)
