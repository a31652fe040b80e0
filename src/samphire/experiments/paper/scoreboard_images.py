"""Scoreboard on images: every rule, and what SAM is compared with elsewhere, by hard probe error and measured cost.

The analysis, fixed before the runs:

- Every entry has two settings: two radii of a rule, two strengths of a method, two learning rates of a base, SGD too.
  The one with the lower error of the hard feature on the held-out tenth of the probing set (``probe_val``) at the
  selection seed is judged with fresh seeds; ties go to the first.
- Outcome: the hard feature's probe error on test examples, in percent; mean over fresh seeds, and the gain over SGD
  in pairs of seeds with its 95 % interval. Which feature is hard is decided by SGD's mean error.
- Cost: what a step takes over SGD's, measured in turns with it, times the epochs over SGD's. A first training counts,
  and epochs that visit examples again by what they took over those of that first training.
- Rules of two passes or more are also judged at SGD's cost, with as many epochs as that pays for, at the radius
  chosen for all epochs.
- The frontier: entries that no entry of at most their cost beats.
- The goal, SAM's error within 0.3 points at no more than 1.1 times SGD's cost, is judged over all entries that cheap,
  with intervals widened for their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from samphire import optim, records, report, sweep
from samphire.experiments.experiment import Experiment, Places
from samphire.experiments.paper.tuning import SMALLEST, spread, trained_and_probed
from samphire.experiments.rows import Row
from samphire.progress import Progress, stretch
from samphire.statistics import LEVEL, Difference, higher, paired, verdict
from samphire.train import Config, appendix_b
from samphire.train.cost import steps_in_turns
from samphire.train.methods import first_training

__all__ = ["SCOREBOARD_CIFAR_MNIST"]

Changes = dict[str, Any]  # fields of Config

RADII: dict[str, tuple[float, float]] = {  # where they are not those of SAM
    "asam": (0.5, 2.0),
    "lsam": (0.2, 0.5),
    "random": (0.2, 1.0),
    "wsam": (0.02, 0.05),
    "msam": (0.3, 1.0),
}
LEFT_OUT = {"sam_on": "needs norm layers, which this network has not", "ae_sam": "chooses between SGD and SAM by a "
            "threshold of its own", "every": "is SAM on some steps, as looksam"}  # fmt: skip


def _rule(name: str) -> tuple[Changes, Changes]:
    """A rule at its two radii."""
    if name == "entropy_sgd":  # takes steps of its own, so the base has none
        first, second = ({"lr": 1.0, "momentum": 0.0, "rule_settings": (("lr", lr),)} for lr in (0.005, 0.01))
        return {"rule": name} | first, {"rule": name} | second
    settings: Changes = {"rule_settings": (("tail", (0,)),)} if name == "imb_sam" else {}
    low, high = RADII.get(name, (0.05, 0.2))
    return {"rule": name, "rho": low} | settings, {"rule": name, "rho": high} | settings


def _lsam(setting: str, value: Any, radii: tuple[float, float] = (0.2, 0.5)) -> tuple[Changes, Changes]:
    """A variant of LSAM at two radii."""
    settings: Changes = {"rule": "lsam", "rule_settings": ((setting, value),)}
    return settings | {"rho": radii[0]}, settings | {"rho": radii[1]}


def _method(name: str, setting: str, values: tuple[Any, Any], **common: Any) -> tuple[Changes, Changes]:
    first, second = ({"method": name, "method_settings": ((setting, v),)} | common for v in values)
    return first, second


def _sam_on(base: str, lr: float) -> tuple[Changes, Changes]:
    """SAM at two radii on another base."""
    common: Changes = {"base": base, "lr": lr, "rule": "sam"}
    return common | {"rho": 0.05}, common | {"rho": 0.2}


ENTRIES: dict[str, tuple[Changes, Changes]] = {
    "sgd": ({"lr": 0.01}, {"lr": 0.05}),
    **{name: _rule(name) for name in optim.RULES if name not in LEFT_OUT},
    "lsam, weights only": _lsam("effects", "weights"),
    "lsam, rates only": _lsam("effects", "rates"),
    "lsam, radius by the head": _lsam("radius", "head", (0.05, 0.2)),
    "lsam, radius by the features": _lsam("radius", "features", (1.0, 3.0)),
    "lsam, running mean": _lsam("theta", 0.1),
    "lsam, a head for 10 examples": _lsam("m", 10, (0.1, 0.2)),
    "lsam, last convolution too": _lsam("head", ("4", "7"), (0.05, 0.2)),
    "group_dro": _method("group_dro", "eta", (0.01, 0.1)),
    "jtt": _method("jtt", "times", (5, 20)),
    "useful": _method("useful", "times", (2, 3)),
    "spectral decoupling": _method("spectral_decoupling", "lam", (0.01, 0.1)),
    "swa": _method("swa", "epochs", (3, 5), schedule="constant"),
    "adam": ({"base": "adam", "lr": 3e-4}, {"base": "adam", "lr": 1e-3}),
    "muon": ({"base": "muon", "lr": 1e-3}, {"base": "muon", "lr": 5e-3}),
    "sam on adam": _sam_on("adam", 3e-4),
    "sam on muon": _sam_on("muon", 1e-3),
}
LATER = (  # the costliest rules, near relations of others, and what figure 7 and SAM on Muon say already
    "gam", "cr_sam", "entropy_sgd", "m_sharpness", "imb_sam", "sagm", "ssam_d", "ssam_f", "lsam, weights only",
    "lsam, rates only", "sam on adam",
)  # fmt: skip
GROUPS_KNOWN = {"group_dro"}  # told during training
EQUAL_COST = ", equal cost"  # ends the name of an entry with as many epochs as SGD's cost pays for


@dataclass(frozen=True)
class Board:
    """The trainings.

    Args:
        data: The data set.
        entries: Names of :data:`ENTRIES`; SGD among them.
        epochs: Of all but the entries at equal cost.
        lr: Learning rate, where an entry has none of its own.
        selection: The seed that chooses between an entry's two settings.
        seeds: The seeds that judge.
        settings: What differs from the paper's appendix B.
    """

    data: str = "cifar-mnist"
    entries: tuple[str, ...] = tuple(ENTRIES)
    epochs: int = 10
    lr: float = 0.01
    selection: int = 0
    seeds: tuple[int, ...] = (20, 21, 22)
    settings: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.selection in self.seeds:
            raise ValueError(f"seeds must be others than that of the selection, {self.selection}, got {self.seeds}.")


@dataclass(frozen=True)
class Entry:
    """One line of the board: two settings, and the seeds that choose and judge.

    Args:
        name: Of the entry.
        tried: Its two trainings at the selection seed.
        seeds: The seeds that judge.
        epochs: Of the judged trainings; fewer than in those that were tried, if at equal cost.
        sgd: The training whose cost is 1.
    """

    name: str
    tried: tuple[Config, ...]
    seeds: tuple[int, ...]
    epochs: int
    sgd: Config

    def judged(self, chosen: Config) -> list[Config]:
        """The trainings with fresh seeds."""
        return [replace(chosen, seed=seed, epochs=self.epochs) for seed in self.seeds]


def runs(board: Board) -> list[Entry]:
    """Every entry, and the costly rules again with fewer epochs."""
    common = {"lr": board.lr, "epochs": board.epochs, "seed": board.selection, "resamples": 0}
    common |= dict(board.settings)
    sgd = appendix_b(board.data, **common)
    entries = []
    for name in board.entries:
        tried = tuple(appendix_b(board.data, **common | own) for own in ENTRIES[name])
        entries.append(Entry(name, tried, board.seeds, board.epochs, sgd))
        passes = _passes(tried[0])
        if passes >= 1.8:
            fewer = max(1, round(board.epochs / passes))
            entries.append(Entry(name + EQUAL_COST, tried, board.seeds, fewer, sgd))
    return entries


def _passes(config: Config) -> float:
    """Passes over a batch in a step, those over the head alone not counted."""
    rule = config.optimizer_rule(steps=1)
    return 1.0 if rule is None or config.runs_body_once else rule.passes


def _compute(runs: Sequence[Entry], places: Places, progress: Progress) -> Iterator[tuple[Entry, Row]]:
    """First what is tried, of all entries, then what is judged."""
    tried = list(dict.fromkeys(config for entry in runs for config in entry.tried))
    first = {trial.config: trial for trial in trained_and_probed(tried, places, stretch(progress, 0.0, 0.4))}
    chosen = {entry: min(entry.tried, key=lambda config: _held_out(first[config])) for entry in runs}
    again = list(dict.fromkeys(config for entry in runs for config in entry.judged(chosen[entry])))
    judged = {trial.config: trial for trial in trained_and_probed(again, places, stretch(progress, 0.4, 0.98))}
    epochs = {run.key: list(run.rows) for run in records.read(places.trainings)}
    timed = list(dict.fromkeys([entry.sgd for entry in runs] + list(chosen.values())))
    seconds = steps_in_turns(timed, places.data, progress=stretch(progress, 0.98, 1.0))
    steps = dict(zip(timed, seconds, strict=True))
    for entry in runs:
        best = chosen[entry]
        long = median(_epochs(config, epochs) for config in entry.judged(best))
        row = {
            "entry": entry.name,
            "epochs": entry.epochs,
            "cost": steps[best] / steps[entry.sgd] * long / entry.sgd.epochs,
            "tried": [{"setting": _differing(c, entry.tried), "probe_val": _held_out(first[c])} for c in entry.tried],
            "setting": _differing(best, entry.tried),
            "runs": [_run(judged[config]) for config in entry.judged(best)],
        }
        yield entry, row


def _held_out(trial: sweep.Trial) -> float:
    """The hard feature's held-out error, infinite for a training that stopped early."""
    return max((trial.row or {}).get("probe_val", {"none": math.inf}).values())


def _differing(config: Config, tried: Sequence[Config]) -> str:
    """What tells an entry's setting from its other one, in words."""
    fields = [f for f in vars(config) if len({getattr(c, f) for c in tried}) > 1]
    values = [(f, getattr(config, f)) for f in fields]
    flat = [pair for f, value in values for pair in (value if f.endswith("_settings") else [(f, value)])]
    return ", ".join(f"{name} {value:g}" for name, value in flat)


def _run(trial: sweep.Trial) -> Row:
    row = trial.row or {}
    about = {"seed": trial.config.seed, "collapsed": "stopped" in row}
    return about | ({} if "stopped" in row else {name: row[name] for name in ("probe", "test_error", "probing")})


def _epochs(config: Config, epochs: dict[str, list[Row]]) -> float:
    """Epochs, counted as such of all examples once; those of a first training too."""
    first = first_training(config)
    if first is None:
        return config.epochs
    again, once = (median(row["seconds"] for row in epochs[records.key(c)]) for c in (config, first))
    return first.epochs + config.epochs * again / once


# What the rows show


@dataclass(frozen=True)
class Line:
    """An entry as the board shows it.

    Attributes:
        name: Of the entry.
        setting: The one that was chosen.
        runs: With the error of the hard feature in percent as ``hard``, nan where training stopped early.
        cost: In trainings by SGD.
        gain: SGD's error minus the entry's.
    """

    name: str
    setting: str
    runs: list[Row]
    cost: float
    gain: Difference

    @property
    def error(self) -> float:
        """The mean error, infinite unless most runs finished."""
        known = [run["hard"] for run in self.runs if not run["collapsed"]]
        return fmean(known) if 2 * len(known) > len(self.runs) else math.inf


def board(rows: Sequence[Row]) -> list[Line]:
    """Every entry, the best first."""
    sgd = next(row for row in rows if row["entry"] == "sgd")
    probes = [run["probe"] for run in sgd["runs"] if not run["collapsed"]]
    if not probes:
        raise ValueError("no training by SGD has finished, so no feature is hard.")
    hard = max(probes[0], key=lambda name: sum(probe[name] for probe in probes))
    runs = {
        row["entry"]: [
            run | {"hard": math.nan if run["collapsed"] else 100 * run["probe"][hard]} for run in row["runs"]
        ]
        for row in rows
    }
    lines = [
        Line(name, row["setting"], runs[name], row["cost"] / sgd["cost"], paired(runs[name], runs["sgd"], "hard"))
        for row in rows
        for name in (row["entry"],)
    ]
    return sorted(lines, key=lambda line: line.error)


def frontier(lines: Sequence[Line]) -> list[Line]:
    """The entries that no entry of at most their cost beats, by rising cost."""
    best = [
        a for a in lines if math.isfinite(a.error) and not any(b.error < a.error and b.cost <= a.cost for b in lines)
    ]
    return sorted(best, key=lambda line: line.cost)


def tables(rows: Sequence[Row]) -> list[report.Table]:
    """The board, and what was tried."""
    lines = board(rows)
    best = {line.name for line in frontier(lines)}
    shown = [
        {
            "entry": line.name + (" (groups known)" if line.name in GROUPS_KNOWN else ""),
            "setting": line.setting,
            "cost": f"{line.cost:.2f}",
            "hard probe error": spread(run["hard"] for run in line.runs),
            "gain over SGD": "" if line.name == "sgd" else _interval(line.gain),
            "verdict": "" if line.name == "sgd" else higher(line.gain),
            "on the frontier": line.name in best,
        }
        for line in lines
    ]
    caption = (
        "Best first. Errors in %, mean ± standard deviation (n - 1) over fresh seeds; gains in pairs of seeds, with "
        "their 95 % interval. Cost: time of training over SGD's. The verdict is on a gain above 0."
    )
    tried = [
        {"entry": row["entry"], "setting": t["setting"], "held-out error": _percent(t["probe_val"])}
        for row in rows
        for t in row["tried"]
    ]
    heading = "Every setting that was tried, with the hard feature's held-out error in % at the selection seed."
    return [report.table(shown, caption=caption), report.table(tried, caption=heading)]


def _interval(gain: Difference) -> str:
    low, high = gain.interval
    return f"{gain.estimate.mean:.2f} [{low:.2f}, {high:.2f}]"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}" if math.isfinite(share) else "stopped early"


FAILED = 1.5  # times SGD's error and more is beyond the picture


def plots(rows: Sequence[Row]) -> list[Any]:
    """Gains over SGD, and error against cost with the frontier as a line."""
    lines = [line for line in board(rows) if math.isfinite(line.error)]
    most = FAILED * next(line.error for line in lines if line.name == "sgd")
    inside = [line for line in lines if line.error < most]
    best = frontier(inside)
    middle = fmean((min(line.cost for line in inside), max(line.cost for line in inside)))
    reach = 1.5 * max(abs(line.gain.estimate.mean) for line in inside) or 1.0
    with report.figure(1, 2, size=(10.0, 0.2 * len(lines) + 1.5)) as (figure, (left, right)):
        for place, line in enumerate(lines):
            color = report.PALETTE[1 if line in best else 0 if higher(line.gain) == "holds" else 6]
            if line not in inside:
                left.annotate(f"← {line.gain.estimate.mean:.0f}", (-reach, place), (3, 0), textcoords="offset points",
                              color=color, va="center", fontsize=8)  # fmt: skip
                continue
            low, high = line.gain.interval
            if math.isfinite(low):
                left.plot([low, high], [place, place], color=color, linewidth=1)
            left.plot(line.gain.estimate.mean, place, "o", color=color, markersize=4)
            right.plot(line.cost, line.error, "o", color=color, markersize=4)
            if line in best:
                side = "left" if line.cost < middle else "right"
                style: dict[str, Any] = {"xytext": (0, -5), "ha": side, "va": "top"}
            elif higher(line.gain) == "holds" and not line.name.endswith(EQUAL_COST):
                style = {"xytext": (5, 0), "ha": "left", "va": "center"}
            elif line.name in ("sgd", "lsam"):
                style = {"xytext": (-6, 0), "ha": "right", "va": "center"}
            else:
                continue
            right.annotate(line.name, (line.cost, line.error), textcoords="offset points", fontsize=7, **style)
        cost = [*(line.cost for line in best), max(line.cost for line in inside)]
        right.step(cost, [*(line.error for line in best), best[-1].error], where="post", color=report.PALETTE[1])
        left.axvline(0, color="grey", linestyle=":", linewidth=1)
        left.set_yticks(range(len(lines)), [line.name for line in lines], fontsize=7)
        left.set(xlabel="gain over SGD in points, with 95 % interval", ylim=(len(lines) - 0.5, -0.5))
        left.set(xlim=(-reach, reach))
        right.set(xlabel="cost (SGD: 1)", ylabel="hard feature's probe error, %")
        right.margins(0.12)
        figure.suptitle(
            "Orange: on the frontier. Blue: clearly better than SGD. Arrow: beyond the picture.", fontsize=9
        )
    return [figure]


def claims(rows: Sequence[Row]) -> list[report.Claim]:
    """SAM and LSAM against SGD, and the goal: SAM's error at no more than 1.1 times SGD's time."""
    lines = {line.name: line for line in board(rows)}
    judged = [_beats_sgd(lines[name], text) for name, text in (("sam", "SAM"), ("lsam", "LSAM")) if name in lines]
    return [*judged, _cheap_as_sam(lines)] if "sam" in lines else judged


def _beats_sgd(line: Line, name: str) -> report.Claim:
    return report.Claim(
        f"{name}'s hard probe error is below SGD's, each at the better of two settings.",
        higher(line.gain),
        ours=f"{spread(run['hard'] for run in line.runs)}, a gain of {line.gain}, at {line.cost:.2f} times the cost",
        paper="improves",
        detail="Judged by the 95 % interval over fresh seeds, in pairs.",
    )


WITHIN = 0.3  # points
CHEAP = 1.1  # times SGD's cost


def _cheap_as_sam(lines: dict[str, Line]) -> report.Claim:
    sam = lines["sam"]
    cheap = [line for line in lines.values() if line.cost <= CHEAP and line.name not in GROUPS_KNOWN]
    excess = {line.name: paired(sam.runs, line.runs, "hard") for line in cheap}
    level = 1 - (1 - LEVEL) / len(excess)  # the best of several may be so by chance (Bonferroni)
    verdicts = {name: verdict(difference.interval_at(level), WITHIN) for name, difference in excess.items()}
    winners = [name for name, judged in verdicts.items() if judged == "holds"]
    closest = min(excess, key=lambda name: excess[name].estimate.mean)
    return report.Claim(
        f"Some entry of at most {CHEAP:g} times SGD's cost has SAM's hard error within {WITHIN:g} points.",
        "holds" if winners else "open" if "open" in verdicts.values() else "contradicted",
        ours=f"within: {', '.join(winners) or 'none for sure'}; closest: {closest}, by {excess[closest]}",
        paper="not compared",
        detail="Intervals of the entry's error minus SAM's, widened for the number of such entries. Entries that are "
        "told the groups do not count. The goal asks for three data sets; this is one.",
    )


SCOREBOARD_CIFAR_MNIST = Experiment(
    name="scoreboard-cifar-mnist",
    title="Scoreboard on CIFAR-MNIST: every rule, other methods and other bases, by hard probe error and cost.",
    says="Springer et al. compare SGD, SAM and LSAM. Reviewers missed a comparison with methods made against "
    "spurious correlations; papers of the other rules say nothing of features.",
    scales={
        "paper": Board(),
        "reduced": Board(entries=tuple(name for name in ENTRIES if name not in LATER)),
        "quick": Board(
            entries=("sgd", "lsam", "sam", "useful", "adam"), epochs=4, seeds=(20, 21), settings=(("examples", 3000),)
        ),
        "tiny": Board(
            "fmnist-mnist", ("sgd", "lsam", "sam", "jtt", "muon"), 2, 0.05, seeds=(20, 21),
            settings=(*SMALLEST.items(), ("examples", 100)),
        ),
    },
    runs=runs,
    compute=_compute,
    tables=tables,
    plots=plots,
    claims=claims,
    data=("mnist",),
    notes=(
        f"At the paper's scale and not at the reduced one: {'; '.join(LATER)}.",
        "Left out: " + "; ".join(f"{name}, which {why}" for name, why in LEFT_OUT.items()) + ".",
        "GroupDRO is told every training example's group; JTT and USEFUL train twice, which their cost has.",
        "lsam, also with one effect or several phantom heads, runs its body once; its cost is measured so.",
        "imb_sam takes class 0 for the rare one; m_sharpness has 16 examples to a part.",
    ),
)  # fmt: skip
