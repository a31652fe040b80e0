"""A training as tables and curves."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from samphire.report.pictures import figure
from samphire.report.tables import Table, table
from samphire.train.configs import METHODS, Config
from samphire.train.trained import TrainedRun

__all__ = ["curves", "settings", "tables"]

COLUMNS = {
    "epoch": "epoch",
    "loss": "training loss",
    "train_error": "training error",
    "val_loss": "val. loss",
    "val_error": "val. error",
    "val_worst": "val. worst group",
    "seconds": "seconds",
}
AVERAGES = {"train-weighted": "error", "plain": "plain", "equal-group": "equal", "worst-group": "worst"}
LOSSES = {"loss": "training batches", "val_loss": "validation"}
ERRORS = {
    "train_error": "training batches",
    "val_error": "validation, train-weighted",
    "val_worst": "validation, worst group",
}


def settings(config: Config) -> Table:
    """Every setting of a run with its value.

    Example:
        >>> from samphire.train import appendix_b
        >>> settings(appendix_b("waterbirds")).rows[0]
        ('data', 'waterbirds')
    """
    values = {name: value for name, value in asdict(config).items() if not name.endswith("_settings")}
    values |= {f"rule.{name}": value for name, value in config.rule_settings}
    values |= {f"method.{name}": config.method_setting(name) for name in METHODS[config.method]}
    rows = [(name, str(value)) for name, value in values.items()]
    return Table(["setting", "value"], rows, f"Settings of a run on {config.data}; change them by key=value.")


def tables(trained: TrainedRun) -> list[Table]:
    """The epochs and, of a run that was not stopped, its test errors and probes."""
    epochs = [{shown: row.get(name) for name, shown in COLUMNS.items()} for row in trained.rows]
    caption = "Every epoch. Training: batches as they came, so it lags; val. error: weighted by training groups."
    last = trained.rows[-1]
    shown = [table(epochs, caption=caption)]
    if "test_error" in last:
        worst = {"worst-group": last["test_worst_group"]}
        errors = [(name, last[f"test_{key}"], worst.get(name)) for name, key in AVERAGES.items()]
        shown.append(Table(["average", "test error", "group"], errors, "Errors of the network."))
    if "probe" in last:
        low, high = last["probe_low"], last["probe_high"]
        probes = [(name, error, f"{low[name]:.4f} to {high[name]:.4f}") for name, error in last["probe"].items()]
        shown.append(Table(["feature", "error", "95 %"], probes, "Probe errors: equal-weight mean over groups."))
    return shown


def curves(trained: TrainedRun) -> Any:
    """Loss and errors against epochs, as a matplotlib figure."""
    rows = trained.rows
    with figure(1, 2, size=(9, 3.2)) as (fig, (loss, error)):
        for axes, names in ((loss, LOSSES), (error, ERRORS)):
            for name, label in names.items():
                points = [(row["epoch"], row[name]) for row in rows if name in row]
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", label=label)
        for feature in rows[-1].get("probe", {}):
            points = [(row["epoch"], row["probe"][feature]) for row in rows if "probe" in row]
            error.plot(*zip(*points, strict=True), marker="s", linestyle="--", label=f"probe of {feature}")
        loss.set(xlabel="epoch", ylabel="cross-entropy", yscale="log")
        error.set(xlabel="epoch", ylabel="error", ylim=(0, None))
        loss.legend()
        error.legend()
    return fig
