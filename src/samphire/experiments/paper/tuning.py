"""What tables 1 and 2 share: tune each algorithm on a data set, then judge its best setting on other seeds.

Networks are trained once, without probes, and probed afterwards. Trainings and probings are rows of their own, so
either can be repeated, and an interrupted table continues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from samphire import data, pool, records, report, sweep
from samphire.data.layouts import find
from samphire.experiments.experiment import Experiment, Places
from samphire.experiments.rows import Row
from samphire.probes.compare import PROBING_SETS
from samphire.probes.logistic import SCALINGS
from samphire.progress import Progress, stretch
from samphire.report import duration
from samphire.statistics import estimate
from samphire.train import Config, ProbeSettings, Probing, fit, probe_stored
from samphire.train.cost import expected_seconds

__all__ = [
    "ALGORITHMS", "CRITERIA", "FRESH", "LITE", "NOTES", "SMALLEST", "Blocks", "Tuning", "by_difficulty", "chosen_by",
    "criteria_tables", "missing", "paper_grid", "place_of", "probing_of", "runs_of", "settings_of", "spread",
    "stored_jobs", "table", "title_of", "trained_and_probed",
]  # fmt: skip

ALGORITHMS = {"sgd": "SGD", "sam": "SAM", "lsam": "one-pass LSAM"}
CRITERIA = ("probe", "val_loss")
KEPT = (
    "val_error", "val_loss", "val_worst", "test_error", "test_worst", "probe", "probe_val", "probe_l2",
    "probe_l2_tried", "stopped",
)  # fmt: skip
FRESH = (10, 11, 12, 13)
PROBING = ProbeSettings()
SMALLEST: dict[str, Any] = {"model": "samphire.experiments.paper.image_weights:smallest", "weights": None}
LITE: dict[str, Any] = {"model": "efficientnet_lite0", "size": 96, "batch": 32}
NOTES = (
    "Each algorithm is tuned with seed 0, over learning rates, and over radii if it has one: so SAM and LSAM have "
    "more trials than SGD. A setting is chosen by the probe error of the hardest feature on a tenth of the probing "
    "set that the probes do not see or, beside it, by the validation loss, and judged on seeds that had no part in "
    "the choice.",
    "Algorithms with equal seeds share initial weights, order of the batches and crops, so differences are paired.",
    "LSAM is trained in one pass. The paper has no such column.",
)


@dataclass(frozen=True)
class Tuning:
    """One block of a table.

    Args:
        data: The data set.
        lr: Learning rates to choose from; none where nothing is chosen.
        rho: Radii to choose from; 0 is SGD.
        seeds: What the settings are judged on; the grid has seed 0.
        target: Domain to transfer to, for sets with domains.
        fixed: A learning rate and a radius that are judged too, whatever is chosen.
        settings: What differs from the paper's appendix B: fields of :class:`samphire.train.Config`.
        probing: How networks are probed.
    """

    data: str
    lr: tuple[float, ...] = ()
    rho: tuple[float, ...] = ()
    seeds: tuple[int, ...] = FRESH
    target: str | None = None
    fixed: tuple[float, float] | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    probing: ProbeSettings = records.added(PROBING)

    def __post_init__(self) -> None:
        if 0 in self.seeds:
            raise ValueError(f"seeds must be others than the grid's, which is 0, got {self.seeds}; leave it out.")
        if not self.lr and self.fixed is None:
            raise ValueError(f"a block of {self.data} must have learning rates or a fixed setting, got neither.")

    def grid(self) -> list[Config]:
        """The trials that settings are chosen by."""
        return self._configs(self.lr, self.rho) if self.lr else []

    def repeats(self, best: Iterable[Config]) -> list[Config]:
        """The trials of the other seeds, one seed after the other."""
        again = dict.fromkeys((*best, *self._fixed()))
        return [replace(config, seed=seed) for seed in self.seeds for config in again]

    def expected_repeats(self) -> list[Config]:
        """Stand-ins for the most repeats there can be, before the choices are known."""
        each = {config.rule: config for config in self.grid()}.values()
        return [replace(c, seed=seed) for seed in self.seeds for c in (*each, *each, *self._fixed())]

    def _fixed(self) -> list[Config]:
        return [] if self.fixed is None else self._configs(self.fixed[:1], (0.0, self.fixed[1]))

    def _configs(self, lr: tuple[float, ...], rho: tuple[float, ...]) -> list[Config]:
        targets = None if self.target is None else (self.target,)
        lists: dict[str, Any] = {"lr": lr, "rho": rho, "targets": targets}
        return sweep.grid(self.data, ("sam", "lsam"), **lists, **dict(self.settings) | {"resamples": 0})

    @property
    def steps(self) -> int:
        """How long the block takes, in epochs of SGD; SAM's take two."""
        return sum((2 if c.rule == "sam" else 1) * c.epochs for c in (*self.grid(), *self.expected_repeats()))


@dataclass(frozen=True)
class Blocks:
    """The blocks of a table."""

    blocks: tuple[Tuning, ...]


def paper_grid(name: str, **settings: Any) -> Tuning:
    """The paper's learning rates and radii for a data set."""
    return Tuning(name, tuple(sweep.GRIDS[name]["lr"]), tuple(sweep.GRIDS[name]["rho"]), **settings)


def _compute(runs: Sequence[Tuning], places: Places, progress: Progress) -> Iterator[tuple[Tuning, Row]]:
    """Every block that has its data."""
    runs = [run for run in runs if _has_data(run.data, places.data)]
    done, total = 0, sum(run.steps for run in runs)
    for run in runs:
        after = done + run.steps
        yield run, _row(run, places, stretch(progress, done / total, after / total, total))
        progress(run.data, after, total)
        done = after


def _has_data(name: str, root: Path) -> bool:
    try:
        for source in data.catalog.PAIRED.get(name) or (data.SETS[name],):
            find(source, root)
    except OSError:
        return False
    return True


def _row(run: Tuning, places: Places, progress: Progress) -> Row:
    """Tune, choose, judge on other seeds; without a grid, judge."""
    grid = run.grid()
    share = len(grid) / (len(grid) + len(run.expected_repeats()))
    trials = trained_and_probed(grid, places, stretch(progress, 0.0, share), run.probing) if grid else []
    choices = {by: sweep.select(trials, by) for by in CRITERIA} if grid else {}
    settings: dict[Any, Config] = {(config.rule, config.lr, config.radius): config for config in reversed(grid)}
    best = [settings[c.side, c.lr, c.rho] for chosen in choices.values() for c in chosen if c.lr is not None]
    again = run.repeats(best)
    more = trained_and_probed(again, places, stretch(progress, share, 1.0), run.probing)
    stored = {folder.key: folder for folder in records.read(places.trainings)}
    kept = {trial.config: _kept(trial, stored[trial.folder.name]) for trial in (*trials, *more)}
    return {
        "data": run.data,
        "target": run.target,
        "epochs": again[0].epochs,
        "model": again[0].model,
        "seeds": list(run.seeds),
        "probing": next((t.row["probing"] for t in (*trials, *more) if t.row and "probing" in t.row), None),
        "chosen": {
            by: {c.side: {"lr": c.lr, "rho": c.rho, "settings": c.settings} for c in chosen}
            for by, chosen in choices.items()
        },
        "fixed": run.fixed,
        "grid": [kept[config] for config in grid],
        "repeats": [kept[config] for config in again],
        "criteria": [
            {k: str(v) if k != "lr" else v for k, v in line.items()}
            for line in (sweep.table(trials, "probe") if trials else ())
        ],
    }


def trained_and_probed(
    jobs: Sequence[Config], places: Places, progress: Progress, settings: ProbeSettings = PROBING
) -> list[sweep.Trial]:
    """Trials with the cells of the training's last row and those of its probing; what is stored is not done again.

    Args:
        jobs: Trainings without probes.
        places: Where data and trainings are; the probings lie beside the trainings.
        progress: Of both.
        settings: How to probe.
    """
    trials, probed = stored_jobs([Probing(job, job.probe_on, settings) for job in jobs], places, progress)
    return [
        replace(trial, row=(probing.row or {}) | (trial.row or {}))
        for trial, probing in zip(trials, probed, strict=True)
    ]


def stored_jobs(
    jobs: Sequence[Probing], places: Places, progress: Progress
) -> tuple[list[sweep.Trial], list[sweep.Trial]]:
    """The trainings of some probings, each once, and the probings."""
    out, probings = places.trainings, _probings(places)
    runs = list(dict.fromkeys(job.run for job in jobs))
    trained = _done(runs, partial(fit, root=places.data, out=out), out, stretch(progress, 0.0, 0.8))
    work = partial(probe_stored, root=places.data, runs=out, out=probings)
    return trained, _done(jobs, work, probings, stretch(progress, 0.8, 1.0))


def _probings(places: Places) -> Path:
    return places.trainings.with_name("probings")


def _done(jobs: Sequence[Any], work: Callable[[Any], object], out: Path, progress: Progress) -> list[sweep.Trial]:
    result = sweep.run(jobs, work, out, on="processes", progress=progress)
    if result.failed:
        raise RuntimeError(
            f"{len(result.failed)} of {len(jobs)} jobs failed, their tracebacks are in {out / 'failed'}; "
            f"the first: {result.failed[0].error}"
        )
    return result.trials


def _kept(trial: sweep.Trial, stored: records.Stored) -> Row:
    """What a table needs of a run, and where it comes from."""
    config, row = trial.config, trial.row or {}
    about = {"rule": config.rule, "lr": config.lr, "rho": config.radius, "seed": config.seed, "state": trial.state}
    origin = {"seconds": stored.seconds, "commits": sorted({str(session["commit"]) for session in stored.sessions})}
    return about | origin | {name: row[name] for name in KEPT if name in row}


def _cost(runs: Sequence[Tuning], places: Places) -> report.Table:
    """What is there and what the rest will take on this machine, measured from a few steps of each algorithm."""
    lines = []
    for run in runs:
        if not _has_data(run.data, places.data):
            lines.append({"data": place_of(vars(run)), "trainings": "no data"})
            continue
        grid, again = run.grid(), run.expected_repeats()
        there = [config for config in grid if records.is_done(places.trainings / records.key(config))]
        probed = sum(
            records.is_done(_probings(places) / records.key(Probing(c, c.probe_on, run.probing))) for c in grid
        )
        left = [config for config in (*grid, *again) if config not in there]
        measured = {config.rule: config for config in left}
        seconds = {rule: expected_seconds(config, places.data) for rule, config in measured.items()}
        counts = {"grid trained": f"{len(there)} of {len(grid)}", "grid probed": f"{probed} of {len(grid)}"}
        lines.append(
            {"data": place_of(vars(run))}
            | (counts if grid else {})
            | {"other seeds": f"up to {len(again)}"}
            | {f"one {ALGORITHMS[rule]}": duration(s) for rule, s in seconds.items()}
            | {"left": duration(sum(seconds[config.rule] for config in left) / pool.cores())}
        )
    caption = (
        f"What the trainings that are not there will take here, on {pool.cores()} processes, from a few "
        "steps of each algorithm; probes come on top. Rows of other seeds that are there are not taken again."
    )
    return report.table(lines, caption=caption)


table = partial(Experiment, runs=attrgetter("blocks"), compute=_compute, cost=_cost)
"""A record of blocks, one run for each."""

# What the tables read from rows


def settings_of(row: Row) -> dict[str, dict[str, Row]]:
    """The judged settings of each algorithm, by how they were chosen: a criterion, or ``"fixed"`` beforehand."""
    chosen: dict[str, dict[str, Row]] = dict(row["chosen"])
    if row["fixed"]:
        lr, rho = row["fixed"]
        chosen["fixed"] = {
            side: {"lr": lr, "rho": 0.0 if side == "sgd" else rho, "settings": 1} for side in ALGORITHMS
        }
    return chosen


def runs_of(row: Row, by: str, side: str, columns: Mapping[str, Callable[[Row], float]]) -> list[Row]:
    """The judged runs of one algorithm, one row for each seed; a training that stopped early counts as collapsed.

    Args:
        row: Of a block.
        by: How its setting was chosen, a key of :func:`settings_of`.
        side: A key of :data:`ALGORITHMS`.
        columns: What is read of a run, by name.
    """
    setting = settings_of(row)[by].get(side, {"lr": None, "rho": None})
    mine = [
        run
        for run in row["repeats"]
        if run["rule"] == side and (run["lr"], run["rho"]) == (setting["lr"], setting["rho"])
    ]
    return [
        {"seed": run["seed"], "collapsed": run["state"] != "done"}
        | {name: read(run) if run["state"] == "done" else math.nan for name, read in columns.items()}
        for run in mine
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
    """Easy and hard feature: by SGD's mean probe error over all its runs, which is the paper's definition."""
    probes = [run["probe"] for run in (*row["grid"], *row["repeats"]) if run["rule"] == "sgd" and "probe" in run]
    if not probes:
        raise ValueError(f"no training by SGD on {row['data']} has finished, so no feature is easy or hard.")
    easy, *_, hard = sorted(probes[0], key=lambda name: sum(probe[name] for probe in probes))
    return easy, hard


def probing_of(row: Row) -> str:
    """The probing set with its size, and the scaling, in words."""
    probing = row["probing"] or {"on": "val", "n": 0, "held_out": 0, "scaling": "none"}
    about = f"{probing['n']} {PROBING_SETS[probing['on']]}, {probing['held_out']} more to select by"
    return f"{place_of(row)}: {about}; features scaled: {SCALINGS[probing['scaling']]}"


def criteria_tables(rows: Sequence[Row]) -> list[report.Table]:
    """What each criterion would have chosen, with the numbers of the grid's seed; none where nothing is chosen."""
    lines = [
        {"data": place_of(row), **{k: v for k, v in line.items() if v != "–"}}
        for row in rows
        for line in row["criteria"]
    ]
    caption = "What each criterion chooses from the grid, with the errors of the grid's seed (shares of one)."
    return [report.table(lines, caption=caption)] if lines else []


def missing(rows: Sequence[Row], paper: Iterable[str], column: str) -> list[dict[str, str]]:
    """Lines for the data sets of the paper that no row has."""
    absent = sorted(set(paper) - {row["data"] for row in rows})
    return [{column: name, "algorithm": "not run: not at this scale, or no data"} for name in absent]


def place_of(row: Mapping[str, Any]) -> str:
    """The data set of a block and, if it has one, the target."""
    return row["data"] if row["target"] is None else f"{row['data']}, {row['target']}"


def title_of(row: Row, by: str) -> str:
    """The data set and how settings were chosen."""
    return f"{place_of(row)}, {chosen_by(row, by)}"


def chosen_by(row: Row, by: str) -> str:
    """How settings were chosen, in words."""
    if by == "fixed":
        lr, rho = row["fixed"]
        return f"at lr {lr:g} and radius {rho:g}"
    return {"probe": "chosen by held-out probe error", "val_loss": "chosen by validation loss"}[by]
