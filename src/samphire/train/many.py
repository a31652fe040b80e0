"""Many small runs at once (:func:`fit_many`), each equal to the same run trained alone."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import math
import pickle
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from samphire.data import synthetic
from samphire.data.synthetic import Corruption, Noise, Points, Spiral, Where
from samphire.interpreters import Interpreter, requests
from samphire.models import ToyNet, two_views
from samphire.optim.batched import ALGORITHMS, Base, FeatureRuns, ModuleRuns, rho_of, stacked, with_rho
from samphire.optim.describe import in_use

TEST_POINTS = 2000
CHUNK = 80  # runs: enough that the interpreter's share is small, few enough that their weights stay in the cache
WORTH_WORKERS = 300_000  # steps, about ten seconds on one core; starting another interpreter takes two
RULE_STEP = 10  # steps of the written-out engine that take as long as one of a rule
COLLAPSED_ABOVE = 0.8 * math.log(2)  # training loss: log 2 is that of f = 0; runs that work end below 0.3


@dataclass(frozen=True)
class ToyConfig:
    """One run of the toy of Springer et al. (2024): everything its outcome depends on.

    Args:
        chi: Complexity of the spiral, in degrees.
        rho: Radius of the climb; 0 for algorithms that do not climb.
        algorithm: ``"sgd"``, ``"lsam"``, ``"sam"``, or an intervention: ``"weights"`` (equation 7), ``"rates"``
            (equation 8), ``"both"`` (equation 9).
        seed: Chooses data, initial weights and order of the batches, each by a generator of its own. Runs with equal
            seeds are paired: they differ by nothing but their settings.
        epochs: Passes over the training points.
        batch: Points per step; a rest that does not fill a batch makes a smaller one.
        lr: Learning rate, constant.
        n: Training points.
        spiral: Variant of the spiral (see :func:`samphire.data.synthetic.toy`).
        noise: Where the arms' noise is added.
        corruption: Noise of equation 45. The test points have none.
        level: How much of it.
        where: On which features.
        train_head: Whether the head learns (as the text has it) or stays at (1, 1) (as figure 3 looks).
        v_star: The interventions' fixed weight of the hard feature; that of the easy one is 1.

    Example:
        >>> ToyConfig(rho=1.0).algorithm
        'lsam'
        >>> ToyConfig(batch=500)
        Traceback (most recent call last):
            ...
        ValueError: batch must be a whole number from 1 to n = 300, got 500; take a smaller batch or a larger n.
    """

    chi: float = 360.0
    rho: float = 0.0
    algorithm: str = "lsam"
    seed: int = 0
    epochs: int = 100
    batch: int = 5
    lr: float = 0.01
    n: int = 300
    spiral: Spiral = "point"
    noise: Noise = "inside"
    corruption: Corruption = "none"
    level: float = 0.0
    where: Where = "both"
    train_head: bool = True
    v_star: float = 1.0

    def __post_init__(self) -> None:
        synthetic.check_toy(self.n, self.chi, self.spiral, self.noise, self.corruption, self.level, self.where)
        if self.algorithm not in ALGORITHMS:
            close = difflib.get_close_matches(str(self.algorithm), ALGORITHMS, n=1)
            guess = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"no algorithm named {self.algorithm!r}; {guess}Known: {', '.join(ALGORITHMS)}.")
        if not 0 <= self.rho < math.inf:
            raise ValueError(f"rho must be a finite number >= 0, got {self.rho!r}; the toy's useful range is 0 to 2.")
        if self.rho > 0 and ALGORITHMS[self.algorithm].climb == "nothing":
            raise ValueError(f"rho must be 0 for {self.algorithm!r}, which does not climb, got {self.rho!r}.")
        if not isinstance(self.batch, int) or not 1 <= self.batch <= self.n:
            raise ValueError(
                f"batch must be a whole number from 1 to n = {self.n}, got {self.batch!r}; "
                "take a smaller batch or a larger n."
            )
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise ValueError(f"epochs must be a whole number >= 1, got {self.epochs!r}; the default is 100.")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be a finite number > 0, got {self.lr!r}; the paper has 0.01.")
        if not isinstance(self.seed, int):
            raise ValueError(f"seed must be a whole number, got {self.seed!r}.")
        if not math.isfinite(self.v_star):
            raise ValueError(
                f"v_star must be a finite number, got {self.v_star!r}; the paper's range is about 1 to 8."
            )
        intervenes = ALGORITHMS[self.algorithm].star_weights or ALGORITHMS[self.algorithm].star_rates
        if self.v_star != 1 and not intervenes:
            raise ValueError(f"v_star must be 1 for {self.algorithm!r}, which does not use it, got {self.v_star!r}.")

    def train_points(self, dtype: torch.dtype = torch.float32) -> Points:
        """The training set, always the same."""
        return synthetic.toy(
            self.n,
            self.chi,
            generator=generator(self.seed, "train"),
            spiral=self.spiral,
            noise=self.noise,
            corruption=self.corruption,
            level=self.level,
            where=self.where,
            dtype=dtype,
        )

    def test_points(self, dtype: torch.dtype = torch.float32) -> Points:
        """The test set of 2000 points without corruption."""
        source = generator(self.seed, "test")
        return synthetic.toy(
            TEST_POINTS, self.chi, generator=source, spiral=self.spiral, noise=self.noise, dtype=dtype
        )

    def network(self) -> ToyNet:
        """The network before training."""
        return ToyNet(generator=generator(self.seed, "init"))


@dataclass(frozen=True)
class RuleConfig(ToyConfig):
    """One run of the toy under any rule, where :class:`ToyConfig` has the algorithms of the paper.

    It shares data, initial weights and order of the batches with the :class:`ToyConfig` of its seed. ``algorithm``,
    ``rho``, ``train_head`` and ``v_star`` stay as they are: the rule says everything about a step.

    Args:
        name: A rule of ``samphire.optim.RULES``.
        settings: Its settings by name, as for :func:`samphire.optim.describe.in_use`.

    Example:
        >>> RuleConfig(name="every", settings=(("rho", 0.2),)).rule
        Every(k=5, rule=Sam(rho=0.2, climb=Climb(metric=None, on=None)))
    """

    algorithm: str = "sgd"
    name: str = "sam"
    settings: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm != "sgd" or not self.train_head:
            raise ValueError(
                f"algorithm and train_head must be 'sgd' and True, since {self.name!r} says how to step, got "
                f"{self.algorithm!r} and {self.train_head!r}; use a ToyConfig for others."
            )
        _ = self.rule  # an unknown name or a bad setting is refused here

    @property
    def rule(self) -> Any:
        """The rule, told how long it will train and on batches of which size."""
        return in_use(self.name, steps=count_steps(self), batch=self.batch, **dict(self.settings))


@dataclass(frozen=True, eq=False)
class Problem:
    """What runs of another small network share.

    Args:
        model: Builds the network from a generator.
        x: Training inputs, (n, ...).
        y: Training targets, (n, ...).
        loss: Of the network's output and the targets.
        test: Inputs and targets that checkpoints evaluate too.
    """

    model: Callable[[torch.Generator], nn.Module]
    x: Tensor
    y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    test: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class ModuleConfig:
    """One run of a problem: a rule, its radius, a base optimizer, a seed.

    Args:
        problem: Network, data and loss. Runs of several problems train together if they differ in data alone.
        rule: Any rule, or ``None`` for the plain gradient. Runs whose rules differ in nothing but rho train together.
        seed: Chooses initial weights and order of the batches.
        epochs: Passes over the training points.
        batch: Points per step.
        lr: Learning rate, constant.
        base: Makes the base optimizer (see :class:`samphire.optim.batched.ModuleRuns`).
        average_from: The epoch from whose end on the weights are averaged, one set an epoch (SWA); ``None`` for
            never. Checkpoints then have the averaged network's values too, under ``averaged_``.
    """

    problem: Problem
    rule: Any = None
    seed: int = 0
    epochs: int = 1
    batch: int = 10
    lr: float = 0.1
    base: Base = torch.optim.SGD
    average_from: int | None = None

    def __post_init__(self) -> None:
        n = len(self.problem.y)
        if not isinstance(self.batch, int) or not 1 <= self.batch <= n:
            raise ValueError(f"batch must be a whole number from 1 to the {n} training points, got {self.batch!r}.")
        if not isinstance(self.epochs, int) or self.epochs < 1:
            raise ValueError(f"epochs must be a whole number >= 1, got {self.epochs!r}.")
        if self.average_from is not None and not 0 <= self.average_from <= self.epochs:
            raise ValueError(
                f"average_from must be an epoch from 0 to the last, {self.epochs}, or None, "
                f"got {self.average_from!r}."
            )


Small = ToyConfig | ModuleConfig


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


def generator(seed: int, purpose: str) -> torch.Generator:
    """A source of random numbers for one purpose of one seed, so that a new purpose shifts none of the others."""
    digest = hashlib.sha256(f"{purpose}/{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


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
    neither its neighbours nor their order matter. Long work on the toy is shared among worker processes of one core
    each: threads would wait for each other at every one of the many small operations of a step.

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
        work = sum(count_steps(run) * (RULE_STEP if isinstance(run, RuleConfig) else 1) for run in runs)
        workers = torch.get_num_threads() if work >= WORTH_WORKERS else 1
    jobs = [(part, frozenset(checkpoints), keep_weights, dtype) for part in _chunks(runs, chunk, workers)]
    if workers == 1 or len(jobs) == 1 or not all(isinstance(run, ToyConfig) for run in runs):
        for job in jobs:
            yield from _train(*job, counter)
    else:
        for results in _by_workers(jobs, workers, counter):
            yield from results


def count_steps(run: Small) -> int:
    """How many steps a run takes."""
    n = run.n if isinstance(run, ToyConfig) else len(run.problem.y)
    return run.epochs * math.ceil(n / run.batch)


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
    started = [Interpreter(f"{__name__}:_serve") for _ in range(min(workers, len(jobs)))]
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
    return cast(list[Result], message)


def _serve() -> None:
    """A worker's side: for every chunk, the steps as they are done, then the results or an exception."""
    job: Job
    for job, send in requests(_Pickler):
        try:
            send(_train(*job, _Reporter(send)))
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
        fleet: _ToyFleet | _ModuleFleet = kind(runs, dtype)
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


class _ToyFleet:
    """Toy runs of one shape."""

    collapsed_above = COLLAPSED_ABOVE

    def __init__(self, runs: list[ToyConfig], dtype: torch.dtype) -> None:
        runs = runs * 2 if len(runs) == 1 else runs  # products of a batch of one are rounded in another order
        self.runs, self.dtype, self.net = runs, dtype, runs[0].network().to(dtype)
        sets = [run.train_points(dtype) for run in runs]
        self.x, self.y = two_views(torch.stack([s.x for s in sets])), torch.stack([s.y for s in sets])
        self.order = [generator(run.seed, "order") for run in runs]
        weights = stacked([run.network().state_dict() for run in runs], dtype)
        self.start(weights, lr=torch.tensor([run.lr for run in runs], dtype=dtype))

    def start(self, weights: dict[str, Tensor], lr: Tensor) -> None:
        """Make the engine."""
        runs, dtype = self.runs, self.dtype
        self.engine: Any = FeatureRuns(
            self.net.phi,
            weights,
            [run.algorithm for run in runs],
            rho=torch.tensor([run.rho for run in runs], dtype=dtype),
            lr=lr,
            v_star=torch.tensor([(1.0, run.v_star) for run in runs], dtype=dtype),
            train_head=torch.tensor([run.train_head for run in runs]),
        )
        steps = count_steps(runs[0])
        self.v, self.phantom = (torch.empty(steps, len(runs), 2, dtype=dtype) for _ in range(2))
        self.done = 0

    def epoch(self) -> None:
        n, batch = self.runs[0].n, self.runs[0].batch
        order = torch.stack([torch.randperm(n, generator=g) for g in self.order])
        every = torch.arange(len(self.runs))[:, None]
        x, y = self.x[every, order], self.y[every, order]
        for start in range(0, n, batch):
            part = slice(start, start + batch)
            self.step(x[:, part], y[:, part])

    def step(self, x: Tensor, y: Tensor) -> None:
        real, phantom = self.engine.step(x, y)
        self.v[self.done], self.phantom[self.done] = real[:, 0], phantom[:, 0]
        self.done += 1

    def evaluate(self, r: int, w: dict[str, Tensor]) -> dict[str, float]:
        v = w["head.weight"][0]
        values = {}
        test = self.runs[r].test_points(self.dtype)
        for prefix, x, y in (("test", two_views(test.x), test.y), ("train", self.x[r], self.y[r])):
            P = functional_call(self.net.phi, _below("phi.", w), (x,))[..., 0]
            margin = y * (P @ v)
            values[f"{prefix}_error"] = _share_wrong(margin)
            values["loss" if prefix == "train" else "test_loss"] = F.softplus(-margin).mean().item()
            if prefix == "test":
                easy, hard = (y[:, None] * v.sign() * P).unbind(1)
                values |= {"probe_easy": _share_wrong(easy), "probe_hard": _share_wrong(hard)}
        return values

    def heads(self, r: int) -> tuple[Tensor | None, Tensor | None]:
        return self.v[:, r].clone(), self.phantom[:, r].clone()


class _RuleFleet(_ToyFleet):
    """Toy runs under one rule, up to its rho."""

    def start(self, weights: dict[str, Tensor], lr: Tensor) -> None:
        rules = [cast(RuleConfig, run).rule for run in self.runs]
        self.engine = ModuleRuns(self.net, _logistic, rules[0], weights, lr, _radii(rules, self.dtype))

    def step(self, x: Tensor, y: Tensor) -> None:
        self.engine.step(x.sum(-2), (y > 0).long())  # the sum of the two views is the point

    def heads(self, r: int) -> tuple[Tensor | None, Tensor | None]:
        return None, None


def _logistic(f: Tensor, y: Tensor) -> Tensor:
    """The loss of each example, for classes 0 and 1."""
    return F.softplus((1 - 2 * y) * f)


def _radii(rules: Sequence[Any], dtype: torch.dtype) -> Tensor | None:
    radii = [rho_of(rule) for rule in rules]
    return None if None in radii else torch.tensor(radii, dtype=dtype)


class _ModuleFleet:
    """Runs of one network and one rule, up to its rho and the data."""

    collapsed_above = sys.float_info.max

    def __init__(self, runs: list[ModuleConfig], dtype: torch.dtype) -> None:
        self.runs, self.dtype = runs, dtype
        nets = [run.problem.model(generator(run.seed, "init")) for run in runs]
        self.net = nets[0].to(dtype)
        self.x = _in_front([self._typed(run.problem.x) for run in runs])
        self.y = _in_front([run.problem.y for run in runs])
        self.order = [generator(run.seed, "order") for run in runs]
        self.engine = ModuleRuns(
            self.net,
            runs[0].problem.loss,
            runs[0].rule,
            stacked([dict(net.named_parameters()) for net in nets], dtype),
            lr=torch.tensor([run.lr for run in runs], dtype=dtype),
            rho=_radii([run.rule for run in runs], dtype),
            base=runs[0].base,
        )
        self.done, self.average = 0, dict[str, Tensor]()

    def _typed(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x

    def epoch(self) -> None:
        n, batch = self.y.shape[1], self.runs[0].batch
        order = torch.stack([torch.randperm(n, generator=g) for g in self.order])
        every = torch.arange(len(self.runs))[:, None]
        for start in range(0, n, batch):
            part = order[:, start : start + batch]
            self.engine.step(self.x[every, part], self.y[every, part])
        self.done += 1
        self._average()

    def _average(self) -> None:
        """The plain mean of the weights at the ends of epochs, from the chosen one on."""
        start = self.runs[0].average_from
        if start is not None and self.done >= start:
            share = 1 / (self.done - max(start, 1) + 1)
            for name, t in self.engine.weights.items():
                self.average[name] = self.average[name].lerp(t, share) if name in self.average else t.clone()

    def evaluate(self, r: int, w: dict[str, Tensor]) -> dict[str, float]:
        values = self._values(r, w)
        if self.average:
            averaged = self._values(r, {name: t[r] for name, t in self.average.items()})
            values |= {f"averaged_{name}": value for name, value in averaged.items()}
        return values

    def _values(self, r: int, w: dict[str, Tensor]) -> dict[str, float]:
        problem = self.runs[r].problem
        sets = {"train": (self.x[r], self.y[r])}
        if problem.test is not None:
            sets["test"] = (self._typed(problem.test[0]), problem.test[1])
        values = {}
        for name, (x, y) in sets.items():
            f = functional_call(self.net, w, (x,))
            values["loss" if name == "train" else "test_loss"] = problem.loss(f, y).mean().item()
            if f.ndim == 2 and not y.is_floating_point():
                values[f"{name}_error"] = (f.argmax(1) != y).double().mean().item()
        return values

    def heads(self, r: int) -> tuple[Tensor | None, Tensor | None]:
        return None, None


FLEETS: dict[type, Any] = {RuleConfig: _RuleFleet, ToyConfig: _ToyFleet, ModuleConfig: _ModuleFleet}


def _in_front(sets: list[Tensor]) -> Tensor:
    """The data of several runs with the runs in front; one copy where all have the same."""
    if all(t is sets[0] for t in sets):
        return sets[0].expand(len(sets), *sets[0].shape)
    return torch.stack(sets)


def _below(prefix: str, w: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in w.items() if name.startswith(prefix)}


def _share_wrong(margin: Tensor) -> float:
    """The share of points without a positive margin; a tie is an error, and so is NaN."""
    return 1.0 - (margin > 0).double().mean().item()
