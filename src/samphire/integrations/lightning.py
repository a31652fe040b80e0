"""Lightning: a module that returns our optimizer trains by its rule, under every setting of the Trainer.

Example::

    class Sharp(SharpnessAwareModule, MyModule):
        def configure_optimizers(self):
            return SharpnessAware(self, torch.optim.SGD(self.parameters(), lr=0.1), sam(0.05))

    Trainer(accumulate_grad_batches=2, gradient_clip_val=1.0).fit(Sharp(), loader)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric

from samphire import restore
from samphire.optim import Pass, SharpnessAware, in_perturbed_pass
from samphire.optim.passes import Loss, marked_as_perturbed

__all__ = ["LogSharpness", "SharpnessAwareModule", "kept_metrics"]

# A batch of the current window: what training_step is called with, and the random numbers it starts from.
Batch = tuple[tuple[Any, ...], restore.RngState]


class SharpnessAwareModule(LightningModule):
    """Automatic optimization with a :class:`samphire.SharpnessAware`; put it before your own module in the bases.

    Lightning runs the clean pass, batch by batch, as always: the loss it shows and what ``self.log`` and metrics
    see are those of one pass. The perturbed passes repeat ``training_step`` and backward on all batches of the
    window, with the same random numbers; so the hooks around backward, ``on_before_backward`` and
    ``on_after_backward``, come once for each pass, and may ask :func:`samphire.optim.in_perturbed_pass`. Accumulated
    batches are one big batch; clipping is applied once, to the gradient that is descended along.
    """

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Keep the batch for the perturbed passes."""
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self._window: list[Batch] = []
            self._loss_so_far: Loss = 0.0
        takes_index = len(inspect.signature(self.training_step).parameters) > 1
        arguments = (batch, batch_idx) if takes_index else (batch,)
        self._window.append((arguments, restore.rng_state({self.device})))
        return super().on_train_batch_start(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keep the clean loss of a batch that others of its window follow."""
        if isinstance(outputs, Mapping) and "loss" in outputs:
            self._loss_so_far += outputs["loss"]
        super().on_train_batch_end(outputs, batch, batch_idx)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Run the passes, then have Lightning clip and step."""
        opt = optimizer.optimizer
        if isinstance(opt, SharpnessAware) and optimizer_closure is not None:
            if self.trainer.fit_loop._skip_backward:  # StochasticWeightAveraging updates BatchNorm: forward alone
                optimizer_closure()
                return
            if opt.model is not self.trainer.strategy.model:
                opt.rebind(self.trainer.strategy.model)
            opt.scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            loss = self._gradient(opt, optimizer_closure)
            optimizer_closure = lambda: loss  # Lightning calls it, clips and steps
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def _gradient(self, opt: SharpnessAware, closure: Callable[[], Any]) -> Loss:
        """The rule's gradient of the window, left in ``.grad``; Lightning has added up that of earlier batches."""
        parameters = [p for group in opt.param_groups for p in group["params"]]
        earlier = [p.grad for p in parameters]
        opt.zero_grad()
        *before, last = self._window

        def run(p: Pass) -> Loss:
            _check(p)
            if not p.perturbed and not p.moved:
                for q, grad in zip(parameters, earlier, strict=True):
                    q.grad = grad
                return self._loss_so_far + _loss(closure())
            loss: Loss = 0.0
            for batch in before:
                loss += self._again(opt, p, batch, silent=True)
            return loss + (self._again(opt, p, last) if p.perturbed else _loss(closure()))

        return opt.gradient(run, n=1)  # a size, so that rules that cut batches ask and are refused

    def _again(self, opt: SharpnessAware, p: Pass, batch: Batch, silent: bool = False) -> Tensor:
        """Forward and backward on a batch that Lightning has seen; if silent, without talking to other ranks."""
        arguments, rng = batch
        strategy = self.trainer.strategy
        with ExitStack() as stack:
            stack.enter_context(marked_as_perturbed())
            stack.enter_context(kept_metrics(self))
            if not p.perturbed:  # Lightning's own pass has updated them
                restore.keep_buffers(self, stack.enter_context(restore.undone()))
            if p.rng == "replay":
                stack.enter_context(restore.replayed_rng(rng))
            if silent and isinstance(strategy, ParallelStrategy):
                stack.enter_context(strategy.block_backward_sync())
            loss = _loss(strategy.training_step(*arguments)) / self.trainer.accumulate_grad_batches
            strategy.backward(loss, opt)
        return loss.detach()

    def clip_gradients(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip as Lightning does; it would refuse an optimizer that unscales, but ours has done so already."""
        base = optimizer.base if isinstance(optimizer, SharpnessAware) else optimizer
        super().clip_gradients(base, *args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> None:
        """Log once per step: not in perturbed passes."""
        if not in_perturbed_pass():
            super().log(*args, **kwargs)


class LogSharpness(Callback):
    """Logs what each step saw (gap, gradient norms, cosine, ...) to the Trainer's loggers, under ``sharpness/``."""

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *args: Any) -> None:
        """Log the last step of every optimizer of ours."""
        for opt in trainer.optimizers:
            if isinstance(opt, SharpnessAware) and opt.last.passes:
                module.log_dict({f"sharpness/{name}": value for name, value in opt.last.measured().items()})


@contextmanager
def kept_metrics(module: nn.Module) -> Iterator[None]:
    """Put every torchmetrics metric back afterwards: an example counts once.

    Example:
        >>> import torchmetrics
        >>> mean = torchmetrics.MeanMetric()
        >>> mean.update(1.0)
        >>> with kept_metrics(mean):
        ...     mean.update(5.0)
        >>> mean.compute()
        tensor(1.)
    """
    metrics = [metric for metric in module.modules() if isinstance(metric, Metric)]
    kept = [
        {**vars(metric), **{name: _copy(value) for name, value in metric.metric_state.items()}} for metric in metrics
    ]
    try:
        yield
    finally:
        for metric, state in zip(metrics, kept, strict=True):
            vars(metric).update(state)


def _copy(state: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    return state.clone() if isinstance(state, Tensor) else list(state)


def _loss(out: Any) -> Tensor:
    """The loss in what ``training_step`` has returned."""
    if out is None:
        raise TypeError(
            "training_step returned None, which skips a batch in Lightning, but a sharpness-aware step needs its "
            "loss; return it, times 0 for a batch that must not count, or skip the batch in on_train_batch_start."
        )
    return out["loss"] if isinstance(out, Mapping) else out


def _check(p: Pass) -> None:
    if p.part is not None:
        raise TypeError(
            "this rule takes a batch in parts, but Lightning runs training_step on whole batches; cut the batch in a "
            "training_step with manual optimization, or take another rule."
        )
    if p.per_example:
        raise TypeError(
            "this rule ranks or weighs single examples, but the loss of training_step is their mean; take another "
            "rule, or manual optimization with opt.gradient(closure)."
        )
