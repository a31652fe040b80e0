"""Many small runs at once (:func:`fit_many`), each equal to the same run trained alone."""

from __future__ import annotations

import io
import math
import pickle
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from samphire.checks import check_whole
from samphire.pool import Pool
from samphire.progress import Progress, silent
from samphire.restore import threads
from samphire.train.fleets import ModuleFleet, ToyFleet
from samphire.train.small_configs import SmallRun

CHUNK = 80  # runs: enough that the interpreter's share is small, few enough that their weights stay in the cache
WORTH_WORKERS = 300_000  # steps of the toy, about ten seconds on one core; starting another interpreter takes two

__all__ = ["CHUNK", "Checkpoint", "Result", "fit_many"]


@dataclass(frozen=True)
class Checkpoint:
    """A run after some epochs.

    Attributes:
        epoch: Epochs done.
        values: ``loss`` and ``train_error`` on the training set; ``test_loss`` and ``test_error`` if there is a test
            set; for the toy also ``probe_easy`` and ``probe_hard`` (the share of test points where
            ``y sign(v_k) Phi_k(x) > 0`` fails).
        weights: A state dict of the network, if asked for.
    """

    epoch: int
    values: dict[str, float]
    weights: dict[str, Tensor] | None


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        config: What was run.
        checkpoints: In order of epochs; the last is the end of training.
        v: For the toy, the real head before each step, (steps, 2), easy first.
        phantom: For the toy, the phantom head of each step.
        collapsed: Training failed: the loss is not finite or, for the toy, ends above 0.8 log 2, which is next to
            having learned nothing. Such a run says little about features; count it, do not average it.
    """

    config: Any
    checkpoints: tuple[Checkpoint, ...]
    v: Tensor | None = None
    phantom: Tensor | None = None
    collapsed: bool = False

    @property
    def final(self) -> dict[str, float]:
        """The values at the end of training."""
        return self.checkpoints[-1].values


def fit_many(
    runs: Sequence[SmallRun],
    *,
    checkpoints: Sequence[int] = (),
    keep_weights: bool = False,
    dtype: torch.dtype = torch.float32,
    chunk: int = CHUNK,
    workers: int | None = None,
    progress: Progress = silent,
) -> Iterator[Result]:
    """Train many small networks together; each run equals the same run trained alone.

    Runs of equal ``shape`` advance in lock step, a chunk of them at a time. Everything random in a run comes from its
    own configuration, so neither its neighbors nor their order matter. Long work is shared among worker processes of
    one core each: threads would wait for each other at every one of the many small operations of a step. (Modules and
    losses that only this process can name, such as a lambda or a function of a script, stay here.)

    Memory: a chunk of 80 toy runs takes about 30 MB (0.1 MB of data, weights and buffers a run, 16 bytes a step for
    the heads, 10 MB for one evaluation) and 0.05 MB a run for each kept checkpoint; at most ``workers`` chunks train
    and as many wait to be taken. Results are yielded chunk by chunk: store and drop them, and no more is needed.

    Args:
        runs: What to run. Results come grouped by shape, in this order within a group.
        checkpoints: Epochs after which to evaluate, 0 for before training; the end always is.
        keep_weights: Whether checkpoints hold the weights.
        dtype: Precision of the training.
        chunk: Most runs that advance in one computation.
        workers: Processes; 1 for this one alone. By default torch's number of threads if the work is worth it.
        progress: Called with the steps done and the steps to do, by one thread at a time.

    Example:
        >>> from samphire.train import ToyConfig
        >>> runs = [ToyConfig(rho=rho, seed=seed, n=20, epochs=2) for rho in (0.0, 1.0) for seed in (0, 1)]
        >>> results = list(fit_many(runs))
        >>> [r.config.rho for r in results], results[0].v.shape
        ([0.0, 0.0, 1.0, 1.0], torch.Size([8, 2]))
        >>> sorted(results[0].final)
        ['loss', 'probe_easy', 'probe_hard', 'test_error', 'test_loss', 'train_error']
    """
    for epoch in checkpoints:
        check_whole("checkpoints: an epoch", epoch, least=0)
    counter = _Counter(sum(run.steps for run in runs), progress)
    if workers is None:
        work = sum(run.steps * run.fleet.step_cost for run in runs)
        workers = torch.get_num_threads() if work >= WORTH_WORKERS and all(run.travels for run in runs) else 1
    jobs = [(part, frozenset(checkpoints), keep_weights, dtype) for part in _chunks(runs, chunk, workers)]
    if workers == 1 or len(jobs) == 1:
        for job in jobs:
            yield from _train(*job, counter.add)
    else:
        for results in _by_workers(jobs, workers, counter):
            yield from results


def _chunks(runs: Sequence[SmallRun], most: int, workers: int) -> list[list[SmallRun]]:
    """Runs that train together: of one shape, and few enough that every worker has some."""
    groups: dict[Hashable, list[SmallRun]] = {}
    for run in runs:
        groups.setdefault((run.fleet, run.shape), []).append(run)
    parts = []
    for group in groups.values():
        share = workers if group[0].fleet.divides else 1
        pieces = min(len(group), math.ceil(math.ceil(len(group) / most) / share) * share)
        size = math.ceil(len(group) / pieces)
        parts += [group[i : i + size] for i in range(0, len(group), size)]
    return parts


class _Counter:
    """Steps done, over all workers."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.done, self.total, self.progress, self.lock = 0, total, progress, threading.Lock()

    def add(self, steps: int) -> None:
        with self.lock:
            self.done += steps
            self.progress("training", self.done, self.total)


Job = tuple[list[SmallRun], frozenset[int], bool, torch.dtype]  # what _train takes


def _by_workers(jobs: Sequence[Job], workers: int, counter: _Counter) -> Iterator[list[Result]]:
    """Results of the jobs in order; the configurations stay here."""
    with Pool(min(workers, len(jobs))) as pool:
        answers = pool.map(_train_in_worker, jobs, listen=counter.add)
        for (runs, *_), answer in zip(jobs, answers, strict=True):
            yield [replace(result, config=run) for result, run in zip(pickle.loads(answer), runs, strict=True)]


def _train_in_worker(*job_and_count: Any) -> bytes:
    out = io.BytesIO()
    _Pickler(out).dump([replace(result, config=None) for result in _train(*job_and_count)])
    return out.getvalue()


class _Pickler(pickle.Pickler):
    """Tensors as numpy arrays, which take microseconds each and no shared memory."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, Tensor) else NotImplemented


def _train(
    runs: list[Any], checkpoints: frozenset[int], keep_weights: bool, dtype: torch.dtype, count: Callable[[int], None]
) -> list[Result]:
    """One chunk from start to end."""
    kind, epochs = runs[0].fleet, runs[0].epochs
    with torch.no_grad(), threads(1 if kind.one_core else torch.get_num_threads()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)  # vmap's, of no use to users
        fleet: ToyFleet | ModuleFleet = kind(runs, dtype)
        rows: list[list[Checkpoint]] = [[] for _ in runs]
        for epoch in range(epochs + 1):
            if epoch > 0:
                fleet.epoch()
                count(len(runs) * runs[0].steps // epochs)
            if epoch in checkpoints or epoch == epochs:
                for r, row in enumerate(rows):
                    w = {name: t[r] for name, t in fleet.engine.weights.items()}
                    kept = {name: t.clone() for name, t in w.items()} if keep_weights else None
                    row.append(Checkpoint(epoch, fleet.evaluate(r, w), kept))
        results = []
        for r, (run, row) in enumerate(zip(runs, rows, strict=True)):
            v, phantom = fleet.heads(r)
            results.append(Result(run, tuple(row), v, phantom, not row[-1].values["loss"] <= fleet.collapsed_above))
        return results
