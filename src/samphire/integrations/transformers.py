"""Hugging Face Transformers: a Trainer that takes a rule.

Example::

    trainer = SharpnessAwareTrainer(model, TrainingArguments(...), train_dataset=data, rule=sam(0.05))
    trainer.train()

    class Mine(SharpnessAwareTrainer, Seq2SeqTrainer): ...        # the same for any other Trainer
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer

from samphire.integrations.accelerate import PreparedOptimizer, examples, refuse_engines
from samphire.optim import Rule, SharpnessAware, in_perturbed_pass
from samphire.optim.step import Micro, Perturbation

__all__ = ["SharpnessAwareTrainer"]


class SharpnessAwareTrainer(Trainer):
    """``transformers.Trainer`` with a rule; before another Trainer in a list of bases, it gives that one the rule.

    The Trainer's own ``training_step`` runs once in each pass, so whatever it does to the loss (label smoothing,
    ``num_items_in_batch``, mixed precision, a subclass's ``compute_loss``) holds. The loss in the logs is the clean
    one, and what the last step saw is logged beside it under ``sharpness/``.

    Args:
        *args: Of the Trainer.
        rule: A rule of ``samphire.optim``, such as ``sam(rho=0.05)``.
        micro: With gradient accumulation, ``"full"`` perturbs once for all batches of a step (the same as one big
            batch), ``"m"`` for each by itself (m-sharpness).
        perturbation: With several processes, ``"global"`` or ``"local"``, as in :class:`samphire.SharpnessAware`.
        **kwargs: Of the Trainer.
    """

    def __init__(
        self,
        *args: Any,
        rule: Rule,
        micro: Micro = "full",
        perturbation: Perturbation = "global",
        **kwargs: Any,
    ) -> None:
        self.rule, self.micro, self.perturbation = rule, micro, perturbation
        super().__init__(*args, **kwargs)
        refuse_engines(self.accelerator)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """The Trainer's optimizer, with the rule around it."""
        base = super().create_optimizer(model)
        if not isinstance(base, PreparedOptimizer):  # a second train() finds the first one's
            opt = SharpnessAware(
                model or self.model, base, self.rule, perturbation=self.perturbation, scaler=self.accelerator.scaler
            )
            self.optimizer = PreparedOptimizer(self.accelerator, opt, self.micro)
        self.optimizer.forget_window()
        return self.optimizer

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The Trainer's step of forward and backward, once in each pass."""
        opt = self.optimizer
        if opt.optimizer.model is not model:
            opt.optimizer.rebind(model)
        forward_backward = super().training_step

        def run(inputs: Any, whole: int) -> Tensor:
            share = examples(inputs) / whole
            items = num_items_in_batch if num_items_in_batch is None or share == 1 else num_items_in_batch * share
            return forward_backward(model, inputs, items)

        loss = opt.gradient(run, inputs, examples(inputs))
        return loss if isinstance(loss, Tensor) else torch.tensor(loss, device=self.args.device)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log once per step, and what the optimizer saw beside the loss."""
        if in_perturbed_pass():
            return
        if "loss" in logs and isinstance(self.optimizer, PreparedOptimizer):
            seen = self.optimizer.optimizer.last.measured()
            logs = {**logs, **{f"sharpness/{name}": value for name, value in seen.items()}}
        super().log(logs, *args, **kwargs)
