"""``samphire sweep``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from samphire import data, report
from samphire import sweep as sweeps
from samphire.cli.progress import bar
from samphire.statistics import Estimate
from samphire.train import Config, fit, parse

SIDES = 3  # of a table: what fits 80 columns
NOTE = """score: what was chosen by, never on test examples. test error: groups weighted as in
training. probe: groups weighted equally; for sets with domains, the plain share.
All: mean ± standard deviation over seeds."""


def sweep(
    data_name: Annotated[str, typer.Argument(metavar="DATA", help="Data set, for instance cifar-mnist.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings of all runs, such as epochs=5, and lists instead of the paper's: lr=, rho= and target=.",
        ),
    ] = None,
    rules: Annotated[str, typer.Option(help="Rules to compare; radius 0 is SGD, once for all.")] = "sam,lsam",
    seeds: Annotated[str, typer.Option(help="Each setting is run with each.")] = "0",
    on: Annotated[str, typer.Option(help="here, processes (one thread each) or ray.")] = "here",
    workers: Annotated[int | None, typer.Option(help="Runs at once; by default one for each core.")] = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster; all its nodes must see --root and --out.")] = None,
    root: Annotated[Path, typer.Option(help="The folder of the data set, or the one above it.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Folder for the runs; what is there is not done again.")] = Path("runs"),
    by: Annotated[str, typer.Option(help=f"Criterion to select by: {', '.join(sweeps.CRITERIA)}.")] = "val_error",
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded images; the user's cache if none.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Train nothing; select from what is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row instead.")] = False,
) -> None:
    """Train every setting of the paper's grid and select the best of each rule; run again, do what is missing."""
    jobs = plan(data_name, settings or (), _listed(rules), [_whole(seed) for seed in _listed(seeds)])
    if by not in sweeps.CRITERIA:
        raise ValueError(f"no criterion is named {by!r}; there are {', '.join(sweeps.CRITERIA)}.")
    if table:
        found = sweeps.trials(out, jobs)
    else:
        data.load(data_name, root, **({} if jobs[0].target is None else {"target": jobs[0].target}))  # or say why not
        work = partial(fit, root=root.resolve(), out=out.resolve(), cache=cache and cache.resolve())
        with bar() as advance:
            found = sweeps.run(
                jobs, work, out.resolve(), on=on, workers=workers, address=address, progress=advance, done=_say
            ).trials
    _show(found, by, as_json)
    failed = [trial for trial in found if trial.error]
    for trial in failed:
        print(f"\n{_name(trial.config)} failed; {trial.report} has:\n{trial.error}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def plan(name: str, words: Sequence[str], rules: Sequence[str], seeds: Sequence[int]) -> list[Config]:
    """The jobs of a command line.

    Args:
        name: Of the data set.
        words: ``key=value``; ``lr``, ``rho`` and ``target`` may have several values.
        rules: Names of rules.
        seeds: Of each setting.
    """
    lists: dict[str, list[str]] = {}
    others = []
    for word in words:
        key, _, text = word.partition("=")
        if key in ("rule", "seed"):
            raise ValueError(f"a sweep has several {key}s, got {word!r}; write --{key}s {text}.")
        if key in ("lr", "rho", "target"):
            lists[key] = _listed(text)
        else:
            others.append(word)
    numbers = {key: [_number(key, text) for text in lists[key]] for key in ("lr", "rho") if key in lists}
    some = sweeps.grid(name, rules[:1], seeds[:1])[-1]  # refuses what is unknown, and has a target if one is needed
    target = [] if some.target is None else [f"target={some.target}"]
    base = parse(name, [*others, f"rule={some.rule}", *target])
    varied = ("data", "rule", "rho", "lr", "seed", "target")
    fixed = {f.name: getattr(base, f.name) for f in fields(base) if f.name not in varied}
    return sweeps.grid(name, rules, seeds, **numbers, targets=lists.get("target"), **fixed)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key} must be numbers with commas between, got {text!r}; write {key}=0.01,0.05.") from None


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"seeds must be whole numbers with commas between, got {text!r}; write --seeds 0,1.")
    return int(text)


def _name(config: Config) -> str:
    target = f", target={config.target}" if config.target is not None else ""
    rho = f", rho={config.radius:g}" if config.radius else ""
    return f"{config.rule}{rho}, lr={config.lr:g}{target}, seed={config.seed}"


def _say(trial: sweeps.Trial) -> None:
    """One line for a run that has come to an end."""
    row = trial.row or {}
    how = row.get("stopped") or (f"val_error {row['val_error']:.4f}" if "val_error" in row else "")
    print(f"{trial.state}: {_name(trial.config)}{': ' if how else ''}{how}", file=sys.stderr)


def _show(found: Sequence[sweeps.Trial], by: str, as_json: bool) -> None:
    rows = sweeps.table(found, by)
    if as_json:
        plain = [{name: _numbers(cell) for name, cell in row.items()} for row in rows]
        for row in json.loads(report.to_json(plain)):
            print(json.dumps(row))
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


def _upright(rows: Sequence[dict[str, Any]], criterion: str) -> report.Table:
    """Sides as columns, so that nothing is cut off on a narrow terminal."""
    names = [name for name in rows[0] if name not in ("chosen by", "side")]
    cells = [[name, *(_text(row[name]) for row in rows)] for name in names]
    return report.Table(["", *(row["side"] for row in rows)], cells, f"Chosen by {criterion}")
