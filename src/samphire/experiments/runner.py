"""Run experiments one after the other, keep their rows, and write what the rows show after each.

Rows are stored as they come, so an interrupted experiment goes on where it stopped. What another experiment has
stored of the same runs, by an equal ``compute``, is not computed again. The rows that a page shows lie beside it in
one file, ``rows.jsonl``: :func:`render` makes the page again from that file alone.
"""

from __future__ import annotations

import json
import lzma
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samphire import __version__, checks, data, records, report
from samphire.data.layouts import find
from samphire.experiments.experiment import SCALES, Compute, Experiment, Places
from samphire.experiments.paper import PAPER, SCOREBOARD
from samphire.experiments.paper.story import tell
from samphire.experiments.review import REVIEW
from samphire.experiments.rows import Row, by
from samphire.progress import Progress, silent, stretch
from samphire.records.files import parsed

__all__ = ["EXPERIMENTS", "TOY", "Job", "load", "render", "reproduce", "runnable"]

EXPERIMENTS = {experiment.name: experiment for experiment in (*PAPER, *REVIEW)}
TOY = tuple(experiment.name for experiment in PAPER if not experiment.data and experiment is not SCOREBOARD)
"""The paper's figures on the toy: what runs unless something else is asked for."""


def load(name: str) -> Experiment:
    """The experiment of a name."""
    checks.check_one_of("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def runnable(data_root: str | os.PathLike[str] | None = None) -> list[str]:
    """The names of all experiments; without a folder of data, of all that need none."""
    return [name for name, experiment in EXPERIMENTS.items() if data_root is not None or not experiment.data]


@dataclass(frozen=True)
class Job:
    """An experiment at a scale, by a version of the package; the key of its folder."""

    experiment: str
    config: Any
    version: str = __version__


def reproduce(
    chosen: Sequence[str] = TOY,
    *,
    scale: str = "quick",
    out: str | os.PathLike[str] = "report",
    data_root: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
    done: Callable[[report.Result], None] | None = None,
    before: Callable[[report.Table], None] | None = None,
) -> list[report.Result]:
    """Run experiments and write their page, which is there after the first of them and grows with each.

    Args:
        chosen: Names, computed and shown in this order; :func:`runnable` lists all.
        scale: ``"tiny"`` (seconds), ``"quick"`` (minutes), ``"reduced"`` (hours on two cores) or ``"paper"``; an
            experiment without a reduced scale takes the paper's.
        out: Folder for ``index.html``, pictures and tables, ``claims.json``, ``rows.jsonl`` and ``provenance.json``
            (who computed the rows, where, when), for the rows as they come, in ``runs``, and for ``trainings``.
        data_root: Folder that holds the data sets, for experiments that need some.
        progress: Called with what is being done, the steps done and the steps to do.
        done: Called with each result once the page shows it.
        before: Called at the reduced and the paper's scale, before hours of work, with what is there and what the
            rest will take on this machine, measured from a few steps.
    """
    checks.check_one_of("scale", scale, SCALES)
    experiments = [load(name) for name in dict.fromkeys(chosen)]
    for experiment in experiments:
        _check_data(experiment, data_root)
    page = _Page(Path(out), done)
    work = _Work(experiments, scale, Path(out), data_root, progress)
    if before is not None and scale in ("reduced", "paper"):
        for name, cost in ((each.name, each.cost) for each in experiments):
            if cost is not None:
                before(cost(list(work.runs[name].values()), work.places))
    lines: list[Row] = []
    for i, experiment in enumerate(experiments, 1):
        rows = work.rows(experiment)
        lines += [{"experiment": experiment.name, "scale": scale, "row": row} for row in rows]
        pending = {e.name: e.title for e in experiments[i:]}
        page.add(replace(experiment.result(rows, scale), **work.origin(experiment)), rows, scale, pending)
    records.write_atomic(Path(out) / "rows.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    names = [experiment.name for experiment in experiments]
    origin = {"experiments": names, "scale": scale, "sessions": work.sessions(*names)}
    records.write_atomic(Path(out) / "provenance.json", json.dumps(origin, indent=1).encode())
    return page.results


def render(
    rows: str | os.PathLike[str], out: str | os.PathLike[str], done: Callable[[report.Result], None] | None = None
) -> list[report.Result]:
    """Write page, pictures, tables and claims again, from stored rows alone.

    Args:
        rows: A file ``rows.jsonl`` that :func:`reproduce` wrote, as it is or packed by xz (``rows.jsonl.xz``).
        out: Folder for what is written; it may be the one that holds the file.
        done: Called with each result once the page shows it.
    """
    groups = by(_lines(Path(rows)), "experiment", "scale")
    Path(out).mkdir(parents=True, exist_ok=True)
    page, names = _Page(Path(out), done), [name for name, _ in groups]
    for i, ((name, scale), lines) in enumerate(groups.items(), 1):
        known = [line["row"] for line in lines]
        page.add(load(name).result(known, scale), known, scale, {later: load(later).title for later in names[i:]})
    return page.results


def _lines(path: Path) -> list[Row]:
    """Those of a file that :func:`reproduce` wrote: an experiment, its scale and a row each."""
    try:
        stored = checks.read_regular(path)
        text = lzma.LZMADecompressor().decompress(stored, checks.MOST_BYTES) if path.suffix == ".xz" else stored
    except lzma.LZMAError as error:
        raise ValueError(f"{path} cannot be unpacked ({error}); get it again.") from None
    lines = [parsed(line) or {} for line in text.splitlines()]
    wrong = next((i for i, line in enumerate(lines, 1) if not {"experiment", "scale", "row"} <= line.keys()), None)
    if wrong is not None or not lines:
        what = f"its line {wrong} has no experiment, scale and row" if lines else "it is empty"
        raise ValueError(f"{path} is no rows.jsonl of samphire reproduce: {what}; give the one beside a page.")
    return lines


def explorer() -> Path:
    """The page that trains both networks in a browser: in the package where it is installed, in ``docs`` else."""
    package = Path(__file__).parents[1]
    here = package / "report" / "explorer.html"
    return here if here.exists() else package.parents[1] / "docs" / "explorer" / "index.html"


class _Page:
    """The page of some results, written anew with each."""

    def __init__(self, out: Path, done: Callable[[report.Result], None] | None) -> None:
        self.out, self.done, self.started = out, done, time.perf_counter()
        self.results: list[report.Result] = []
        self.rows: dict[str, list[Row]] = {}
        self.scales: list[str] = []

    def add(self, result: report.Result, rows: list[Row], scale: str, pending: Mapping[str, str]) -> None:
        self.results.append(result)
        self.rows[result.name] = rows
        self.scales = list(dict.fromkeys([*self.scales, scale]))
        scales = ", ".join(self.scales)
        machine = records.provenance() | {"seconds": round(time.perf_counter() - self.started, 1), "scale": scales}
        records.write_atomic(self.out / "explorer.html", explorer().read_bytes())
        links = {"explorer.html": "Try it: train both networks in your browser."}
        story = tell(self.rows, self.scales != ["tiny"], links)
        report.write(self.out, self.results, machine, f"samphire: {scales} scale", story, pending)
        claims = [row | {"seconds": None} for row in report.summary(self.results)]  # the same from the rows alone
        records.write_atomic(self.out / "claims.json", report.to_json(claims).encode())
        if self.done is not None:
            self.done(result)


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
    """The rows of some experiments: those stored, and those computed now."""

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
        self.steps = {  # of all runs, each once, though several experiments may have it
            (experiment.compute, key): experiment.steps(run)
            for experiment in experiments
            for key, run in self.runs[experiment.name].items()
        }
        self.left, self.total = dict(self.steps), sum(self.steps.values())

    def rows(self, experiment: Experiment) -> list[Row]:
        """One row per run of an experiment, in the order of its runs; those that no folder has are computed."""
        name, compute, runs = experiment.name, experiment.compute, self.runs[experiment.name]
        known = self._known(compute)
        with records.open_run(self.store, self.jobs[name]) as folder:
            stored = {row["key"]: row for row in folder.rows}

            def keep(row: Row) -> None:
                if row["key"] in runs and row["key"] not in stored:
                    folder.append(row)
                    stored[row["key"]] = row
                self.left.pop((compute, row["key"]), None)

            for row in (*folder.rows, *known):
                keep(row)
            missing = {key: run for key, run in runs.items() if key not in stored}
            if missing:
                part = self._part(name, sum(self.steps[compute, key] for key in missing))
                for run, row in compute(list(missing.values()), self.places, part):
                    keep({"key": records.key(run), **row})
            for key in missing:  # those without data too
                self.left.pop((compute, key), None)
            folder.complete = stored.keys() >= runs.keys()  # else a data set is missing
        if not stored:
            raise ValueError(f"{name} has no data set under {self.places.data} to run on; name another --root.")
        return [stored[key] for key in runs if key in stored]

    def sessions(self, *names: str) -> list[Row]:
        """Where and when the rows of these experiments were computed."""
        keys = {records.key(self.jobs[name]) for name in names}
        return [s for run in records.read(self.store) if run.key in keys for s in run.sessions if s["rows"]]

    def origin(self, experiment: Experiment) -> Row:
        """The same for its result: how long all sessions took, and the last of them."""
        sessions = self.sessions(experiment.name)
        seconds = sum(session["seconds"] for session in sessions)
        last = sessions[-1] if sessions else {}
        return {"seconds": seconds, "provenance": {k: v for k, v in last.items() if k not in ("seconds", "rows")}}

    def _known(self, compute: Compute) -> list[Row]:
        """Rows of the same computation that any experiment at any scale has stored."""
        if not self.store.is_dir():
            return []
        same = {name for name, experiment in EXPERIMENTS.items() if experiment.compute == compute}
        stored = (run for run in records.read(self.store) if run.config.get("experiment") in same
                  and run.config.get("version") == __version__)  # fmt: skip
        return [row for run in stored for row in run.rows]

    def _part(self, name: str, steps: int) -> Progress:
        done = self.total - sum(self.left.values())
        start, end = done / self.total, (done + steps) / self.total
        return stretch(lambda _, done, total: self.progress(name, done, total), start, end, self.total)


def _runs(experiment: Experiment, scale: str) -> dict[str, Any]:
    config = experiment.at(scale)
    runs = {records.key(run): run for run in experiment.runs(config)}
    if not runs:
        raise ValueError(f"{experiment.name} has no runs to train with {config}; give each of its lists an entry.")
    return runs
