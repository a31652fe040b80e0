"""Every table and figure, one module each: what to run, the table, the picture, the claim and whether it holds.

A module is an experiment if it has ``SCALES``. Its docstring's first line is the title; it also has::

    PAPER_SAYS, NOTES                        what the paper reports, where we differ
    SCALES = {"tiny": Config(...), ...}      frozen dataclasses: the whole configuration
    runs(config)   -> [ToyConfig, ...]       what to train
    row(result)    -> {...}                  what to keep of a trained run, as JSON data
    tables(rows), plots(rows), claims(rows)  from rows alone, so they can be redone in seconds

and, if ``row`` looks at weights, ``TRAINING``: settings for ``fit_many``. Rows are stored as they come, so an
interrupted run goes on where it stopped, and runs that another experiment has stored are not trained again.
"""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samphire import records, report, train
from samphire.train import ToyConfig

Row = dict[str, Any]
Progress = Callable[[str, int, int], None]

SCALES = ("tiny", "quick", "paper")


def names() -> list[str]:
    """The experiments, in the order of the paper."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        if hasattr(importlib.import_module(f"{__name__}.{module.name}"), "SCALES"):
            found.append(module.name.replace("_", "-"))
    return sorted(found, key=_paper_order)


def _paper_order(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name.partition("-")[0] if c.isdigit())
    return (int(digits) if digits else 99, name)


def load(name: str) -> Any:
    """The module of an experiment."""
    known = names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"no experiment named {name!r}; {guess}Known: {', '.join(known)}.")
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


@dataclass(frozen=True)
class Job:
    """An experiment at a scale; the key of its folder."""

    experiment: str
    config: Any


def reproduce(
    chosen: Sequence[str] = (),
    *,
    scale: str = "quick",
    out: str | os.PathLike[str] = "report",
    progress: Progress | None = None,
    done: Callable[[report.Result], None] | None = None,
) -> list[report.Result]:
    """Run experiments and write their page.

    Args:
        chosen: Names; none for all that need no data.
        scale: ``"tiny"`` (seconds), ``"quick"`` (minutes) or ``"paper"``.
        out: Folder for ``index.html``, pictures and tables, and for the rows, in ``runs``.
        progress: Called with what is being done, the steps done and the steps to do.
        done: Called with each result as it is finished.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    modules = {name: load(name) for name in (chosen or names())}
    store = Path(out) / "runs"
    work = _Work(modules, scale, store, progress)
    results = []
    for name, module in modules.items():
        started = time.perf_counter()
        rows = work.rows(name)
        results.append(_result(name, module, rows, scale, time.perf_counter() - started))
        if done is not None:
            done(results[-1])
    report.write(out, results, machine=records.provenance(), title=f"samphire: the toy, {scale} scale")
    return results


def _result(name: str, module: Any, rows: list[Row], scale: str, seconds: float) -> report.Result:
    claims = module.claims(rows)
    if scale == "tiny":
        claims = [replace(claim, holds=None, detail="The tiny scale is too short to judge.") for claim in claims]
    return report.Result(
        name,
        (module.__doc__ or name).strip().splitlines()[0],
        paper_says=module.PAPER_SAYS,
        figures=module.plots(rows),
        tables=module.tables(rows),
        claims=claims,
        notes=module.NOTES,
        seconds=seconds,
    )


class _Work:
    """The rows of some experiments: those stored, and those trained now."""

    def __init__(self, modules: Mapping[str, Any], scale: str, store: Path, progress: Progress | None) -> None:
        self.modules, self.scale, self.store, self.progress = modules, scale, store, progress
        self.total = sum(map(train.count_steps, {run for name in modules for run in self._runs(name)}))
        self.done = 0

    def _runs(self, name: str) -> list[ToyConfig]:
        config = self.modules[name].SCALES[self.scale]
        runs = list(dict.fromkeys(self.modules[name].runs(config)))
        if not runs:
            raise ValueError(f"{name} has no runs to train with {config}; give each of its lists an entry.")
        return runs

    def rows(self, name: str) -> list[Row]:
        """One row per run of an experiment, in the order of its runs."""
        module = self.modules[name]
        runs = {records.key(run): run for run in self._runs(name)}
        with records.open(self.store, Job(name, module.SCALES[self.scale])) as folder:
            have = {row["key"] for row in folder.rows}
            for key, row in self._known(name).items():
                if key in runs and key not in have:
                    folder.append(row)
                    have.add(key)
            missing = [run for key, run in runs.items() if key not in have]
            self.done += sum(map(train.count_steps, runs.values())) - sum(map(train.count_steps, missing))
            for result in train.fit_many(missing, progress=self._said(name), **_training(module)):
                folder.append({"key": records.key(result.config), **module.row(result)})
            self.done += sum(map(train.count_steps, missing))
            by_key = {row["key"]: row for row in folder.rows}
        return [by_key[key] for key in runs]

    def _known(self, name: str) -> dict[str, Row]:
        """Rows of the same kind that other experiments have stored."""
        if not self.store.is_dir():
            return {}
        kind = self.modules[name].row, _training(self.modules[name])
        same = {n for n in names() if n != name and (load(n).row, _training(load(n))) == kind}
        stored = (run for run in records.read(self.store) if run.config.get("experiment") in same)
        return {row["key"]: row for run in stored for row in run.rows}

    def _said(self, name: str) -> Callable[[int, int], None] | None:
        if self.progress is None:
            return None
        progress, before, total = self.progress, self.done, max(self.total, 1)
        return lambda done, _: progress(name, min(before + done, total), total)


def _training(module: Any) -> dict[str, Any]:
    return getattr(module, "TRAINING", {})


def by(rows: Iterable[Row], *columns: str) -> dict[Any, list[Row]]:
    """Rows in groups of equal values, in order of appearance; with one column the keys are plain values.

    Example:
        >>> by([{"rho": 0, "e": 1}, {"rho": 1, "e": 2}, {"rho": 0, "e": 3}], "rho")[0]
        [{'rho': 0, 'e': 1}, {'rho': 0, 'e': 3}]
    """
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[c] for c in columns)
        groups.setdefault(key[0] if len(columns) == 1 else key, []).append(row)
    return groups


def mean(rows: Iterable[Row], column: str) -> report.Estimate:
    """The mean over runs that did not collapse, with its standard error and their number."""
    return report.estimate(row[column] for row in rows if not row["collapsed"])


def collapsed(rows: Iterable[Row]) -> str:
    """How many of the runs collapsed, for a table: ``"2 of 10"``."""
    rows = list(rows)
    return f"{sum(row['collapsed'] for row in rows)} of {len(rows)}"
