"""Where a run's numbers go: TensorBoard, Weights & Biases, MLflow, a CSV file.

A tracker is opened once for a run and shows its rows, each once: after a kill and a resume no point is doubled. It
works without a network: what is sent to a server is the library's own business (``WANDB_MODE=offline``,
``MLFLOW_TRACKING_URI``).
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from samphire import records
from samphire.checks import check_one_of
from samphire.records import Row
from samphire.report.training import curves
from samphire.train import TrainedRun

__all__ = ["TRACKERS", "Tracker", "flat", "mlflow_name", "numbers"]


class Session(Protocol):
    """One run, open in one library."""

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Show the numbers of an epoch."""

    def figure(self, name: str, figure: Any) -> None:
        """Show a matplotlib figure."""


@dataclass(frozen=True)
class Tracker:
    """What ``samphire.train.fit(log=...)`` takes: opens a run in a library, and shows the rows it has not shown yet.

    Args:
        kind: ``"tensorboard"``, ``"wandb"``, ``"mlflow"`` or ``"csv"``.

    Example:
        >>> Tracker("tensorbord")
        Traceback (most recent call last):
            ...
        ValueError: no tracker is named 'tensorbord'; did you mean 'tensorboard'?
    """

    kind: str

    def __post_init__(self) -> None:
        check_one_of("tracker", self.kind, TRACKERS)
        try:
            importlib.import_module(self.kind)
        except ModuleNotFoundError:
            raise ValueError(f"log={self.kind!r} needs {self.kind}; pip install 'samphire[{self.kind}]'.") from None

    @contextmanager
    def __call__(self, folder: Path, config: Any) -> Iterator[Callable[[Sequence[Row]], None]]:
        """Open the run of a folder; what it gives shows rows, and the curves at the end."""
        mark = folder / f"{self.kind}.json"
        before = json.loads(mark.read_text())["rows"] if mark.exists() else 0
        shown: list[Row] = []

        def show(rows: Sequence[Row]) -> None:
            for row in rows[max(before, len(shown)) :]:
                session.show(row["epoch"], numbers(row))
            shown[:] = rows
            records.write_atomic(mark, json.dumps({"rows": len(rows)}).encode())

        with TRACKERS[self.kind](folder, flat(asdict(config)), before) as session:
            yield show
            if len(shown) > before:
                session.figure("curves", curves(TrainedRun(config, folder, tuple(shown))))


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, those inside a dict by ``name/key``.

    Example:
        >>> numbers({"epoch": 1, "loss": 0.5, "val_groups": {"land": 0.1}, "val_worst_group": "land"})
        {'loss': 0.5, 'val_groups/land': 0.1}
    """
    return {
        name: float(value) for name, value in flat(row).items() if name != "epoch" and isinstance(value, (int, float))
    }


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dict as a flat one.

    Example:
        >>> flat({"a": 1, "b": {"c": 2}})
        {'a': 1, 'b/c': 2}
    """
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result |= {f"{name}/{inner}": leaf for inner, leaf in flat(value).items()}
        else:
            result[name] = value
    return result


@contextmanager
def _tensorboard(folder: Path, config: Mapping[str, Any], shown: int) -> Iterator[Session]:
    from torch.utils.tensorboard import SummaryWriter

    class Board:
        def show(self, step: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()

        def figure(self, name: str, figure: Any) -> None:
            writer.add_figure(name, figure)

    # what an interrupted session has shown beyond the mark, TensorBoard drops
    with SummaryWriter(folder / "tensorboard", purge_step=shown + 1 if shown else None) as writer:
        if not shown:
            writer.add_text("config", "\n".join(f"    {name}: {value}" for name, value in config.items()))
        yield Board()


@contextmanager
def _wandb(folder: Path, config: Mapping[str, Any], shown: int) -> Iterator[Session]:
    import wandb

    class Weights:
        def show(self, step: int, values: Mapping[str, float]) -> None:
            run.log(dict(values), step=step)

        def figure(self, name: str, figure: Any) -> None:
            run.log({name: wandb.Image(figure)})

    project = os.environ.get("WANDB_PROJECT", "samphire")
    with wandb.init(
        project=project, id=folder.name, dir=folder, config=dict(config), resume="allow", settings={"silent": True}
    ) as run:
        yield Weights()


@contextmanager
def _mlflow(folder: Path, config: Mapping[str, Any], shown: int) -> Iterator[Session]:
    import mlflow

    client = mlflow.MlflowClient()
    experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "samphire")).experiment_id
    earlier = client.search_runs([experiment], f"tags.`samphire.run` = '{folder.name}'")
    run = earlier[0] if earlier else client.create_run(experiment, tags={"samphire.run": folder.name})
    if not earlier:
        for name, value in config.items():
            client.log_param(run.info.run_id, mlflow_name(name), value)

    class Flow:
        def show(self, step: int, values: Mapping[str, float]) -> None:
            for name, value in values.items():
                client.log_metric(run.info.run_id, mlflow_name(name), value, step=step)

        def figure(self, name: str, figure: Any) -> None:
            client.log_figure(run.info.run_id, figure, f"{name}.png")

    yield Flow()
    client.set_terminated(run.info.run_id)


def mlflow_name(name: str) -> str:
    """A name with the characters that MLflow takes.

    Example:
        >>> mlflow_name("val_groups/bird=land, place=water")
        'val_groups/bird:land_ place:water'
    """
    return re.sub(r"[^\w\-. :/]", "_", name.replace("=", ":"))


@contextmanager
def _csv(folder: Path, config: Mapping[str, Any], shown: int) -> Iterator[Session]:
    path = folder / "log.csv"
    rows: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))[:shown]

    class Table:
        def show(self, step: int, values: Mapping[str, float]) -> None:
            rows.append({"epoch": step, **values})
            text = io.StringIO()
            writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
            records.write_atomic(path, text.getvalue().encode())

        def figure(self, name: str, figure: Any) -> None:
            """A table has none."""

    yield Table()


Opened = Callable[[Path, Mapping[str, Any], int], AbstractContextManager[Session]]
TRACKERS: dict[str, Opened] = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "csv": _csv}
