"""An experiment is one record: what to run, how a run becomes a row, and what is read from the rows.

Tables, plots and claims come from rows alone, so they can be made again in seconds. A row is JSON data; every run has
one. Two experiments with equal ``compute`` share the rows of the runs that both have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samphire import report, train
from samphire.experiments.rows import Row
from samphire.progress import Progress
from samphire.restore import threads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Source = Literal["the paper", "the review"]
Compute = Callable[[Sequence[Any], "Places", Progress], Iterator[tuple[Any, Row]]]
SCALES = ("tiny", "quick", "reduced", "paper")

__all__ = ["SCALES", "Compute", "Experiment", "Places", "Source", "one_by_one", "steps_of", "train_each"]


@dataclass(frozen=True)
class Places:
    """Folders that an experiment may use.

    Attributes:
        data: The data sets.
        trainings: Runs of :func:`samphire.train.fit`; their checkpoints survive an interruption.
    """

    data: Path
    trainings: Path


def steps_of(run: Any) -> int:
    """How long a run takes, in steps of the toy; 1 for a run that has no steps."""
    return getattr(run, "steps", 1)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper.

    Args:
        name: Short and unique, for instance ``"fig2"`` or ``"review-m"``.
        title: One line.
        source: Who made the claims.
        says: What the source reports, one or two sentences.
        scales: The configuration, a frozen dataclass, by scale. ``"tiny"``, ``"quick"`` and ``"paper"`` are always
            there, ``"reduced"`` where the paper's scale takes days on a CPU.
        runs: The runs of a configuration: frozen dataclasses, one row each.
        compute: Yields each run with its row, in any order. A run is left out if its data are missing.
        tables: From rows.
        plots: From rows.
        claims: From rows, each with its verdict.
        data: Names of the data sets that must be there, for instance ``("mnist",)``.
        notes: Where we differ from the source, one sentence each.
        steps: How long a run takes, in steps of the toy, for the time left.
        cost: What is there, and what the rest will take on this machine, for experiments of hours.
    """

    name: str
    title: str
    source: Source = "the paper"
    says: str
    scales: Mapping[str, Any]
    runs: Callable[[Any], Sequence[Any]]
    compute: Compute
    tables: Callable[[list[Row]], Sequence[report.Table]]
    plots: Callable[[list[Row]], Sequence[Figure]]
    claims: Callable[[list[Row]], Sequence[report.Claim]]
    data: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: Callable[[Any], int] = steps_of
    cost: Callable[[Sequence[Any], Places], report.Table] | None = None

    def at(self, scale: str) -> Any:
        """The configuration at a scale; without a reduced scale, the paper's."""
        return self.scales[scale if scale in self.scales else "paper"]

    def result(self, rows: list[Row], scale: str) -> report.Result:
        """What the rows show; at the tiny scale every claim stays open."""
        claims = self.claims(rows)
        if scale == "tiny":
            too_short = "The tiny scale is too short to judge."
            claims = [replace(claim, verdict="open", detail=too_short) for claim in claims]
        return report.Result(
            self.name,
            self.title,
            paper_says=self.says,
            figures=self.plots(rows),
            tables=self.tables(rows),
            claims=claims,
            notes=self.notes,
            settings={"scale": scale, "runs": len(rows)} | asdict(self.at(scale)),
            source=self.source,
        )


@dataclass(frozen=True)
class train_each:
    """Train small runs by :func:`samphire.train.fit_many`; equal arguments give equal computations.

    Args:
        row: Of a trained run.
        checkpoints: Epochs after which to evaluate.
        keep_weights: Whether checkpoints hold the weights.
    """

    row: Callable[[train.Result], Row]
    checkpoints: tuple[int, ...] = ()
    keep_weights: bool = False

    def __call__(self, runs: Sequence[Any], places: Places, progress: Progress) -> Iterator[tuple[Any, Row]]:
        settings: dict[str, Any] = {"checkpoints": self.checkpoints, "keep_weights": self.keep_weights}
        for result in train.fit_many(runs, progress=progress, **settings):
            with threads(1):  # a row is many small operations
                row = self.row(result)
            yield result.config, row


@dataclass(frozen=True)
class one_by_one:
    """Compute runs one after the other; equal arguments give equal computations.

    Args:
        row: Of a run.
        steps: How long a run takes; give the experiment the same.
    """

    row: Callable[[Any], Row]
    steps: Callable[[Any], int] = steps_of

    def __call__(self, runs: Sequence[Any], places: Places, progress: Progress) -> Iterator[tuple[Any, Row]]:
        done, total = 0, sum(map(self.steps, runs))
        for run in runs:
            yield run, self.row(run)
            done += self.steps(run)
            progress("runs", done, total)
