"""``samphire train``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from samphire import records, report
from samphire.cli.progress import bar
from samphire.train import TrainedRun, fit, parse
from samphire.train.configs import DEFAULTS, METHODS, Config

AVERAGES = {"train-weighted": "error", "plain": "plain", "equal-group": "equal", "worst-group": "worst"}


def train(
    data: Annotated[str, typer.Argument(help=f"Data set: {', '.join(DEFAULTS)}.", show_default=False)],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Instead of the paper's; see --settings.")
    ] = None,
    root: Annotated[Path, typer.Option(help="The folder of the data set, or the one above it.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded images; the user's cache if none.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to compute; a GPU if there is one.")] = None,
    show: Annotated[bool, typer.Option("--settings", help="Print the settings and do not train.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per epoch instead of tables.")] = False,
) -> None:
    """Train a network by any rule and say what it learned. Goes on where it was stopped; runs under torchrun too.

    Settings of the rule and of the method have a dot: rule=looksam rule.k=10 method=jtt method.times=20.
    """
    config = parse(data, settings or [])
    if show:
        Console().print(report.rich_table(settings_table(config)))
        return
    with bar() as progress:
        trained = fit(config, root, out, cache=cache, device=device, progress=progress)
    if int(os.environ.get("RANK", 0)) == 0:
        _tell(trained, as_json)
    if trained.stopped:
        print(f"samphire: {trained.stopped}", file=sys.stderr)
        raise typer.Exit(1)


def settings_table(config: Config) -> report.Table:
    """Every setting of a run with its value."""
    rows = [
        {"setting": name, "value": str(value)} for name, value in asdict(config).items() if "_settings" not in name
    ]
    rule = [{"setting": f"rule.{name}", "value": str(value)} for name, value in config.rule_settings]
    method = [
        {"setting": f"method.{name}", "value": str(config.method_setting(name))} for name in METHODS[config.method]
    ]
    return report.table(
        rows + rule + method, caption=f"Settings of a run on {config.data}; change them by key=value."
    )


def _tell(trained: TrainedRun, as_json: bool) -> None:
    if as_json:
        for row in trained.rows:
            print(json.dumps(report.strict(row)))
        return
    for table in tables(trained):
        Console().print(report.rich_table(table))
    records.write_atomic(trained.folder / "curves.png", report.png(curves(trained)))
    print(trained.folder)


def tables(trained: TrainedRun) -> list[report.Table]:
    """The epochs; and, of a run that came to its end, its errors and probes."""
    columns = {
        "epoch": "epoch",
        "loss": "training loss",
        "train_error": "training error",
        "val_loss": "val. loss",
        "val_error": "val. error",
        "val_worst": "val. worst group",
        "seconds": "seconds",
    }
    epochs = [{shown: row.get(name) for name, shown in columns.items()} for row in trained.rows]
    caption = "Every epoch. Training: batches as they came, so behind; val. error: weighted by training groups."
    found = [report.table(epochs, caption=caption)]
    last = trained.rows[-1]
    if "test_error" in last:
        errors = [{"average": name, "test error": last[f"test_{key}"]} for name, key in AVERAGES.items()]
        errors[-1]["of"] = last["test_worst_group"]
        found.append(report.table(errors, ["average", "test error", "of"], caption="Errors of the network."))
    if "probe" in last:
        probed = [
            {
                "feature": name,
                "error": error,
                "95 %": f"{last['probe_low'][name]:.4f} to {last['probe_high'][name]:.4f}",
            }
            for name, error in last["probe"].items()
        ]
        found.append(report.table(probed, caption="Probe errors: equal-weight mean over groups."))
    return found


def curves(trained: TrainedRun) -> Any:
    """Loss and errors against epochs."""
    with report.figure(1, 2, size=(9, 3.2)) as (figure, (loss, error)):
        for axes, names in ((loss, LOSSES), (error, ERRORS)):
            for name, label in names.items():
                points = [(row["epoch"], row[name]) for row in trained.rows if name in row]
                axes.plot(*zip(*points, strict=True), marker="o", label=label) if points else None
        for feature in trained.rows[-1].get("probe", {}):
            points = [(row["epoch"], row["probe"][feature]) for row in trained.rows if "probe" in row]
            error.plot(*zip(*points, strict=True), marker="s", linestyle="--", label=f"probe of {feature}")
        loss.set(xlabel="epoch", ylabel="cross-entropy", yscale="log")
        error.set(xlabel="epoch", ylabel="error", ylim=(0, None))
        loss.legend()
        error.legend()
    return figure


LOSSES = {"loss": "training batches", "val_loss": "validation"}
ERRORS = {
    "train_error": "training batches",
    "val_error": "validation, train-weighted",
    "val_worst": "validation, worst group",
}
