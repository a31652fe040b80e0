"""Figure 7 on real networks: which of LSAM's two effects lowers the hard feature's error, and what SAM adds.

The analysis, fixed before the runs. One-pass LSAM is split at the head (``lsam(effects=...)``): into the features
goes v_b' (p(v_a) - y), with the phantom head for v_a alone (importance weights), for v_b alone (learning rates) or
for both. The rest of each training is the same: learning rate, radius, seeds, initial weights, order of the batches.

- Outcome: the hard feature's probe error on test examples, in percent. Which feature is hard is decided by SGD's mean
  error. Probes are those of table 1.
- Each algorithm is compared with SGD, the pair with each effect alone and with SAM, in pairs of seeds: mean
  difference, 95 % interval, and the project's one verdict. These seven comparisons are all there are.
- The share of a gain is the ratio of mean gains, over SAM's. It is printed, not judged.
- Radius and learning rate are those at which table 1 compares all algorithms with fresh seeds; nothing is tuned here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from samphire import report, sweep
from samphire.experiments.claims import lower_claim
from samphire.experiments.experiment import Experiment, Places
from samphire.experiments.paper.tuning import SMALLEST, spread, stored_jobs
from samphire.experiments.rows import Row, by
from samphire.progress import Progress
from samphire.statistics import Difference, paired
from samphire.train import Config, Probing, appendix_b

__all__ = ["FIG7_CIFAR_MNIST"]

ALGORITHMS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "importance weights only": {"rule": "lsam", "rule_settings": (("effects", "weights"),)},
    "learning rates only": {"rule": "lsam", "rule_settings": (("effects", "rates"),)},
    "both (LSAM)": {"rule": "lsam"},
    "SAM": {"rule": "sam"},
}
SGD, WEIGHTS, RATES, BOTH, SAM = ALGORITHMS


@dataclass(frozen=True)
class Setting:
    """The trainings.

    Args:
        data: The data set.
        lr: Learning rate.
        rho: Radius of all but SGD.
        seeds: Each algorithm is trained with each.
        settings: What differs from the paper's appendix B: fields of :class:`samphire.train.Config`.
    """

    data: str = "cifar-mnist"
    lr: float = 0.01
    rho: float = 0.2
    seeds: tuple[int, ...] = tuple(range(10, 18))
    settings: tuple[tuple[str, Any], ...] = ()

    def network(self, algorithm: str, seed: int) -> Config:
        """A training, without probes."""
        radius = {} if algorithm == SGD else {"rho": self.rho}
        own = ALGORITHMS[algorithm] | radius | dict(self.settings)
        return appendix_b(self.data, lr=self.lr, seed=seed, resamples=0, **own)


def runs(setting: Setting) -> list[Probing]:
    """Every algorithm with every seed, seed by seed."""
    networks = [setting.network(algorithm, seed) for seed in setting.seeds for algorithm in ALGORITHMS]
    return [Probing(network, network.probe_on) for network in networks]


def _compute(runs: Sequence[Probing], places: Places, progress: Progress) -> Iterator[tuple[Probing, Row]]:
    trained, probed = stored_jobs(runs, places, progress)
    last_rows = {trial.config: trial.row or {} for trial in trained}
    for trial in probed:
        yield trial.config, _row(trial, last_rows[trial.config.run])


def _row(trial: sweep.Trial, trained: Row) -> Row:
    """Algorithm, seed, and the errors of every feature in percent."""
    run = trial.config.run
    own = {"rule": run.rule, "rule_settings": run.rule_settings}
    algorithm = next(
        name for name, given in ALGORITHMS.items() if {"rule": "sgd", "rule_settings": ()} | given == own
    )
    about = {"algorithm": algorithm, "seed": run.seed, "data": run.data, "lr": run.lr, "rho": run.radius}
    row = trained | (trial.row or {})
    if "stopped" in row:
        return about | {"collapsed": True, "stopped": row["stopped"]}
    return about | {
        "collapsed": False,
        "probe": {name: 100 * error for name, error in row["probe"].items()},
        "test_error": 100 * row["test_error"],
        "probing": row["probing"],
    }


# What the rows show


def _sides(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The runs of each algorithm, with the hard feature's error and the easy one's; nan for runs that stopped."""
    sgd = [row["probe"] for row in rows if row["algorithm"] == SGD and not row["collapsed"]]
    if not sgd:
        raise ValueError("no training by SGD has finished, so no feature is easy or hard.")
    easy, *_, hard = sorted(sgd[0], key=lambda name: sum(probe[name] for probe in sgd))
    lost = dict.fromkeys(("hard", "easy", "test_error"), math.nan)
    named = [
        row | (lost if row["collapsed"] else {"hard": row["probe"][hard], "easy": row["probe"][easy]}) for row in rows
    ]
    return {algorithm: by(named, "algorithm").get(algorithm, []) for algorithm in ALGORITHMS}


def tables(rows: Sequence[Row]) -> list[report.Table]:
    """Errors and paired differences."""
    sides = _sides(rows)
    sams = _gain(sides, SAM)
    lines = [
        {
            "algorithm": algorithm,
            "hard feature": spread(row["hard"] for row in side),
            "easy feature": spread(row["easy"] for row in side),
            "test": spread(row["test_error"] for row in side),
        }
        | ({} if algorithm == SGD else _against_sgd(_gain(sides, algorithm), sams))
        for algorithm, side in sides.items()
    ]
    probing = next(row["probing"] for row in rows if not row["collapsed"])
    caption = (
        f"Errors in %, mean ± standard deviation (n - 1) over seeds; the gain is SGD's hard error minus the "
        f"algorithm's, paired by seed, with its 95 % interval. Probes on {probing['n']} examples of the probing set "
        f"{probing['on']!r}. {sum(row['collapsed'] for row in rows)} of {len(rows)} trainings stopped early."
    )
    return [report.table(lines, caption=caption)]


def _gain(sides: dict[str, list[Row]], algorithm: str) -> Difference:
    return paired(sides[algorithm], sides[SGD], "hard")


def _against_sgd(gain: Difference, sams: Difference) -> dict[str, str]:
    low, high = gain.interval
    share = gain.estimate.mean / sams.estimate.mean if sams.estimate.mean > 0 else None
    return {
        "gain over SGD": f"{gain.estimate.mean:.2f} [{low:.2f}, {high:.2f}] (n={gain.estimate.n})",
        "share of SAM's gain": "–" if share is None else f"{share:.0%}",
    }


def plots(rows: Sequence[Row]) -> list[Any]:
    """Every seed as a line over the algorithms, and the gains with their intervals."""
    sides = _sides(rows)
    with report.figure(1, 2, size=(9.5, 3.6)) as (figure, (left, right)):
        for seed in sorted({row["seed"] for row in rows}):
            line = [[row["hard"] for row in side if row["seed"] == seed] for side in sides.values()]
            places = [i for i, errors in enumerate(line) if errors]
            left.plot(places, [errors[0] for errors in line if errors], "o-", color="grey", alpha=0.5, markersize=3)
        left.set(ylabel="hard feature's probe error, %", title="one line for each seed")
        left.set_xticks(range(len(sides)), [name.replace(" ", "\n") for name in sides], fontsize=7)
        others = [algorithm for algorithm in sides if algorithm != SGD]
        for place, algorithm in enumerate(others):
            gain = _gain(sides, algorithm)
            low, high = gain.interval
            right.plot([low, high], [place, place], color=report.PALETTE[0])
            right.plot(gain.estimate.mean, place, "o", color=report.PALETTE[0])
        right.axvline(0, color="grey", linestyle=":", linewidth=1)
        right.set(yticks=range(len(others)), yticklabels=others, xlabel="gain over SGD, points, with 95 % interval")
        right.set_ylim(len(others) - 0.5, -0.5)
    return [figure]


def claims(rows: Sequence[Row]) -> list[report.Claim]:
    """The seven comparisons."""
    sides = _sides(rows)
    toy = "on the toy, each effect improves and the pair most"
    pairs = [
        *((SGD, algorithm, toy) for algorithm in (WEIGHTS, RATES, BOTH)),
        (SGD, SAM, "12.7 and 10.2 (table 1, each at its best setting)"),
        (WEIGHTS, BOTH, toy),
        (RATES, BOTH, toy),
        (BOTH, SAM, "not compared"),
    ]
    return [
        lower_claim(
            f"{after}: a lower error of the hard feature than {before}.",
            sides[before],
            sides[after],
            "hard",
            says=says,
            ours=f"{_mean(sides[before])} → {_mean(sides[after])}",
        )
        for before, after, says in pairs
    ]


def _mean(side: list[Row]) -> str:
    return spread(row["hard"] for row in side)


FIG7_CIFAR_MNIST = Experiment(
    name="fig7-cifar-mnist",
    title="Figure 7 on CIFAR-MNIST: each of LSAM's two effects alone, both, and SAM.",
    says="On the toy, importance weighting alone and learning rates alone each lower the hard feature's error, and "
    "together they account for LSAM's gain. Real networks are not split in this way.",
    scales={
        "paper": Setting(),
        "quick": Setting(seeds=(10, 11), settings=(("epochs", 4), ("examples", 3000))),
        "tiny": Setting(
            "fmnist-mnist", 0.05, seeds=(10, 11), settings=(*SMALLEST.items(), ("epochs", 1), ("examples", 100))
        ),
    },
    runs=runs,
    compute=_compute,
    tables=tables,
    plots=plots,
    claims=claims,
    data=("mnist",),
    notes=(
        "With one effect the head follows its ordinary gradient, as in figure 7; with both (LSAM) and with SAM it "
        "follows its gradient at the phantom point.",
        "SAM's radius is measured over all weights and LSAM's over the head, so equal radii are not equal strengths.",
    ),
)
