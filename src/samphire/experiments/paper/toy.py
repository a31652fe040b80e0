"""What the figures of the toy share: scales, so that a run is trained once for all of them; rows, curves, tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from samphire import mechanisms, report
from samphire.experiments.experiment import Experiment, train_each
from samphire.experiments.rows import Row, by, mean_table, usable
from samphire.train import Result, ToyConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "CAPTION", "ERRORS", "HARD_AXIS", "RHOS", "RHO_AXIS", "SPIRAL", "Config",
    "algorithm", "best_rho", "draw", "error_table", "figure", "from_zero", "head", "scales", "summary_row",
]  # fmt: skip

RHOS = {"paper": (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), "quick": (0.0, 0.5, 1.0, 1.5, 2.0), "tiny": (0.0, 2.0)}
SPIRAL = "The arms of the spiral are point reflections of each other: as printed (equations 43-44) they cross."
RHO_AXIS = "ρ (0 is SGD)"
HARD_AXIS = "hard probe error"
ERRORS = {"probe_hard": "hard probe error", "probe_easy": "easy probe error", "test_error": "test error"}
CAPTION = "Mean over seeds ± standard error, 2000 test points. Collapsed runs are counted, not averaged."


@dataclass(frozen=True, kw_only=True)
class Config:
    """How many runs, and how long."""

    seeds: int = 10
    epochs: int = 100

    def sweep(self, rhos: Iterable[float], **settings: Any) -> list[ToyConfig]:
        """LSAM over rho and seeds, with some settings; rho=0 is SGD."""
        settings |= {"epochs": self.epochs}
        return [ToyConfig(rho=rho, seed=seed, **settings) for rho in rhos for seed in range(self.seeds)]


def scales(
    config: type[Config] = Config, quick: Mapping[str, Any] | None = None, tiny: Mapping[str, Any] | None = None
) -> dict[str, Config]:
    """A configuration at every scale.

    Args:
        config: Its defaults are the paper's scale.
        quick: What differs at the quick scale, besides the seeds.
        tiny: What differs at the tiny scale, besides seeds and epochs.
    """
    return {
        "paper": config(),
        "quick": config(seeds=5, **(quick or {})),
        "tiny": config(seeds=2, epochs=3, **(tiny or {})),
    }


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


figure = partial(Experiment, compute=train_each(summary_row))
"""A record of runs that need no more than this row."""


def algorithm(row: Row) -> str:
    """The name in tables and pictures."""
    return "LSAM" if row["rho"] else "SGD"


def head(train_head: bool) -> str:
    """What the head does, for titles."""
    return "trained head" if train_head else "frozen head"


def best_rho(rows: Iterable[Row]) -> float:
    """The radius with the lowest mean hard error among those at which most runs trained; 0 if there is none."""
    errors = {rho: usable(cell, "probe_hard").mean for rho, cell in by(rows, "rho").items()}
    return min((rho for rho, error in errors.items() if not math.isnan(error)), key=lambda r: errors[r], default=0.0)


def draw(
    axes: Axes, rows: Iterable[Row], label: str, column: str = "probe_hard", x: str = "rho", **kwargs: Any
) -> None:
    """A curve against rho or another setting; it has a gap where most runs collapsed."""
    cells = by(rows, x)
    report.curve(axes, list(cells), [usable(cell, column) for cell in cells.values()], label, **kwargs)


def from_zero(panels: Any) -> None:
    """Let the vertical axis, which the panels share, start at 0; after drawing, since this ends its scaling."""
    next(iter(getattr(panels, "flat", [panels]))).set_ylim(bottom=0)


def error_table(rows: Iterable[Row], columns: dict[str, str]) -> report.Table:
    """Errors of every setting; the columns tell the settings apart, with the heads of the table."""
    return mean_table(by(rows, *columns), columns.values(), ERRORS, CAPTION)
