"""``samphire probe``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

from samphire import models, probes, records, report
from samphire.cli.progress import bar
from samphire.data.parts import Parts, load_parts
from samphire.progress import named
from samphire.train.fit import load_weights

Advance = Callable[[str, int, int], None]
Curves = dict[str, dict[int, probes.Probe]]


def probe(
    run: Annotated[Path, typer.Argument(help="A folder written by training, or a file with a state dict.")],
    data_name: Annotated[str | None, typer.Option("--data", help="Data set, where the run does not say.")] = None,
    root: Annotated[Path, typer.Option(help="The folder of the data set, or the one above it.")] = Path("data"),
    model: Annotated[str | None, typer.Option(help="Network, where the run does not say.")] = None,
    target: Annotated[str | None, typer.Option(help="Target domain, for sets with domains.")] = None,
    feature: Annotated[str | None, typer.Option(help="One feature instead of all.")] = None,
    layer: Annotated[str | None, typer.Option(help="A module's name instead of the last Linear's input.")] = None,
    resamples: Annotated[int, typer.Option(min=1, help="Balanced samples to train probes on.")] = 20,
    pretrained: Annotated[str | None, typer.Option(help="Weights the training began with: a control.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images, where the run does not say.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for decoded images; the user's cache if none.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a picture, with learning curves, to this PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row instead.")] = False,
) -> None:
    """Say which features a network has learned: probe errors beside controls, and errors by group."""
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent} to write {out.name} in; make it first.")
    given = {"data": data_name, "model": model, "layer": layer, "target": target, "weights": pretrained, "size": size}
    config = read_run(run, {name: value for name, value in given.items() if value is not None})
    weights = run / "model.pt" if run.is_dir() else run
    with bar() as advance:
        where = {"size": config.get("size", 96), "target": config.get("target"), "cache": cache}
        parts = load_parts(config["data"], root, judged_only=True, progress=advance, **where)
        networks = _networks(config, weights, parts.classes)
        rows, curves = measure(networks, parts, config.get("layer"), feature, resamples, out is not None, advance)
    if as_json:
        for row in rows:
            print(json.dumps(row))
    else:
        _show(rows, parts.domain)
    if out is not None:
        records.write_atomic(out, picture(rows, curves))


def read_run(run: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, with what was given on the command line instead of what it says."""
    if not run.exists():
        raise FileNotFoundError(f"there is no run at {run}; give a folder with model.pt, or a file of weights.")
    path = run / "config.json"
    config: dict[str, Any] = json.loads(path.read_text()) if run.is_dir() and path.exists() else {}
    config = {name: value for name, value in config.items() if value is not None} | dict(given)
    for name in ("data", "model"):
        if not isinstance(config.get(name), str):
            raise ValueError(f"{run} does not say its {name}; name it with --{name}.")
    return config


def _networks(config: Mapping[str, Any], weights: Path, classes: int) -> dict[str, torch.nn.Module]:
    """The trained network, and those that tell what its architecture and its first weights give by themselves."""
    spec, first = config["model"], config.get("weights")
    trained: Any = load_weights(spec, classes, weights)
    found = {"trained": trained}
    if first is not None:
        found["pretrained, untouched"] = models.load(spec, classes, first)
    found["random weights"] = models.load(spec, classes, generator=torch.Generator().manual_seed(0))
    for network in found.values():
        network.normalise = trained.normalise
    return found


def measure(
    networks: Mapping[str, torch.nn.Module],
    parts: Parts,
    layer: str | None,
    feature: str | None,
    resamples: int,
    with_curves: bool,
    advance: Advance,
) -> tuple[list[dict[str, Any]], Curves]:
    """Group errors of the first network, probe errors of all and of shuffled labels, and learning curves."""
    trained = next(iter(networks))
    logits = probes.features(networks[trained], parts.test.images, "", progress=named(advance, "predictions"))
    guess = logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).astype(np.int64)
    rows = [{"measure": "errors by group"} | probes.errors(guess, parts.test, parts.train).row()]
    curves: Curves = {}

    def add(measure: str, network: str, found: probes.Probe) -> None:
        rows.append({"measure": measure, "network": network} | found.row())

    for name, network in networks.items():
        look = partial(probes.features, network, layer=layer, progress=named(advance, f"features ({name})"))
        x, x_test = look(parts.probe_train.images), look(parts.probe_test.images)
        inputs = (x, parts.probe_train, x_test, parts.probe_test)
        if parts.domain:
            add("domain probe", name, probes.domain_probe(*inputs))
            continue
        for f in [feature] if feature else parts.probe_train.features:
            run: Any = partial(probes.probe, *inputs, f, resamples=resamples)
            add("probe", name, run(progress=named(advance, f"probes of {f} ({name})")))
            if name == trained:
                tell = named(advance, f"shuffled labels ({f})")
                add("probe", f"{name}, labels shuffled", run(shuffle_labels=True, progress=tell))
            if name == trained and with_curves:
                tell = named(advance, f"learning curve ({f})")
                curves[f] = probes.learning_curve(*inputs, f, resamples=min(resamples, 5), progress=tell)
    return rows, curves


def _show(rows: list[dict[str, Any]], domain: bool) -> None:
    errors, *found = rows
    caption = "Probe errors: equal-weight mean over groups; 95 % bootstrap interval over resamples and test examples."
    if domain:
        caption = "Errors of probes trained on the target domain: plain share of its test examples; 95 % bootstrap."
    n, interval = errors["worst group's n"], errors["worst group's 95 % interval"]
    notes = {"worst-group": f"{errors['worst group']}, n = {n}, 95 %: {interval}"}
    averages = [
        {"average": name, "error": errors[f"{name} error"], "of": notes.get(name)}
        for name in ("train-weighted", "plain", "equal-group", "worst-group")
    ]
    tables = (
        report.table(averages, caption="Test errors of the network, by four averages."),
        report.table((_short(row, domain) for row in found), caption=caption),
    )
    for table in tables:
        Console().print(report.rich_table(table))


def _short(row: dict[str, Any], domain: bool) -> dict[str, Any]:
    """A probe in as many columns as fit a narrow terminal."""
    error = row["plain probe error" if domain else "equal-group probe error"]
    shown = {"network": row["network"], "error": f"{error:.4f}", "95 %": f"{row['low']:.4f} to {row['high']:.4f}"}
    if domain:
        return shown
    worst = f"{row['worst-group probe error']:.4f} {row['worst group']}"
    return {"feature": row["feature"], **shown, "worst group": worst, "n/group": row["n per group"]}


def picture(rows: list[dict[str, Any]], curves: Curves) -> bytes:
    """Probe errors with their intervals, by feature and network, and the learning curves beside them."""
    found = [row for row in rows if row["measure"] != "errors by group"]
    names = list(dict.fromkeys(row["network"] for row in found))
    features = list(dict.fromkeys(row["feature"] for row in found))
    average = "plain" if "plain probe error" in found[0] else "equal-group"
    with report.figure(1, 2, size=(9.5, 3.6)) as (fig, (left, right)):
        for i, name in enumerate(names):
            mine = [row for row in found if row["network"] == name]
            at = [features.index(row["feature"]) + 0.15 * (i - (len(names) - 1) / 2) for row in mine]
            _points(left, at, [(row[f"{average} probe error"], row["low"], row["high"]) for row in mine], name)
        left.set(xticks=range(len(features)), xticklabels=features, ylabel=f"{average} probe error", ylim=(0, None))
        left.margins(x=0.3)
        left.legend()
        for feature, curve in curves.items():
            _points(right, list(curve), [(p.mean, *p.interval) for p in curve.values()], feature, "-")
        right.set(
            xscale="log", xlabel="training examples per group", ylabel="equal-group probe error", ylim=(0, None)
        )
        if curves:
            right.legend()
        else:
            right.set_visible(False)
    return report.png(fig)


def _points(axes: Any, x: list[Any], y: list[tuple[float, float, float]], label: str, line: str = "none") -> None:
    mean, low, high = np.array(y).T
    below, above = np.maximum(mean - low, 0), np.maximum(high - mean, 0)
    axes.errorbar(x, mean, [below, above], fmt="o", linestyle=line, capsize=2, label=label)
