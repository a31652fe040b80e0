"""One network on a real data set, by any rule: a row per epoch, probes, checkpoints that survive a kill."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from samphire import records
from samphire.data.parts import load_parts
from samphire.progress import Progress, silent
from samphire.records import Row
from samphire.train.configs import Config
from samphire.train.distributed import Ranks, joined
from samphire.train.methods import first_training, positions, retrain_head
from samphire.train.trained import TrainedRun
from samphire.train.training import Training

Log = Callable[[Path, Any], AbstractContextManager[Callable[[Sequence[Row]], object]]]
"""Opens a place to show a run's rows, by its folder and configuration; it gives a function of all rows so far."""

__all__ = ["Log", "fit"]


def fit(
    config: Config,
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    progress: Progress = silent,
    log: Log | None = None,
) -> TrainedRun:
    """Train one network, or resume where an earlier call was stopped.

    After every epoch the whole state is stored, and everything random in an epoch comes from the seed and the epoch's
    number. So a run that was killed at any moment, and resumed with as many processes and threads, has exactly the
    weights of one that was not killed (on a GPU, if its kernels always add in one order). A loss that is not finite
    ends the run: its last row has the reason under ``stopped``.

    A row has: ``loss`` and ``train_error`` of the epoch's batches at the time of their steps; ``val_loss`` and the
    errors on the validation part, by four averages (``val_error`` is weighted by the groups' sizes in training,
    ``val_plain``, ``val_equal``, ``val_worst``) and by group; ``lr`` and ``rho`` at the epoch's end; ``seconds`` of
    training alone. After the epochs of ``probe_at`` and the last one it also has the same for the test part, and the
    features' probe errors: ``probe``, with 95 % intervals in ``probe_low`` and ``probe_high``, and ``probe_val``, to
    select by, from probes that are trained on one half of the probing part and tested on the other. After DFR the
    validation errors are those of a head retrained on one half and tested on the other, because the final head is
    trained on all of it.

    Under torchrun the batch is shared among the processes. BatchNorm then uses the statistics of each share, and the
    first process's running statistics are stored.

    Args:
        config: What to run.
        root: The folder of the data set, or the one above it.
        out: The folder of all runs; this one's is named by the key of its configuration.
        cache: For decoded images; the user's cache by default.
        device: Where to compute; a GPU if there is one.
        progress: Called with what is done, the steps done and the steps to do.
        log: Where the first process shows each row, such as ``Tracker("tensorboard")`` of
            ``samphire.integrations.trackers``.
    """
    with joined(device) as ranks:
        return _fit(
            config, root, out, cache, ranks, progress if ranks.first else silent, log if ranks.first else None
        )


def _fit(
    config: Config, root: Any, out: Any, cache: Any, ranks: Ranks, progress: Progress, log: Log | None
) -> TrainedRun:
    first = first_training(config)
    before = None if first is None else _fit(first, root, out, cache, ranks, progress, log)
    with _opened(out, config, ranks) as run, _shown(run, config, log):
        if before is not None and before.stopped:
            if ranks.first and not run.rows:
                why = f"the training that {config.method} builds on ended early: {before.stopped}"
                run.append(before.rows[-1] | {"stopped": why})
        elif not ranks.from_first(run.done):
            chosen: Any = {name: getattr(config, name) for name in ("size", "target", "augment", "examples")}
            parts = load_parts(config.data, root, cache=cache, progress=progress, **chosen)
            if config.method != "dfr":
                visits = positions(config, before, parts, ranks.device)
                _train(Training(config, parts, ranks, visits), run, progress)
            elif ranks.first and before is not None and not run.rows:
                net, row = retrain_head(config, before, parts, ranks.device)
                _store(run.folder / "model.pt", net.state_dict())
                records.write_atomic(run.folder / "input.json", (before.folder / "input.json").read_bytes())
                run.append(row)
        return TrainedRun(config, run.folder, tuple(ranks.from_first(run.rows)))


def _train(training: Training, run: records.Run, progress: Progress) -> None:
    """The epochs that are missing; the first process writes."""
    config, ranks = training.config, training.ranks
    state, final = run.folder / "state.pt", run.folder / "model.pt"
    if ranks.from_first(final.exists()):  # killed between the end of training and the mark that it is done
        if ranks.first:
            state.unlink(missing_ok=True)
        return
    training.load(ranks.from_first(torch.load(state, map_location="cpu") if ranks.first and state.exists() else None))
    if ranks.first:
        _catch_up(run, training.rows)
        records.write_atomic(run.folder / "input.json", json.dumps(training.scale()).encode())
        if training.done == 0:
            _keep(training, run)
    while training.done < config.epochs and not training.stopped:
        row = training.epoch(progress)
        if ranks.first and "stopped" not in row:
            row |= training.evaluate(progress)
        row = ranks.from_first(row)
        training.rows.append(row)
        checkpoint = training.state()
        if ranks.first:
            _keep(training, run)  # before the state: a kill between the two must not lose them
            _store(state, checkpoint)
            run.append(row)
    if ranks.first and not training.stopped:
        _store(final, training.net.state_dict())
        state.unlink()


def _catch_up(run: records.Run, rows: list[Row]) -> None:
    """Write the row that a kill between the checkpoint and its row has left out."""
    for row in rows[len(run.rows) :]:
        run.append(row)


def _keep(training: Training, run: records.Run) -> None:
    if training.done in training.config.keep:
        _store(run.folder / f"epoch-{training.done}.pt", training.net.state_dict())


def _store(path: Path, state: Any) -> None:
    file = io.BytesIO()
    torch.save(state, file)
    records.write_atomic(path, file.getvalue())


@contextmanager
def _opened(out: str | os.PathLike[str], config: Config, ranks: Ranks) -> Iterator[Any]:
    """The run's folder at the first process; the others know its name only."""
    if ranks.first:
        with records.open_run(out, config) as run:
            yield run
    else:
        yield _Elsewhere(Path(out) / records.key(config))


@contextmanager
def _shown(run: Any, config: Config, log: Log | None) -> Iterator[None]:
    """Show the rows that are there and those to come."""
    if log is None:
        yield
        return
    with log(run.folder, config) as show:
        show(run.rows)
        run.listeners.append(show)
        yield


@dataclass
class _Elsewhere:
    folder: Path
    done: bool = False
    rows: tuple[Row, ...] = ()
