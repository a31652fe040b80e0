"""The optimizer: any rule around any torch optimizer, in any training loop."""

from __future__ import annotations

import inspect
import math
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from samphire import restore, tree
from samphire.checks import Count, Positive, check_value
from samphire.optim.passes import Closure, Loss, Pass, Report, Watch, example_losses, marked_as_perturbed, run_closure
from samphire.optim.requests import OUTPUTS, At, Descent, Group, Memory, Rule, bind, needs_outputs
from samphire.optim.schedules import Rho
from samphire.tree import Vector

Rng = Literal["replay", "fresh"]
Perturbation = Literal["global", "local"]
Micro = Literal["full", "m"]
Clip = Positive | None

__all__ = ["SharpnessAware"]


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
        if not isinstance(base, Optimizer):
            raise TypeError(
                f"base must be a torch.optim.Optimizer instance, got {base!r}; build it first, "
                "as in torch.optim.SGD(model.parameters(), lr=0.1)."
            )
        self.model, self.base, self.rule = model, base, bind(rule, model)
        self.clip_norm, self.clip_value, self.rng = clip_norm, clip_value, rng
        self.perturbation, self.scaler, self.measure_every = perturbation, scaler, measure_every
        self.last = Report()
        self._spare: dict[str, Tensor] = {}
        self._memories: list[Memory] = []  # one per accumulated micro-batch; usually one in all
        self._runs = 0  # finished loops over passes since the last step
        self._directly = Vector()  # what those leave to be applied after the base optimizer
        self._overflowed = self._warned = self._in_pass = self._in_micro_batch = False
        self._open: weakref.ref[Generator[Pass, None, None]] | None = None
        self._overflow = _Overflow()
        self._ready = False
        super().__init__(base.param_groups, base.defaults)
        self._ready = True
        self._adopt_base()

    def _adopt_base(self) -> None:
        self.param_groups, self.state = self.base.param_groups, self.base.state
        names = {p: name for name, p in tree.named_parameters(self.model).items()}
        for group in self.param_groups:
            for p in group["params"]:
                if p not in names:
                    raise ValueError(
                        f"the base optimizer holds a parameter of shape {tuple(p.shape)} that is not in the model; "
                        "build both from one model (before or after wrapping, but the same parameters)."
                    )
            if "rho" in group:
                check_value("a group's rho", group["rho"], Rho)
        self._group_names = [tuple(names[p] for p in group["params"]) for group in self.param_groups]
        self._named = {names[p]: p for group in self.param_groups for p in group["params"]}
        self._others = [p for p, name in names.items() if name not in self._named]
        self._prunes = not (
            restore.data_parallel(self.model) is not None
            or any(map(tree.is_sharded, self._named.values()))
            or any("_orig_mod" in name for name, _ in self.model.named_modules())  # compiled
        )
        if self.perturbation == "local" and any(map(tree.is_sharded, self._named.values())):
            raise ValueError(
                "perturbation='local' needs whole parameters on each rank, got sharded ones; use 'global'."
            )

    # ---------------------------------------------------------------------------- the two doors

    def step(  # type: ignore[override]
        self,
        closure: Closure | Sequence[Closure] | None = None,
        *,
        n: int | None = None,
        labels: Tensor | None = None,
        micro: Micro = "full",
    ) -> Loss:
        """Run the rule's passes, then the base optimizer; return the clean loss.

        Args:
            closure: Zeroes gradients, runs forward and backward, returns the loss; it may take the
                :class:`Pass` as an argument. A sequence of closures accumulates micro-batches: each runs
                backward on its share of the loss (divide by their number) and does not zero gradients.
                Without one, the gradient that :meth:`passes` left is applied.
            n: Examples in the batch, for rules that work on parts of it.
            labels: Their classes, for rules that tell classes apart; ``n`` is then known.
            micro: For several closures: ``"full"`` perturbs once for all of them (the same as one big batch);
                ``"m"`` perturbs for each by itself (m-sharpness), then averages.
        """
        if closure is None:
            self._clip()
            return self._apply()
        check_value("micro", micro, Micro)
        closures = [closure] if callable(closure) else list(closure)
        if not closures:
            raise ValueError("step got an empty list of closures; give one for each micro-batch.")
        batches = [closures] if micro == "full" else [[c] for c in closures]
        if _steps_by_closure(self.base):
            first = self.base.step(lambda: float(self._evaluate(batches, n, labels)))
            self._runs = 0
            return first
        loss = self._evaluate(batches, n, labels)
        self._apply()
        return loss

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

        Leaving the loop early, by ``break`` or an exception, puts everything back.
        """
        left_open = self._open() if self._open is not None else None
        if left_open is not None:
            left_open.close()
        run = self._run(n if labels is None else len(labels), labels)
        self._open = weakref.ref(run)
        return run

    def _evaluate(self, batches: Sequence[Sequence[Closure]], n: int | None, labels: Tensor | None) -> Loss:
        """The rule's gradient of these closures, left in ``.grad``; the clean loss."""
        total: Loss = 0.0
        self._runs = 0
        self._in_micro_batch = sum(map(len, batches)) > 1
        try:
            for closures in batches:
                for p in self.passes(n, labels):
                    with torch.enable_grad():
                        for closure in closures:
                            run_closure(closure, p)
                total = total + self.last.loss
        finally:
            self._in_micro_batch = False
        self._clip()
        return total

    def _clip(self) -> None:
        if self._overflowed:
            return
        if self.clip_norm is not None:
            clip_grad_norm_(self._named.values(), self.clip_norm)
        if self.clip_value is not None:
            clip_grad_value_(self._named.values(), self.clip_value)

    def _apply(self) -> Loss:
        """The base optimizer's step, unless a pass overflowed."""
        if self._in_pass:
            raise RuntimeError("step() was called inside the loop over passes(); call it once, after the loop.")
        if not self._runs:
            raise TypeError(
                "SharpnessAware.step needs the loss more than once. Give it a closure that zeroes gradients, runs "
                "forward and backward and returns the loss: opt.step(closure). Or loop: "
                "'for p in opt.passes(): p.backward(loss_of(model))', then opt.step()."
            )
        if hasattr(self, "grad_scale") and self._live_scaler() is None:
            raise RuntimeError(
                "scaler.step(opt) was called, but the passes were not unscaled; pass scaler= to SharpnessAware."
            )
        self.last.skipped = self._overflowed
        if (scaler := self._live_scaler()) is not None:
            self._overflow.report(scaler, self._overflowed, next(iter(self._named.values())).device)
        if not self._overflowed:
            self.base.step()
            self._descend_directly()
        self._runs, self._overflowed = 0, False
        return self.last.loss

    @torch.no_grad()
    def _descend_directly(self) -> None:
        """``w -= lr * directly``, for rules that have a part which the base optimizer must not see."""
        for group, names in zip(self.param_groups, self._group_names, strict=True):
            for name, by in self._directly.only(names).dense().items():
                self._named[name].sub_(by * group["lr"])

    # ---------------------------------------------------------------------------- one run of the rule

    def _run(self, n: int | None, labels: Tensor | None) -> Generator[Pass, None, None]:
        """Drive the rule: one turn of the loop for each of its requests."""
        memory = self._memory(n, labels)
        earlier = {name: p.grad for name, p in self._named.items()} if self._runs else {}
        watch = Watch(n, thorough=memory.step % self.measure_every == 0)
        seen: set[object] = set()
        rng: restore.RngState = {}
        output_gradients: list[Tensor] = []
        descent: Vector | Descent | None = None
        asking = self.rule.gradient(Vector({name: p.detach() for name, p in self._named.items()}), memory)
        try:
            request = next(asking)
            while descent is None:
                p = self._next_pass(request, watch.report.passes, seen)
                p.before = output_gradients if request.output_gradient == "before" else None
                if not p.perturbed and self.rng == "replay":
                    rng = restore.rng_state({q.device for q in self._named.values()})
                self._set_grads({})
                with self._surroundings(request.eps, p, rng) as originals:
                    wants_losses = request.losses
                    del request  # with it goes what may be the last reference to the clean gradient
                    yield p
                    if p.with_outputs and not p.output_gradients:
                        raise TypeError(OUTPUTS.format("p.backward was not called"))
                    output_gradients = p.output_gradients
                    g = self._collect(p)
                    watch.saw(p, g, self._named, originals)
                self._overflowed |= p.scaler is not None and not tree.finite(g)
                if self._overflowed and not self._perturbs_locally():
                    descent = g
                    break
                try:
                    request = asking.send((g, example_losses(p)) if wants_losses else g)
                    watch.sent(p, g, request.eps)
                    del g
                except StopIteration as finished:
                    descent = finished.value
        finally:
            asking.close()
            if descent is None:
                self._set_grads(earlier)
        self._finish(Descent.of(descent), earlier, memory)
        self.last = watch.report
        self._warn_if_rounded_away()

    def _next_pass(self, request: At, index: int, seen: set[object]) -> Pass:
        part = request.examples
        is_perturbed = bool(seen) and (None in seen or isinstance(part, Tensor) or str(part) in seen)
        seen.add(None if part is None else str(part))
        length = tree.known_norm(request.eps)
        return Pass(
            index,
            is_perturbed,
            frozenset(request.eps),
            request.wrt,
            part,
            self.rng,
            self._live_scaler(),
            radius=math.nan if length is None else length,
            weights=request.weights,
            per_example=request.losses or request.weights is not None,
            forward_only=request.wrt == frozenset() and self._prunes,
            with_outputs=needs_outputs(self.rule),
        )

    @contextmanager
    def _surroundings(self, eps: Vector, p: Pass, rng: restore.RngState) -> Iterator[Mapping[str, Tensor]]:
        """Everything that is different during a pass, and put back after it."""
        with ExitStack() as stack:
            originals = stack.enter_context(tree.displaced(self._named, eps, self._spare))
            del eps
            if p.wrt and self._prunes:
                p.frozen = [q for name, q in self._named.items() if name not in p.wrt and q.requires_grad]
                stack.enter_context(restore.frozen(p.frozen))
            if p.perturbed:
                stack.enter_context(marked_as_perturbed())
                stack.enter_context(restore.kept_buffers(self.model))
                stack.enter_context(restore.kept_grads(self._others))
                stack.enter_context(restore.replayed_rng(rng) if rng else nullcontext())
            if self._perturbs_locally():
                stack.enter_context(restore.data_parallel(self.model).no_sync())  # type: ignore[union-attr]
            self._in_pass = True
            try:
                yield originals
            finally:
                self._in_pass = False

    def _memory(self, n: int | None, labels: Tensor | None) -> Memory:
        """The memory of this micro-batch, as a copy to throw away if the passes fail."""
        memory = self._memories[self._runs].copy() if self._runs < len(self._memories) else Memory()
        memory.n, memory.labels = n, labels
        memory.groups = tuple(
            Group(names, float(group["lr"]) if "lr" in group else None, group.get("rho"))
            for names, group in zip(self._group_names, self.param_groups, strict=True)
        )
        return memory

    def _collect(self, p: Pass) -> Vector:
        """The gradients of a pass, unscaled, no longer the parameters'."""
        ddp = restore.data_parallel(self.model)
        reused = ddp is not None and ddp.gradient_as_bucket_view
        grads = {}
        for name, q in self._named.items():
            if q.grad is not None and (p.wrt is None or name in p.wrt):
                grad = q.grad.detach()
                grads[name] = grad.clone() if reused else grad
        self._set_grads({})
        return Vector(grads, 1.0 if p.scaler is None else 1.0 / p.scaler.get_scale())

    def _finish(self, descent: Descent, earlier: Mapping[str, Tensor | None], memory: Memory) -> None:
        """Leave the gradient in ``.grad``, on top of what earlier micro-batches left; keep the memory."""
        gradient, directly = descent.gradient, descent.directly
        if directly and _steps_by_closure(self.base):
            raise TypeError(
                f"{type(self.rule).__name__} applies a part of its step past the base optimizer, which "
                f"{type(self.base).__name__} does not allow; use another base, or wsam(decouple=False)."
            )
        if self._perturbs_locally():
            gradient = self._averaged_over_ranks(gradient)
            directly = self._averaged_over_ranks(directly) if directly else directly
            self._overflowed |= self._live_scaler() is not None and not tree.finite(gradient)
        self._set_grads((Vector({n: g for n, g in earlier.items() if g is not None}) + gradient).dense())
        self._directly = self._directly + directly if self._runs else directly
        if not self._overflowed:
            memory.step += 1
            self._memories[self._runs : self._runs + 1] = [memory]
        self._runs += 1

    def _set_grads(self, grads: Mapping[str, Tensor | None]) -> None:
        for name, p in self._named.items():
            grad = grads.get(name)
            p.grad = None if grad is None else grad.to(p.dtype)

    def _averaged_over_ranks(self, v: Vector) -> Vector:
        """The mean over data-parallel ranks, in one all-reduce for each kind of tensor."""
        ddp = restore.data_parallel(self.model)
        assert ddp is not None
        entries = v.dense()
        kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for name, p in self._named.items():
            if p.requires_grad:
                kinds.setdefault((p.device, p.dtype), []).append(name)
        mean = {}
        for names in kinds.values():
            shapes = [self._named[name].shape for name in names]
            flat = torch.cat(
                [entries[n].to_dense().reshape(-1) if n in entries else torch.zeros(s.numel()).to(self._named[n])
                 for n, s in zip(names, shapes, strict=True)]
            )  # fmt: skip
            torch.distributed.all_reduce(flat, group=ddp.process_group)
            flat /= torch.distributed.get_world_size(ddp.process_group)
            parts = flat.split([s.numel() for s in shapes])
            mean.update({name: part.view(s) for name, part, s in zip(names, parts, shapes, strict=True)})
        return Vector(mean)

    def _perturbs_locally(self) -> bool:
        return self.perturbation == "local" and restore.data_parallel(self.model) is not None

    def _live_scaler(self) -> torch.amp.GradScaler | None:
        return self.scaler if self.scaler is not None and self.scaler.is_enabled() else None

    def _warn_if_rounded_away(self) -> None:
        if self.last.moved < 0.5 and not self._warned:
            self._warned = True
            warnings.warn(
                f"the perturbation rounds away: {self.last.moved:.0%} of the displaced weights moved, the radius is "
                f"{float(self.last.radius):.3g}; keep the weights in float32 (autocast for speed) or raise rho.",
                stacklevel=3,
            )

    # ---------------------------------------------------------------------------- torch.optim's contract

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, also those accumulated from earlier micro-batches."""
        if self._in_micro_batch and self._in_pass:
            raise RuntimeError(
                "zero_grad() inside one of several closures would throw away the other micro-batches' gradients; "
                "leave it out, step() does it."
            )
        self.base.zero_grad(set_to_none)
        if not self._in_pass:
            self._runs, self._overflowed = 0, False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer."""
        if not self._ready:
            return super().add_param_group(param_group)
        self.base.add_param_group(param_group)
        return self._adopt_base()

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state and the rule's memory; never any weights."""
        return {**self.base.state_dict(), "samphire": [memory.state() for memory in self._memories]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of ours, or a plain one of the base optimizer."""
        plain = {key: value for key, value in state_dict.items() if key != "samphire"}
        self.base.load_state_dict(plain)
        self._memories = [Memory.from_state(m, self._named) for m in state_dict.get("samphire", [])]
        self._adopt_base()

    def __getstate__(self) -> dict[str, Any]:
        temporary: dict[str, Any] = {"_open": None, "_spare": {}}
        return {k: temporary.get(k, v) for k, v in self.__dict__.items() if k != "step"}  # a scheduler wraps step

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rule!r}, base={self.base!r})"

    _step_supports_amp_scaling = True  # so scaler.step(opt) after passes() hands over instead of unscaling again


class _Overflow:
    """Tells a GradScaler, by its public face, whether this step overflowed: an optimizer of one dummy gradient."""

    param_groups: list[dict[str, Any]]

    def report(self, scaler: torch.amp.GradScaler, overflowed: bool, device: torch.device) -> None:
        flag = nn.Parameter(torch.zeros((), device=device))
        flag.grad = torch.full((), math.inf if overflowed else 0.0, device=device)
        self.param_groups = [{"params": [flag]}]
        scaler.unscale_(self)  # type: ignore[arg-type]


def _steps_by_closure(base: Optimizer) -> bool:
    """Whether the base evaluates the loss itself, as LBFGS does."""
    closure = inspect.signature(base.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
