"""Many small runs at once (:func:`fit_many`), each equal to the same run trained alone."""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, cast

import torch
from torch import Tensor

from samphire.optim.requests import rho_of, with_rho
from samphire.pool import Interpreter, requests
from samphire.train.fleets import FLEETS, ModuleFleet, ToyFleet
from samphire.train.small_configs import ModuleConfig, RuleConfig, Small, ToyConfig, count_steps

CHUNK = 80  # runs: enough that the interpreter's share is small, few enough that their weights stay in the cache
WORTH_WORKERS = 300_000  # steps, about ten seconds on one core; starting another interpreter takes two
STEP = {RuleConfig: 10, ToyConfig: 1, ModuleConfig: 50}  # how long one takes, roughly, in steps of the toy


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
    runs: Sequence[Small],
    *,
    checkpoints: Sequence[int] = (),
    keep_weights: bool = False,
    dtype: torch.dtype = torch.float32,
    chunk: int = CHUNK,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Result]:
    """Train many small networks together; each run equals the same run trained alone.

    Runs of equal shape (points, batch, epochs, one or two passes; for other modules: problem and rule but for rho)
    advance in lock step, a chunk of them at a time. Everything random in a run comes from its own configuration, so
    neither its neighbours nor their order matter. Long work is shared among worker processes of one core each:
    threads would wait for each other at every one of the many small operations of a step. (Modules and losses that
    only this process can name, such as a lambda or a function of a script, stay here.)

    Memory: a chunk of 80 toy runs takes about 30 MB (0.1 MB of data, weights and buffers a run, 16 bytes a step for
    the heads, 10 MB for one evaluation) and 0.05 MB a run for each kept checkpoint; at most ``workers`` chunks train
    and as many wait to be taken. Results are yielded chunk by chunk: store and drop them, and no more is needed.

    Args:
        runs: What to run. Results come grouped by shape, within a group in this order.
        checkpoints: Epochs after which to evaluate, 0 for before training; the end always is.
        keep_weights: Whether checkpoints hold the weights.
        dtype: Precision of the training.
        chunk: Most runs that advance in one computation.
        workers: Processes; 1 for none but this one. By default torch's number of threads if the work is worth it.
        progress: Called with the steps done and the steps to do, from one thread at a time.

    Example:
        >>> runs = [ToyConfig(rho=rho, seed=seed, n=20, epochs=2) for rho in (0.0, 1.0) for seed in (0, 1)]
        >>> results = list(fit_many(runs))
        >>> [r.config.rho for r in results], results[0].v.shape
        ([0.0, 0.0, 1.0, 1.0], torch.Size([8, 2]))
        >>> sorted(results[0].final)
        ['loss', 'probe_easy', 'probe_hard', 'test_error', 'test_loss', 'train_error']
    """
    bad = [e for e in checkpoints if not isinstance(e, int) or e < 0]
    if bad:
        raise ValueError(f"checkpoints must be whole numbers of epochs >= 0, got {bad[0]!r}.")
    counter = _Counter(sum(count_steps(run) for run in runs), progress)
    if workers is None:
        work = sum(count_steps(run) * STEP[type(run)] for run in runs)
        workers = torch.get_num_threads() if work >= WORTH_WORKERS and all(map(_travels, runs)) else 1
    jobs = [(part, frozenset(checkpoints), keep_weights, dtype) for part in _chunks(runs, chunk, workers)]
    if workers == 1 or len(jobs) == 1:
        for job in jobs:
            yield from _train(*job, counter)
    else:
        for results in _by_workers(jobs, workers, counter):
            yield from results


def _travels(run: Small) -> bool:
    """Whether another interpreter can make the run: it finds its functions by their names in modules."""
    if isinstance(run, ToyConfig):
        return True
    try:
        return b"__main__" not in pickle.dumps((run.problem.model, run.problem.loss, run.rule, run.base))
    except (pickle.PicklingError, AttributeError, TypeError):
        return False


def _shape(run: Small) -> Hashable:
    """What runs must share to advance in lock step."""
    if isinstance(run, RuleConfig):
        return run.n, run.batch, run.epochs, _but_for_rho(run.rule)
    if isinstance(run, ToyConfig):
        return run.n, run.batch, run.epochs, run.algorithm == "sam"
    p = run.problem
    data = p.x.shape, p.x.dtype, p.y.shape, p.y.dtype
    return p.model, p.loss, data, run.batch, run.epochs, _but_for_rho(run.rule), repr(run.base), run.average_from


def _but_for_rho(rule: Any) -> str:
    return repr(rule if rule is None or rho_of(rule) is None else with_rho(rule, 0.0))


def _chunks(runs: Sequence[Small], most: int, workers: int) -> list[list[Small]]:
    groups: dict[Hashable, list[Small]] = {}
    for run in runs:
        groups.setdefault(_shape(run), []).append(run)
    parts = []
    for group in groups.values():
        share = 1 if isinstance(group[0], RuleConfig) else workers  # a rule's step costs the same for few and many
        pieces = min(len(group), math.ceil(math.ceil(len(group) / most) / share) * share)
        size = math.ceil(len(group) / pieces)
        parts += [group[i : i + size] for i in range(0, len(group), size)]
    return parts


class _Counter:
    """Steps done, over all workers."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self.done, self.total, self.progress, self.lock = 0, total, progress, threading.Lock()

    def add(self, steps: int) -> None:
        with self.lock:
            self.done += steps
            if self.progress is not None:
                self.progress(self.done, self.total)


Job = tuple[list[Small], frozenset[int], bool, torch.dtype]  # what _train takes


def _by_workers(jobs: Sequence[Job], workers: int, counter: _Counter) -> Iterator[list[Result]]:
    """Results of the jobs in order; few are ever waiting."""
    one_thread = {"OMP_NUM_THREADS": "1"}
    started = [Interpreter(f"{__name__}:_serve", one_thread) for _ in range(min(workers, len(jobs)))]
    idle: SimpleQueue[Interpreter] = SimpleQueue()
    for worker in started:
        idle.put(worker)

    def run(job: Job) -> list[Result]:
        worker = idle.get()
        try:
            return _ask(worker, job, counter)
        finally:
            idle.put(worker)

    pool, waiting = ThreadPoolExecutor(len(started)), deque[Future[list[Result]]]()
    try:
        for job in jobs:
            waiting.append(pool.submit(run, job))
            if len(waiting) == 2 * len(started):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for worker in started:
            worker.process.terminate()
        pool.shutdown(cancel_futures=True)
        for worker in started:
            worker.close()


def _ask(worker: Interpreter, job: Job, counter: _Counter) -> list[Result]:
    """The results of a job from another process; the steps it does are counted here."""
    try:
        worker.send(job)
        while isinstance(message := worker.receive(), int):
            counter.add(message)
    except (EOFError, OSError) as error:
        raise RuntimeError(
            f"a worker process ended (exit code {worker.process.wait()}) before its runs did; "
            "use workers=1 to see why."
        ) from error
    if isinstance(message, Exception):
        raise message
    return [replace(result, config=run) for result, run in zip(cast(list[Result], message), job[0], strict=True)]


def _serve() -> None:
    """A worker's side: for every chunk, the steps as they are done, then the results or an exception."""
    job: Job
    for job, send in requests(_Pickler):
        try:
            send([replace(result, config=None) for result in _train(*job, _Reporter(send))])  # the asker has it
        except Exception as error:
            send(error)


class _Reporter:
    """A worker's counter: the one that counts is the parent's."""

    def __init__(self, send: Callable[[object], None]) -> None:
        self.add = send


class _Pickler(pickle.Pickler):
    """Tensors as numpy arrays, which take microseconds each and no shared memory."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, Tensor) else NotImplemented


@contextlib.contextmanager
def _cores(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    runs: list[Any],
    checkpoints: frozenset[int],
    keep_weights: bool,
    dtype: torch.dtype,
    counter: _Counter | _Reporter,
) -> list[Result]:
    """One chunk from start to end; the toy's on one core, since its tensors are too small to share."""
    cores = 1 if isinstance(runs[0], ToyConfig) else torch.get_num_threads()
    with torch.no_grad(), _cores(cores), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)  # vmap's, of no use to users
        kind = next(kind for config, kind in FLEETS.items() if isinstance(runs[0], config))
        fleet: ToyFleet | ModuleFleet = kind(runs, dtype)
        rows: list[list[Checkpoint]] = [[] for _ in runs]
        epochs = runs[0].epochs
        for epoch in range(epochs + 1):
            if epoch > 0:
                fleet.epoch()
                counter.add(len(runs) * count_steps(runs[0]) // epochs)
            if epoch in checkpoints or epoch == epochs:
                for r, row in enumerate(rows):
                    w = {name: t[r] for name, t in fleet.engine.weights.items()}
                    kept = {name: t.clone() for name, t in w.items()} if keep_weights else None
                    row.append(Checkpoint(epoch, fleet.evaluate(r, w), kept))
        return [
            Result(run, tuple(row), *fleet.heads(r), not row[-1].values["loss"] <= fleet.collapsed_above)
            for r, (run, row) in enumerate(zip(runs, rows, strict=True))
        ]
