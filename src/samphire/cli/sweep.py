"""``samphire sweep``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from samphire import records, report
from samphire import sweep as sweeps
from samphire.checks import check_one_of
from samphire.cli.options import AsJson, Cache, Features, Image, Label, LogTo, Root, Split, tracker_of
from samphire.cli.own import own_data
from samphire.cli.progress import bar
from samphire.records import Row
from samphire.statistics import Estimate
from samphire.sweep.plans import listed, plan, whole_numbers

if TYPE_CHECKING:
    from samphire.train import Config

SIDES = 3  # of a table: what fits 80 columns
NOTE = """score: what was selected by, never on test examples. test error: groups weighted as in
training. probe: groups weighted equally; for sets with domains, the plain share.
All: mean ± standard deviation over seeds."""


def sweep(
    data_name: Annotated[
        str, typer.Argument(metavar="DATA", help="Data set, such as cifar-mnist, or your own folder.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of all runs, such as epochs=5, and lists instead of the paper's: lr=, rho= and target=.",
        ),
    ] = None,
    rules: Annotated[str, typer.Option(help="Rules to compare; radius 0 is SGD, once for all.")] = "sam,lsam",
    seeds: Annotated[str, typer.Option(help="Each setting is run with each.")] = "0",
    on: Annotated[str, typer.Option(help="here, processes (one thread each), ray or slurm.")] = "here",
    workers: Annotated[int | None, typer.Option(help="Runs at once; by default one for each core.")] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster; all its nodes must see --root and --out.")] = None,
    root: Root = Path("data"),
    image: Image = None,
    label: Label = None,
    split: Split = None,
    features: Features = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs; what is there is not done again.")] = Path("runs"),
    by: Annotated[str, typer.Option(help=f"Criterion to select by: {', '.join(sweeps.CRITERIA)}.")] = "val_error",
    cache: Cache = None,
    table: Annotated[bool, typer.Option("--table", help="Train nothing; select from what is there.")] = False,
    log: LogTo = None,
    as_json: AsJson = False,
) -> None:
    """Train every setting of the paper's grid and select the best of each rule. Resumes where it stopped."""
    from samphire.train import fit

    check_one_of("criterion", by, sweeps.CRITERIA)
    own = own_data(data_name, image, label, split, features)
    name = data_name if own is None else own.name
    jobs = plan(name, settings or (), listed(rules), whole_numbers("seeds", seeds))
    if table:
        trials = sweeps.trials(out, jobs)
    else:
        _check_data(jobs, root, out, own)
        places: Any = {"root": root.resolve(), "out": out.resolve(), "cache": cache and cache.resolve()}
        work = partial(fit, **places, parts=own, log=tracker_of(log))
        with bar() as progress:
            trials = sweeps.run(
                jobs, work, out.resolve(), on=on, workers=workers, address=address, progress=progress, done=_log
            ).trials
    _show(trials, by, as_json)
    failed = [trial for trial in trials if trial.error]
    for trial in failed:
        print(f"\n{_name(trial.config)} failed; {trial.report} has:\n{trial.error}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _check_data(jobs: Sequence[Config], root: Path, out: Path, own: Any) -> None:
    """Read the data, or say why not; runs that are there must have been trained on the same."""
    from samphire.train.examples import check_examples, splits_of

    for target in dict.fromkeys(job.target for job in jobs):
        splits = splits_of(jobs[0].data, root, target, own)
        for job in jobs:
            if job.target == target:
                check_examples(out / records.key(job), job.data, splits)


def _name(config: Config) -> str:
    target = f", target={config.target}" if config.target is not None else ""
    rho = f", rho={config.radius:g}" if config.radius else ""
    return f"{config.rule}{rho}, lr={config.lr:g}{target}, seed={config.seed}"


def _log(trial: sweeps.Trial) -> None:
    """One line for a run that has ended."""
    row = trial.row or {}
    how = row.get("stopped") or (f"val_error {row['val_error']:.4f}" if "val_error" in row else "")
    print(f"{trial.state}: {_name(trial.config)}{': ' if how else ''}{how}", file=sys.stderr)


def _show(trials: Sequence[sweeps.Trial], by: str, as_json: bool) -> None:
    rows = sweeps.table(trials, by)
    if as_json:
        for row in rows:
            print(json.dumps(report.strict({name: _numbers(cell) for name, cell in row.items()})))
        return
    for criterion in dict.fromkeys(row["chosen by"] for row in rows):
        chosen = [row for row in rows if row["chosen by"] == criterion]
        for start in range(0, len(chosen), SIDES):
            Console().print(report.rich_table(_upright(chosen[start : start + SIDES], criterion)))
    print(NOTE)


def _numbers(cell: Any) -> Any:
    return {"mean": cell.mean, "std": cell.deviation, "n": cell.n} if isinstance(cell, Estimate) else cell


def _text(cell: Any) -> str:
    return cell.spread() if isinstance(cell, Estimate) else report.show(cell)


def _upright(rows: Sequence[Row], criterion: str) -> report.Table:
    """Sides as columns, so that nothing is cut off on a narrow terminal."""
    names = [name for name in rows[0] if name not in ("chosen by", "side")]
    cells = [[name, *(_text(row[name]) for row in rows)] for name in names]
    return report.Table(["", *(row["side"] for row in rows)], cells, f"Chosen by {criterion}")
