"""What tables 1 and 2 share: tune each algorithm on a data set, then repeat its best setting with more seeds.

Not an experiment of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scipy.stats import ttest_1samp

from samphire import data, records, report, sweep
from samphire.data.layouts import find
from samphire.experiments import Places, Row
from samphire.statistics import estimate
from samphire.train import Config, fit

ALGORITHMS = {"sgd": "SGD", "sam": "SAM", "lsam": "one-pass LSAM"}
KEPT = ("val_error", "val_loss", "val_worst", "test_error", "test_worst", "probe", "probe_val", "stopped")
LEVEL = 0.05  # of the paired test
CHOSEN = {"val_error": "", "probe": ", chosen by held-out probe error", "worst_group": ", chosen by worst group"}
NOTES = (
    "Each algorithm is tuned with the first seed, over learning rates, and over radii if it has one: so SAM and LSAM "
    "have more trials than SGD. The setting with the lowest validation error (groups weighted as in training) or, "
    "where it is said, the lowest probe error on held-out examples of the probing part is taken, of equals the one "
    "with the lowest validation loss, and repeated with the other seeds. What other criteria would have taken stands "
    "in the last table.",
    "Algorithms of one seed share initial weights, order of the batches and crops, so differences are paired.",
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
        ends: Whether every learning rate's SGD and largest radius are repeated with all seeds too.
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
        ends = [job for job in self.grid() if self.ends and job.radius in (0.0, max(self.rho))]
        again = dict.fromkeys((*best, *ends))
        return [replace(config, seed=seed) for seed in range(1, self.seeds) for config in again]


def tuning(name: str, **settings: Any) -> Tuning:
    """The paper's grid for a data set."""
    return Tuning(name, tuple(sweep.GRIDS[name]["lr"]), tuple(sweep.GRIDS[name]["rho"]), **settings)


def steps(run: Tuning) -> int:
    """How long a block takes, in epochs of SGD; SAM's take two."""
    grid = run.grid()
    return grid[0].epochs * sum(2 if config.rule == "sam" else 1 for config in (*grid, *_expected(run)))


def _expected(run: Tuning) -> list[Config]:
    """Stand-ins for the repeats: one setting of each rule, before it is known which is best."""
    return run.repeats({config.rule: config for config in run.grid()}.values())


def compute(
    runs: Sequence[Tuning], places: Places, progress: Callable[[int, int], None]
) -> Iterator[tuple[Tuning, Row]]:
    """Every block whose data are there; the trainings are kept, so that what is interrupted goes on."""
    runs = [run for run in runs if _is_there(run.data, places.data)]
    total, before = sum(map(steps, runs)), 0
    work = partial(fit, root=places.data, out=places.trainings)
    for run in runs:
        yield run, _row(run, work, places.trainings, _scaled(progress, before, steps(run), total))
        before += steps(run)
        progress(before, total)


def _is_there(name: str, root: Path) -> bool:
    sources = data.catalog.PAIRED.get(name) or (data.SETS[name],)
    try:
        for source in sources:
            find(source, root)
    except OSError:
        return False
    return True


def _scaled(
    progress: Callable[[int, int], None], before: int, mine: int, total: int
) -> Callable[[str, int, int], None]:
    return lambda what, done, of: progress(before + mine * done // of, total)


def _row(run: Tuning, work: Callable[[Any], object], out: Path, progress: Callable[[str, int, int], None]) -> Row:
    """Tune, choose, repeat."""
    jobs = run.grid()
    share = len(jobs) / (len(jobs) + len(_expected(run)))
    trials = _trained(run, jobs, work, out, _part(progress, 0.0, share))
    chosen = {choice.side: choice for choice in sweep.select(trials, run.by)}
    best = {side: _setting(jobs, side, choice) for side, choice in chosen.items() if choice.lr is not None}
    again = run.repeats(best.values())
    more = _trained(run, again, work, out, _part(progress, share, 1.0))
    stored = {folder.key: folder for folder in records.read(out)}
    kept = {trial.config: _kept(trial, stored[trial.folder.name]) for trial in (*trials, *more)}
    sides = {
        side: {
            "lr": choice.lr,
            "rho": choice.rho,
            "settings": choice.settings,
            "runs": [row for config, row in kept.items() if replace(config, seed=0) == best.get(side)],
        }
        for side, choice in chosen.items()
    }
    return {
        "data": run.data,
        "target": run.target,
        "by": run.by,
        "epochs": jobs[0].epochs,
        "model": jobs[0].model,
        "sides": sides,
        "grid": [kept[job] for job in jobs],
        "repeats": [kept[job] for job in again],
        "criteria": [{k: str(v) if k != "lr" else v for k, v in row.items()} for row in sweep.table(trials, run.by)],
    }


def _trained(
    run: Tuning, jobs: Sequence[Config], work: Callable[[Any], object], out: Path, progress: Callable[..., None]
) -> list[sweep.Trial]:
    swept = sweep.run(jobs, work, out, on="processes", progress=progress)
    if swept.failed:
        raise RuntimeError(
            f"{len(swept.failed)} trainings on {run.data} failed, their tracebacks are in {out / 'failed'}; "
            f"the first: {swept.failed[0].error}"
        )
    return swept.trials


def _part(progress: Callable[[str, int, int], None], start: float, end: float) -> Callable[[str, int, int], None]:
    return lambda what, done, of: progress(what, round(1000 * (start + (end - start) * done / max(of, 1))), 1000)


def _setting(jobs: Sequence[Config], side: str, choice: sweep.Choice) -> Config:
    return next(job for job in jobs if (job.rule, job.lr, job.radius) == (side, choice.lr, choice.rho))


def _kept(trial: sweep.Trial, stored: records.Stored) -> Row:
    """What a table needs of a run, and where it comes from."""
    config, row = trial.config, trial.row or {}
    about = {"rule": config.rule, "lr": config.lr, "rho": config.radius, "seed": config.seed, "state": trial.state}
    origin = {"seconds": stored.seconds, "commits": sorted({str(session["commit"]) for session in stored.sessions})}
    return about | origin | {name: row[name] for name in KEPT if name in row}


# What came out


def values(row: Row, side: str, read: Callable[[Row], float]) -> dict[int, float]:
    """A value of one side's runs by seed; NaN where training broke off."""
    runs = row["sides"].get(side, {"runs": []})["runs"]
    return {run["seed"]: read(run) if run["state"] == "done" else math.nan for run in runs}


def spread(found: Mapping[int, float], percent: bool = True) -> str:
    """Mean and standard deviation (n - 1) over the seeds that came to their end, with their number.

    Example:
        >>> spread({0: 0.1, 1: 0.2, 2: math.nan}), spread({0: 0.1}), spread({})
        ('15.00 ± 7.07 (n=2 of 3)', '10.00 (n=1)', '– (n=0)')
    """
    factor, places = (100, 2) if percent else (1, 3)
    ended = estimate(factor * value for value in found.values() if math.isfinite(value))
    lost = f" of {len(found)}" if ended.n < len(found) else ""
    return f"{ended.spread(f'.{places}f')} (n={ended.n}{lost})"


def by_difficulty(row: Row) -> tuple[str, str]:
    """Easy and hard feature: by SGD's mean probe error, which is the paper's definition."""
    runs = [run["probe"] for run in row["sides"]["sgd"]["runs"] if "probe" in run]
    if not runs:
        raise ValueError(f"no training by SGD on {row['data']} came to its end, so no feature is easy or hard.")
    easy, *_, hard = sorted(runs[0], key=lambda name: sum(probe[name] for probe in runs))
    return easy, hard


def compared(
    text: str, ours: Mapping[Any, float], sgd: Mapping[Any, float], paper: str, unit: float, over: str = "seeds"
) -> report.Claim:
    """A claim that a value is lower than SGD's, by a paired test.

    It holds, or does not, if the difference is significant; a difference within the noise is not judged.

    Args:
        text: The claim.
        ours: Values by seed, or by what else makes pairs.
        sgd: Those of SGD.
        paper: What the paper has.
        unit: What the values are multiplied by to be shown.
        over: What makes pairs.
    """
    every = [unit * (ours[pair] - sgd[pair]) for pair in sorted(set(ours) & set(sgd))]
    gain = [difference for difference in every if math.isfinite(difference)]
    estimate = report.estimate(gain)
    if len(gain) < 3 or estimate.error < 1e-9:
        same = f"The difference is the same in all {over}."
        detail = f"There are too few {over} to judge." if len(gain) < 3 else same
        return report.Claim(text, None, f"difference {estimate}", paper, detail)
    p = float(ttest_1samp(gain, 0.0).pvalue)
    holds = None if p >= LEVEL else estimate.mean < 0
    word = "within the noise" if holds is None else "significant"
    left_out = f" {len(every) - len(gain)} left out, where training broke off." if len(gain) < len(every) else ""
    return report.Claim(
        text,
        holds,
        f"difference {estimate}, p = {p:.2g}",
        paper,
        f"Paired t-test over {over}: {word}; ± is one standard error.{left_out}",
    )


def criteria_table(rows: Sequence[Row]) -> report.Table:
    """What each criterion would have chosen, with the numbers of the first seed."""
    found = [
        {"data": place_of(row), **{k: v for k, v in line.items() if v != "–"}}
        for row in once(rows)
        for line in row["criteria"]
    ]
    caption = "What each criterion would choose, with the errors of the first seed (shares of one)."
    return report.table(found, caption=caption)


def place_of(row: Row) -> str:
    """The data set of a block and, if it has one, the target."""
    return row["data"] if row["target"] is None else f"{row['data']}, {row['target']}"


def name_of(row: Row) -> str:
    """The block's name: where, and what its settings were chosen by if not by validation error."""
    return place_of(row) + CHOSEN[row["by"]]


def once(rows: Sequence[Row]) -> list[Row]:
    """One block of each grid, whatever the settings were chosen by."""
    return list({place_of(row): row for row in reversed(rows)}.values())[::-1]
