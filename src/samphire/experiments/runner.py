"""Run experiments, keep their rows, and write what the rows show.

Rows are stored as they come, so an interrupted experiment goes on where it stopped. What another experiment has
stored of the same runs, by an equal ``compute``, is not computed again. The rows that a page shows lie beside it in
one file, ``rows.jsonl``: :func:`render` makes the page again from that file alone.
"""

from __future__ import annotations

import json
import lzma
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samphire import __version__, checks, data, records, report
from samphire.data.layouts import find
from samphire.experiments.experiment import SCALES, Compute, Experiment, Places
from samphire.experiments.paper import PAPER
from samphire.experiments.review import REVIEW
from samphire.experiments.rows import Row, by
from samphire.progress import Progress, silent, stretch

__all__ = ["EXPERIMENTS", "Job", "load", "render", "reproduce"]

EXPERIMENTS = {experiment.name: experiment for experiment in (*PAPER, *REVIEW)}


def load(name: str) -> Experiment:
    """The experiment of a name."""
    checks.check_one_of("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


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
    progress: Progress = silent,
    done: Callable[[report.Result], None] | None = None,
    before: Callable[[report.Table], None] | None = None,
) -> list[report.Result]:
    """Run experiments and write their page.

    Args:
        chosen: Names; none for all, without a ``data_root`` for all that need no data.
        scale: ``"tiny"`` (seconds), ``"quick"`` (minutes), ``"reduced"`` (hours on two cores) or ``"paper"``; an
            experiment without a reduced scale takes the paper's.
        out: Folder for ``index.html``, pictures and tables, ``claims.json``, ``rows.jsonl`` and ``provenance.json``
            (who computed the rows, where, when), for the rows as they come, in ``runs``, and for ``trainings``.
        data_root: Folder that holds the data sets, for experiments that need some.
        progress: Called with what is being done, the steps done and the steps to do.
        done: Called with each result as it is finished.
        before: Called at the reduced and the paper's scale, before hours of work, with what is there and what the
            rest will take on this machine, measured from a few steps.
    """
    checks.check_one_of("scale", scale, SCALES)
    experiments = [load(name) for name in dict.fromkeys(chosen or EXPERIMENTS)]
    if not chosen and data_root is None:
        experiments = [experiment for experiment in experiments if not experiment.data]
    for experiment in experiments:
        _check_data(experiment, data_root)
    started = time.perf_counter()
    work = _Work(experiments, scale, Path(out), data_root, progress)
    if before is not None and scale in ("reduced", "paper"):
        for name, cost in ((each.name, each.cost) for each in experiments):
            if cost is not None:
                before(cost(list(work.runs[name].values()), work.places))
    rows = work.rows()
    lines = [{"experiment": name, "scale": scale, "row": row} for name, group in rows.items() for row in group]
    records.write_atomic(Path(out) / "rows.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    origin = {"experiments": list(rows), "scale": scale, "sessions": work.sessions()}
    records.write_atomic(Path(out) / "provenance.json", json.dumps(origin, indent=1).encode())
    return _write(Path(out), lines, done, started)


def render(
    rows: str | os.PathLike[str], out: str | os.PathLike[str], done: Callable[[report.Result], None] | None = None
) -> list[report.Result]:
    """Write page, pictures, tables and claims again, from stored rows alone.

    Args:
        rows: A file ``rows.jsonl`` that :func:`reproduce` wrote, as it is or packed by xz (``rows.jsonl.xz``).
        out: Folder for what is written; it may be the one that holds the file.
        done: Called with each result as it is finished.
    """
    started = time.perf_counter()
    stored = Path(rows).read_bytes()
    text = lzma.decompress(stored) if Path(rows).suffix == ".xz" else stored
    lines = [json.loads(line) for line in text.splitlines()]
    Path(out).mkdir(parents=True, exist_ok=True)
    return _write(Path(out), lines, done, started)


def _write(
    out: Path, lines: Iterable[Row], done: Callable[[report.Result], None] | None, started: float
) -> list[report.Result]:
    results = []
    for (name, scale), group in by(lines, "experiment", "scale").items():
        results.append(load(name).result([line["row"] for line in group], scale))
        if done is not None:
            done(results[-1])
    scales = ", ".join(by(lines, "scale"))
    machine = records.provenance() | {"seconds": round(time.perf_counter() - started, 1), "scale": scales}
    report.write(out, results, machine=machine, title=f"samphire: {scales} scale")
    records.write_atomic(out / "claims.json", report.to_json(report.summary(results)).encode())
    return results


def _check_data(experiment: Experiment, root: str | os.PathLike[str] | None) -> None:
    """Before hours of work, not after them."""
    for name in experiment.data:
        if root is None:
            raise ValueError(
                f"{experiment.name} needs {name}, got no folder of data; name one with --root DIR (data_root), "
                f"filled by `samphire data get {name} --root DIR`."
            )
        find(data.SETS[name], root)


class _Work:
    """The rows of some experiments: those stored, and those computed now, all with equal ``compute`` together."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        scale: str,
        out: Path,
        root: str | os.PathLike[str] | None,
        progress: Progress,
    ) -> None:
        self.store, self.progress = out / "runs", progress
        self.places = Places(Path(root or "."), out / "trainings")
        self.jobs = {experiment.name: Job(experiment.name, experiment.at(scale)) for experiment in experiments}
        self.runs = {experiment.name: _runs(experiment, scale) for experiment in experiments}
        self.groups: dict[Compute, list[Experiment]] = {}
        for experiment in experiments:
            self.groups.setdefault(experiment.compute, []).append(experiment)
        self.done, self.total = 0, sum(map(self._steps, self.groups.values()))

    def rows(self) -> dict[str, list[Row]]:
        """One row per run of each experiment, in the order of its runs."""
        stored: dict[str, list[Row]] = {}
        for group in self.groups.values():
            stored |= self._compute(group)
        ordered = {}
        for name, runs in self.runs.items():
            by_key = {row["key"]: row for row in stored[name]}
            ordered[name] = [by_key[key] for key in runs if key in by_key]
            if not ordered[name]:
                raise ValueError(f"{name} has no data set under {self.places.data} to run on; name another --root.")
        return ordered

    def sessions(self) -> list[Row]:
        """Where and when the rows of these experiments were computed."""
        keys = {records.key(job) for job in self.jobs.values()}
        return [s for run in records.read(self.store) if run.key in keys for s in run.sessions if s["rows"]]

    def _steps(self, group: list[Experiment]) -> int:
        runs = {key: run for experiment in group for key, run in self.runs[experiment.name].items()}
        return sum(map(group[0].steps, runs.values()))

    def _compute(self, group: list[Experiment]) -> dict[str, list[Row]]:
        """Compute what no folder has, and put each row into every folder that wants it."""
        names, first = [experiment.name for experiment in group], group[0]
        known = self._known(first.compute)
        with ExitStack() as stack:
            folders = {name: stack.enter_context(records.open_run(self.store, self.jobs[name])) for name in names}
            stored = {name: {row["key"] for row in folder.rows} for name, folder in folders.items()}

            def keep(row: Row) -> None:
                for name, folder in folders.items():
                    if row["key"] in self.runs[name] and row["key"] not in stored[name]:
                        folder.append(row)
                        stored[name].add(row["key"])

            for row in known:
                keep(row)
            missing = {key: run for name in names for key, run in self.runs[name].items() if key not in stored[name]}
            steps = sum(map(first.steps, missing.values()))
            self.done += self._steps(group) - steps
            if missing:
                part = self._part(", ".join(names), steps)
                for run, row in first.compute(list(missing.values()), self.places, part):
                    keep({"key": records.key(run), **row})
            self.done += steps
            for name, folder in folders.items():
                folder.complete = stored[name] >= set(self.runs[name])  # else a data set is missing
            return {name: folder.rows for name, folder in folders.items()}

    def _known(self, compute: Compute) -> list[Row]:
        """Rows of the same computation that any experiment at any scale has stored."""
        if not self.store.is_dir():
            return []
        same = {name for name, experiment in EXPERIMENTS.items() if experiment.compute == compute}
        stored = (run for run in records.read(self.store) if run.config.get("experiment") in same
                  and run.config.get("version") == __version__)  # fmt: skip
        return [row for run in stored for row in run.rows]

    def _part(self, names: str, steps: int) -> Progress:
        start, end = self.done / self.total, (self.done + steps) / self.total
        return stretch(lambda _, done, total: self.progress(names, done, total), start, end, self.total)


def _runs(experiment: Experiment, scale: str) -> dict[str, Any]:
    config = experiment.at(scale)
    runs = {records.key(run): run for run in experiment.runs(config)}
    if not runs:
        raise ValueError(f"{experiment.name} has no runs to train with {config}; give each of its lists an entry.")
    return runs
