"""How a rule and an engine talk: requests, memory, the climb, and the reference that drives any rule.

A rule yields a request (:class:`At`), is sent the gradient there, and returns the gradient to descend along.
:func:`sharpness_aware_gradient` is the specification every engine is tested against. What looks into a rule or makes
another rule of it is at the end: :func:`bind`, :func:`on`, :func:`with_rho`, :func:`rho_of`, :func:`branches`,
:func:`needs_outputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from numbers import Real
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from samphire import tree
from samphire.checks import Range, check_number
from samphire.optim import scopes
from samphire.optim.schedules import Rho
from samphire.optim.scopes import Scope
from samphire.tree import Vector, unit

Examples = slice | Tensor | None
RADIUS = Range(least=0, below=1e38)  # what float32 can displace by

__all__ = [
    "EVERYWHERE", "OUTPUTS", "PER_EXAMPLE", "Asking", "At", "Climb", "Descent", "Examples", "Group",
    "LossOfOutputs", "Memory", "Metric", "Rule", "bind", "branches", "drive", "gradient_at", "needs_outputs", "on",
    "relayed", "rho_of", "sharpness_aware_gradient", "watched", "with_rho",
]  # fmt: skip


@dataclass(frozen=True)
class At:
    """A request for the gradient at ``w + eps``.

    Args:
        eps: Where, relative to the weights.
        wrt: The names to differentiate by; ``None`` for all. An engine may save the work for the rest; for no
            names at all, forward is enough.
        examples: Which examples of the batch take part; ``None`` for all.
        weights: What each example's loss is multiplied by before the mean is taken; ``None`` for 1.
        losses: Whether the examples' losses are wanted too. The answer is then a pair: gradient, losses.
        output_gradient: Where the loss is differentiated by the model's outputs: ``"here"``, which gives the
            gradient, or as it was in the request ``"before"``; only the outputs are then differentiated here.
    """

    eps: Vector = field(default_factory=Vector)
    wrt: frozenset[str] | None = None
    examples: Examples = None
    weights: Tensor | None = None
    losses: bool = False
    output_gradient: Literal["here", "before"] = "here"


@dataclass(frozen=True)
class Descent:
    """What to descend along: a gradient through the base optimizer, and a direction past it.

    After the base optimizer's step, ``w -= lr * directly``: no momentum, no preconditioner. A rule that returns a
    plain gradient has none.
    """

    gradient: Vector
    directly: Vector = field(default_factory=Vector)

    @classmethod
    def of(cls, value: Vector | Descent) -> Descent:
        """What a rule returned, as a descent."""
        return value if isinstance(value, Descent) else cls(value)

    def __add__(self, other: Descent) -> Descent:
        return Descent(self.gradient + other.gradient, self.directly + other.directly)

    def __rmul__(self, factor: float) -> Descent:
        return Descent(factor * self.gradient, factor * self.directly)


Asking = Generator[At, Any, Vector | Descent]


class Rule(Protocol):
    """What engines drive: a frozen dataclass.

    A rule that decides by the value of a tensor says so by a class attribute, ``branches = True``; one that asks for
    the output gradient of a request before, by ``needs_outputs = True``.
    """

    @property
    def passes(self) -> float:
        """Gradient computations per step, averaged over steps, in units of the whole batch."""

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        """Ask for gradients, return what to descend along."""


@dataclass(frozen=True)
class Group:
    """Parameters that share a learning rate and, if ``rho`` is given, a radius of their own."""

    names: tuple[str, ...]
    lr: float | None = None
    rho: Rho | None = None


class Memory(dict[str, Any]):
    """What a rule keeps from step to step (vectors and numbers by name), and what it may know about this step.

    Attributes:
        step: Steps done so far.
        groups: The base optimizer's parameter groups.
        n: Examples in the batch, if the caller gave them.
        labels: Their classes, if the caller gave them.
        feature_norm: Root of the mean squared norm of what the head was given in the last pass, if the engine saw it.
    """

    feature_norm: Tensor | None = None

    def __init__(
        self, step: int = 0, groups: tuple[Group, ...] = (), n: int | None = None, labels: Tensor | None = None
    ) -> None:
        super().__init__()
        self.step, self.groups = step, groups
        self.n, self.labels = n if labels is None else len(labels), labels
        self.parts: dict[str, Memory] = {}

    def radius(self, rho: Rho) -> Any:
        """Rho for this step: a number, or a number per parameter where the groups differ."""
        if not self.groups:
            return _value(rho, self.step, None)
        values = [_value(rho if g.rho is None else g.rho, self.step, g.lr) for g in self.groups]
        if all(isinstance(v, float) and v == values[0] for v in values):
            return values[0]
        return {name: v for g, v in zip(self.groups, values, strict=True) for name in g.names}

    def part(self, key: object, examples: slice | None = None) -> Memory:
        """The memory of a rule inside a rule, which sees these examples."""
        inner = self.parts.setdefault(str(key), Memory())
        inner.groups, inner.n, inner.labels = self.groups, self.n, self.labels
        if examples is not None:
            inner.n = examples.stop - examples.start
            inner.labels = None if self.labels is None else self.labels[examples]
        return inner

    def copy(self) -> Memory:
        """A copy that can be thrown away if the step fails; vectors are immutable and shared."""
        twin = Memory(self.step, self.groups, self.n, self.labels)
        twin.update(self)
        twin.parts = {key: part.copy() for key, part in self.parts.items()}
        return twin

    def tensors(self) -> Iterator[Tensor]:
        """All tensors a rule keeps."""
        for value in self.values():
            if isinstance(value, Vector):
                yield from value.tensors.values()
            elif isinstance(value, Tensor):
                yield value
        for part in self.parts.values():
            yield from part.tensors()

    def state(self) -> dict[str, Any]:
        """As plain data, for a checkpoint."""
        values = {k: _whole_or_shard(v) if isinstance(v, Vector) else v for k, v in self.items()}
        return {"step": self.step, "values": values, "parts": {k: p.state() for k, p in self.parts.items()}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], like: Mapping[str, Tensor]) -> Memory:
        """The inverse of :meth:`state`, on the devices of the parameters in ``like``, sharded as they are."""
        memory = cls(state["step"])
        for key, value in state["values"].items():
            if isinstance(value, Mapping):
                value = Vector({name: tree.like(t, like[name]) for name, t in value.items()})
            memory[key] = value
        memory.parts = {key: cls.from_state(part, like) for key, part in state["parts"].items()}
        return memory


def _whole_or_shard(v: Vector) -> dict[str, Tensor]:
    return {name: tree.local(t) for name, t in v.dense().items()}


def _value(rho: Rho, t: int, lr: float | None) -> Any:
    """The radius of step ``t``; whatever gave it, it must be one."""
    value = rho(t, lr) if callable(rho) and not isinstance(rho, Tensor) else rho
    if type(value) is float and value in RADIUS:
        return value
    one = tree.number(value) if isinstance(value, Tensor) and value.ndim == 0 else value
    if isinstance(one, Tensor) and one.ndim == 0:
        return value  # on an accelerator or in vmap, where it cannot be read
    check_number(f"rho at step {t}", float(one) if _is_real(one) else one, RADIUS)
    return value if isinstance(value, Tensor) else float(value)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def sharpness_aware_gradient(
    rule: Rule, loss: Callable[..., Tensor], w: Mapping[str, Tensor], memory: Memory | None = None
) -> dict[str, Tensor]:
    """The specification: the gradient a rule descends along, slow, pure and readable.

    What a rule applies past the base optimizer (:class:`Descent`) is added, as plain SGD would have it.

    Args:
        rule: Any rule.
        loss: The loss as a function of ``{name: tensor}``; of the chosen examples too, if the rule chooses. For rules
            that rank or weigh examples it returns their losses, and their mean is taken. For rules that tell the
            model's outputs from the loss it is a :class:`LossOfOutputs`.
        w: The weights.
        memory: What the rule kept from earlier steps; it is brought up to date.

    Example:
        >>> from samphire.optim.rules import sam
        >>> w = {"w": torch.tensor([1.0, -1.0])}
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(sam(rho=0.05), loss, w)
        {'w': tensor([ 1.0158, -3.1423])}
    """
    memory = Memory() if memory is None else memory
    descent = drive(bind(rule, w), w, memory, gradient_at(loss, w))
    return (descent.gradient + descent.directly).dense()


def drive(rule: Rule, w: Mapping[str, Tensor], memory: Memory, answer: Callable[[At], Any]) -> Descent:
    """Answer a bound rule's requests until it returns what to descend along; that is one step."""
    asking = rule.gradient(Vector(w), memory)
    request = next(asking)
    while True:
        try:
            request = asking.send(answer(request))
        except StopIteration as done:
            memory.step += 1
            return Descent.of(done.value)


def watched(
    rule: Rule, w: Mapping[str, Tensor], memory: Memory, answer: Callable[[At], Any]
) -> tuple[Descent, list[Vector]]:
    """One step by :func:`drive`, and the displacements at which the rule asked for gradients."""
    displacements: list[Vector] = []

    def noted(request: At) -> Any:
        displacements.append(request.eps)
        return answer(request)

    return drive(rule, w, memory, noted), displacements


def relayed(asking: Asking, request: At, change: Callable[[At], At] = lambda request: request) -> Asking:
    """Pass a rule's requests on, from this one on, each changed on its way; return what the rule returns."""
    while True:
        answer = yield change(request)
        try:
            request = asking.send(answer)
        except StopIteration as done:
            return done.value


@dataclass(frozen=True)
class LossOfOutputs:
    """A loss of the weights that goes by way of the model's outputs.

    Args:
        outputs: The outputs as a function of the weights; of the chosen examples too, if the rule chooses.
        loss: The loss of the outputs (or of each example) and, likewise, of the chosen examples.

    Example:
        >>> square = LossOfOutputs(lambda w: 3 * w["w"], lambda out: out**2 / 2)
        >>> square({"w": torch.tensor(2.0)})
        tensor(18.)
    """

    outputs: Callable[..., Tensor]
    loss: Callable[..., Tensor]

    def __call__(self, w: Mapping[str, Tensor], *examples: Examples) -> Tensor:
        return self.loss(self.outputs(w, *examples), *examples)


def gradient_at(loss: Callable[..., Tensor], w: Mapping[str, Tensor]) -> Callable[[At], Any]:
    """The answers of a pure loss function."""
    parts = loss if isinstance(loss, LossOfOutputs) else None
    before: list[Tensor] = []  # the output gradient of the last request

    def answer(request: At) -> Any:
        chosen = () if request.examples is None else (request.examples,)
        point = (Vector(w) + request.eps).dense()

        def mean(of: Any, loss: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
            losses = loss(of, *chosen)
            if losses.ndim == 0 and (request.losses or request.weights is not None):
                raise TypeError(PER_EXAMPLE.format("the loss function returned their mean"))
            return (losses if request.weights is None else losses * request.weights).mean(), losses

        losses: Any = None
        if parts is not None:
            outputs, pulled_back, *_ = torch.func.vjp(lambda w: parts.outputs(w, *chosen), point)
            if request.output_gradient == "here":
                output_gradient, losses = torch.func.grad(mean, has_aux=True)(outputs, parts.loss)
                before[:] = [output_gradient]
            (gradient,) = pulled_back(*before)
        elif request.output_gradient == "before":
            raise TypeError(OUTPUTS.format("the loss function is no LossOfOutputs"))
        else:
            gradient, losses = torch.func.grad(mean, has_aux=True)(point, loss)
        g = Vector(gradient) if request.wrt is None else Vector(gradient).only(request.wrt)
        return (g, losses) if request.losses else g

    return answer


OUTPUTS = (
    "this rule differentiates the model's outputs and the loss at two points, but {}; use p.backward(loss, outputs) "
    "in the closure or loop."
)
PER_EXAMPLE = (
    "this rule needs the loss of each example, but {}; use a loss with reduction='none', and p.backward(losses) in "
    "the closure or loop."
)


Metric = Callable[[Vector, Vector], Vector]  # (w, v) -> T(w) v


@dataclass(frozen=True)
class Climb:
    r"""From a gradient to a step of length rho: :math:`\epsilon = \rho\, T^2 g / \|T g\|` on a scope.

    Args:
        metric: Multiplies a vector by ``T(w)``; ``None`` for the identity. Length is measured by ``T⁻¹``.
        on: The parameters that move; ``None`` for all.
    """

    metric: Metric | None = None
    on: Scope = None

    def __call__(self, w: Vector, rho: Any, g: Vector) -> Vector:
        """The displacement."""
        g = self.within(g)
        if self.metric is None:
            return rho * unit(g)
        tg = self.metric(w, g)
        return rho * self.metric(w, unit(tg))

    def within(self, v: Vector) -> Vector:
        """The part of a vector on the scope."""
        return v if self.on is None else v.only(self.names)

    @property
    def wrt(self) -> frozenset[str] | None:
        """The names to differentiate by for this climb; ``None`` for all."""
        return None if self.on is None else self.names

    @property
    def names(self) -> frozenset[str]:
        """The scope, which must have been bound to a model or to names."""
        if not isinstance(self.on, frozenset):
            raise TypeError(f"the scope {self.on!r} is not bound; call bind(rule, model) first.")
        return self.on


EVERYWHERE = Climb()

R = TypeVar("R", bound=Any)


def bind(rule: R, to: nn.Module | Mapping[str, Tensor]) -> R:
    """The rule with its scopes turned into the names of a model's parameters."""
    if isinstance(rule, type) or not is_dataclass(rule):
        raise TypeError(f"rule must be a rule such as samphire.sam(rho=0.05), got {rule!r}.")
    changes: dict[str, Any] = {}
    for f in fields(rule):
        value = getattr(rule, f.name)
        if f.name == "on" and callable(value):
            changes[f.name] = value(to)
        elif (is_dataclass(value) and hasattr(value, "gradient")) or isinstance(value, Climb):
            changes[f.name] = bind(value, to)
    return replace(rule, **changes) if changes else rule  # type: ignore[type-var]


def on(scope: str | Iterable[str] | Scope, rule: R) -> R:
    """Any rule, climbing only on a scope (a module's name, several, or a function of the model).

    Example:
        >>> from samphire.optim.rules import gsam
        >>> on("fc", gsam(rho=0.1)).climb.on
        below(names=('fc',))
    """
    changes: dict[str, Any] = {}
    for f in fields(rule):
        value = getattr(rule, f.name)
        if f.name == "on":
            changes["on"] = scopes.as_scope(scope)
        elif isinstance(value, Climb) or f.name == "rule":
            changes[f.name] = on(scope, value)
    if not changes:
        raise TypeError(f"{type(rule).__name__} climbs nowhere, so it cannot be limited to a scope.")
    return replace(rule, **changes)


def with_rho(rule: R, rho: Rho) -> R:
    """The rule with another radius; for a rule around a rule, the inner one's.

    Example:
        >>> from samphire.optim.rules import every
        >>> with_rho(every(2, sam(0.1)), 0.3).rule.rho
        0.3
    """
    if hasattr(rule, "rho"):
        return replace(rule, rho=rho)
    return replace(rule, rule=with_rho(rule.rule, rho))


def rho_of(rule: Rule) -> float | None:
    """A rule's radius, or that of the rule inside it, if it is a number.

    Example:
        >>> from samphire.optim.rules import every
        >>> rho_of(every(2, sam(0.1)))
        0.1
    """
    rho = getattr(rule, "rho", None)
    if rho is None and hasattr(rule, "rule"):
        return rho_of(rule.rule)
    return rho if isinstance(rho, (int, float)) else None


def branches(rule: Rule) -> bool:
    """Whether a rule, or the rule inside it, decides by the value of a tensor, so that no vmap can run it.

    Example:
        >>> from samphire.optim.rules import ae_sam, every
        >>> branches(every(2, sam())), branches(every(2, ae_sam()))
        (False, True)
    """
    return getattr(rule, "branches", False) or (hasattr(rule, "rule") and branches(rule.rule))


def needs_outputs(rule: Rule) -> bool:
    """Whether a rule, or the rule inside it, differentiates the model's outputs and the loss at two points.

    Example:
        >>> from samphire.optim.rules import every, functional_sam
        >>> needs_outputs(every(2, sam())), needs_outputs(every(2, functional_sam()))
        (False, True)
    """
    return getattr(rule, "needs_outputs", False) or (hasattr(rule, "rule") and needs_outputs(rule.rule))
