"""The pictures of an audit's page, narrow enough for a phone."""

from __future__ import annotations

from typing import Any

import numpy as np

from samphire.audits.decodability import INPUT, RANDOM_WEIGHTS, SHUFFLED
from samphire.audits.results import Audit
from samphire.audits.upweighting import Upweighting
from samphire.report.pictures import PALETTE, figure, png

__all__ = ["curve", "lorenz", "map_of", "remedied"]

SIZE = (5.4, 4.0)
_CONTROLS = {INPUT: "P", RANDOM_WEIGHTS: "v", "pretrained": "^", SHUFFLED: "x"}


def map_of(audit: Audit) -> bytes:
    """The map: decodability upwards, reliance to the right; four named corners."""
    label = audit.label
    features = [(label.name, label.corner, label.decodability, label.reliance, label.interval)]
    features += [(a.name, a.corner, a.decodability, a.reliance.gap, a.reliance.interval) for a in audit.attributes]
    with figure(size=SIZE) as (fig, axes):
        chance = max(d.chance for _, _, d, _, _ in features)
        top = 1.06 * chance
        for i, (name, place, found, x, (low, high)) in enumerate(features):
            color = PALETTE[i % len(PALETTE)]
            if found.trained is None or np.isnan(x):
                continue
            p = found.trained
            y, below, above = p.mean, max(p.mean - p.interval[0], 0), max(p.interval[1] - p.mean, 0)
            reach = [[max(x - low, 0)], [max(high - x, 0)]]
            axes.errorbar([x], [y], [[below], [above]], reach, fmt="o", color=color, markersize=8, capsize=3)
            axes.annotate(
                f"{name}: {place}",
                (x, y),
                textcoords="offset points",
                xytext=(9, -4),
                color=color,
                weight="bold",
                va="top",
            )
            for control, q in found.controls.items():
                axes.plot([x], [q.mean], _CONTROLS.get(control, "s"), color=color, alpha=0.55, markersize=6)
        for control, marker in _CONTROLS.items():
            if any(control in d.controls for _, _, d, _, _ in features):
                axes.plot([], [], marker, color="#555555", alpha=0.7, label=control)
        axes.axhline(chance, color="#777777", linewidth=1, linestyle=":")
        style: Any = {"fontsize": 9, "color": "#777777", "style": "italic", "transform": axes.transAxes}
        axes.text(0.985, 0.98, "used", ha="right", va="top", **style)
        axes.text(0.015, 0.98, "known but unused", va="top", **style)
        unread = "lost if a control can read it, never learned if none can"
        axes.text(0.5, 0.13, unread, ha="center", va="bottom", **style)
        axes.set(xlabel="reliance: how much predictions follow it", ylabel="probe error (guessing: dotted)")
        left = min([-0.06] + [i[0] for *_, i in features if not np.isnan(i[0])])
        axes.set_xlim(left, 1.12)
        axes.set_ylim(top, -0.03)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return png(fig)


def lorenz(weighed: Upweighting) -> bytes:
    """Lorenz curves of the importance weights, real and at each radius."""
    with figure(size=(5.0, 3.8)) as (fig, axes):
        grid = np.linspace(0, 1, len(weighed.spreads[0].lorenz))
        shades = np.linspace(0.75, 0.0, max(len(weighed.spreads) - 1, 1))
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=":")
        for s, shade in zip(weighed.spreads[1:], shades, strict=True):
            color = (1 - (1 - 0.0) * (1 - shade), 0.45 + 0.5 * shade, 0.7 + 0.28 * shade)
            axes.plot(grid, s.lorenz, color=color, label=f"ρ = {s.rho:g} ({s.gini:.2f})")
        real = weighed.spreads[0]
        axes.plot(grid, real.lorenz, color=PALETTE[1], label=f"real ({real.gini:.2f})")
        axes.set(xlabel="examples, lightest first", ylabel="share of the weight", xlim=(0, 1), ylim=(0, 1))
        axes.legend(title="Gini in brackets")
    return png(fig)


def remedied(audit: Audit) -> bytes:
    """Each group's error now, expected and measured after the remedy."""
    assert audit.remedy is not None
    cells = audit.remedy.cells
    with figure(size=(5.2, max(2.2, 0.9 + 0.36 * len(cells)))) as (fig, axes):
        y = np.arange(len(cells))[::-1]
        expected = np.array([c.expected for c in cells])
        ends = np.array([c.interval for c in cells])
        reach = np.maximum([expected - ends[:, 0], ends[:, 1] - expected], 0)
        axes.plot([c.before.error for c in cells], y, "o", color=PALETTE[1], label="now")
        axes.errorbar(expected, y, xerr=reach, fmt="s", color=PALETTE[0], capsize=3, label="expected, 95 %")
        axes.plot([c.after for c in cells], y, "|", color="#000000", markersize=12, label="measured")
        axes.set(yticks=y, yticklabels=[_short(c.before.name) for c in cells], xlabel="test error")
        axes.set_xlim(0, None)
        axes.margins(y=0.15)
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
    return png(fig)


def curve(audit: Audit) -> bytes:
    """The remedy's error against labeled examples of each group."""
    assert audit.remedy is not None
    probes = audit.remedy.curve
    with figure(size=(4.3, 3.4)) as (fig, axes):
        sizes = list(probes)
        mean = np.array([p.mean for p in probes.values()])
        low, high = np.array([p.interval for p in probes.values()]).T
        axes.errorbar(
            sizes,
            mean,
            [np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
            fmt="o-",
            capsize=3,
            label="equal-group",
        )
        axes.plot(sizes, [max(g.error for g in p.groups) for p in probes.values()], "s--", label="worst-group")
        axes.set(xscale="log", xlabel="labeled examples of each group", ylabel="test error after the remedy")
        axes.set_xticks(sizes, [str(n) for n in sizes], minor=False)
        axes.tick_params(axis="x", which="minor", labelbottom=False)
        axes.set_ylim(0, None)
        axes.legend()
    return png(fig)


def _short(name: str, most: int = 34) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
