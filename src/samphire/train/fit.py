"""One network on a real data set, by any rule: a row per epoch, probes, checkpoints that survive a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from samphire import records
from samphire.checks import read_regular
from samphire.data.parts import load_parts
from samphire.data.split import Split
from samphire.progress import Progress, silent
from samphire.records import Row
from samphire.train import checkpoints
from samphire.train.configs import Config
from samphire.train.distributed import Ranks, joined
from samphire.train.examples import check_examples, note_examples, splits_of
from samphire.train.judging import ProbeSettings, check_judgeable
from samphire.train.methods import first_training, positions, retrain_head
from samphire.train.trained import TrainedRun
from samphire.train.training import Training

Log = Callable[[Path, Any], AbstractContextManager[Callable[[Sequence[Row]], object]]]
"""Opens a place to show a run's rows, by its folder and configuration; it gives a function of all rows so far."""

__all__ = ["Log", "fit"]


def fit(
    config: Config,
    root: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs",
    *,
    parts: Any = None,
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
    features' probe errors, see :func:`samphire.train.judging.probe_features`. After DFR the validation errors are
    those of a head retrained on one half and tested on the other, because the final head is trained on all of it.

    BatchNorm's running statistics are those of the weights they are stored with: before a network is judged, probed
    or kept, they are taken anew from ten training batches. Weights kept before training have those they came with.

    The folder records a fingerprint of the examples; a run that was trained on others is refused.

    Under torchrun the batch is shared among the processes. In training, BatchNorm then uses the statistics of each
    share.

    Args:
        config: What to run.
        root: The folder of a built-in data set, or the one above it.
        out: The folder of all runs; this one's is named by the key of its configuration.
        parts: Data of one's own instead: what :func:`samphire.data.open` gave (then ``config.data`` is its name) or
            takes, or a :class:`samphire.data.Split` by part.
        cache: For decoded images; the user's cache by default.
        device: Where to compute; a GPU if there is one.
        progress: Called with what is done, the steps done and the steps to do.
        log: Where the first process shows each row, such as ``Tracker("tensorboard")`` of
            ``samphire.integrations.trackers``.
    """
    with joined(device) as ranks:
        splits = splits_of(config.data, root, config.target, parts)
        return _fit(
            config, splits, out, cache, ranks, progress if ranks.first else silent, log if ranks.first else None
        )


def _fit(
    config: Config,
    splits: Mapping[str, Split],
    out: Any,
    cache: Any,
    ranks: Ranks,
    progress: Progress,
    log: Log | None,
) -> TrainedRun:
    first = first_training(config)
    before = None if first is None else _fit(first, splits, out, cache, ranks, progress, log)
    with _opened(out, config, ranks) as run, _shown(run, config, log):
        if ranks.first:
            (check_examples if run.done else note_examples)(run.folder, config.data, splits)
        if before is not None and before.stopped:
            if ranks.first and not run.rows:
                why = f"the training that {config.method} builds on ended early: {before.stopped}"
                run.append(before.rows[-1] | {"stopped": why})
        elif not ranks.from_first(run.done):
            chosen: Any = {name: getattr(config, name) for name in ("size", "augment", "examples", "probe_on")}
            parts = load_parts(config.data, splits=splits, cache=cache, progress=progress, **chosen)
            if "@" in config.data:  # own data may have groups of few examples, or none
                check_judgeable(parts, ProbeSettings(config.resamples) if config.resamples else None)
            if config.method != "dfr":
                visits = positions(config, before, parts, ranks.device)
                _train(partial(Training, config, parts, ranks, visits), run, progress)
            elif ranks.first and before is not None and not run.rows:
                net, row = retrain_head(config, before, parts, ranks.device)
                checkpoints.store(run.folder / "model.pt", net.state_dict())
                records.write_atomic(run.folder / "input.json", read_regular(before.folder / "input.json"))
                run.append(row)
        return TrainedRun(config, run.folder, tuple(ranks.from_first(run.rows)))


def _train(begin: Callable[[], Training], run: records.Run, progress: Progress) -> None:
    """The epochs that are missing; the first process writes."""
    training = begin()
    config, ranks = training.config, training.ranks
    state, final = run.folder / "state.pt", run.folder / "model.pt"
    ended = final.exists() and len(run.rows) == config.epochs
    if ranks.from_first(ended):  # killed between the end of training and the mark that it is done
        if ranks.first:
            state.unlink(missing_ok=True)
        return
    stored = ranks.from_first(checkpoints.read(state) if ranks.first else None)
    if stored is not None and not training.resume(stored, state):
        training = begin()
    if ranks.first:
        _append_new(run, training.rows)
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
            checkpoints.store(state, checkpoint)
            _append_new(run, training.rows)
    if ranks.first and not training.stopped:
        checkpoints.store(final, training.net.state_dict())
        state.unlink()


def _append_new(run: records.Run, rows: list[Row]) -> None:
    """Write the rows that the file lacks: after a kill it may have one less, after a lost checkpoint more."""
    epochs = [row.get("epoch") for row in run.rows]
    if epochs != list(range(1, len(epochs) + 1)):
        raise ValueError(
            f"{run.folder / 'rows.jsonl'} is damaged: its epochs are {', '.join(map(str, epochs))}; "
            "delete the run's folder to train it again."
        )
    for row in rows[len(run.rows) :]:
        run.append(row)


def _keep(training: Training, run: records.Run) -> None:
    if training.done in training.config.keep:
        checkpoints.store(run.folder / f"epoch-{training.done}.pt", training.net.state_dict())


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
