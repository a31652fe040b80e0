"""What tables 1 and 2 share: tune each algorithm on a data set, then repeat its best setting with more seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from samphire import data, records, report, sweep
from samphire.data.layouts import find
from samphire.experiments.experiment import Experiment, Places
from samphire.experiments.rows import Row
from samphire.progress import Progress, stretch
from samphire.statistics import estimate
from samphire.train import Config, fit

__all__ = [
    "ALGORITHMS", "NOTES", "Blocks", "Tuning", "by_difficulty", "criteria_table", "missing",
    "once", "paper_grid", "runs_of", "spread", "table", "title_of",
]  # fmt: skip

ALGORITHMS = {"sgd": "SGD", "sam": "SAM", "lsam": "one-pass LSAM"}
KEPT = ("val_error", "val_loss", "val_worst", "test_error", "test_worst", "probe", "probe_val", "stopped")
CHOSEN = {"val_error": "", "probe": ", chosen by held-out probe error", "worst_group": ", chosen by worst group"}
NOTES = (
    "Each algorithm is tuned with the first seed, over learning rates, and over radii if it has one: so SAM and LSAM "
    "have more trials than SGD. The setting with the lowest validation error (groups weighted as in training) or, "
    "where the table says so, with the lowest probe error on held-out examples of the probing part, is repeated with "
    "the other seeds; ties go to the lowest validation loss. The choices of other criteria are in the last table.",
    "Algorithms with equal seeds share initial weights, order of the batches and crops, so differences are paired.",
    "LSAM is trained in one pass. The paper has no such column.",
)


@dataclass(frozen=True)
class Tuning:
    """One block of a table.

    Args:
        data: The data set.
        lr: Learning rates.
        rho: Radii; 0 is SGD.
        seeds: The first tunes, all count.
        target: Domain to transfer to, for sets with domains.
        by: What settings are chosen by, a key of :data:`samphire.sweep.CRITERIA`.
        ends: Whether SGD and the largest radius are repeated with all seeds at every learning rate.
        settings: What differs from the paper's appendix B: fields of :class:`samphire.train.Config`.
    """

    data: str
    lr: tuple[float, ...]
    rho: tuple[float, ...]
    seeds: int = 4
    target: str | None = None
    by: str = "val_error"
    ends: bool = False
    settings: tuple[tuple[str, Any], ...] = ()

    def grid(self) -> list[Config]:
        """The trials of the first seed."""
        targets = None if self.target is None else (self.target,)
        lists: dict[str, Any] = {"lr": self.lr, "rho": self.rho, "targets": targets}
        return sweep.grid(self.data, ("sam", "lsam"), **lists, **dict(self.settings))

    def repeats(self, best: Iterable[Config]) -> list[Config]:
        """The trials of the other seeds, one seed after the other."""
        ends = [config for config in self.grid() if self.ends and config.radius in (0.0, max(self.rho))]
        again = dict.fromkeys((*best, *ends))
        return [replace(config, seed=seed) for seed in range(1, self.seeds) for config in again]

    def expected_repeats(self) -> list[Config]:
        """Stand-ins for the repeats, equal in number, before the best setting of each rule is known."""
        return self.repeats({config.rule: config for config in self.grid()}.values())

    @property
    def steps(self) -> int:
        """How long the block takes, in epochs of SGD; SAM's take two."""
        grid = self.grid()
        return grid[0].epochs * sum(2 if c.rule == "sam" else 1 for c in (*grid, *self.expected_repeats()))


@dataclass(frozen=True)
class Blocks:
    """The blocks of a table."""

    blocks: tuple[Tuning, ...]


def paper_grid(name: str, **settings: Any) -> Tuning:
    """The paper's learning rates and radii for a data set."""
    return Tuning(name, tuple(sweep.GRIDS[name]["lr"]), tuple(sweep.GRIDS[name]["rho"]), **settings)


def _compute(runs: Sequence[Tuning], places: Places, progress: Progress) -> Iterator[tuple[Tuning, Row]]:
    """Every block that has its data; trainings are kept, so an interrupted block continues."""
    runs = [run for run in runs if _has_data(run.data, places.data)]
    done, total = 0, sum(run.steps for run in runs)
    work = partial(fit, root=places.data, out=places.trainings)
    for run in runs:
        after = done + run.steps
        yield run, _row(run, work, places.trainings, stretch(progress, done / total, after / total, total))
        progress(run.data, after, total)
        done = after


def _has_data(name: str, root: Path) -> bool:
    try:
        for source in data.catalog.PAIRED.get(name) or (data.SETS[name],):
            find(source, root)
    except OSError:
        return False
    return True


def _row(run: Tuning, work: Callable[[Any], object], out: Path, progress: Progress) -> Row:
    """Tune, choose, repeat."""
    grid = run.grid()
    share = len(grid) / (len(grid) + len(run.expected_repeats()))
    trials = _trained(run, grid, work, out, stretch(progress, 0.0, share))
    choices = {choice.side: choice for choice in sweep.select(trials, run.by)}
    settings: dict[Any, Config] = {(config.rule, config.lr, config.radius): config for config in reversed(grid)}
    best = {side: settings[side, choice.lr, choice.rho] for side, choice in choices.items() if choice.lr is not None}
    again = run.repeats(best.values())
    more = _trained(run, again, work, out, stretch(progress, share, 1.0))
    stored = {folder.key: folder for folder in records.read(out)}
    kept = {trial.config: _kept(trial, stored[trial.folder.name]) for trial in (*trials, *more)}
    sides = {
        side: {
            "lr": choice.lr,
            "rho": choice.rho,
            "settings": choice.settings,
            "runs": [row for config, row in kept.items() if replace(config, seed=0) == best.get(side)],
        }
        for side, choice in choices.items()
    }
    return {
        "data": run.data,
        "target": run.target,
        "by": run.by,
        "epochs": grid[0].epochs,
        "model": grid[0].model,
        "sides": sides,
        "grid": [kept[config] for config in grid],
        "repeats": [kept[config] for config in again],
        "criteria": [{k: str(v) if k != "lr" else v for k, v in row.items()} for row in sweep.table(trials, run.by)],
    }


def _trained(
    run: Tuning, jobs: Sequence[Config], work: Callable[[Any], object], out: Path, progress: Progress
) -> list[sweep.Trial]:
    result = sweep.run(jobs, work, out, on="processes", progress=progress)
    if result.failed:
        raise RuntimeError(
            f"{len(result.failed)} trainings on {run.data} failed, their tracebacks are in {out / 'failed'}; "
            f"the first: {result.failed[0].error}"
        )
    return result.trials


def _kept(trial: sweep.Trial, stored: records.Stored) -> Row:
    """What a table needs of a run, and where it comes from."""
    config, row = trial.config, trial.row or {}
    about = {"rule": config.rule, "lr": config.lr, "rho": config.radius, "seed": config.seed, "state": trial.state}
    origin = {"seconds": stored.seconds, "commits": sorted({str(session["commit"]) for session in stored.sessions})}
    return about | origin | {name: row[name] for name in KEPT if name in row}


table = partial(Experiment, runs=attrgetter("blocks"), compute=_compute)
"""A record of blocks, one run for each."""

# What the tables read from rows


def runs_of(row: Row, side: str, columns: Mapping[str, Callable[[Row], float]]) -> list[Row]:
    """The runs of one algorithm, one row for each seed; a training that stopped early counts as collapsed.

    Args:
        row: Of a block.
        side: A key of :data:`ALGORITHMS`.
        columns: What is read of a run, by name.
    """
    return [
        {"seed": run["seed"], "collapsed": run["state"] != "done"}
        | {name: read(run) if run["state"] == "done" else math.nan for name, read in columns.items()}
        for run in row["sides"].get(side, {"runs": []})["runs"]
    ]


def spread(values: Iterable[float], places: int = 2) -> str:
    """Mean and standard deviation (n - 1) of what is not nan, with its number.

    Example:
        >>> spread([10, 20, math.nan]), spread([10]), spread([])
        ('15.00 ± 7.07 (n=2 of 3)', '10.00 (n=1)', '– (n=0)')
    """
    values = list(values)
    known = estimate(value for value in values if math.isfinite(value))
    lost = f" of {len(values)}" if known.n < len(values) else ""
    return f"{known.spread(f'.{places}f')} (n={known.n}{lost})"


def by_difficulty(row: Row) -> tuple[str, str]:
    """Easy and hard feature: by SGD's mean probe error, which is the paper's definition."""
    probes = [run["probe"] for run in row["sides"]["sgd"]["runs"] if "probe" in run]
    if not probes:
        raise ValueError(f"no training by SGD on {row['data']} has finished, so no feature is easy or hard.")
    easy, *_, hard = sorted(probes[0], key=lambda name: sum(probe[name] for probe in probes))
    return easy, hard


def criteria_table(rows: Sequence[Row]) -> report.Table:
    """What each criterion would have chosen, with the numbers of the first seed."""
    lines = [
        {"data": place_of(row), **{k: v for k, v in line.items() if v != "–"}}
        for row in once(rows)
        for line in row["criteria"]
    ]
    caption = "What each criterion would choose, with the errors of the first seed (shares of one)."
    return report.table(lines, caption=caption)


def missing(rows: Sequence[Row], paper: Iterable[str], column: str) -> list[dict[str, str]]:
    """Lines for the data sets of the paper that no row has."""
    absent = sorted(set(paper) - {row["data"] for row in rows})
    return [{column: name, "algorithm": "not run: not at this scale, or no data"} for name in absent]


def place_of(row: Row) -> str:
    """The data set of a block and, if it has one, the target."""
    return row["data"] if row["target"] is None else f"{row['data']}, {row['target']}"


def title_of(row: Row) -> str:
    """The data set and, if it is not the validation error, what settings were chosen by."""
    return place_of(row) + CHOSEN[row["by"]]


def once(rows: Sequence[Row]) -> list[Row]:
    """One block of each grid, whatever settings were chosen by."""
    return list({place_of(row): row for row in reversed(rows)}.values())[::-1]
