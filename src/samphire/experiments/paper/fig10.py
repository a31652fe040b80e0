"""Figure 10: the hard feature's error against rho under noise of three kinds, on both features or the hard one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from samphire import report
from samphire.experiments.paper import toy
from samphire.experiments.rows import JUDGED, Row, by, mean
from samphire.statistics import lower, paired
from samphire.train import ToyConfig

__all__ = ["FIG10"]

KINDS = {"label": "flipped signs", "gaussian": "Gaussian noise", "dropout": "dropped features"}
UNITS = {"label": "fraction", "gaussian": "σ", "dropout": "fraction"}
PLACES = {"both": "both features", "hard": "hard feature only"}
RHO = 1.0
LEARNED = (
    "SGD has less than half its error without noise: the easy feature no longer suffices, so SGD learns the hard one."
)


@dataclass(frozen=True)
class Config(toy.Config):
    """Noise levels above 0 by kind, and radii."""

    label: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1)
    gaussian: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0)
    dropout: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)
    rhos: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0)


def runs(config: Config) -> list[ToyConfig]:
    """LSAM without noise, and over kind, place and level of noise."""
    chosen = config.sweep(config.rhos)
    for kind, where in product(KINDS, PLACES):
        for level in getattr(config, kind):
            chosen += config.sweep(config.rhos, corruption=kind, where=where, level=level)
    return chosen


def tables(rows: list[Row]) -> list[report.Table]:
    """Errors by kind, place and level of noise, and rho."""
    return [toy.error_table(rows, {"corruption": "noise", "where": "on", "level": "level", "rho": "ρ"})]


def plots(rows: list[Row]) -> list[Any]:
    """Six panels, a curve per level."""
    clean = by(rows, "corruption")["none"]
    with report.figure(2, 3, size=(10.0, 6.4), sharex=True, sharey=True) as (figure, panels):
        for axes, (kind, where, noisy) in zip(panels.T.flat, _panels(rows), strict=True):
            for level, curve in by(clean + noisy, "level").items():
                toy.draw(axes, curve, f"{level:g}")
            axes.set_title(f"{KINDS[kind]}, {PLACES[where]}")
        for axes, kind in zip(panels[0], KINDS, strict=True):
            axes.legend(title=UNITS[kind], ncols=3, loc="upper center")
        for axes in panels[:, 0]:
            axes.set_ylabel(toy.HARD_AXIS)
        for axes in panels[-1]:
            axes.set_xlabel(toy.RHO_AXIS)
        toy.from_zero(panels)
        panels.flat[0].set_ylim(top=1.4 * panels.flat[0].get_ylim()[1])  # room for the legends
    return [figure]


def _panels(rows: list[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    groups = by(rows, "corruption", "where")
    return ((kind, where, groups[kind, where]) for kind, where in product(KINDS, PLACES))


def claims(rows: list[Row]) -> list[report.Claim]:
    """One for each panel, at one rho fixed beforehand."""
    clean = mean(by(rows, "corruption", "rho")["none", 0.0], "probe_hard").mean
    return [_improves(kind, where, noisy, clean) for kind, where, noisy in _panels(rows)]


def _improves(kind: str, where: str, noisy: list[Row], clean: float) -> report.Claim:
    rhos, levels = by(noisy, "rho"), by(noisy, "level")
    total = paired(rhos[0.0], rhos[RHO], "probe_hard", within=("level",))
    shown, unclear, learned = [], [], []
    for level, cell in levels.items():
        sgd, lsam = (by(cell, "rho")[rho] for rho in (0.0, RHO))
        errors = [mean(runs, "probe_hard").mean for runs in (sgd, lsam)]
        shown.append(f"{errors[0]:.3f} → {errors[1]:.3f} at {level:g}")
        if lower(paired(sgd, lsam, "probe_hard")) != "holds":
            unclear.append(f"{level:g}")
        if errors[0] < clean / 2:
            learned.append(f"{level:g}")
    return report.Claim(
        f"{KINDS[kind].capitalize()}, {PLACES[where]}: LSAM's hard probe error is below SGD's.",
        lower(total),
        ours=f"difference {total}; {', '.join(shown)}",
        paper="improves",
        detail=f"At ρ = {RHO:g}, mean over levels. {JUDGED}"
        + (f" Taken alone, not clear at level {', '.join(unclear)}." if unclear else "")
        + (f" At level {', '.join(learned)} {LEARNED}" if learned else ""),
    )


FIG10 = toy.figure(
    name="fig10",
    title="Figure 10: the hard feature's error against rho under noise of three kinds, on both features or the hard "
    "one.",
    says="LSAM improves the probing error of the hard feature in comparison to SGD for all types of noise: "
    "feature-label noise (0 to 10 %), Gaussian noise (σ 0 to 1) and feature dropout (0 to 0.4), on both features or "
    "the hard one.",
    scales=toy.scales(
        Config,
        quick={"label": (0.02, 0.1), "gaussian": (0.25, 1.0), "dropout": (0.2, 0.4), "rhos": (0.0, 1.0, 2.0)},
        tiny={"label": (0.1,), "gaussian": (0.5,), "dropout": (0.4,), "rhos": (0.0, 1.0)},
    ),
    runs=runs,
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "The paper gives the ranges of the noise, not its values or those of ρ; ours are in the table. χ is 360°.",
        "Equation 45 has [z, z] for the hard feature too; we read the spiral. It keeps a feature with probability q; "
        "we read 1 − q, so that q is the rate of dropout.",
        "Each feature has draws of its own. The noise is in the training points only; the 2000 test points have "
        "none.",
        toy.SPIRAL,
    ),
)
