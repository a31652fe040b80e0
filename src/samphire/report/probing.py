"""What a network has learned, as tables and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from samphire.probes.compare import Comparison
from samphire.records import Row
from samphire.report.pictures import figure
from samphire.report.tables import Table, table
from samphire.report.training import AVERAGES

__all__ = ["picture", "tables"]

CAPTION = "Probe errors: equal-weight mean over groups; 95 % bootstrap interval over resamples and test examples."
DOMAIN = "Errors of probes trained on the target domain: plain share of its test examples; 95 % bootstrap."
EDGE = "l2*: the lowest held-out error lies at the edge of the penalties tried."


def tables(comparison: Comparison) -> list[Table]:
    """Test errors by four averages, and the probes in as many columns as fit a narrow terminal."""
    errors = comparison.errors
    n, interval = errors["worst group's n"], errors["worst group's 95 % interval"]
    worst = f"{errors['worst group']}, n = {n}, 95 %: {interval}"
    rows = [(name, errors[f"{name} error"], worst if name == "worst-group" else None) for name in AVERAGES]
    caption = DOMAIN if _average(comparison) == "plain" else CAPTION
    return [
        Table(["average", "error", "group"], rows, "Test errors of the network, by four averages."),
        table(map(_short, comparison.probes), caption=f"{caption} Probing set: {comparison.probing}. {EDGE}"),
    ]


def picture(comparison: Comparison) -> Any:
    """Probe errors with their intervals, by feature and network, and the learning curves beside them."""
    rows, average = comparison.probes, _average(comparison)
    networks = list(dict.fromkeys(row["network"] for row in rows))
    features = list(dict.fromkeys(row["feature"] for row in rows))
    with figure(1, 2, size=(9.5, 3.6)) as (fig, (left, right)):
        for i, name in enumerate(networks):
            mine = [row for row in rows if row["network"] == name]
            x = [features.index(row["feature"]) + 0.15 * (i - (len(networks) - 1) / 2) for row in mine]
            _points(left, x, [(row[f"{average} probe error"], row["low"], row["high"]) for row in mine], name)
        left.set(xticks=range(len(features)), xticklabels=features, ylabel=f"{average} probe error", ylim=(0, None))
        left.margins(x=0.3)
        left.legend()
        for feature, curve in comparison.curves.items():
            _points(right, list(curve), [(p.mean, *p.interval) for p in curve.values()], feature, "-")
        if comparison.curves:
            right.set(xscale="log", xlabel="training examples per group", ylabel="equal-group probe error")
            right.set_ylim(0, None)
            right.legend()
        else:
            right.set_visible(False)
    return fig


def _average(comparison: Comparison) -> str:
    return "plain" if "plain probe error" in comparison.probes[0] else "equal-group"


def _short(row: Row) -> Row:
    interval = f"{row['low']:.4f} to {row['high']:.4f}"
    if "plain probe error" in row:
        error = f"{row['plain probe error']:.4f}"
        return {"network": row["network"], "error": error, "95 %": interval, "l2": _penalty(row)}
    return {
        "feature": row["feature"],
        "network": row["network"],
        "error": f"{row['equal-group probe error']:.4f}",
        "95 %": interval,
        "worst group": f"{row['worst-group probe error']:.4f} {row['worst group']}",
        "n/group": row["n per group"],
        "l2": _penalty(row),
    }


def _penalty(row: Row) -> str:
    """The penalty; a star where the lowest error lies at the edge of those tried."""
    return f"{row['l2']:.2g}" + ("*" if "edge" in row["l2 tried"] else "")


def _points(axes: Any, x: list[Any], y: list[tuple[float, float, float]], label: str, line: str = "none") -> None:
    mean, low, high = np.array(y).T
    below, above = np.maximum(mean - low, 0), np.maximum(high - mean, 0)
    axes.errorbar(x, mean, [below, above], fmt="o", linestyle=line, capsize=2, label=label)
