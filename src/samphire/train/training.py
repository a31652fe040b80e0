"""A network in training: its optimizer, an epoch of steps, and the state it can resume from."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from samphire import models, records
from samphire.baselines import refresh_batchnorm, spectral_decoupling
from samphire.checks import check_whole
from samphire.data import augment
from samphire.data.parts import Parts
from samphire.models.layers import Normalize
from samphire.models.weights import first_line
from samphire.optim import SharpnessAware, in_perturbed_pass, last_layer
from samphire.progress import Progress
from samphire.records import Row, generator
from samphire.restore import untouched
from samphire.train import checkpoints
from samphire.train.bases import base_optimizer
from samphire.train.configs import Config
from samphire.train.distributed import Ranks
from samphire.train.judging import ProbeSettings, judge, probe_features
from samphire.train.methods import Positions, example_loss

CHECK_EVERY = 10  # steps between looks at the loss, each of which waits for a GPU
STATISTICS_FROM = 10  # batches that BatchNorm's statistics are taken from before a network is judged

__all__ = ["CHECK_EVERY", "STATISTICS_FROM", "Training"]


class Training:
    """A network, its optimizer and how far they are.

    Args:
        config: What to train.
        parts: The examples.
        ranks: The processes that train together.
        positions: Which training examples an epoch visits; ``None`` for each once.
    """

    def __init__(self, config: Config, parts: Parts, ranks: Ranks, positions: Positions | None) -> None:
        self.config, self.parts, self.ranks, self.positions = config, parts, ranks, positions
        net: Any = models.load(
            config.model, parts.train.n_classes, config.weights, generator=generator(config.seed, "init")
        )
        if config.weights is None:
            images = parts.whole.images
            net.normalize = Normalize(augment.moments(images)[0]) if images.dtype == np.uint8 else Normalize()
        check_fits(net, config.model, parts)
        self.net: Any = net.to(ranks.device, memory_format=torch.channels_last)
        self.group = torch.from_numpy(parts.train.group).to(ranks.device)
        self.visited = self._visited()
        self.steps = math.ceil(self.visited / config.batch)
        self.model, self.opt = self._optimizer()
        loss = example_loss(config, parts)
        self.loss = None if loss is None else loss.to(ranks.device)
        self.average = AveragedModel(self.net) if config.method == "swa" else None
        self.transform = self._transform()
        self.done, self.rows = 0, list[Row]()

    @property
    def stopped(self) -> bool:
        """Whether the last epoch ended the training early."""
        return bool(self.rows) and "stopped" in self.rows[-1]

    def _visited(self) -> int:
        """Examples of an epoch."""
        drawn = None if self.positions is None else self.positions(torch.Generator().manual_seed(0))
        return len(self.parts.train) if drawn is None else len(drawn)

    def _optimizer(self) -> tuple[nn.Module, Any]:
        config = self.config
        model = DistributedDataParallel(self.net) if self.ranks.count > 1 else self.net
        sizes = {name: getattr(config, name) for name in ("lr", "momentum", "weight_decay")}
        base = base_optimizer(config.base, model, settings=dict(config.base_settings), **sizes)
        rule = config.optimizer_rule(config.epochs * self.steps)
        if rule is None:
            return model, base
        return model, SharpnessAware(model, base, rule, perturbation=config.perturbation)

    def _transform(self) -> augment.Transform:
        if self.parts.train is self.parts.whole:
            return augment.Transform(self.net.normalize)
        return augment.random_resized_crop(self.config.size, normalize=self.net.normalize)

    def scale(self) -> dict[str, Any]:
        """What must be known to use the network."""
        normalize = self.net.normalize
        train = self.parts.train
        return {
            "mean": normalize.mean, "std": normalize.std, "classes": train.n_classes, "names": list(train.classes)
        }  # fmt: skip

    # State

    def state(self) -> dict[str, Any]:
        """Everything an epoch starts from. Where ranks perturb by themselves, each has an optimizer state."""
        return {
            "done": self.done,
            "ranks": self.ranks.count,
            "model": self.net.state_dict(),
            "optimizers": self.ranks.at_first(self.opt.state_dict()),
            "loss": self.loss.state_dict() if self.loss is not None else None,
            "average": self.average.state_dict() if self.average is not None else None,
            "rows": self.rows,
        }

    def resume(self, state: Mapping[str, Any], source: Path) -> bool:
        """Go on from a state; False, with this training spoilt, if it is no state of this configuration.

        Args:
            state: As :meth:`state` gave it.
            source: The file it came from, for the log.
        """
        if "ranks" in state and state["ranks"] != self.ranks.count:
            raise ValueError(
                f"a run begun by {state['ranks']} processes must be resumed by as many, got {self.ranks.count}; "
                "start as many, or train into another folder."
            )
        try:
            self.done, self.rows = state["done"], list(state["rows"])
            check_whole("epochs done", self.done, 1, self.config.epochs)
            if [row["epoch"] for row in self.rows] != list(range(1, self.done + 1)):
                raise ValueError("its rows are not those of its epochs")
            self.net.load_state_dict(state["model"])
            self.opt.load_state_dict(state["optimizers"][self.ranks.rank])
            if self.loss is not None:
                self.loss.load_state_dict(state["loss"])
            if self.average is not None:
                self.average.load_state_dict(state["average"])
        except Exception as error:  # whatever another network, or another type, raises
            checkpoints.passed_over(source, error)
            return False
        return True

    # An epoch

    def epoch(self, progress: Progress) -> Row:
        """Train for one epoch."""
        config, started = self.config, time.perf_counter()
        draw = generator(config.seed, f"epoch {self.done}")
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
                sums += self._step(_channels_last(x), y, at, i)
                if i % CHECK_EVERY == 0 and not math.isfinite(self.ranks.total(sums[0].clone()).item()):
                    break
                progress(self._status(), self.done * self.steps + i + 1, config.epochs * self.steps)
        loss, wrong, n = self.ranks.total(sums).tolist()
        self.done += 1
        self._average()
        row = {
            "epoch": self.done,
            "loss": loss / n,
            "train_error": wrong / n,
            "lr": self.opt.param_groups[0]["lr"],
            "rho": config.radius,
            "seconds": time.perf_counter() - started,
        }
        if isinstance(self.opt, SharpnessAware):
            row["sharpness"] = self.opt.last.measured()
        return row if math.isfinite(loss) else row | {"stopped": self._reason("training")}

    def _average(self) -> None:
        """SWA: the mean of the last epochs' weights, which in the end is the network."""
        if self.average is None or self.done <= self.config.epochs - self.config.method_setting("epochs"):
            return
        self.average.update_parameters(self.net)
        if self.done == self.config.epochs:
            self.net.load_state_dict(self.average.module.state_dict())

    def _reason(self, part: str) -> str:
        config = self.config
        rho = f" and rho = {config.rho:g}" if config.rho else ""
        return (
            f"the {part} loss is not finite in epoch {self.done} of {config.epochs}, with lr = {config.lr:g}{rho}; "
            "lower the learning rate or the radius."
        )

    def _status(self) -> str:
        config = self.config
        last = f" (validation error {self.rows[-1]['val_error']:.4f})" if self.rows else ""
        return f"{config.data}, {config.rule}: epoch {self.done + 1} of {config.epochs}{last}"

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
                sums = each.detach().sum(), wrong.sum(), torch.ones_like(each).sum()
                seen.append(torch.stack(sums).to(_exact(each.device)))
            if self.config.method == "spectral_decoupling":
                each = each + spectral_decoupling(out, self.config.method_setting("lam"), "norm")
            return share * each if self.loss is None else self.loss(each, self.group[at][chosen])

        if not isinstance(self.opt, SharpnessAware):
            self.opt.zero_grad()
            losses(self.model(x)).mean().backward()
            self.opt.step()
        elif self.config.runs_body_once and (self.ranks.count == 1 or self.config.perturbation == "local"):
            one_pass = last_layer(self.model).one_pass
            self.opt.step(one_pass(lambda: self.model(x), lambda *some: losses(*some).mean()), n=len(y))
        else:
            for p in self.opt.passes(n=len(y), labels=y):
                out = self.model(x[p.examples])
                p.backward(losses(out, p.examples), out)
            self.opt.step()
        return torch.stack(seen).sum(0)

    def _share(self, n: int, step: int) -> float:
        """What makes the mean over ranks of their means the mean of the batch, even if it splits unevenly."""
        whole = min(self.config.batch, self.visited - step * self.config.batch)
        return self.ranks.count * n / whole

    # What has been learned

    def evaluate(self, progress: Progress) -> Row:
        """Errors by group, and at the chosen epochs those of the test part and of probes."""
        config, parts = self.config, self.parts
        self._refresh_statistics()
        row = judge("val", self.net, parts.val, parts)
        if not math.isfinite(row["val_loss"]):
            return row | {"stopped": self._reason("validation")}
        if self.done in (*config.probe_at, config.epochs):
            row |= judge("test", self.net, parts.test, parts)
            if config.resamples:
                what = f"{config.data}, {config.rule}: probes after epoch {self.done}"
                progress(what, self.done * self.steps, config.epochs * self.steps)
                row |= probe_features(self.net, parts, ProbeSettings(config.resamples))
        return row

    def _refresh_statistics(self) -> None:
        """BatchNorm's running statistics under the present weights, from whole training batches.

        What training leaves there is a mean over weights of many steps and, early in a fine-tuning, mostly over
        those that training began with.
        """
        config = self.config
        draw = generator(config.seed, f"statistics {self.done}")
        visits = np.arange(len(self.parts.train)) if self.positions is None else self.positions(draw)
        count = min(STATISTICS_FROM, len(visits) // config.batch) * config.batch or len(visits)
        chosen = visits[torch.randperm(len(visits), generator=draw)[:count].numpy()]
        batches = augment.batches(
            self.parts.train, config.batch, self.transform, draw, positions=chosen, device=self.ranks.device
        )
        refresh_batchnorm(self.net, (x for x, _, _ in batches))


def check_fits(net: nn.Module, name: str, parts: Parts) -> None:
    """Refuse a network that cannot take the images or has not an output for each class: one pass of two of them."""
    shape, classes = parts.whole.images.shape[1:], parts.train.n_classes
    two = torch.zeros(2, *shape)
    try:
        with untouched(net):
            out = net(two)
    except Exception as error:  # a network may raise anything
        raise ValueError(
            f"model={name} cannot take inputs of shape {tuple(shape)} ({first_line(error)}); "
            "choose another model, or another size=."
        ) from None
    if not isinstance(out, Tensor) or out.shape != (2, classes):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(
            f"model={name} must return an output for each of {classes} classes, (2, {classes}), got {got}."
        )


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _exact(device: torch.device) -> torch.dtype:
    """The precision of sums: Apple's GPUs have no doubles."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers that depend on the seed alone; the caller's generator stays as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
