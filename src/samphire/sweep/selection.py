"""The best setting of every side, by any criterion, from stored rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args

from samphire.checks import check_one_of
from samphire.records import Row
from samphire.statistics import Estimate, estimate
from samphire.sweep.trials import State, Trial

if TYPE_CHECKING:
    from samphire.train.configs import Config

__all__ = ["CRITERIA", "Choice", "select", "table"]


CRITERIA: dict[str, Callable[[Row], float]] = {
    "val_error": lambda row: row.get("val_error", math.nan),
    "val_loss": lambda row: row.get("val_loss", math.nan),
    "probe": lambda row: max((row.get("probe_val") or {}).values(), default=math.nan),
    "worst_group": lambda row: row.get("val_worst", math.nan),
}
"""What settings are selected by, from a run's last row and never from test examples; the smallest is best.

``val_error``: validation error, groups weighted as in training. ``val_loss``: validation loss. ``probe``: probe error
of the hardest feature on a tenth of the probing set that probes do not see. ``worst_group``: validation error of the
worst group.
"""


@dataclass(frozen=True)
class Choice:
    """The best setting of one side, and what it was chosen from.

    Attributes:
        side: The rule, ``"sgd"`` for radius 0, and any other setting that differs between sides.
        by: The criterion.
        lr: Learning rate, ``None`` if nothing could be chosen.
        rho: Radius, likewise.
        score: The criterion over the seeds.
        rows: The last rows of its runs, one for each seed.
        settings: How many there were to choose from.
        runs: How many of the side's runs are in each state.
    """

    side: str
    by: str
    lr: float | None
    rho: float | None
    score: Estimate
    rows: tuple[Row, ...]
    settings: int
    runs: Mapping[State, int]

    @property
    def count(self) -> str:
        """How many runs are done and the states of the others, as in ``"18 of 21 (1 stopped, 2 failed)"``."""
        others = ", ".join(f"{n} {state}" for state, n in self.runs.items() if n and state != "done")
        return f"{self.runs['done']} of {sum(self.runs.values())}" + (f" ({others})" if others else "")


def select(trials: Iterable[Trial], by: str = "val_error") -> list[Choice]:
    """The best learning rate and radius of every side, by one criterion.

    A side is everything but learning rate, radius and seed: SGD, which is radius 0, SAM with a radius above 0, and so
    on. A setting's score is the mean over its seeds. Only settings with the most finished seeds compete, so a lucky
    seed of an unfinished setting cannot win; one with a stopped seed does not compete at all. Ties go to the
    lower validation loss (small networks often have no validation error at all), then to the smaller radius, then to
    the smaller learning rate.

    Args:
        trials: From :func:`samphire.sweep.trials`.
        by: A key of :data:`CRITERIA`.

    Example:
        >>> from pathlib import Path
        >>> from samphire.sweep import grid
        >>> jobs = grid("cifar-mnist", ["sam"], lr=[0.1], rho=[0, 0.01, 0.03])
        >>> trials = [Trial(j, Path(), "done", {"val_error": e}) for j, e in zip(jobs, [0.3, 0.2, 0.1])]
        >>> [(c.side, c.rho, c.settings, c.count) for c in select(trials)]
        [('sgd', 0.0, 1, '1 of 1'), ('sam', 0.03, 2, '2 of 2')]
    """
    check_one_of("criterion", by, CRITERIA)
    sides: dict[Config, list[Trial]] = {}
    for trial in trials:
        sides.setdefault(_side(trial.config), []).append(trial)
    names = dict.fromkeys(f.name for side in sides for f in fields(side))
    differing = [name for name in names if len({getattr(side, name) for side in sides}) > 1]
    return [_choice(_label(side, differing), group, by) for side, group in sides.items()]


def _side(config: Config) -> Config:
    """What is compared: the configuration without what is tuned and without the seed."""
    plain: dict[str, Any] = {"rule": "sgd", "rule_settings": ()} if config.radius == 0 else {}
    return replace(config, rho=None, lr=1.0, seed=0, **plain)


def _label(side: Config, differing: Sequence[str]) -> str:
    shown = [f"{name} {getattr(side, name)}" for name in differing if name not in ("rule", "rule_settings")]
    settings = [f"{name}={value}" for name, value in side.rule_settings]
    return ", ".join([side.rule, *settings, *shown])


def _choice(side: str, group: Sequence[Trial], by: str) -> Choice:
    runs: dict[State, int] = {state: sum(trial.state == state for trial in group) for state in get_args(State)}
    settings: dict[Config, list[Trial]] = {}
    for trial in group:
        same = replace(_side(trial.config), lr=trial.config.lr, rho=trial.config.rho or None)
        settings.setdefault(same, []).append(trial)
    rows = {
        setting: tuple(trial.row for trial in seeds if trial.state == "done" and trial.row)
        for setting, seeds in settings.items()
        if all(trial.state != "stopped" for trial in seeds)
    }
    most = max(map(len, rows.values()), default=0)
    scores = {s: estimate(map(CRITERIA[by], done)) for s, done in rows.items() if len(done) == most}
    known = [setting for setting in scores if math.isfinite(scores[setting].mean)]
    if not known:
        return Choice(side, by, None, None, estimate([]), (), len(settings), runs)
    losses = {s: estimate(row.get("val_loss", math.inf) for row in rows[s]).mean for s in known}
    best = min(known, key=lambda setting: (scores[setting].mean, losses[setting], setting.radius, setting.lr))
    return Choice(side, by, best.lr, best.radius, scores[best], rows[best], len(settings), runs)


def table(trials: Iterable[Trial], by: str = "val_error") -> list[Row]:
    """Rows for :func:`samphire.report.table`: what the criterion chooses for every side, then what others would.

    Test and probe errors are those of the chosen setting, estimated over its seeds. ``settings`` is how many each
    side had to choose from, and ``runs`` how many of its runs are done.

    Args:
        trials: From :func:`samphire.sweep.trials`.
        by: The criterion that comes first.
    """
    trials = list(trials)
    criteria = dict.fromkeys((by, *CRITERIA))
    choices = [choice for criterion in criteria for choice in select(trials, criterion)]
    features = dict.fromkeys(name for choice in choices for row in choice.rows for name in row.get("probe", ()))
    return [_row(choice, list(features)) for choice in choices]


def _row(choice: Choice, features: Sequence[str]) -> Row:
    def over_seeds(read: Callable[[Row], float | None]) -> Estimate:
        return estimate(value for value in map(read, choice.rows) if value is not None)

    return {
        "chosen by": choice.by,
        "side": choice.side,
        "lr": choice.lr,
        "rho": choice.rho,
        "score": choice.score,
        "test error": over_seeds(lambda row: row.get("test_error")),
        "worst group": over_seeds(lambda row: row.get("test_worst")),
        **{f"probe {name}": over_seeds(lambda row, n=name: row.get("probe", {}).get(n)) for name in features},  # type: ignore[misc]
        "seeds": choice.score.n,
        "settings": choice.settings,
        "runs": choice.count,
    }
