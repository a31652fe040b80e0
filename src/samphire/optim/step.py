"""The optimizer: any rule around any torch optimizer, in any training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from samphire import restore
from samphire.checks import Count, Positive, check_value, suggest_keywords
from samphire.optim import checkpoint
from samphire.optim.engine import Engine, Perturbation, Rng
from samphire.optim.leftovers import (
    Leftovers,
    backwards_noticed,
    refuse_left_out_closures,
    zeroing_expected,
)
from samphire.optim.overflow import Overflow, refuse_unscaled_twice
from samphire.optim.parameters import Parameters
from samphire.optim.passes import Closure, Loss, Pass, Report, run_closure, takes_pass
from samphire.optim.requests import Memory, Rule, bind

Micro = Literal["full", "m"]
Clip = Positive | None

__all__ = ["SharpnessAware"]


@suggest_keywords
class SharpnessAware(Optimizer):
    r"""Any rule of the SAM family around any torch optimizer.

    It shares parameter groups and state with ``base``, so schedulers and checkpoints treat it as they treat
    the base. Two doors: :meth:`step` with a closure, and :meth:`passes` for loops that own forward and backward.

    In every pass but the first over some examples ("perturbed passes"), buffers are put back and random numbers
    repeated: BatchNorm sees clean weights only, dropout masks are the same. Weights come back bit for bit,
    also after an exception. Where a rule climbs with some parameters only, its clean pass computes no gradient for
    the others, and so stops at the deepest layer that climbs (not for compiled, data-parallel or sharded models).

    Args:
        model: The model; several in an ``nn.ModuleList``.
        base: An optimizer over (some of) its parameters. A group may have a ``rho`` of its own.
        rule: A rule of ``samphire.optim``, such as ``sam(rho=0.05)``.
        clip_norm: Largest norm of the gradient that is descended along.
        clip_value: Largest entry of it.
        rng: ``"replay"`` the random numbers of the clean pass in the perturbed passes, or draw ``"fresh"`` ones.
            Threads of one process share torch's generator: with dropout, hold a lock around each step, or train in
            processes; two steps at once warn.
        perturbation: Under DistributedDataParallel, ``"global"``: one perturbation from the gradient of the
            whole batch; ``"local"``: each rank perturbs with its own (m-sharpness), and ranks talk once a step.
        scaler: A ``torch.amp.GradScaler`` in use. Every pass is unscaled and checked; if one overflows, the
            whole step is skipped. Call ``scaler.update()`` after each step, as usual.
        measure_every: On which steps the costlier part of :class:`Report` is measured; 1 for each.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> x, y = torch.randn(8, 2), torch.randn(8, 1)
        >>> opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam(rho=0.05))
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = nn.functional.mse_loss(model(x), y)
        ...     loss.backward()
        ...     return loss
        >>> loss = opt.step(closure)
        >>> opt.last.passes, round(float(opt.last.radius), 4)
        (2, 0.05)
    """

    def __init__(
        self,
        model: nn.Module,
        base: Optimizer,
        rule: Rule,
        *,
        clip_norm: Clip = None,
        clip_value: Clip = None,
        rng: Rng = "replay",
        perturbation: Perturbation = "global",
        scaler: torch.amp.GradScaler | None = None,
        measure_every: Count = 10,
    ) -> None:
        check_value("rng", rng, Rng)
        check_value("perturbation", perturbation, Perturbation)
        check_value("clip_norm", clip_norm, Clip)
        check_value("clip_value", clip_value, Clip)
        check_value("measure_every", measure_every, Count)
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model must be the torch.nn.Module itself, got {type(model).__name__!r}; its parameters go into the "
                "base optimizer, as in SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam())."
            )
        if not isinstance(base, Optimizer):
            raise TypeError(
                f"base must be a torch.optim.Optimizer instance, got {base!r}; build it first, "
                "as in torch.optim.SGD(model.parameters(), lr=0.1)."
            )
        if isinstance(base, SharpnessAware):
            raise TypeError(
                f"base has a rule of its own already, {base.rule!r}; give the optimizer inside it, base.base."
            )
        self.base, self.clip_norm, self.clip_value = base, clip_norm, clip_value
        # What changes later lives in these objects: a wrapper that forwards reads alone must do no harm.
        self._engine = Engine(Parameters(model, base), bind(rule, model), rng, perturbation, scaler, measure_every)
        self._leftovers, self._overflow = Leftovers(), Overflow()
        self._leftovers.note(self._engine.named.values())  # gradients of an optimizer before this one
        super().__init__(base.param_groups, base.defaults)
        self.param_groups, self.state = base.param_groups, base.state

    @property
    def model(self) -> nn.Module:
        """The model; :meth:`rebind` changes it."""
        return self._engine.model

    @property
    def rule(self) -> Rule:
        """The rule, bound to the model."""
        return self._engine.rule

    @property
    def last(self) -> Report:
        """What the last step saw."""
        return self._engine.last

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The scaler in use."""
        return self._engine.scaler

    @scaler.setter
    def scaler(self, scaler: torch.amp.GradScaler | None) -> None:
        self._engine.scaler = scaler

    # ---------------------------------------------------------------------------- the doors

    def step(  # type: ignore[override]
        self,
        closure: Closure | Sequence[Closure] | None = None,
        *,
        n: int | None = None,
        labels: Tensor | None = None,
        micro: Micro = "full",
    ) -> Loss | None:
        """Run the rule's passes, then the base optimizer; return the clean loss.

        After :meth:`passes` or :meth:`gradient` it applies what they left. Trainers that must hand over a closure
        may do so then: it is called once, and must not compute gradients again.

        Args:
            closure: Zeroes gradients, runs forward and backward, returns the loss; it may take the
                :class:`Pass` as an argument. A sequence of closures accumulates micro-batches: each runs
                backward on its share of the loss (divide by their number) and does not zero gradients.
                Without one, the gradient that :meth:`passes` or :meth:`gradient` left is applied.
            n: Examples in the batch, for rules that work on parts of it.
            labels: Their classes, for rules that tell classes apart; ``n`` is then known.
            micro: For several closures: ``"full"`` perturbs once for all of them (the same as one big batch);
                ``"m"`` perturbs for each by itself (m-sharpness), then averages.
        """
        engine = self._engine
        with restore.kept_grad_mode():  # an interrupt inside torch's own no_grad can leave it off
            engine.heal()
            if closure is None or (engine.runs and not engine.within_step and not engine.in_pass()):
                if closure is not None:
                    self._call_without_gradients(closure)
                self._clip()
                return self._apply()
            refuse_left_out_closures()
            if engine.parameters.base_evaluates:
                first = self.base.step(lambda: float(self._evaluate(closure, n, labels, micro)))
                engine.forget_runs()
                return first
            try:
                loss = self._evaluate(closure, n, labels, micro)
                self._apply()
            finally:
                engine.forget_runs()
            return loss

    def gradient(
        self,
        closure: Closure | Sequence[Closure],
        *,
        n: int | None = None,
        labels: Tensor | None = None,
        micro: Micro = "full",
    ) -> Loss:
        """Run the rule's passes and leave its gradient in ``.grad``; return the clean loss.

        What :meth:`step` does before the base optimizer, for trainers that clip, log and step by themselves::

            loss = opt.gradient(lambda: trainer.forward_and_backward(batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()

        Called again before :meth:`step`, gradients add up as those of two backwards do: one perturbation for each
        micro-batch. For one perturbation in all, give all closures at once, or one that runs every micro-batch.

        Args:
            closure: Runs forward and backward and returns the loss, once in every pass; it need not zero gradients.
                Otherwise, and for several, as in :meth:`step`.
            n: As in :meth:`step`.
            labels: As in :meth:`step`.
            micro: As in :meth:`step`.

        Example:
            >>> model = nn.Linear(2, 1)
            >>> opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam(rho=0.05))
            >>> def forward_and_backward():
            ...     loss = model(torch.ones(4, 2)).square().mean()
            ...     loss.backward()
            ...     return loss.detach()
            >>> loss = opt.gradient(forward_and_backward)
            >>> opt.last.passes, bool(loss == opt.step())
            (2, True)
        """
        return self._gradient(closure, n, labels, micro)

    def _gradient(
        self,
        closure: Closure | Sequence[Closure],
        n: int | None,
        labels: Tensor | None,
        micro: Micro,
        within_step: bool = False,
    ) -> Loss:
        check_value("micro", micro, Micro)
        closures = [closure] if callable(closure) else list(closure)
        if not closures:
            raise ValueError("step got an empty list of closures; give one for each micro-batch.")
        told = [(one, takes_pass(one)) for one in closures]
        batches = [told] if micro == "full" else [[one] for one in told]
        engine = self._engine
        total: Loss = 0.0
        for batch in batches:
            alone = len(closures) == 1 and not engine.runs and not getattr(closures[0], "starts_afresh", False)
            strangers = self._leftovers.strangers(engine.named.values()) if alone else []
            run = engine.run(n, labels, len(closures), within_step)
            try:
                for p in run:
                    with restore.kept_grad_mode(True), zeroing_expected(strangers if p.index == 0 else []):
                        for one, takes in batch:
                            run_closure(one, takes, p)
            finally:
                run.close()
            self._say_if_ended()
            total = total + engine.last.loss
        return total

    def passes(self, n: int | None = None, labels: Tensor | None = None) -> Iterator[Pass]:
        """The passes of one step, for loops that own forward and backward.

        Run forward and backward in the body, once or for each micro-batch, then :meth:`step`. Gradients are
        managed: no ``zero_grad`` is needed. Two loops before one step add up, as two backwards would, so the
        two kinds of accumulation are the two ways to nest::

            for p in opt.passes():                      # "full": one perturbation for the whole batch
                for x, y in micro_batches:
                    p.backward(criterion(model(x), y) / k)
            opt.step()

            for x, y in micro_batches:                  # "m": one perturbation per micro-batch
                for p in opt.passes():
                    p.backward(criterion(model(x), y) / k)
            opt.step()

        Leaving the loop early, by ``break`` or an exception, puts everything back. If a variable holds the iterator,
        Python does not tell us so: ``close()`` it, or write ``with contextlib.closing(opt.passes()) as loop``. The
        next call of ``step``, ``passes`` or ``gradient``, and saving, loading or copying the model put everything
        back too.
        """
        return self._engine.run(n, labels)

    def rebind(self, model: nn.Module) -> None:
        """Go on with a model that was wrapped, sharded or rebuilt since: the same names, other parameters perhaps.

        The base optimizer's groups and state move to the new parameters, name by name, and so does the memory of
        the rule. Where a trainer replaces the parameters in the base's groups itself, the next step notices.
        """
        engine = self._engine
        engine.end_run()
        engine.parameters.move_to(model)
        engine.memories = [Memory.from_state(memory.state(), engine.named) for memory in engine.memories]
        engine.refresh()

    def _evaluate(
        self, closure: Closure | Sequence[Closure], n: int | None, labels: Tensor | None, micro: Micro
    ) -> Loss:
        self._engine.end_run()
        self._engine.forget_runs()
        loss = self._gradient(closure, n, labels, micro, within_step=True)
        self._clip()
        return loss

    def _call_without_gradients(self, closure: Closure | Sequence[Closure]) -> None:
        """Call the closure of a trainer that always gives one; it must leave the gradients alone."""
        engine = self._engine
        plain = callable(closure) and not takes_pass(closure)
        with backwards_noticed(engine.named.values()) as backwards:
            if plain:
                closure()  # type: ignore[operator]
        if not plain or backwards or not engine.runs:
            raise RuntimeError(
                "passes() or gradient() has computed this step's gradient, and the closure given to step() computes "
                "one again; call step() without a closure, or zero_grad() first to drop what was computed."
            )

    def _clip(self) -> None:
        engine = self._engine
        if engine.unusable or engine.in_pass():
            return
        if self.clip_norm is not None:
            clip_grad_norm_(engine.named.values(), self.clip_norm)
        if self.clip_value is not None:
            clip_grad_value_(engine.named.values(), self.clip_value)

    def _apply(self) -> Loss | None:
        """The base optimizer's step, unless the gradient is unusable."""
        engine = self._engine
        if engine.in_pass():
            engine.end_run()
            raise RuntimeError("step() was called inside the loop over passes(); call it once, after the loop.")
        engine.refresh()
        if not engine.runs:
            self._say_if_ended()
            if checkpoint.is_setting_up(engine):
                self.base.step()
                return None
            raise TypeError(
                "SharpnessAware.step needs the loss more than once. Give it a closure that zeroes gradients, runs "
                "forward and backward and returns the loss: opt.step(closure), or opt.gradient(closure) and then "
                "opt.step(). Or loop: 'for p in opt.passes(): p.backward(loss_of(model))', then opt.step()."
            )
        if hasattr(self, "grad_scale") and engine.live_scaler() is None:
            raise RuntimeError(
                "scaler.step(opt) was called, but the passes were not unscaled; pass scaler= to SharpnessAware."
            )
        directly, unusable, scaler = engine.directly, engine.unusable, engine.live_scaler()
        engine.forget_runs()  # from here on an interrupt may lose this step, but never takes it twice
        engine.last.skipped = unusable
        if scaler is not None:
            with restore.undone() as undo:
                restore.set_grads_aside([*engine.named.values()], undo)
                refuse_unscaled_twice(scaler, self)
            self._overflow.report(scaler, unusable, next(iter(engine.named.values())).device)
        if not unusable:
            self.base.step()
            engine.parameters.subtract(directly)
        elif scaler is None:
            engine.warn(
                "the gradient is not finite, so the step was skipped: weights and memory are as before, and "
                "opt.last.skipped is True; lower the learning rate or rho, or look at the batch."
            )
        self._leftovers.note(engine.named.values())
        if engine.loss_noted:
            return engine.last.loss
        engine.warn(
            "no pass of this step noted its loss, so step() has none to return; write p.backward(loss) for "
            "loss.backward(), or set p.loss."
        )
        return None

    def _say_if_ended(self) -> None:
        if self._engine.ended_by:
            raise RuntimeError(
                f"{self._engine.ended_by} came inside a perturbed pass; the weights were put back for it, ending "
                "the step. Do it after step(), or when samphire.optim.in_perturbed_pass() is False."
            )

    # ---------------------------------------------------------------------------- torch.optim's contract

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, also those accumulated from earlier micro-batches."""
        engine = self._engine
        engine.heal()
        in_pass = engine.in_pass()
        if in_pass and engine.closures > 1:
            raise RuntimeError(
                "zero_grad() inside one of several closures would throw away the other micro-batches' gradients; "
                "leave it out, step() does it."
            )
        self.base.zero_grad(set_to_none)
        if not in_pass:
            engine.forget_runs()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer; adding it there does as well."""
        if self.param_groups is not self.base.param_groups:  # torch's constructor
            return super().add_param_group(param_group)
        self._engine.heal()
        self.base.add_param_group(param_group)
        return self._engine.refresh()

    def train(self) -> None:
        """Set a base optimizer with modes of its own (schedule-free ones) to training; nothing for others."""
        if hasattr(self.base, "train"):
            self.base.train()

    def eval(self) -> None:
        """Set a base optimizer with modes of its own (schedule-free ones) to evaluation; nothing for others."""
        if hasattr(self.base, "eval"):
            self.base.eval()

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state and the rule's memory; never any weights."""
        self._engine.heal()
        return checkpoint.with_memory(self.base.state_dict(), self._engine)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of ours, or a plain one of the base optimizer, with which the rule starts afresh."""
        engine = self._engine
        engine.heal()
        plain, memories = checkpoint.without_memory(state_dict, engine)
        self.base.load_state_dict(plain)
        self._share_with_base()
        engine.memories = memories
        engine.refresh()

    def _share_with_base(self) -> None:
        """Loading gave the base new lists of groups and states; ours, which schedulers hold, take their content."""
        self.param_groups[:], self.base.param_groups = self.base.param_groups, self.param_groups
        new, self.base.state = self.base.state, self.state
        self.state.clear()
        self.state.update(new)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "step"}  # a scheduler wraps step

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rule!r}, base={self.base!r})"

    _step_supports_amp_scaling = True  # so scaler.step(opt) after passes() hands over instead of unscaling again
