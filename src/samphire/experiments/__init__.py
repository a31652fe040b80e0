"""Every table and figure, one module each: what to run, the table, the picture, the claim and whether it holds.

A module is an experiment if it has ``SCALES``. Its docstring's first line is the title; it also has::

    PAPER_SAYS, NOTES                        what the paper reports, where we differ
    SCALES = {"tiny": Config(...), ...}      frozen dataclasses: the whole configuration
    runs(config)   -> [run, ...]             what to compute: frozen dataclasses, one row each
    tables(rows), plots(rows), claims(rows)  from rows alone, so they can be redone in seconds

and one way from a run to its row, as JSON data::

    row(result)                              of a trained small run; TRAINING has settings for fit_many, if any
    row(run)                                 of a run of any other class, computed one after the other
    compute(runs, places, progress)          yields (run, row) for runs that are computed together, in any order

``places`` are the folders of the data sets and of trainings, whose checkpoints outlive an interruption; a run may be
left out if its data are not there. ``progress`` is called with the work done and the work to do, in any unit.

Optional: ``steps(run)``, how long a run takes in steps of the toy (1 if there is none), for the time left; ``DATA``,
names of the data sets that must be there, for instance ``("mnist",)``; a scale ``"reduced"`` where the paper's takes
days on a CPU. Names that begin with ``review`` are of the review, all others of the paper.

Rows are stored as they come, so an interrupted experiment goes on where it stopped; what another one has stored of
the same runs, by the same ``row`` or ``compute``, is not computed again.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samphire import __version__, data, records, report, train
from samphire.data.layouts import find

Row = dict[str, Any]
Progress = Callable[[str, int, int], None]

SCALES = ("tiny", "quick", "reduced", "paper")


@dataclass(frozen=True)
class Places:
    """Folders that an experiment may use.

    Attributes:
        data: The data sets.
        trainings: Runs of :func:`samphire.train.fit`.
    """

    data: Path
    trainings: Path


def names() -> list[str]:
    """The experiments: the paper's in its order, then the review's."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        if hasattr(importlib.import_module(f"{__name__}.{module.name}"), "SCALES"):
            found.append(module.name.replace("_", "-"))
    return sorted(found, key=_order)


def _order(name: str) -> tuple[str, int, str]:
    digits = re.match(r"fig(\d+)", name.removeprefix("review-"))
    return (_source(name), int(digits[1]) if digits else 99, name)


def _source(name: str) -> str:
    return "the review" if name.startswith("review-") else "the paper"


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
    data_root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    done: Callable[[report.Result], None] | None = None,
) -> list[report.Result]:
    """Run experiments and write their page.

    Args:
        chosen: Names; none for all, without a ``data_root`` for all that need no data.
        scale: ``"tiny"`` (seconds), ``"quick"`` (minutes), ``"reduced"`` (hours on two cores) or ``"paper"``; one
            that has no reduced scale takes the paper's.
        out: Folder for ``index.html``, pictures and tables, ``claims.json`` and ``provenance.json`` (who computed the
            rows, where, when), for the rows, in ``runs``, and for ``trainings``.
        data_root: Folder that holds the data sets, for experiments that need some.
        progress: Called with what is being done, the steps done and the steps to do.
        done: Called with each result as it is finished.
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    modules = {name: load(name) for name in (chosen or names())}
    if not chosen and data_root is None:
        modules = {name: module for name, module in modules.items() if not _data(module)}
    for name, module in modules.items():
        _check_data(name, module, data_root)
    started = time.perf_counter()
    work = _Work(modules, scale, Path(out) / "runs", data_root, progress)
    rows = work.rows()
    results = []
    for name, module in modules.items():
        results.append(_result(name, module, rows[name], scale))
        if done is not None:
            done(results[-1])
    machine = records.provenance() | {"seconds": round(time.perf_counter() - started, 1), "scale": scale}
    report.write(out, results, machine=machine, title=f"samphire: {scale} scale")
    records.write_atomic(Path(out) / "claims.json", report.to_json(report.summary(results)).encode())
    origin = {"experiments": list(modules), "scale": scale, "sessions": work.sessions()}
    records.write_atomic(Path(out) / "provenance.json", json.dumps(origin, indent=1).encode())
    return results


def at_scale(module: Any, scale: str) -> Any:
    """An experiment's configuration at a scale."""
    return module.SCALES[scale if scale in module.SCALES else "paper"]


def _data(module: Any) -> tuple[str, ...]:
    return getattr(module, "DATA", ())


def _check_data(name: str, module: Any, root: str | os.PathLike[str] | None) -> None:
    """Before hours of work, not after them."""
    for needed in _data(module):
        if root is None:
            raise ValueError(
                f"{name} needs {needed}, got no folder of data; name one with --root DIR (data_root), filled by "
                f"`samphire data get {needed} --root DIR`."
            )
        find(data.SETS[needed], root)


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
        source=_source(name),
    )


class _Work:
    """The rows of some experiments: those stored, and those computed now, all of one kind together."""

    def __init__(
        self,
        modules: Mapping[str, Any],
        scale: str,
        store: Path,
        root: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.modules, self.store, self.progress = modules, store, progress
        self.places = Places(Path(root or "."), store.with_name("trainings"))
        self.configs = {name: at_scale(module, scale) for name, module in modules.items()}
        self.runs = {name: self._runs(name) for name in modules}
        self.kinds: dict[Any, list[str]] = {}
        for name, module in modules.items():
            self.kinds.setdefault(_kind(module), []).append(name)
        self.done, self.total = 0, sum(map(self._steps, self.kinds.values()))

    def _runs(self, name: str) -> dict[str, Any]:
        runs = {records.key(run): run for run in self.modules[name].runs(self.configs[name])}
        if not runs:
            raise ValueError(
                f"{name} has no runs to train with {self.configs[name]}; give each of its lists an entry."
            )
        return runs

    def _steps(self, group: Sequence[str]) -> int:
        different = {key: run for name in group for key, run in self.runs[name].items()}
        return _count(self.modules[group[0]], different.values())

    def rows(self) -> dict[str, list[Row]]:
        """One row per run of each experiment, in the order of its runs."""
        found: dict[str, list[Row]] = {}
        for group in self.kinds.values():
            for name, rows in self._compute(group).items():
                by_key = {row["key"]: row for row in rows}
                found[name] = [by_key[key] for key in self.runs[name] if key in by_key]
                if not found[name]:
                    raise ValueError(
                        f"{name} has no data set under {self.places.data} to run on; name another --root."
                    )
        return found

    def sessions(self) -> list[Row]:
        """Where and when the rows of these experiments were computed."""
        mine = {records.key(Job(name, config)) for name, config in self.configs.items()}
        return [s for run in records.read(self.store) if run.key in mine for s in run.sessions if s["rows"]]

    def _compute(self, group: list[str]) -> dict[str, list[Row]]:
        """Compute what no folder has, and put each row into every folder that wants it."""
        module = self.modules[group[0]]
        known = self._known(module)
        with ExitStack() as stack:
            folders = {n: stack.enter_context(records.open_run(self.store, Job(n, self.configs[n]))) for n in group}

            def keep(row: Row) -> None:
                for name, folder in folders.items():
                    if row["key"] in self.runs[name] and row["key"] not in stored[name]:
                        folder.append(row)
                        stored[name].add(row["key"])

            stored = {name: {row["key"] for row in folder.rows} for name, folder in folders.items()}
            for row in known.values():
                keep(row)
            missing = {k: run for n in group for k, run in self.runs[n].items() if k not in stored[n]}
            steps = _count(module, missing.values())
            self.done += self._steps(group) - steps
            if missing:
                said = self._said(", ".join(group), steps)
                for run, row in _computed(module, list(missing.values()), self.places, said):
                    keep({"key": records.key(run), **row})
            self.done += steps
            for name, folder in folders.items():
                folder.complete = stored[name] >= set(self.runs[name])  # else a data set was not at hand
            return {name: folder.rows for name, folder in folders.items()}

    def _known(self, module: Any) -> dict[str, Row]:
        """Rows of the same kind that any experiment at any scale has stored."""
        if not self.store.is_dir():
            return {}
        same = {n for n in names() if _kind(load(n)) == _kind(module)}
        stored = (run for run in records.read(self.store) if run.config.get("experiment") in same
                  and run.config.get("version") == __version__)  # fmt: skip
        return {row["key"]: row for run in stored for row in run.rows}

    def _said(self, what: str, steps: int) -> Callable[[int, int], None]:
        if self.progress is None:
            return lambda done, total: None
        progress, before, all_steps = self.progress, self.done, self.total
        return lambda done, total: progress(what, before + steps * done // total, all_steps)


def _computed(
    module: Any, runs: list[Any], places: Places, progress: Callable[[int, int], None]
) -> Iterator[tuple[Any, Row]]:
    """Every run with its row, as they come."""
    if hasattr(module, "compute"):
        yield from module.compute(runs, places, progress)
    elif hasattr(runs[0], "fleet"):
        for result in train.fit_many(runs, progress=lambda what, *steps: progress(*steps), **_training(module)):
            yield result.config, module.row(result)
    else:
        for i, run in enumerate(runs):
            yield run, module.row(run)
            progress(_count(module, runs[: i + 1]), _count(module, runs))


def _count(module: Any, runs: Iterable[Any]) -> int:
    """The steps that runs take."""
    steps = getattr(module, "steps", lambda run: run.steps if hasattr(run, "fleet") else 1)
    return sum(map(steps, runs))


def _kind(module: Any) -> tuple[Any, str]:
    """What experiments must share to share rows: what is kept of a run, and how it is computed."""
    return getattr(module, "compute", None) or module.row, repr(sorted(_training(module).items()))


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
