"""One run of a rule: its passes, one after the other, and the gradient they leave behind."""

from __future__ import annotations

import inspect
import math
import warnings
import weakref
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from samphire import restore, tree
from samphire.optim.guard import guard
from samphire.optim.parameters import Parameters, data_parallel_around
from samphire.optim.passes import Pass, Report, Watch, example_losses, mark_as_perturbed
from samphire.optim.requests import OUTPUTS, At, Descent, Memory, Rule, needs_outputs
from samphire.optim.threads import Overlap
from samphire.tree import Vector

__all__ = ["Engine", "Perturbation", "Rng", "ranks"]

Rng = Literal["replay", "fresh"]
Perturbation = Literal["global", "local"]
Run = Generator[Pass, None, None]


@dataclass
class Engine:
    """Drives a rule over a model's parameters. All that changes from step to step is here.

    Attributes:
        parameters: What is trained.
        rule: Bound to the model.
        rng: Whether perturbed passes repeat the random numbers of the clean one.
        perturbation: Whether data-parallel ranks perturb together or each for itself.
        scaler: The scaler in use, if any.
        measure_every: On which steps the costlier part of the report is measured.
        memories: Of the rule: one per accumulated micro-batch, usually one in all.
        runs: Finished runs since the last step.
        directly: What those leave to be applied after the base optimizer.
        unusable: Whether one of them had a gradient that is not finite, so that the step must be skipped.
        ended_by: Who ended a run from outside, if somebody did.
        closures: How many share the micro-batches of the run.
        within_step: Whether the runs belong to a step that applies them itself.
        loss_noted: Whether the last run has seen a loss.
        last: The report of the last run.
        undo: The way back from what the run in progress has changed.
    """

    parameters: Parameters
    rule: Rule
    rng: Rng
    perturbation: Perturbation
    scaler: torch.amp.GradScaler | None
    measure_every: int
    memories: list[Memory] = field(default_factory=list)
    runs: int = 0
    directly: Vector = field(default_factory=Vector)
    unusable: bool = False
    ended_by: str = ""
    closures: int = 1
    within_step: bool = False
    loss_noted: bool = False
    last: Report = field(default_factory=Report)
    undo: restore.Undo = field(default_factory=restore.Undo)
    _spare: dict[str, Tensor] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)
    _open: weakref.ref[Run] | None = None

    def __post_init__(self) -> None:
        self._refuse_local_shards()

    @property
    def model(self) -> nn.Module:
        return self.parameters.model

    @property
    def named(self) -> Mapping[str, nn.Parameter]:
        return self.parameters.named

    def run(self, n: int | None, labels: Tensor | None, closures: int = 1, within_step: bool = False) -> Run:
        """The passes of one run of the rule, to be filled by so many closures."""
        self.end_run()
        if self.within_step and not within_step:
            self.forget_runs()  # of a step that was interrupted
        self.within_step = within_step
        self.refresh()
        self._find_data_parallel()
        self.ended_by, self.closures = "", closures
        run = self._run(n if labels is None else len(labels), labels)
        self._open = weakref.ref(run)
        return run

    def in_pass(self) -> bool:
        """Whether a pass has begun and is not over: the body of a loop or a closure is running."""
        run = None if self._open is None else self._open()
        return run is not None and inspect.getgeneratorstate(run) == inspect.GEN_SUSPENDED

    def heal(self) -> None:
        """Put back what an interrupt left changed; nothing during a pass, whose changes are meant."""
        if not self.in_pass():
            self.undo.back()

    def refresh(self) -> None:
        """Heal, and notice parameters that were added or replaced."""
        self.heal()
        self.parameters.refresh()
        self._refuse_local_shards()

    def end_run(self, by: str = "") -> None:
        """End a run that was left in the middle, and put everything back but the caller's random numbers.

        They may have been seeded anew since.
        """
        if self.in_pass():
            self.ended_by = by
            now = restore.rng_state({p.device for p in self.named.values()})
            self._open().close()  # type: ignore[misc, union-attr]
            restore.set_rng_state(now)
        self.undo.back()

    def forget_runs(self) -> None:
        """As if nothing had been run since the last step."""
        self.runs, self.unusable, self.directly = 0, False, Vector()

    def live_scaler(self) -> torch.amp.GradScaler | None:
        return self.scaler if self.scaler is not None and self.scaler.is_enabled() else None

    def warn(self, message: str) -> None:
        """Warn, each message once, at the user's line."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=5)

    def __getstate__(self) -> dict[str, Any]:
        temporary: dict[str, Any] = {"_open": None, "_spare": {}, "undo": restore.Undo()}
        return {key: temporary.get(key, value) for key, value in self.__dict__.items()}

    # ---------------------------------------------------------------------------- the passes

    def _run(self, n: int | None, labels: Tensor | None) -> Run:
        """Drive the rule: one turn of the loop for each of its requests. Until its end nothing counts as done."""
        memory = self._memory(n, labels)
        watch = Watch(n, thorough=memory.step % self.measure_every == 0)
        seen: set[object] = set()
        rng: restore.RngState = {}
        overlap = Overlap()
        output_gradients: list[Tensor] = []
        descent: Vector | Descent | None = None
        asking = self.rule.gradient(Vector({name: p.detach() for name, p in self.named.items()}), memory)
        earlier = {name: p.grad for name, p in self.named.items()} if self.runs else {}
        try:
            self.undo.note(self._way_back(earlier))
            request = next(asking)
            while descent is None:
                overlap.move()
                p = self._next_pass(request, watch.report.passes, seen)
                p.before = output_gradients if request.output_gradient == "before" else None
                if not p.perturbed and self.rng == "replay":
                    rng = restore.rng_state({q.device for q in self.named.values()})
                self.parameters.set_grads({})
                try:
                    originals = self._disturb(p, request.eps, rng)
                    wants_losses = request.losses
                    del request  # with it goes what may be the last reference to the clean gradient
                    yield p
                    if p.with_outputs and not p.output_gradients:
                        raise TypeError(OUTPUTS.format("p.backward was not called"))
                    output_gradients, memory.feature_norm = p.output_gradients, p.feature_norm
                    g = self._collect(p)
                    watch.saw(p, g, self.named, originals)
                finally:
                    self.undo.back(to=1)
                self.unusable |= p.scaler is not None and not tree.finite(g)
                if self.unusable and not self._perturbs_locally():
                    descent = g
                    break
                try:
                    request = asking.send((g, example_losses(p)) if wants_losses else g)
                    watch.sent(p, g, request.eps)
                    if self._leads_nowhere(request.eps):
                        self.unusable, descent = True, g
                    del g
                except StopIteration as finished:
                    descent = finished.value
            self._finish(Descent.of(descent), earlier, memory)
            self.last, self.loss_noted = watch.report, watch.loss_noted
            self.undo.forget()
        finally:
            self.undo.back()
            overlap.move()
            asking.close()
        self._warn_if_rounded_away()
        if overlap.seen and watch.report.passes > 1 and restore.has_drawn(rng):
            self.warn(
                "another thread took a step meanwhile, and both draw from torch's one generator, so a perturbed pass "
                "may have other dropout masks than its clean one; hold a lock around each step, train in processes, "
                "or take rng='fresh'."
            )

    def _leads_nowhere(self, eps: Vector) -> bool:
        """Whether a displacement is not finite, where that can be read for free; its gradient was not, then."""
        length = tree.known_norm(eps)
        known = length is not None and isinstance(tree.number(length), float)
        return known and not math.isfinite(length) and not self._perturbs_locally()  # type: ignore[arg-type]

    def _way_back(self, grads: Mapping[str, Tensor | None]) -> Callable[[], None]:
        """To before a run: the gradients and the memories of the micro-batches before it."""
        before = {name: getattr(self, name) for name in ("runs", "directly", "unusable", "memories", "last")}

        def back() -> None:
            self.parameters.set_grads(grads)
            self.__dict__.update(before)

        return back

    def _next_pass(self, request: At, index: int, seen: set[object]) -> Pass:
        part = request.examples
        one = (part.start, part.stop) if isinstance(part, slice) else part  # slices have no hash before Python 3.12
        is_perturbed = bool(seen) and (None in seen or isinstance(part, Tensor) or one in seen)
        seen.add(one)
        length = tree.known_norm(request.eps)
        return Pass(
            index,
            is_perturbed,
            frozenset(request.eps),
            request.wrt,
            part,
            self.rng,
            self.live_scaler(),
            radius=math.nan if length is None else length,
            weights=request.weights,
            per_example=request.losses or request.weights is not None,
            forward_only=request.wrt == frozenset() and self.parameters.prunes,
            with_outputs=needs_outputs(self.rule),
        )

    def _disturb(self, p: Pass, eps: Vector, rng: restore.RngState) -> Mapping[str, Tensor]:
        """Everything that is different during a pass; the undisplaced weights."""
        undo = self.undo
        if p.moved:
            guard(self.parameters.modules, self.end_run, undo)
        originals = tree.displace(self.named, eps, self._spare, undo.note)
        if p.wrt and self.parameters.prunes:
            p.frozen = [q for name, q in self.named.items() if name not in p.wrt and q.requires_grad]
            restore.freeze(p.frozen, undo)
        if p.perturbed:
            mark_as_perturbed(undo)
            restore.keep_buffers(self.model, undo)
            restore.set_grads_aside(self.parameters.others, undo)
            if rng:
                restore.replay_rng(rng, undo)
        if self._perturbs_locally():
            ddp = restore.data_parallel(self.model)
            undo.note(partial(setattr, ddp, "require_backward_grad_sync", ddp.require_backward_grad_sync))  # type: ignore[union-attr]
            ddp.require_backward_grad_sync = False  # type: ignore[union-attr]
        return originals

    def _memory(self, n: int | None, labels: Tensor | None) -> Memory:
        """The memory of this micro-batch, as a copy to throw away if the passes fail."""
        memory = self.memories[self.runs].copy() if self.runs < len(self.memories) else Memory()
        memory.n, memory.labels, memory.groups = n, labels, self.parameters.groups()
        return memory

    def _collect(self, p: Pass) -> Vector:
        """The gradients of a pass, unscaled, no longer the parameters'."""
        ddp = restore.data_parallel(self.model)
        reused = ddp is not None and ddp.gradient_as_bucket_view
        asked = {name: q for name, q in self.named.items() if p.wrt is None or name in p.wrt}
        grads = {}
        for name, q in asked.items():
            if q.grad is not None:
                grad = q.grad.detach()
                grads[name] = grad.clone() if reused else grad
        if asked and not grads:
            raise RuntimeError(
                f"pass {p.index} of the step left no gradient: its loss was not sent backward, or zero_grad() came "
                "after backward; gradients need no zeroing inside a pass."
            )
        self.parameters.set_grads({})
        return Vector(grads, 1.0 if p.scaler is None else 1.0 / p.scaler.get_scale())

    # ---------------------------------------------------------------------------- what they leave

    def _finish(self, descent: Descent, earlier: Mapping[str, Tensor | None], memory: Memory) -> None:
        """Leave the gradient in ``.grad``, on top of what earlier micro-batches left; keep the memory."""
        gradient, directly = descent.gradient, descent.directly
        if directly and self.parameters.base_evaluates:
            raise TypeError(
                f"{type(self.rule).__name__} applies a part of its step past the base optimizer, which "
                f"{type(self.parameters.base).__name__} does not allow; use another base, or wsam(decouple=False)."
            )
        if self._perturbs_locally():
            gradient = self._averaged_over_ranks(gradient)
            directly = self._averaged_over_ranks(directly) if directly else directly
        self.unusable |= not (tree.finite(gradient) & tree.finite(directly))
        total = (Vector({name: g for name, g in earlier.items() if g is not None}) + gradient).dense()
        remembered = {id(t) for t in memory.tensors()}  # whoever clips or zeroes .grad must not reach these
        self.parameters.set_grads({name: g.clone() if id(g) in remembered else g for name, g in total.items()})
        self.directly = self.directly + directly if self.runs else directly
        if not self.unusable:
            memory.step += 1
            self.memories = [*self.memories[: self.runs], memory, *self.memories[self.runs + 1 :]]
        self.runs += 1

    def _averaged_over_ranks(self, v: Vector) -> Vector:
        """The mean over data-parallel ranks, in one all-reduce for each kind of tensor."""
        ddp = restore.data_parallel(self.model)
        assert ddp is not None
        entries = v.dense()
        kinds: dict[tuple[torch.device, torch.dtype], list[str]] = {}
        for name, p in self.named.items():
            if p.requires_grad:
                kinds.setdefault((p.device, p.dtype), []).append(name)
        mean = {}
        for names in kinds.values():
            shapes = [self.named[name].shape for name in names]
            flat = torch.cat(
                [entries[n].to_dense().reshape(-1) if n in entries else torch.zeros(s.numel()).to(self.named[n])
                 for n, s in zip(names, shapes, strict=True)]
            )  # fmt: skip
            torch.distributed.all_reduce(flat, group=ddp.process_group)
            flat /= torch.distributed.get_world_size(ddp.process_group)
            parts = flat.split([s.numel() for s in shapes])
            mean.update({name: part.view(s) for name, part, s in zip(names, parts, shapes, strict=True)})
        return Vector(mean)

    def _perturbs_locally(self) -> bool:
        return self.perturbation == "local" and restore.data_parallel(self.model) is not None

    def _find_data_parallel(self) -> None:
        """A local perturbation needs the DistributedDataParallel, which may have been put around the model since."""
        if self.perturbation != "local" or restore.data_parallel(self.model) is not None or ranks() == 1:
            return
        ddp = data_parallel_around(self.model)
        if ddp is None:
            raise ValueError(
                f"perturbation='local' needs the model inside DistributedDataParallel, but none is around it on this "
                f"rank of {ranks()}; wrap it, and call opt.rebind(wrapped) if the optimizer was built before."
            )
        self.parameters.move_to(ddp)

    def _refuse_local_shards(self) -> None:
        if self.perturbation == "local" and any(map(tree.is_sharded, self.named.values())):
            raise ValueError(
                "perturbation='local' needs whole parameters on each rank, got sharded ones; use 'global'."
            )

    def _warn_if_rounded_away(self) -> None:
        if self.last.moved < 0.5 and "rounded" not in self._warned:
            self._warned.add("rounded")
            warnings.warn(
                f"the perturbation rounds away: {self.last.moved:.0%} of the displaced weights moved, the radius is "
                f"{float(self.last.radius):.3g}; keep the weights in float32 (autocast for speed) or raise rho.",
                stacklevel=3,
            )


def ranks() -> int:
    """How many processes train together."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1
