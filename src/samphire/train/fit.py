"""One network on a real data set, by any rule: a row per epoch, probes, checkpoints that survive a kill."""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from samphire import models, probes, records
from samphire.baselines import reweighting
from samphire.baselines.losses import GroupDRO
from samphire.data import augment
from samphire.data.parts import Advance, Parts, load_parts
from samphire.data.split import Split
from samphire.models.layers import Normalise
from samphire.optim import SharpnessAware, in_perturbed_pass, last_layer
from samphire.probes.protocol import halves
from samphire.records import Row
from samphire.train.configs import Config
from samphire.train.distributed import Ranks, joined

CHECK_EVERY = 10  # steps between looks at the loss, each of which waits for a GPU


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes:
        config: What was run.
        folder: Where it is: ``config.json``, ``rows.jsonl``, ``model.pt``, ``input.json`` and kept weights.
        rows: One for each epoch.
    """

    config: Config
    folder: Path
    rows: tuple[Row, ...]

    @property
    def stopped(self) -> str | None:
        """Why training ended before its time, if it did."""
        return self.rows[-1].get("stopped")


def fit(
    config: Config,
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    progress: Advance | None = None,
) -> Trained:
    """Train one network, or go on where an earlier call was stopped.

    After every epoch the whole state is stored, whole or not at all, and everything random in an epoch comes from the
    seed and the epoch's number; so a run that was killed at any moment and resumed with as many processes and threads
    has the weights, to the last bit, of one that was not (on a GPU, as far as its kernels always add in one order).
    A loss that is not finite ends the run: its last row says so under ``stopped``.

    A row has: ``loss`` and ``train_error`` of the epoch's batches as they came; ``val_loss`` and the errors on the
    validation part, by four averages (``val_error`` is weighted by the groups' sizes in training, ``val_plain``,
    ``val_equal``, ``val_worst``) and by group; ``lr`` and ``rho`` at the epoch's end; ``seconds`` of training alone.
    After the epochs of ``probe_at`` and the last one also the same for the test part, and the features' probe
    errors: ``probe``, with 95 % intervals in ``probe_low`` and ``probe_high``, and ``probe_val``, from probes that
    are trained on one half of the probing part and judged on the other, to select by. After DFR the validation errors
    are those of a head retrained on one half and judged on the other, since all of it goes into the final one.

    Under torchrun the batch is shared among the processes. BatchNorm then takes the statistics of each share, and
    the first process's running ones count.

    Args:
        config: What to run.
        root: The folder of the data set, or the one above it.
        out: The folder of all runs; this one's is named by the key of its configuration.
        cache: For decoded images; the user's cache by default.
        device: Where to compute; a GPU if there is one.
        progress: Called with what is done, the steps done and the steps to do.
    """
    with joined(device) as ranks:
        return _fit(config, root, out, cache, ranks, progress if ranks.first else None)


def _fit(config: Config, root: Any, out: Any, cache: Any, ranks: Ranks, progress: Advance | None) -> Trained:
    first = _first_training(config)
    before = None if first is None else _fit(first, root, out, cache, ranks, progress)
    with _opened(out, config, ranks) as run:
        if before is not None and before.stopped:
            if ranks.first and not run.rows:
                why = f"the training that {config.method} builds on ended early: {before.stopped}"
                run.append(before.rows[-1] | {"stopped": why})
        elif not ranks.from_first(run.done):
            parts = load_parts(
                config.data,
                root,
                size=config.size,
                target=config.target,
                augment=config.augment,
                examples=config.examples,
                cache=cache,
                progress=progress,
            )
            if config.method != "dfr":
                positions = _positions(config, before, parts, ranks.device)
                _train(_Training(config, parts, ranks, positions), run, progress)
            elif ranks.first and before is not None and not run.rows:
                _retrain(config, before, parts, run, ranks.device)
        return Trained(config, run.folder, tuple(ranks.from_first(run.rows)))


def load_network(folder: str | os.PathLike[str], weights: str = "model.pt") -> nn.Module:
    """A trained network in evaluation mode, with the scale of its inputs as ``normalise``.

    Args:
        folder: Of the run.
        weights: Which of its weights, for instance ``"epoch-5.pt"``.
    """
    folder = Path(folder)
    for name in ("config.json", weights):
        if not (folder / name).exists():
            raise FileNotFoundError(f"run {folder} has no {name}; it is not finished, or its training stopped.")
    config = json.loads((folder / "config.json").read_text())
    classes = json.loads((folder / "input.json").read_text())["classes"]
    return load_weights(config["model"], classes, folder / weights).eval()


def load_weights(spec: str, classes: int, weights: Path) -> nn.Module:
    """A network with the weights of a file and, where ``input.json`` lies beside it, its scale of inputs.

    Args:
        spec: The network's name, see :func:`samphire.models.load`.
        classes: Its outputs.
        weights: The file.
    """
    net: Any = models.load(spec, classes, weights)
    beside = weights.with_name("input.json")
    if beside.exists():
        scale = json.loads(beside.read_text())
        net.normalise = Normalise(tuple(scale["mean"]), tuple(scale["std"]))
    return net


# Before and after: what the methods add


def _first_training(config: Config) -> Config | None:
    """The plain training that a method builds on."""
    plain = replace(config, method="erm", method_settings=())
    if config.method == "dfr":
        return plain
    if config.method == "jtt":
        return replace(plain, epochs=config.method_setting("epochs"), resamples=0, probe_at=(), keep=())
    return None


Positions = Callable[[torch.Generator], NDArray[np.int64]]


def _positions(config: Config, before: Trained | None, parts: Parts, device: torch.device) -> Positions | None:
    """Which training examples an epoch visits; ``None`` for each once."""
    if config.method == "jtt":
        assert before is not None
        net = load_network(before.folder).to(device)
        logits = torch.from_numpy(probes.features(net, parts.whole.images, ""))
        errors = reweighting.error_set(logits, parts.whole.label)
        chosen = reweighting.upsampled(errors, len(parts.train), config.method_setting("times")).numpy()
        return lambda generator: chosen
    if config.method in ("reweight", "group_dro"):
        group = np.unique(parts.train.group, return_inverse=True)[1]
        return lambda generator: np.array(list(reweighting.balanced_sampler(group, generator=generator)))
    return None


def _retrain(config: Config, before: Trained, parts: Parts, run: records.Run, device: torch.device) -> None:
    """DFR: another last layer on the same features, which are probed already."""
    net = load_network(before.folder).to(device)
    part = parts.val if parts.domain else parts.probe_train
    features = probes.features(net, part.images)
    parent, _, name = last_layer(net).name.rpartition(".")

    def retrained(chosen: Any) -> nn.Module:
        head = probes.retrain_last_layer(
            features[chosen],
            part.subset(chosen),
            resamples=config.method_setting("resamples"),
            seed=config.seed,
        )
        setattr(net.get_submodule(parent), name, head.to(device))
        return net

    half, other = halves(part.group, np.random.default_rng(records.seed(config.seed, "halves")))
    row = {cell: value for cell, value in before.rows[-1].items() if cell not in ("loss", "train_error")}
    row |= _judged("val", retrained(half), part.subset(other), parts)
    row |= _judged("test", retrained(np.arange(len(part))), parts.test, parts)
    _store(run.folder / "model.pt", net.state_dict())
    records.write_atomic(run.folder / "input.json", (before.folder / "input.json").read_bytes())
    run.append(row)


# The loop


def _train(training: _Training, run: records.Run, progress: Advance | None) -> None:
    """Epochs from where the run is to its end; the first process writes."""
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
            row |= training.judged(progress)
        row = ranks.from_first(row)
        training.rows.append(row)
        whole = training.state()
        if ranks.first:
            _keep(training, run)  # before the state, or a kill between the two would lose them
            _store(state, whole)
            run.append(row)
    if ranks.first and not training.stopped:
        _store(final, training.net.state_dict())
        state.unlink()


def _catch_up(run: records.Run, rows: list[Row]) -> None:
    """A kill between the checkpoint and its row leaves one row to be written."""
    for row in rows[len(run.rows) :]:
        run.append(row)


def _keep(training: _Training, run: records.Run) -> None:
    if training.done in training.config.keep:
        _store(run.folder / f"epoch-{training.done}.pt", training.net.state_dict())


def _store(path: Path, state: Any) -> None:
    file = io.BytesIO()
    torch.save(state, file)
    records.write_atomic(path, file.getvalue())


@contextmanager
def _opened(out: str | os.PathLike[str], config: Config, ranks: Ranks) -> Iterator[Any]:
    """The run's folder at the first process; the others have its name only."""
    if ranks.first:
        with records.open(out, config) as run:
            yield run
    else:
        yield _Elsewhere(Path(out) / records.key(config))


@dataclass
class _Elsewhere:
    folder: Path
    done: bool = False
    rows: tuple[Row, ...] = ()


class _Training:
    """A network, its optimizer and how far they are."""

    def __init__(self, config: Config, parts: Parts, ranks: Ranks, positions: Positions | None) -> None:
        self.config, self.parts, self.ranks, self.positions = config, parts, ranks, positions
        init = torch.Generator().manual_seed(records.seed(config.seed, "init"))
        net: Any = models.load(config.model, parts.classes, config.weights, generator=init)
        if config.weights is None:
            net.normalise = Normalise(augment.moments(parts.whole.images)[0])
        self.net: Any = net.to(ranks.device, memory_format=torch.channels_last)
        self.group = torch.from_numpy(parts.train.group).to(ranks.device)
        self.visited = self._visited()
        self.steps = math.ceil(self.visited / config.batch)
        self.model, self.opt = self._optimizer()
        self.loss = self._loss()
        self.transform = self._transform()
        self.done, self.rows = 0, list[Row]()

    @property
    def stopped(self) -> bool:
        return bool(self.rows) and "stopped" in self.rows[-1]

    def _visited(self) -> int:
        """Examples of an epoch."""
        drawn = None if self.positions is None else self.positions(torch.Generator().manual_seed(0))
        return len(self.parts.train) if drawn is None else len(drawn)

    def _optimizer(self) -> tuple[nn.Module, Any]:
        config = self.config
        model = DistributedDataParallel(self.net) if self.ranks.count > 1 else self.net
        base = torch.optim.SGD(
            model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
        rule = config.optimizer_rule(config.epochs * self.steps)
        if rule is None:
            return model, base
        return model, SharpnessAware(model, base, rule, perturbation=config.perturbation)

    def _loss(self) -> GroupDRO | None:
        if self.config.method != "group_dro":
            return None
        eta, adjustment = (self.config.method_setting(name) for name in ("eta", "adjustment"))
        sizes = np.bincount(self.parts.train.group)
        return GroupDRO(sizes, eta=eta, adjustment=adjustment).to(self.ranks.device)

    def _transform(self) -> augment.Transform:
        scale = {"mean": self.net.normalise.mean, "std": self.net.normalise.std}
        if self.parts.train is self.parts.whole:
            return augment.normalise(**scale)
        return augment.random_resized_crop(self.config.size, **scale)

    def scale(self) -> dict[str, Any]:
        """What must be known to use the network."""
        normalise = self.net.normalise
        return {"mean": normalise.mean, "std": normalise.std, "classes": self.parts.classes}

    # State

    def state(self) -> dict[str, Any]:
        """Everything an epoch starts from. Where ranks perturb by themselves, each has an optimizer state."""
        return {
            "done": self.done,
            "ranks": self.ranks.count,
            "model": self.net.state_dict(),
            "optimizers": self.ranks.at_first(self.opt.state_dict()),
            "loss": self.loss.state_dict() if self.loss is not None else None,
            "rows": self.rows,
        }

    def load(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            return
        if state["ranks"] != self.ranks.count:
            raise ValueError(
                f"a run begun by {state['ranks']} processes must go on with as many, got {self.ranks.count}; start "
                "as many, or train into another folder."
            )
        self.done, self.rows = state["done"], list(state["rows"])
        self.net.load_state_dict(state["model"])
        self.opt.load_state_dict(state["optimizers"][self.ranks.rank])
        if self.loss is not None:
            self.loss.load_state_dict(state["loss"])

    # An epoch

    def epoch(self, progress: Advance | None) -> Row:
        """Train for one epoch."""
        config, started = self.config, time.perf_counter()
        draw = torch.Generator().manual_seed(records.seed(config.seed, f"epoch {self.done}"))
        positions = None if self.positions is None else self.positions(draw)
        batches = augment.batches(
            *(self.parts.train, config.batch, self.transform, draw),
            positions=positions,
            rank=self.ranks.rank,
            ranks=self.ranks.count,
            device=self.ranks.device,
        )
        sums = torch.zeros(3, dtype=_exact(self.ranks.device), device=self.ranks.device)  # loss, errors, examples
        self.model.train()
        with _seeded(records.seed(config.seed, f"step {self.done}") + self.ranks.rank, self.ranks.device):
            for i, (x, y, at) in enumerate(batches):
                self._set_lr(self.done * self.steps + i)
                sums += self._step(x.contiguous(memory_format=torch.channels_last), y, at, i)
                if i % CHECK_EVERY == 0 and not math.isfinite(self.ranks.total(sums[0].clone()).item()):
                    break
                if progress is not None:
                    progress(self._said(), self.done * self.steps + i + 1, config.epochs * self.steps)
        loss, wrong, n = self.ranks.total(sums).tolist()
        self.done += 1
        row = {
            "epoch": self.done,
            "loss": loss / n,
            "train_error": wrong / n,
            "lr": self.opt.param_groups[0]["lr"],
            "rho": config.radius,
            "seconds": time.perf_counter() - started,
        }
        return row if math.isfinite(loss) else row | {"stopped": self._why("training")}

    def _why(self, part: str) -> str:
        config = self.config
        rho = f" and rho = {config.rho:g}" if config.rho else ""
        return (
            f"the {part} loss is not finite in epoch {self.done} of {config.epochs}, with lr = {config.lr:g}{rho}; "
            "lower the learning rate or the radius."
        )

    def _said(self) -> str:
        config = self.config
        so_far = f" (validation error {self.rows[-1]['val_error']:.4f})" if self.rows else ""
        return f"{config.data}, {config.rule}: epoch {self.done + 1} of {config.epochs}{so_far}"

    def _set_lr(self, step: int) -> None:
        share = step / (self.config.epochs * self.steps)
        lr = self.config.lr * (0.5 + 0.5 * math.cos(math.pi * share) if self.config.schedule == "cosine" else 1.0)
        for group in self.opt.param_groups:
            group["lr"] = lr

    def _step(self, x: Tensor, y: Tensor, at: NDArray[np.int64], i: int) -> Tensor:
        """One step; the sums of losses and errors as the examples were first seen, and the number of examples."""
        share = self._share(len(y), i)
        seen: list[Tensor] = []

        def losses(out: Tensor, chosen: Any = slice(None)) -> Tensor:
            each = F.cross_entropy(out, y[chosen], reduction="none")
            if not in_perturbed_pass():
                wrong = out.argmax(1) != y[chosen]
                found = each.detach().sum(), wrong.sum(), torch.ones_like(each).sum()
                seen.append(torch.stack(found).to(_exact(each.device)))
            return share * each if self.loss is None else self.loss(each, self.group[at][chosen])

        if not isinstance(self.opt, SharpnessAware):
            self.opt.zero_grad()
            losses(self.model(x)).mean().backward()
            self.opt.step()
        elif self.config.rule == "lsam" and (self.ranks.count == 1 or self.config.perturbation == "local"):
            self.opt.step(last_layer(self.model).one_pass(lambda: self.model(x), lambda out: losses(out).mean()))
        else:
            for p in self.opt.passes(n=len(y), labels=y):
                p.backward(losses(self.model(x[p.examples]), p.examples))
            self.opt.step()
        return torch.stack(seen).sum(0)

    def _share(self, n: int, step: int) -> float:
        """Makes the mean over ranks of their means the mean of the batch, whose last one may not split evenly."""
        whole = min(self.config.batch, self.visited - step * self.config.batch)
        return self.ranks.count * n / whole

    # What has been learned

    def judged(self, progress: Advance | None) -> Row:
        """Errors by group, and at the chosen epochs those of the test part and of probes."""
        row = _judged("val", self.net, self.parts.val, self.parts)
        if not math.isfinite(row["val_loss"]):
            return row | {"stopped": self._why("validation")}
        if self.done in (*self.config.probe_at, self.config.epochs):
            row |= _judged("test", self.net, self.parts.test, self.parts)
            if self.config.resamples:
                if progress is not None:
                    steps = self.done * self.steps, self.config.epochs * self.steps
                    progress(f"{self.config.data}, {self.config.rule}: probes after epoch {self.done}", *steps)
                row |= _probed(self.net, self.parts, self.config.resamples)
        return row


def _judged(part: str, net: nn.Module, examples: Split, parts: Parts) -> Row:
    """Loss and errors on a part, by four averages and by group."""
    logits = probes.features(net, examples.images, "")
    found = probes.errors(logits.argmax(1), examples, parts.train)
    return {
        f"{part}_loss": F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(examples.label)).item(),
        f"{part}_error": found.train_weighted,
        f"{part}_plain": found.plain,
        f"{part}_equal": found.equal_group,
        f"{part}_worst": found.worst.error,
        f"{part}_worst_group": found.worst.name,
        f"{part}_groups": {group.name: group.error for group in found.groups},
    }


def _probed(net: nn.Module, parts: Parts, resamples: int) -> Row:
    """The probe errors of every feature, and those to select by, which have not seen the probing test part."""
    x, x_test = (probes.features(net, part.images) for part in (parts.probe_train, parts.probe_test))
    found = _probes(parts.domain, x, parts.probe_train, x_test, parts.probe_test, resamples)
    both = halves(parts.probe_train.group, np.random.default_rng(records.seed(0, "halves")))
    (a, split_a), (b, split_b) = ((x[half], parts.probe_train.subset(half)) for half in both)
    held = _probes(parts.domain, a, split_a, b, split_b, max(1, resamples // 4))
    return {
        "probe": {name: p.mean for name, p in found.items()},
        "probe_low": {name: p.interval[0] for name, p in found.items()},
        "probe_high": {name: p.interval[1] for name, p in found.items()},
        "probe_val": {name: p.mean for name, p in held.items()},
    }


def _probes(domain: bool, x: Any, train: Split, x_test: Any, test: Split, resamples: int) -> dict[str, probes.Probe]:
    if domain:
        return {"label": probes.domain_probe(x, train, x_test, test)}
    return probes.probes(x, train, x_test, test, resamples=resamples)


def _exact(device: torch.device) -> torch.dtype:
    """The precision of sums: Apple's GPUs have no doubles."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers that depend on the seed alone; the caller's are left as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
