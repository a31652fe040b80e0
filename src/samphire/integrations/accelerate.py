"""Hugging Face accelerate: one line prepares a model, a base optimizer and a rule.

Example::

    model, opt = prepare(accelerator, model, torch.optim.AdamW(model.parameters()), sam(0.05))

    def run(x, y):
        loss = criterion(model(x), y)
        accelerator.backward(loss)
        return loss

    for x, y in loader:
        with accelerator.accumulate(model):
            loss = opt.gradient(run, x, y)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            scheduler.step()
            opt.zero_grad()
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import recursively_apply, slice_tensors
from torch import Tensor, nn
from torch.optim import Optimizer

from samphire.checks import check_value
from samphire.optim import Pass, Rule, SharpnessAware
from samphire.optim.passes import Loss
from samphire.optim.step import Micro

__all__ = ["PreparedOptimizer", "examples", "prepare", "refuse_engines"]

# Engines that own backward and step, so that nothing can run them twice.
OWN_STEP = {DistributedType.DEEPSPEED: "DeepSpeed", DistributedType.MEGATRON_LM: "Megatron-LM"}


def prepare(
    accelerator: Accelerator, model: nn.Module, base: Optimizer, rule: Rule, *, micro: Micro = "full", **settings: Any
) -> tuple[nn.Module, PreparedOptimizer]:
    """What ``accelerator.prepare(model, base)`` does, with a rule around the base optimizer.

    Args:
        accelerator: With DDP, FSDP2, mixed precision and gradient accumulation as it is configured.
        model: Not prepared yet.
        base: Not prepared yet; any torch optimizer.
        rule: A rule of ``samphire.optim``, such as ``sam(rho=0.05)``.
        micro: With gradient accumulation, ``"full"`` perturbs once for all batches of a window (the same as one big
            batch), ``"m"`` for each by itself (m-sharpness).
        **settings: Of :class:`samphire.SharpnessAware`, such as ``perturbation="local"``.
    """
    refuse_engines(accelerator)
    opt = SharpnessAware(model, base, rule, scaler=accelerator.scaler, **settings)
    prepared, opt = accelerator.prepare(model, PreparedOptimizer(accelerator, opt, micro))
    opt.optimizer.rebind(prepared)
    return prepared, opt


class PreparedOptimizer(AcceleratedOptimizer):
    """A :class:`samphire.SharpnessAware` as accelerate holds it.

    It steps on the last batch of an accumulation window alone, as accelerate's own optimizers do.

    Args:
        accelerator: Whose windows and scaler count.
        opt: The optimizer.
        micro: How the batches of a window are perturbed, as in :func:`prepare`.
    """

    _is_accelerate_prepared = True  # accelerate registers it as it is

    def __init__(self, accelerator: Accelerator, opt: SharpnessAware, micro: Micro = "full") -> None:
        check_value("micro", micro, Micro)
        super().__init__(opt, device_placement=accelerator.device_placement)
        self.accelerator, self.micro = accelerator, micro
        self._held: list[tuple[Any, ...]] = []
        if accelerator.scaler is not None:
            _leave_unscaling_to(opt, accelerator.scaler)
        if micro == "m":  # each batch has a perturbation of its own, from the gradient of all ranks
            accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True

    def gradient(self, fn: Callable[..., Tensor], *batch: Any) -> Loss:
        """Run the passes of one batch and leave the rule's gradient in ``.grad``.

        Args:
            fn: Called with the batch: forward, ``accelerator.backward(loss)``, return the loss.
            *batch: Tensors, or mappings and sequences of them. With ``micro="full"`` it is kept until the window's
                last batch arrives, and all of them run in each pass.

        Returns:
            The clean loss that was run, divided as accelerate divides it: the sum over a window is the loss of the
            window.
        """
        self._held.append(batch)
        if self.micro == "full" and not self.gradient_state.sync_gradients:
            return 0.0
        window, self._held = self._held, []
        return self.optimizer.gradient(lambda p: self._run(p, fn, window), n=sum(map(examples, window)))

    def forget_window(self) -> None:
        """Drop the batches of a window that was left before its last one."""
        self._held.clear()

    def _run(self, p: Pass, fn: Callable[..., Tensor], window: list[tuple[Any, ...]]) -> Tensor:
        """One pass over the batches of a window; ranks talk in the last backward alone."""
        if p.per_example:
            raise TypeError(
                "this rule ranks or weighs single examples, but a trainer's loss is their mean; take another rule, "
                "or a loop of your own over opt.passes()."
            )
        if p.part is not None and len(window) > 1:
            raise TypeError("this rule takes a batch in parts, but micro='full' joins several; take micro='m'.")
        total = torch.zeros((), device=self.accelerator.device)
        for i, batch in enumerate(window):
            silent = nullcontext() if i == len(window) - 1 else self.accelerator.no_sync(self.optimizer.model)
            with silent:
                total += fn(*_part(batch, p)).detach() / self.accelerator.gradient_accumulation_steps
        return total

    def step(self, closure: Callable[..., Any] | None = None) -> None:
        """Apply the gradient that :meth:`gradient` has left, on the last batch of a window."""
        if closure is not None:
            raise TypeError(
                "step() of a prepared optimizer takes no closure: accelerate would run the one of a window's last "
                "batch alone; give it to opt.gradient(closure) for each batch, then opt.step()."
            )
        if not self.gradient_state.sync_gradients:
            return
        self.optimizer.step()
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.update()

    @property
    def step_was_skipped(self) -> bool:
        """Whether a pass overflowed, so that the scheduler must wait."""
        return self.optimizer.last.skipped


def refuse_engines(accelerator: Accelerator) -> None:
    """No rule can run inside an engine that computes one gradient and steps by itself."""
    engine = OWN_STEP.get(accelerator.distributed_type)
    if engine is not None:
        raise ValueError(
            f"{engine} steps inside its own engine, which computes one gradient per step, but a sharpness-aware rule "
            "needs more; use DDP or FSDP2."
        )


def examples(batch: Any) -> int:
    """The number of examples in a batch, by its first tensor; 1 if it has none."""
    return next(iter(_rows(batch)), 1)


def _rows(batch: Any) -> list[int]:
    """The number of rows of each tensor in a batch; 1 for a number."""
    rows: list[int] = []
    recursively_apply(lambda tensor: rows.append(len(tensor) if tensor.ndim else 1), batch)
    return rows


def _part(batch: tuple[Any, ...], p: Pass) -> tuple[Any, ...]:
    """The examples of a batch that take part in a pass."""
    if p.part is None:
        return batch
    if len(set(_rows(batch))) > 1:
        raise TypeError(
            f"this rule takes the batch in parts, but its tensors have {_rows(batch)} rows; give tensors with one "
            "row for each example, or take a rule for whole batches."
        )
    return slice_tensors(batch, p.examples)


def _leave_unscaling_to(opt: SharpnessAware, scaler: torch.amp.GradScaler) -> None:
    """Every pass is unscaled when it ends, so clipping must not unscale the gradient once more."""
    unscale = scaler.unscale_
    setattr(scaler, "unscale_", lambda other: None if other is opt else unscale(other))  # noqa: B010
