"""One pass of forward and backward, and the report of a step."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from numbers import Real

import torch
from torch import Tensor, nn

from samphire import tree
from samphire.optim.requests import OUTPUTS, PER_EXAMPLE
from samphire.restore import Undo, undone
from samphire.tree import Vector, dot, norm

__all__ = [
    "Closure", "Loss", "Pass", "Report", "Watch",
    "example_losses", "in_perturbed_pass", "mark_as_perturbed", "marked_as_perturbed", "run_closure",
    "takes_pass",
]  # fmt: skip

Loss = Tensor | float
Closure = Callable[..., Loss]
NAN = math.nan

_in_perturbed_pass: ContextVar[bool] = ContextVar("in_perturbed_pass", default=False)


def in_perturbed_pass() -> bool:
    """Whether the caller runs in a perturbed pass, a repeat at displaced weights.

    What must happen once per step (a change of a loss's state, a meter) happens when this is False.

    Example:
        >>> in_perturbed_pass()
        False
    """
    return _in_perturbed_pass.get()


def mark_as_perturbed(undo: Undo) -> None:
    """Mark what follows as a perturbed pass, until it is undone."""
    before = _in_perturbed_pass.get()
    undo.note(lambda: _in_perturbed_pass.set(before))
    _in_perturbed_pass.set(True)


@contextmanager
def marked_as_perturbed() -> Iterator[None]:
    """Mark a block as a perturbed pass."""
    with undone() as undo:
        mark_as_perturbed(undo)
        yield


@dataclass
class Report:
    """What the last step saw, at no extra pass. Entries may be 0-dim tensors; :meth:`numbers` has plain floats.

    What takes another sweep over the gradients (marked *) is measured every ``measure_every`` steps, from the first
    on, and NaN in between.

    Attributes:
        loss: Clean loss (for one-pass rules, the loss at their displaced point).
        perturbed_loss: Loss at the last displaced point; NaN if there was none.
        grad_norm: Norm of the clean gradient, over the parameters the rule asked for; * if the rule does not need it.
        perturbed_grad_norm: * Norm of the gradient at the last displaced point.
        cosine: * Cosine between those two gradients, over the same parameters.
        radius: Length of the last displacement; * as the weights really moved, after rounding.
        moved: Share of the displaced coordinates that moved; below 1 only in half precision.
        perturbed: * Share of all coordinates that were displaced: below 1 for a scope, a mask, a choice of tensors.
        passes: Passes of forward and backward used.
        skipped: Whether the step was skipped because a scaled gradient overflowed.
    """

    loss: Loss = NAN
    perturbed_loss: Loss = NAN
    grad_norm: Loss = NAN
    perturbed_grad_norm: Loss = NAN
    cosine: Loss = NAN
    radius: Loss = 0.0
    moved: float = 1.0
    perturbed: float = NAN
    passes: int = 0
    skipped: bool = False

    @property
    def gap(self) -> Loss:
        """Perturbed minus clean loss."""
        return self.perturbed_loss - self.loss

    def measured(self) -> dict[str, float]:
        """What tells about sharpness, as far as this step measured it, for a logger.

        Example:
            >>> Report(loss=1.0, perturbed_loss=1.5, passes=2).measured()
            {'perturbed_loss': 1.5, 'gap': 0.5, 'radius': 0.0}
        """
        names = ("perturbed_loss", "gap", "grad_norm", "perturbed_grad_norm", "cosine", "radius")
        numbers = self.numbers()
        return {name: numbers[name] for name in names if math.isfinite(numbers[name])}

    def numbers(self) -> dict[str, float]:
        """Everything as floats, for a logger."""
        return {name: float(value) for name, value in {**asdict(self), "gap": self.gap}.items()}


@dataclass
class Pass:
    """One forward and backward, as the loop body or the closure sees it.

    Attributes:
        index: 0 for the first pass of the step.
        perturbed: Whether this is a perturbed pass, a repeat at displaced weights. What must happen once per step
            (a change of a loss's state, a meter) happens when this is False.
        moved: The parameters that are displaced.
        wrt: The parameters the rule differentiates by; ``None`` for all.
        weights: What the examples' losses are multiplied by, for rules that weigh them; :meth:`backward` does it.
        losses: The examples' losses that :meth:`backward` has seen, one entry for each call.
        forward_only: Whether the rule wants losses alone; :meth:`backward` then stops short of the gradients.
        rng: Whether a perturbed pass repeats the random numbers of the clean one (``"replay"``).
        scaler: The scaler in use, if any.
        radius: Length of the displacement, where the rule has computed it.
        loss: Set it, or use :meth:`backward`, to have the losses in ``opt.last``.
        feature_norm: Set by a pass that knows the head's inputs: the root of their mean squared norm.
        with_outputs: Whether the rule needs the model's outputs in :meth:`backward`.
        output_gradients: The loss's derivative by these, one entry for each call of :meth:`backward`.
        before: The entries of the pass before, if the rule wants the outputs alone to be differentiated in this one.
    """

    index: int
    perturbed: bool
    moved: frozenset[str]
    wrt: frozenset[str] | None
    part: slice | Tensor | None
    rng: str
    scaler: torch.amp.GradScaler | None
    radius: Loss = NAN
    weights: Tensor | None = None
    per_example: bool = False
    forward_only: bool = False
    loss: Loss | None = None
    losses: list[Tensor] = field(default_factory=list)
    frozen: list[nn.Parameter] = field(default_factory=list)
    feature_norm: Tensor | None = None
    with_outputs: bool = False
    output_gradients: list[Tensor] = field(default_factory=list)
    before: list[Tensor] | None = None

    @property
    def examples(self) -> slice | Tensor:
        """Which examples of the batch take part: index inputs and labels with it."""
        return slice(None) if self.part is None else self.part

    def backward(self, loss: Tensor, outputs: Tensor | None = None) -> None:
        """Backward, scaled if there is a scaler, and the loss noted.

        Args:
            loss: The loss; or the loss of each example, and their mean is taken. Rules that rank or weigh
                examples need the latter.
            outputs: What the loss was computed from, for rules that differentiate it and the loss at two points.
        """
        if loss.ndim:
            loss = self._mean(loss)
        elif self.per_example:
            raise TypeError(PER_EXAMPLE.format("backward was given one number"))
        self.loss = loss.detach() if self.loss is None else self.loss + loss.detach()
        if self.forward_only:
            return
        if not self.with_outputs:
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        elif outputs is None:
            raise TypeError(OUTPUTS.format("backward was not given the outputs"))
        else:
            self.output_gradients.append(self._backward_by_outputs(loss, outputs))

    def _backward_by_outputs(self, loss: Tensor, outputs: Tensor) -> Tensor:
        """Backward with the loss's derivative by the outputs as it is here, or as it was in the pass before."""
        if self.before is not None:
            output_gradient = self.before[len(self.output_gradients)]
            outputs.backward(output_gradient)
            return output_gradient
        outputs.retain_grad()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        assert outputs.grad is not None
        return outputs.grad

    def thaw(self) -> None:
        """Let autograd record the parameters that this pass does not need, for a later one."""
        for q in self.frozen:
            q.requires_grad_(True)

    def _mean(self, losses: Tensor) -> Tensor:
        start = sum(map(len, self.losses))
        self.losses.append(losses.detach())
        return (losses if self.weights is None else losses * self.weights[start : start + len(losses)]).mean()


def takes_pass(closure: Closure) -> bool:
    """Whether a closure wants the :class:`Pass` as an argument."""
    return any(
        q.default is q.empty and q.kind in (q.POSITIONAL_ONLY, q.POSITIONAL_OR_KEYWORD)
        for q in inspect.signature(closure).parameters.values()
    )


def run_closure(closure: Closure, takes_pass: bool, p: Pass) -> None:
    """Call a closure in a pass and note the loss it returns."""
    if p.part is not None and not takes_pass:
        raise TypeError(
            "this rule works on parts of the batch, but the closure takes no argument; write 'def closure(p)' and "
            "use x[p.examples], y[p.examples]."
        )
    before, p.loss = p.loss, None
    loss = closure(p) if takes_pass else closure()
    if loss is None:
        raise TypeError("the closure returned None; it must return the loss (end it with 'return loss').")
    if not isinstance(loss, (Tensor, Real)):
        raise TypeError(f"the closure must return the loss alone, got {type(loss).__name__}; keep the rest apart.")
    if p.per_example and not p.losses:
        raise TypeError(PER_EXAMPLE.format("the closure did not call p.backward"))
    loss = loss.detach().mean() if isinstance(loss, Tensor) else loss
    p.loss = loss if before is None else before + loss


def example_losses(p: Pass) -> Tensor:
    """The losses of the examples, for rules that need them."""
    if len(p.losses) != 1:
        raise TypeError(
            PER_EXAMPLE.format("p.backward was not called")
            if not p.losses
            else "this rule ranks the examples of one batch, but the batch came in several parts; use micro='m', or "
            "a loop over passes() for each part."
        )
    return p.losses[0]


@dataclass
class Watch:
    """Gathers the report of one run of a rule, pass by pass."""

    n: int | None
    thorough: bool = True
    report: Report = field(default_factory=Report)
    losses: list[Loss] = field(default_factory=list)
    perturbed_losses: list[Loss] = field(default_factory=list)
    clean: Callable[[], Vector | None] = lambda: None
    parallel: bool = False
    loss_noted: bool = False

    def saw(self, p: Pass, g: Vector, w: Mapping[str, Tensor], originals: Mapping[str, Tensor]) -> None:
        """Note a pass while its displacement is still in place."""
        report = self.report
        report.passes += 1
        self.loss_noted |= p.loss is not None
        loss = NAN if p.loss is None else p.loss * self._share(p)
        if not p.perturbed:
            self.losses.append(loss)
            self.perturbed_losses.append(NAN)
            report.grad_norm = norm(g) if self.thorough and g else NAN
        if p.moved:
            self.perturbed_losses[-1] = loss
            report.radius = p.radius
            if self.thorough or any(t.element_size() < 4 for t in originals.values()):
                moved = tree.measure_displacement(w, originals, g)
                report.radius, report.moved = moved.length, 1.0 if p.radius == 0 else moved.moved
                report.perturbed = moved.entries / sum(tree.local(t).numel() for t in w.values())
                if g:
                    report.perturbed_grad_norm, report.cosine = norm(g), self._cosine(p, g, moved)
        report.loss, report.perturbed_loss = sum(self.losses), sum(self.perturbed_losses)

    def sent(self, p: Pass, g: Vector, eps: Vector) -> None:
        """Note where the rule goes after a pass's gradient.

        A clean gradient is worth keeping for the cosine only if the displacement does not hold its direction;
        otherwise it lives as long as the rule keeps it.
        """
        self.parallel = eps.tensors is g.tensors
        if not p.perturbed:
            size = tree.known_norm(g)
            self.report.grad_norm = self.report.grad_norm if size is None else size
            self.clean = weakref.ref(g) if self.parallel or not self.thorough else lambda: g

    def _cosine(self, p: Pass, g: Vector, moved: tree.Displacement) -> Loss:
        clean = self.clean()
        if clean is not None:
            return dot(clean, g) / (norm(clean) * norm(g.only(clean.tensors)))
        if self.parallel:
            return moved.along / (moved.length * norm(g.only(p.moved)))
        return NAN

    def _share(self, p: Pass) -> float:
        """The weight of this pass's loss in the loss of the batch."""
        if self.n is None or not isinstance(p.part, slice):
            return 1.0
        return len(range(*p.part.indices(self.n))) / self.n
