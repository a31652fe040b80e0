"""Probe study: what a probe's error says depends on its probing set, size, scaling and penalty; how much?

The paper leaves all four open. Networks are trained once and probed in every way. The study reads held-out halves of
the probing set alone, never a test example, so that it may decide how table 1 probes:

- The scaling that table 1 uses is the one with the lowest held-out error of the hard feature on the whole probing
  set, mean over the networks of the grid's seed: SGD and the largest radius at every learning rate.
- The spread over seeds is that of other seeds at the lowest learning rate, as table 1 judges them.
- The hard feature is the one with the higher error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from samphire import report, sweep
from samphire.experiments.claims import lower_claim
from samphire.experiments.experiment import Experiment, Places
from samphire.experiments.paper import tuning
from samphire.experiments.paper.tuning import ALGORITHMS, spread
from samphire.experiments.rows import Row, by
from samphire.progress import Progress
from samphire.statistics import paired
from samphire.train import Config, ProbeSettings, Probing, appendix_b

__all__ = ["PROBE_STUDY"]

GRID_SEED = 0
OLD = ("val", None, "each")  # 1000 validation images, each feature scaled: what samphire printed before


@dataclass(frozen=True)
class Study:
    """Networks and ways to probe them.

    Args:
        data: The data set.
        lr: Learning rates of the grid's networks; the other seeds have the first.
        rho: The radius of SAM and LSAM.
        seeds: The other seeds.
        per_group: Sizes of the probing set besides all of it.
        resamples: Balanced halves.
        settings: What differs from the paper's appendix B.
    """

    data: str = "cifar-mnist"
    lr: tuple[float, ...] = (0.01, 0.05, 0.1)
    rho: float = 0.2
    seeds: tuple[int, ...] = (10, 11, 12, 13)
    per_group: tuple[int, ...] = (250, 1000)
    resamples: int = 5
    settings: tuple[tuple[str, Any], ...] = ()

    def networks(self) -> list[Config]:
        """The grid's, then those of the other seeds."""
        places = [(GRID_SEED, lr) for lr in self.lr] + [(seed, self.lr[0]) for seed in self.seeds]
        rules: tuple[dict[str, Any], ...] = ({}, *({"rule": rule, "rho": self.rho} for rule in ("sam", "lsam")))
        common = dict(self.settings) | {"resamples": 0}
        return [appendix_b(self.data, lr=lr, seed=seed, **rule, **common) for seed, lr in places for rule in rules]

    def ways(self) -> list[tuple[Any, int | None, Any]]:
        """Probing set, examples of each group (``None`` for all) and scaling."""
        all_of_it = [("train", None, scaling) for scaling in ("global", "each", "none")]
        fewer = [("train", n, scaling) for n in self.per_group for scaling in ("global", "each")]
        return [*all_of_it, *fewer, ("val", None, "global"), OLD]


def runs(study: Study) -> list[Probing]:
    """Every network in every way."""
    return [
        Probing(network, on, ProbeSettings(study.resamples, scaling, per_group=n))
        for network in study.networks()
        for on, n, scaling in study.ways()
    ]


def _compute(runs: Sequence[Probing], places: Places, progress: Progress) -> Iterator[tuple[Probing, Row]]:
    _, probed = tuning.stored_jobs(runs, places, progress)
    for trial in probed:
        yield trial.config, _row(trial)


def _row(trial: sweep.Trial) -> Row:
    """What was probed, how, and the errors on held-out halves; no test example."""
    job, row = trial.config, trial.row or {}
    about = {"rule": job.run.rule, "lr": job.run.lr, "rho": job.run.radius, "seed": job.run.seed}
    way = {"on": job.on, "per_group": job.settings.per_group, "scaling": job.settings.scaling}
    if "stopped" in row:
        return about | way | {"stopped": row["stopped"]}
    best = {name: 100 * held_out[f"{row['probe_l2'][name]:g}"] for name, held_out in row["probe_held_out"].items()}
    hard = max(best, key=lambda name: best[name])
    easy = min(best, key=lambda name: best[name])
    return about | way | {
        "n": row["probing"]["n"],
        "hard": hard,
        "error": best[hard],
        "easy error": best[easy],
        "l2": row["probe_l2"][hard],
        "tried": row["probe_l2_tried"][hard],
        "path": {l2: 100 * error for l2, error in row["probe_held_out"][hard].items()},
        "seconds": row["seconds"],
    }  # fmt: skip


# What the rows show


def _finished(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if "stopped" not in row]


def _grids(rows: Iterable[Row]) -> list[Row]:
    return [row | {"network": f"{row['rule']} {row['lr']:g}"} for row in _finished(rows) if row["seed"] == GRID_SEED]


def _way(row: Row) -> tuple[Any, ...]:
    return row["on"], row["per_group"], row["scaling"]


def _name(way: tuple[Any, ...], rows: Sequence[Row]) -> dict[str, Any]:
    on, _, scaling = way
    images = {"train": "training images paired anew", "val": "validation images paired anew"}[on]
    old = " (our old protocol)" if way == OLD else ""
    return {"probing set": images + old, "n": rows[0]["n"], "scaling": scaling}


def tables(rows: Sequence[Row]) -> list[report.Table]:
    """Every way over the grid's networks; its spread over seeds; the path of penalties."""
    return [_ways_table(rows), _seeds_table(rows), _path_table(rows)]


def _ways_table(rows: Sequence[Row]) -> report.Table:
    lines = [
        _name(way, group)
        | {"hard feature's error": spread(row["error"] for row in group)}
        | {"easy feature's error": spread(row["easy error"] for row in group)}
        | {"penalties": f"{min(row['l2'] for row in group):.2g} to {max(row['l2'] for row in group):.2g}"}
        | {"grid grew": sum("grown" in row["tried"] for row in group)}
        | {"still at an edge": sum("edge" in row["tried"] for row in group)}
        | {"seconds": f"{fmean(row['seconds'] for row in group):.0f}"}
        for way, group in by([row | {"way": _way(row)} for row in _grids(rows)], "way").items()
    ]
    caption = (
        "Errors in % on held-out halves, so of probes trained on n / 2 examples; mean ± standard deviation (n - 1) "
        "over the networks of the grid's seed. n: examples of the probing set, halves together."
    )
    return report.table(lines, caption=caption)


def _seeds_table(rows: Sequence[Row]) -> report.Table:
    others = [row | {"way": _way(row)} for row in _finished(rows) if row["seed"] != GRID_SEED]
    lines = []
    for way, group in by(others, "way").items():
        sides = {rule: [row for row in group if row["rule"] == rule] for rule in ALGORITHMS}
        lines.append(
            _name(way, group)
            | {ALGORITHMS[rule]: spread(row["error"] for row in mine) for rule, mine in sides.items()}
            | {
                f"{ALGORITHMS[rule]} - SGD": str(paired(sides["sgd"], sides[rule], "error"))
                for rule in ("sam", "lsam")
            }
        )
    caption = (
        "The hard feature's error in % on held-out halves, mean ± standard deviation (n - 1) over other seeds than "
        "the grid's, at the lowest learning rate; differences in pairs of seeds, ± standard error."
    )
    return report.table(lines, caption=caption)


def _paths(rows: Iterable[Row]) -> dict[str, dict[float, float]]:
    """By scaling: the mean error of each penalty that all grid networks tried, on all training images."""
    whole = [row for row in _grids(rows) if (row["on"], row["per_group"]) == ("train", None)]
    paths = {}
    for scaling, group in by(whole, "scaling").items():
        shared = set.intersection(*(set(row["path"]) for row in group))
        paths[scaling] = {l2: fmean(row["path"][str_l2] for row in group) for l2, str_l2 in _ordered(shared)}
    return paths


def _ordered(penalties: Iterable[str]) -> list[tuple[float, str]]:
    return sorted((float(text), text) for text in penalties)


def _path_table(rows: Sequence[Row]) -> report.Table:
    paths = _paths(rows)
    lines = [
        {"scaling": scaling} | {f"{l2:.2g}": f"{error:.2f}" for l2, error in path.items()}
        for scaling, path in paths.items()
    ]
    caption = (
        "The hard feature's error in % on held-out halves by penalty, mean over the grid's networks; all training "
        "images paired anew; penalties that all networks tried."
    )
    return report.table(lines, caption=caption)


def claims(rows: Sequence[Row]) -> list[report.Claim]:
    """What the choice of scaling, set and size changes, in pairs over the grid's networks."""
    ways = by([row | {"way": _way(row)} for row in _grids(rows)], "way")
    whole = ("train", None, "global")
    pairs = (
        ("scaling all features by one number gives a lower error than scaling each", ("train", None, "each"), whole),
        ("scaling all features by one number gives a lower error than none", ("train", None, "none"), whole),
        ("training images give a lower error than validation images", ("val", None, "global"), whole),
        ("probes as now give a lower error than our old protocol", OLD, whole),
    )
    return [
        lower_claim(
            f"Hard feature, held-out halves: {text}.",
            ways[before],
            ways[after],
            "error",
            says="not stated",
            by="network",
        )
        for text, before, after in pairs
        if before in ways and after in ways
    ]


def plots(rows: Sequence[Row]) -> list[Any]:
    """Error against size and against penalty, by scaling."""
    grids = _grids(rows)
    with report.figure(1, 2, size=(9.5, 3.6), sharey=True) as (figure, (left, right)):
        for (on, scaling), group in by(grids, "on", "scaling").items():
            sizes = {n: fmean(row["error"] for row in same) for n, same in sorted(by(group, "n").items())}
            name = {"train": "training images", "val": "validation images"}[on]
            left.plot(list(sizes), list(sizes.values()), "o-" if len(sizes) > 1 else "s", label=f"{name}, {scaling}")
        left.set(xlabel="examples of the probing set", ylabel="error of the hard feature, %")
        left.set_xscale("log", base=2)
        left.xaxis.set_major_formatter("{x:g}")
        left.set_title("held-out halves, mean over the grid's networks")
        left.legend(fontsize=7)
        for scaling, path in _paths(rows).items():
            right.plot(list(path), list(path.values()), "o-", label=scaling)
        right.set(xscale="log", xlabel="penalty λ", title="all training images")
        right.legend(title="scaling", fontsize=7)
    return [figure]


PROBE_STUDY = Experiment(
    name="probe-study",
    title="Probe study: the error of the hard feature against probing set, size, scaling and penalty.",
    says="Probes are last-layer linear classifiers trained on a small set in which features are independent; set, "
    "size, loss, scaling and penalty are not stated.",
    scales={
        "paper": Study(seeds=tuple(range(10, 18))),
        "reduced": Study(),
        "quick": Study(lr=(0.01,), seeds=(10,), resamples=2, settings=(("epochs", 4), ("examples", 3000))),
        "tiny": Study(
            "fmnist-mnist", (0.05,), seeds=(10,), per_group=(2,), resamples=1,
            settings=(*tuning.SMALLEST.items(), ("epochs", 1), ("examples", 300)),
        ),
    },
    runs=runs,
    compute=_compute,
    tables=tables,
    plots=plots,
    claims=claims,
    data=("mnist",),
    notes=(
        "Errors are those of probes trained on one half of the probing set and tested on the other, averaged over "
        "five splits, at the penalty with the lowest such error; no test example is read.",
        "Networks by SGD, SAM and one-pass LSAM, the latter with the largest radius of the paper's grid.",
    ),
)  # fmt: skip
