r"""Figure 1 of the review: a sharp and a flat minimum on the line.

The function is :math:`f(x) = x^2 (x - 1)^2 / (x^2 + a)` with :math:`a = 10^{-4}`. It is zero at 0, where its
curvature is 20000, and at 1, where it is 2; between them is a barrier. Every cell of the map is one start, learning
rate and :math:`\rho`, and shows where the iterates end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire import report
from samphire.experiments.experiment import Experiment, one_by_one
from samphire.experiments.rows import Row, by
from samphire.statistics import fact

__all__ = ["ENDS", "FIG1", "LIMIT", "STUCK", "A", "Array", "ends", "settle"]

Array = NDArray[np.float64]


A = 1e-4
SHARP = 2 / A  # f''(0)
BARRIER = float(np.roots([1, 0, 2 * A, -A]).real.max())  # the local maximum: x³ + 2ax − a = 0
LIMIT = 2 / SHARP  # the largest learning rate at which gradient descent can rest at 0
TIME = 2.7  # lr × steps: from anywhere in the map to within 0.01 of 1 at the speed of gradient flow
STEPS = 20_000  # at least
WATCHED = 500  # steps at the end
ENDS = {
    "0": ("rests at 0, the sharp minimum", report.PALETTE[1]),
    "o": ("circles 0", report.PALETTE[4]),
    "r": ("rests at x = ρ, perturbed to 0", report.PALETTE[3]),
    "b": ("circles the barrier or x = ρ", "#7f7f7f"),
    "1": ("reaches 1, the flat minimum", report.PALETTE[2]),
    "w": ("swings widely or diverges", "#d9d9d9"),
}
STUCK = ("0", "o")


def f(x: Array) -> Array:
    """The function.

    Example:
        >>> float(f(np.array(0.5))) == 0.5**4 / (0.25 + 1e-4)
        True
    """
    return x**2 * (x - 1) ** 2 / (x**2 + A)


def slope(x: Array) -> Array:
    """Its derivative."""
    square = x * x
    scale = square + A
    return 2 * x * (x - 1) * (x * (square + 2 * A) - A) / (scale * scale)


def step(x: Array, lr: Array, rho: Array) -> Array:
    """One step of SAM on the line (equation 3) for every cell; with rho=0, of gradient descent (equation 4)."""
    return x - lr * slope(x + rho * np.sign(slope(x)))


def settle(x: Array, lr: Array, rho: Array, steps: int) -> tuple[Array, Array]:
    """The lowest and the highest point of the last steps from starts ``x``; shapes are broadcast."""
    x = np.broadcast_arrays(x, lr, rho)[0].astype(float)
    with np.errstate(over="ignore", invalid="ignore"):  # what diverges becomes nan
        for _ in range(steps - WATCHED):
            x = step(x, lr, rho)
        low = high = x
        for _ in range(WATCHED):
            x = step(x, lr, rho)
            low, high = np.minimum(low, x), np.maximum(high, x)
    return low, high


def ends(low: Array, high: Array, lr: Array, rho: Array) -> NDArray[np.str_]:
    """Where each cell ended: a key of ``ENDS``. At 1, SAM has a cycle of amplitude rho lr / (1 - lr)."""
    cycle = 0.01 + 2 * rho * lr / (1 - lr)
    far = [np.maximum(abs(low - at), abs(high - at)) for at in (0.0, rho, 1.0)]
    cases = {
        "0": far[0] < 1e-7,
        "r": far[1] < 1e-6,
        "1": far[2] < cycle,
        "o": (low < 0) & (high > 0) & (high < 0.5),
        "b": (low >= 0) & (high < 0.99),
    }
    return np.select(list(cases.values()), list(cases), default="w")


@dataclass(frozen=True)
class Config:
    """Starts; lowest, highest and number of the learning rates and of the radii."""

    starts: tuple[float, ...] = (-1.0, -0.5, 0.001, 0.02, 0.05)
    lrs: tuple[float, float, int] = (1e-5, 0.5, 96)
    rhos: tuple[float, float, int] = (1e-4, 0.9, 71)


@dataclass(frozen=True)
class Map:
    """All starts and radii (the first is 0) at learning rates that need equally many steps."""

    starts: tuple[float, ...]
    lrs: tuple[float, ...]
    rhos: tuple[float, ...]
    steps: int


@dataclass(frozen=True)
class Orbit:
    """One fact: a start, a learning rate, radii."""

    fact: str
    start: float
    lr: float
    rhos: tuple[float, ...]
    steps: int


FACTS = (
    *(Orbit("S1", 1e-3, lr, (1e-6, 3e-6, 1e-5), 2_000) for lr in (2e-5, 5e-5, 8e-5)),
    *(Orbit("S2", -0.5, lr, (0.05, 0.1, 0.3, 0.9), 8_000) for lr in (0.99 * LIMIT, 1.01 * LIMIT)),
    Orbit("S3", 0.05, 2 * LIMIT, (0.0, 0.006, 0.01, 0.02), 15_000),
)


def runs(config: Config) -> list[Map | Orbit]:
    """The map in bands of the learning rate, and the facts."""
    lrs, rhos = (tuple(float(f"{v:.6g}") for v in np.geomspace(*ends)) for ends in (config.lrs, config.rhos))
    bands = [Map(config.starts, tuple(band), (0.0, *rhos), n) for n, band in groupby(lrs, _steps)]
    return [*bands, *FACTS]


def _steps(lr: float) -> int:
    """Enough for the learning rate, and equal for similar ones."""
    return STEPS * 2 ** max(0, ceil(log2(TIME / lr / STEPS)))


def steps(run: Map | Orbit) -> int:
    """In steps of the toy that take as long; a step here has a cost per cell and one per call."""
    cells = len(run.starts) * len(run.lrs) * len(run.rhos) if isinstance(run, Map) else len(run.rhos)
    return run.steps * (1000 + cells) // 15_000


def row(run: Map | Orbit) -> Row:
    """For a map, a string of ends over rho for each start and learning rate; for a fact, its orbits."""
    rho = np.array(run.rhos)
    if isinstance(run, Orbit):
        low, high = settle(np.array(run.start), np.array(run.lr), rho, run.steps)
        where = ends(low, high, np.array(run.lr), rho)
        return {**asdict(run), "low": low.tolist(), "high": high.tolist(), "ends": "".join(where)}
    start, lr = np.array(run.starts)[:, None, None], np.array(run.lrs)[:, None]
    where = ends(*settle(start, lr, rho, run.steps), lr, rho)
    return {"fact": "", **asdict(run), "ends": [["".join(cells) for cells in lines] for lines in where]}


def cells(rows: list[Row]) -> Iterator[tuple[float, float, str, str]]:
    """Of the map: start, learning rate, where gradient descent ends, and where SAM ends over rho."""
    for band in by(rows, "fact")[""]:
        for start, lines in zip(band["starts"], band["ends"], strict=True):
            for lr, line in zip(band["lrs"], lines, strict=True):
                yield start, lr, line[0], line[1:]


def tables(rows: list[Row]) -> list[report.Table]:
    """How often each end occurs, and the three facts."""
    return [_counts(rows), _facts(rows)]


def _counts(rows: list[Row]) -> report.Table:
    both = Counter((gd, end) for _, _, gd, line in cells(rows) for end in line)
    lines = [
        [f"GD {words}", *(both[gd, end] for end in ENDS)]
        for gd, (words, _) in ENDS.items()
        if any(both[gd, end] for end in ENDS)
    ]
    caption = "Cells of the map by where gradient descent ends (rows) and SAM from the same start at the same rate."
    return report.Table(["", *(f"SAM {words}" for words, _ in ENDS.values())], lines, caption)


def _facts(rows: list[Row]) -> report.Table:
    columns = ["fact", "start", "lr", "ρ", "lowest", "highest", "ends", "predicted"]
    lines = [
        [row["fact"], row["start"], row["lr"], rho, f"{low:.7g}", f"{high:.7g}", ENDS[end][0], _predicted(row, rho)]
        for row in rows
        if row["fact"]
        for rho, low, high, end in zip(row["rhos"], row["low"], row["high"], row["ends"], strict=True)
    ]
    caption = (
        "S1: near 0 SAM has a cycle of amplitude ρ·lr·h/(2 − lr·h), h = f''(0). S2: x = ρ is a fixed point, stable "
        "below lr = 2/h. S3: the barrier attracts SAM from within ρ. Lowest and highest of the last 500 steps."
    )
    return report.Table(columns, lines, caption)


def _predicted(row: Row, rho: float) -> str:
    if row["fact"] == "S1":
        return f"amplitude {amplitude(row['lr'], rho):.5g}"
    if row["fact"] == "S2":
        return f"rests at {rho:g}" if row["lr"] < LIMIT else "leaves"
    return f"stays at {BARRIER:.5f}" if rho else "reaches 1"


def amplitude(lr: float, rho: float) -> float:
    """Of SAM's cycle about 0, for small rho.

    Example:
        >>> amplitude(5e-5, 1e-5)
        1e-05
    """
    return rho * lr * SHARP / (2 - lr * SHARP)


def plots(rows: list[Row]) -> list[Any]:
    """The function with both methods on it, and the map."""
    return [_function(), _map(rows)]


def _function() -> Any:
    """The last steps near 0 at a learning rate below 2/f''(0), and at one above."""
    drawn = {0.0: report.PALETTE[0], 0.02: report.PALETTE[4], 0.3: report.PALETTE[1]}
    lrs = (5e-5, 3e-4)
    paths = _paths(np.array(-0.05), np.array(lrs)[:, None], np.array(list(drawn)), 12_000)
    near = np.linspace(-0.06, 0.36, 2001)
    with report.figure(1, 3, size=(10.5, 3.4)) as (figure, axes):
        for panel, line in zip(axes, (np.linspace(-0.6, 1.7, 4001), near, near), strict=True):
            panel.plot(line, f(line), color="#999999", linewidth=1.2)
            panel.set_xlabel("x")
        axes[0].axvspan(near[0], near[-1], color="#eeeeee", zorder=0)
        axes[0].set(title="f: sharp minimum at 0, flat at 1", ylabel="f(x)", ylim=(-0.05, 2.3))
        for panel, lr, ends in zip(axes[1:], lrs, paths, strict=True):
            for (rho, color), x in zip(drawn.items(), ends, strict=True):
                panel.plot(x, f(x), ".", color=color, markersize=7, label=f"SAM, ρ = {rho:g}" if rho else "GD")
            panel.set(title=f"near 0, last steps at lr = {lr:g}", ylim=(-0.05, 1.0))
        axes[1].annotate("x = ρ = 0.3,\nperturbed to 0", (0.3, 0.48), (0.15, 0.2), arrowprops={"arrowstyle": "->"})
        axes[2].legend(loc="lower right")
    return figure


def _paths(x: Array, lr: Array, rho: Array, steps: int) -> Array:
    """The last steps of each cell, along the last axis."""
    kept = []
    for t in range(steps):
        x = step(x, lr, rho)
        if t >= steps - WATCHED:
            kept.append(x)
    return np.stack(kept, -1)


def _map(rows: list[Row]) -> Any:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    bands = by(rows, "fact")[""]
    starts, rhos = bands[0]["starts"], bands[0]["rhos"]
    lrs = sorted(lr for band in bands for lr in band["lrs"])
    codes = list(ENDS)
    colors = ListedColormap([color for _, color in ENDS.values()])
    size = (2.6 * len(starts) + 3.2, 4.6)
    with report.figure(1, len(starts), size, sharey=True, squeeze=False) as (figure, axes):
        for panel, start in zip(axes[0], starts, strict=True):
            lines = sorted((lr, gd + line) for at, lr, gd, line in cells(rows) if at == start)
            shown = np.array([[codes.index(end) for end in line] for _, line in lines])
            panel.pcolormesh(np.arange(len(rhos)), lrs, shown, cmap=colors, vmin=-0.5, vmax=len(codes) - 0.5)
            panel.set(yscale="log", xlabel="ρ", title=f"start {start:g}")
            panel.axvline(0.5, color="white", linewidth=1.5)
            marks = {"0.001": 0.001, "0.01": 0.01, "$x_m$": BARRIER, "0.3": 0.3}
            places = np.interp(np.log(list(marks.values())), np.log(rhos[1:]), np.arange(1, len(rhos)))
            panel.set_xticks([0, *places], ["GD", *marks])
            panel.axhline(LIMIT, color="black", linewidth=0.7, linestyle=":")
            panel.grid(visible=False)
        axes[0, 0].set_ylabel("learning rate")
        legend = [Patch(color=color, label=words) for words, color in ENDS.values()]
        figure.legend(handles=legend, loc="outside lower center", ncols=3)
    return figure


def claims(rows: list[Row]) -> list[report.Claim]:
    """The figure's message, its converse, and the three facts."""
    return [_separation(rows), _never_rests(rows), _as_good(rows), _cycle(rows), _fixed_point(rows), _trap(rows)]


def _separation(rows: list[Row]) -> report.Claim:
    pairs = [(gd, end) for _, _, gd, line in cells(rows) if gd in STUCK for end in line]
    reached = sum(end == "1" for _, end in pairs)
    otherwise = "" if reached else " In these cells SAM circles 0 or the barrier, or rests at x = ρ."
    return report.Claim(
        "At some start, learning rate and ρ, gradient descent stays at the sharp minimum, SAM reaches the flat one.",
        fact(reached > 0),
        ours=f"{reached} of the {len(pairs)} cells where gradient descent stays at 0",
        paper="shown in figure 1",
        detail=f"Staying includes circling 0.{otherwise}",
    )


def _never_rests(rows: list[Row]) -> report.Claim:
    gd = [end for _, lr, end, _ in cells(rows) if lr < LIMIT]
    sam = [end for _, lr, _, line in cells(rows) if lr < LIMIT for end in line]
    return report.Claim(
        "Where gradient descent rests at the sharp minimum, SAM does not.",
        fact("0" not in sam) if "0" in gd else "open",
        ours=f"below lr = {LIMIT:g}, gradient descent rests at 0 in {gd.count('0')} of {len(gd)} cells, SAM in "
        f"{sam.count('0')} of {len(sam)}: it circles 0 in {sam.count('o')} and rests at x = ρ in {sam.count('r')}",
        paper="SAM is hard to stop when the landscape is sharp",
    )


def _as_good(rows: list[Row]) -> report.Claim:
    sam = [end for _, _, gd, line in cells(rows) if gd == "1" for end in line]
    failed = sum(end != "1" for end in sam)
    return report.Claim(
        "Where gradient descent reaches the flat minimum, SAM does too.",
        fact(failed == 0) if sam else "open",
        ours=f"SAM does not in {failed} of {len(sam)} cells",
        paper="SAM gets the flatter minimum",
    )


def _cycle(rows: list[Row]) -> report.Claim:
    errors = [
        abs((high - low) / 2 / amplitude(row["lr"], rho) - 1)
        for row in by(rows, "fact")["S1"]
        for rho, low, high in zip(row["rhos"], row["low"], row["high"], strict=True)
    ]
    return report.Claim(
        "S1: SAM's limit at 0 is a cycle of amplitude ρ·lr·h/(2 − lr·h).",
        fact(max(errors) < 1e-3),
        ours=f"relative error at most {max(errors):.1e} (n={len(errors)})",
        paper="not stated",
        detail="Within a thousandth: the amplitude is exact for a parabola, to first order in ρ here.",
    )


def _fixed_point(rows: list[Row]) -> report.Claim:
    below, above = (
        [row["ends"] for row in by(rows, "fact")["S2"] if (row["lr"] < LIMIT) == side] for side in (True, False)
    )
    rest, leave = "".join(below), "".join(above)
    return report.Claim(
        "S2: x = ρ, beyond the barrier, is a fixed point of SAM, stable exactly below lr = 2/f''(0).",
        fact(set(rest) == {"r"} and "r" not in leave),
        ours=f"1 % below, SAM rests there at {rest.count('r')} of {len(rest)} ρ; 1 % above, at {leave.count('r')}",
        paper="not stated; “the update stops when the gradient at the phantom point is 0”",
    )


def _trap(rows: list[Row]) -> report.Claim:
    (row,) = by(rows, "fact")["S3"]
    orbits = list(zip(row["rhos"], row["low"], row["high"], strict=True))
    away = max(max(abs(low - BARRIER), abs(high - BARRIER)) / rho for rho, low, high in orbits if rho)
    return report.Claim(
        "S3: the top of the barrier attracts SAM, while gradient descent leaves it for the flat minimum.",
        fact(away < 0.1 and row["ends"][0] == "1"),
        ours=f"from {row['start']:g}, SAM stays within {away:.2g} ρ of {BARRIER:.5f}; gradient descent "
        f"{ENDS[row['ends'][0]][0]}",
        paper="not stated",
    )


FIG1 = Experiment(
    name="review-fig1",
    title="Figure 1 of the review: gradient descent and SAM between a sharp and a flat minimum on the line.",
    source="the review",
    says="Figure 1, on x²(x − 1)²/(x² + 0.0001): SAM is hard to stop where the landscape is sharp, goes through it "
    "and gets the flatter minimum at 1; gradient descent sometimes stops at the sharper one at 0.",
    scales={
        "paper": Config(),
        "quick": Config((-0.5, 0.02), (7e-5, 0.5, 48), (1e-4, 0.9, 36)),
        "tiny": Config((-0.5,), (5e-4, 0.1, 6), (1e-3, 0.9, 6)),
    },
    runs=runs,
    compute=one_by_one(row, steps),
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "The review gives no start, learning rate or ρ. We map all of them: from each start and at each learning "
        "rate, gradient descent and SAM with each ρ.",
        "Gradient descent can rest at 0 only below a learning rate of 2/f''(0) = 0.0001. There SAM rests, for ρ "
        "beyond the barrier, at x = ρ: its perturbed point x − ρ is then the sharp minimum itself.",
        "Ends are judged over the last 500 steps; the number of steps grows as 1/lr.",
    ),
    steps=steps,
)
