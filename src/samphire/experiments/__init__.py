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
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samphire import __version__, records, report, train
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
    """An experiment at a scale, by a version of the package; the key of its folder."""

    experiment: str
    config: Any
    version: str = __version__


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
    started = time.perf_counter()
    rows = _Work(modules, scale, Path(out) / "runs", progress).rows()
    results = []
    for name, module in modules.items():
        results.append(_result(name, module, rows[name], scale))
        if done is not None:
            done(results[-1])
    machine = records.provenance() | {"seconds": round(time.perf_counter() - started, 1), "scale": scale}
    report.write(out, results, machine=machine, title=f"samphire: the toy, {scale} scale")
    return results


def _result(name: str, module: Any, rows: list[Row], scale: str) -> report.Result:
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
    )


class _Work:
    """The rows of some experiments: those stored, and those trained now, all of one kind together."""

    def __init__(self, modules: Mapping[str, Any], scale: str, store: Path, progress: Progress | None) -> None:
        self.modules, self.store, self.progress = modules, store, progress
        self.configs = {name: module.SCALES[scale] for name, module in modules.items()}
        self.runs = {name: self._runs(name) for name in modules}
        self.kinds: dict[Any, list[str]] = {}
        for name, module in modules.items():
            self.kinds.setdefault(_kind(module), []).append(name)
        self.done, self.total = 0, sum(map(self._steps, self.kinds.values()))

    def _runs(self, name: str) -> dict[str, ToyConfig]:
        runs = {records.key(run): run for run in self.modules[name].runs(self.configs[name])}
        if not runs:
            raise ValueError(
                f"{name} has no runs to train with {self.configs[name]}; give each of its lists an entry."
            )
        return runs

    def _steps(self, group: Iterable[str]) -> int:
        return sum(
            map(train.count_steps, {key: run for name in group for key, run in self.runs[name].items()}.values())
        )

    def rows(self) -> dict[str, list[Row]]:
        """One row per run of each experiment, in the order of its runs."""
        found: dict[str, list[Row]] = {}
        for group in self.kinds.values():
            for name, rows in self._train(group).items():
                by_key = {row["key"]: row for row in rows}
                found[name] = [by_key[key] for key in self.runs[name]]
        return found

    def _train(self, group: list[str]) -> dict[str, list[Row]]:
        """Train what no folder has, and put each row into every folder that wants it."""
        module = self.modules[group[0]]
        known = self._known(module)
        with ExitStack() as stack:
            folders = {n: stack.enter_context(records.open(self.store, Job(n, self.configs[n]))) for n in group}

            def keep(row: Row) -> None:
                for name, folder in folders.items():
                    if row["key"] in self.runs[name] and row["key"] not in stored[name]:
                        folder.append(row)
                        stored[name].add(row["key"])

            stored = {name: {row["key"] for row in folder.rows} for name, folder in folders.items()}
            for row in known.values():
                keep(row)
            missing = {k: run for n in group for k, run in self.runs[n].items() if k not in stored[n]}
            trained = sum(map(train.count_steps, missing.values()))
            self.done += self._steps(group) - trained
            said = self._said(", ".join(group))
            for result in train.fit_many(list(missing.values()), progress=said, **_training(module)):
                keep({"key": records.key(result.config), **module.row(result)})
            self.done += trained
            return {name: folder.rows for name, folder in folders.items()}

    def _known(self, module: Any) -> dict[str, Row]:
        """Rows of the same kind that any experiment at any scale has stored."""
        if not self.store.is_dir():
            return {}
        same = {n for n in names() if _kind(load(n)) == _kind(module)}
        stored = (run for run in records.read(self.store) if run.config.get("experiment") in same
                  and run.config.get("version") == __version__)  # fmt: skip
        return {row["key"]: row for run in stored for row in run.rows}

    def _said(self, what: str) -> Callable[[int, int], None] | None:
        if self.progress is None:
            return None
        progress, before, total = self.progress, self.done, self.total
        return lambda done, _: progress(what, before + done, total)


def _kind(module: Any) -> tuple[Any, str]:
    """What experiments must share to share rows: what is kept of a run, and how it is trained."""
    return module.row, repr(sorted(_training(module).items()))


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
