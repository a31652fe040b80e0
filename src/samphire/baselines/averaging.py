"""Averages of weights along a run: SWA with torch's own parts, and SWAD.

Averages take the weights as they are between steps. :class:`samphire.optim.SharpnessAware` puts displaced weights
back within each step, so any rule can run underneath: update the average after ``opt.step()``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_swa_multi_avg_fn, update_bn

from samphire import restore, tree
from samphire.checks import Range, check_number, check_whole
from samphire.optim import in_perturbed_pass

__all__ = ["SWAD", "Valley", "refresh_batchnorm", "valley"]


def refresh_batchnorm(model: nn.Module, data: Iterable[Any]) -> None:
    r"""Replace BatchNorm's running statistics by those under the model's present weights.

    This is torch's ``update_bn`` (one pass over the data, the plain mean of the batches' statistics), with what it
    disturbs put back: the mode of every module, random numbers drawn by dropout or the loader, and, if it raises,
    the statistics. Data that turn out empty are an error instead of statistics reset to 0 and 1.

    With it, SWA (:math:`\bar w \leftarrow \bar w + (w - \bar w)/(n+1)` every few steps or epochs, at a learning rate
    that stays high) is made of torch's parts.

    Args:
        model: For instance an averaged one; a model without BatchNorm stays as it is.
        data: Batches: inputs, or tuples with the input first.

    Example:
        >>> from samphire.optim import SharpnessAware
        >>> from torch.optim.swa_utils import AveragedModel, SWALR
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        >>> data = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(3)]
        >>> opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam(rho=0.05))
        >>> average, schedule = AveragedModel(model), SWALR(opt, swa_lr=0.05, anneal_epochs=2)
        >>> for epoch in range(4):
        ...     for x, y in data:
        ...         for p in opt.passes():
        ...             p.backward(nn.functional.cross_entropy(model(x), y))
        ...         _ = opt.step()
        ...     if epoch >= 1:  # from the start of averaging on
        ...         average.update_parameters(model)
        ...         schedule.step()
        >>> refresh_batchnorm(average, data)
        >>> average.n_averaged.item(), average.module[1].num_batches_tracked.item()
        (3, 3)

    References:
        Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, UAI 2018,
        https://arxiv.org/abs/1803.05407
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    if not norms:
        return
    device = norms[0].running_mean.device  # type: ignore[union-attr]
    momenta = [m.momentum for m in norms]
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with restore.kept_modes(model), restore.replayed_rng(restore.rng_state({device})):
            update_bn(data, model, device)
        if not any(m.num_batches_tracked for m in norms):
            raise ValueError("BatchNorm cannot be refreshed: data gave no batch; hand over a loader or a list.")
    except BaseException:
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
        raise
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


@dataclass(frozen=True)
class Valley:
    """Where SWAD averages: evaluations counted from 0, both ends included; ``None`` where not known yet."""

    start: int | None = None
    end: int | None = None
    threshold: float = math.nan


def valley(losses: Sequence[float], n_s: int = 3, n_e: int = 6, r: float = 1.3) -> Valley:
    r"""The flat part of a curve of validation losses: algorithm 1 of SWAD.

    The valley starts at the first evaluation that is the lowest of ``n_s`` from there on, and ends before the first
    ``n_e`` in a row above ``r`` times the mean of those ``n_s``:

    .. math::
        t_s &= i - N_s + 1 \text{ for the first } i:\ E_{i-N_s+1} = \min_{0 \le j < N_s} E_{i-j}, \qquad
        l = \frac{r}{N_s} \sum_{j < N_s} E_{i-j}, \\
        t_e &= i - N_e \text{ for the first later } i:\ \min_{0 \le j < N_e} E_{i-j} > l .

    Args:
        losses: Validation losses in order.
        n_s: Patience for the optimum, counting it.
        n_e: Patience for overfitting; not below ``n_s``.
        r: Tolerance; 1.3, and 1.2 on VLCS.

    Example:
        >>> valley([3.0, 1.0, 1.25, 1.5, 2.0, 2.0, 2.0], n_s=3, n_e=3)
        Valley(start=1, end=3, threshold=1.625)

    References:
        Cha et al., SWAD: Domain Generalization by Seeking Flat Minima, NeurIPS 2021,
        https://arxiv.org/abs/2102.08604
    """
    windows = (losses[i : i + n_s] for i in range(len(losses) - n_s + 1))
    start = next((i for i, window in enumerate(windows) if window[0] == min(window)), None)
    if start is None:
        return Valley()
    threshold = r * fmean(losses[start : start + n_s])
    for i in range(start + n_s, len(losses)):
        if min(losses[max(0, i - n_e + 1) : i + 1]) > threshold:
            return Valley(start, i - n_e, threshold)
    return Valley(start, None, threshold)


class SWAD:
    r"""Stochastic weight averaging, densely: the mean of the weights after every step of the valley.

    .. math:: w_{\mathrm{swad}} = \frac{1}{t_e - t_s + 1} \sum_{t=t_s}^{t_e} w_t,
              \qquad t_s, t_e \text{ from the validation losses by } \texttt{valley}.

    With an evaluation every k steps, the k steps up to an evaluation stand or fall with its loss; every step counts
    the same. Without an end the average runs to the last step; without a start yet, from the lowest loss so far.

    The weights of single steps are not kept. What can still drop out is kept apart, so the memory is at most
    ``max(3, n_s)`` sets of weights (3 by default), in float32 or better, however long the run.

    Args:
        model: The model in training, not wrapped; it is only read.
        n_s: Patience for the optimum, see :func:`valley`.
        n_e: Patience for overfitting.
        r: Tolerance.

    Attributes:
        losses: The validation losses so far.
        valley: Start, end and threshold as far as they are known.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> swad = SWAD(model, n_s=2, n_e=2)
        >>> for step, val_loss in enumerate([3.0, 1.0, 1.0, 1.2, 5.0, 5.0]):
        ...     with torch.no_grad():
        ...         _ = model.weight.fill_(step)  # in place of opt.step()
        ...     swad.update()
        ...     swad.observe(val_loss)
        >>> swad.done, swad.valley.start, swad.valley.end
        (True, 1, 3)
        >>> swad.model(data=None).weight.item()  # (1 + 2 + 3) / 3
        2.0

    References:
        Cha et al., SWAD: Domain Generalization by Seeking Flat Minima, NeurIPS 2021,
        https://arxiv.org/abs/2102.08604

    Differences:
        As in the paper's algorithm, except that it would average from the first step if it finds no start; the
        released code would take the steps before the last evaluation. That code also begins up to
        ``n_e - n_s - 1`` evaluations before the optimum, weighs segments rather than steps equally, counts the
        optimum's twice or three times, and by default leaves BatchNorm (frozen there) alone.
    """

    def __init__(self, model: nn.Module, n_s: int = 3, n_e: int = 6, r: float = 1.3) -> None:
        check_whole("swad: n_s", n_s)
        check_whole("swad: n_e", n_e, least=n_s)
        check_number("swad: r", r, Range(least=1))
        self._model, self.n_s, self.n_e, self.r = model, n_s, n_e, r
        self.losses: list[float] = []
        self.valley = Valley()
        self._average = _Mean()  # in the valley for sure
        self._held: list[_Mean] = []  # evaluated, but may drop out
        self._open = _Mean()  # since the last evaluation

    @property
    def done(self) -> bool:
        """Whether the valley has ended; training longer has no effect."""
        return self.valley.end is not None

    def update(self) -> None:
        """Take the weights in; call it after every ``opt.step()``. No effect in a perturbed pass, or when done."""
        if not self.done and not in_perturbed_pass():
            self._open.add(tree.named_parameters(self._model))

    def observe(self, loss: float | Tensor) -> None:
        """Note a validation loss of the present weights.

        Args:
            loss: On held-out data of the training domains, never of the test domain.
        """
        loss = float(loss)
        check_number("swad: the validation loss", loss, Range(least=0))
        if self.done:
            return
        lowest = loss < min(self.losses, default=math.inf)
        self.losses.append(loss)
        self._open.loss = loss
        self._held.append(self._open)
        self._open = _Mean()
        self.valley = valley(self.losses, self.n_s, self.n_e, self.r)
        if self.valley.start is None:
            if lowest:  # nothing before it can start a valley
                del self._held[:-1]
            return
        while any(segment.loss <= self.valley.threshold for segment in self._held):
            self._average.merge(self._held.pop(0))
        while len(self._held) > 1:
            self._held[0].merge(self._held.pop())
        if self.done:
            self._held = []

    def model(self, data: Iterable[Any] | None) -> nn.Module:
        """A copy of the model with the averaged weights.

        Args:
            data: Batches of training data for :func:`refresh_batchnorm`; ``None`` keeps the statistics that the
                model has now, which is right without BatchNorm or with BatchNorm frozen.
        """
        mean = _Mean()
        for part in [self._average, *self._held, self._open]:
            mean.merge(part.clone())
        if not mean.steps:
            raise ValueError("swad: no weights have been averaged; call update() after every step.")
        averaged = copy.deepcopy(self._model)
        with torch.no_grad():
            for name, p in tree.named_parameters(averaged).items():
                p.copy_(mean.weights[name])
        if data is not None:
            refresh_batchnorm(averaged, data)
        return averaged

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly: losses and partial averages."""
        return {
            "losses": list(self.losses),
            "average": dict(vars(self._average)),
            "held": [dict(vars(segment)) for segment in self._held],
            "open": dict(vars(self._open)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, of a model with the same parameters."""
        own = {name: p.shape for name, p in tree.named_parameters(self._model).items()}
        parts = [_Mean(**part).clone() for part in (state["average"], state["open"], *state["held"])]
        for part in parts:
            saved = {name: t.shape for name, t in part.weights.items()}
            if saved and saved != own:
                differing = ", ".join(sorted(n for n in {*saved, *own} if saved.get(n) != own.get(n)))
                raise ValueError(f"swad: the saved state is of another model; it differs in {differing}.")
        self.losses = list(state["losses"])
        self.valley = valley(self.losses, self.n_s, self.n_e, self.r)
        self._average, self._open, *self._held = parts


@dataclass
class _Mean:
    """A running mean of weights, in float32 or better."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    loss: float = math.nan

    @torch.no_grad()
    def add(self, w: Mapping[str, Tensor]) -> None:
        new = {name: t.detach().to(torch.promote_types(t.dtype, torch.float32)) for name, t in w.items()}
        if self.steps:
            _average_into(list(self.weights.values()), [new[name] for name in self.weights], self.steps)
        else:
            self.weights = {name: t.clone() for name, t in new.items()}
        self.steps += 1

    def merge(self, other: _Mean) -> None:
        """Take the steps of another mean in, which is used up."""
        if self.steps and other.steps:
            share = other.steps / (self.steps + other.steps)
            torch._foreach_lerp_(list(self.weights.values()), [other.weights[name] for name in self.weights], share)
        elif other.steps:
            self.weights = other.weights
        self.steps += other.steps

    def clone(self) -> _Mean:
        return _Mean({name: t.clone() for name, t in self.weights.items()}, self.steps, self.loss)


_average_into = get_swa_multi_avg_fn()
