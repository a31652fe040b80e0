"""A model's loss over its data as one function of the weights, evaluated without changing the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from samphire.optim.rules.asam import Magnitude
from samphire.restore import kept_modes, replayed_rng, rng_state, unwrapped
from samphire.tree import Vector

Weights = dict[str, Tensor]
HERE = Vector()


class Estimate(NamedTuple):
    """A mean over random draws, its standard error (nan for one draw), and how many there were.

    Example:
        >>> Estimate.of([1.0, 2.0, 3.0])
        Estimate(mean=2.0, error=0.577..., n=3)
    """

    mean: float
    error: float
    n: int

    @classmethod
    def of(cls, draws: Sequence[float]) -> Estimate:
        """From independent draws."""
        n = len(draws)
        error = float(np.std(draws, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
        return cls(float(np.mean(draws)), error, n)

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.error:.1g} ({self.n} draws)"


class Evaluate(Protocol):
    """The loss on one batch as a function of the weights."""

    def __call__(self, w: Weights, batch: Any) -> tuple[Tensor, int]:
        """Either every example's loss, or their mean; and the number of examples."""

    def undisturbed(self) -> Any:
        """A context within which it may be called, and after which everything is as it was."""


@dataclass(frozen=True, eq=False)
class Landscape:
    r"""The loss :math:`L(w)` of a model over data, around the weights it has now.

    Everything in :mod:`samphire.landscape` takes one of these. Evaluations are exact over all batches (each counts
    by its size, so the division into batches changes nothing but rounding), need the memory of one batch, and leave
    the model's weights, buffers, gradients, mode and the random state as they are. Weights and buffers are copied, so
    training the model on does not move the landscape.

    Vectors are displacements :math:`u` from the weights; the loss is read at :math:`w + T u`, where
    :math:`T = 1` unless :meth:`scaled` says otherwise.

    Build one by :meth:`of` (model, loss, data) or :meth:`of_function`.

    Attributes:
        w: The weights.
        state: What the model's mode means for its layers, in words.
    """

    w: Vector
    evaluate: Evaluate
    batches: Iterable[Any]
    state: str = ""
    metric: Callable[[Vector], Vector] = lambda v: v

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        batches: Iterable[tuple[Tensor, Tensor]] | tuple[Tensor, Tensor],
        training: bool = False,
    ) -> Landscape:
        """The landscape of a model; its parameters with ``requires_grad`` are the coordinates.

        Args:
            model: Any module that is called with ``x``.
            loss: Called with the model's output and ``y``; gives each example's loss (``reduction="none"``) or the
                batch's mean.
            batches: One pair ``(x, y)`` of tensors, or pairs that come in the same order whenever they are iterated
                over: a list, or a DataLoader with ``shuffle=False``.
            training: Whether layers behave as in training. BatchNorm then normalises by each batch, so the division
                into batches matters, and dropout is refused, as is whatever else gives two losses for one input.

        Example:
            >>> model = nn.Linear(1, 1, bias=False)
            >>> _ = nn.init.constant_(model.weight, 2.0)
            >>> x, y = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [0.0]])
            >>> here = Landscape.of(model, nn.functional.mse_loss, (x, y))
            >>> here.loss, here.n, here.dimension
            (20.0, 2, 1)
        """
        model = unwrapped(model)  # torch.compile cannot differentiate twice
        w = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        if not w:
            raise ValueError(
                f"{type(model).__name__} has no differentiable parameters, so its loss has no landscape; "
                "set requires_grad on those you want to vary."
            )
        if isinstance(batches, Iterator):
            raise TypeError(
                f"batches must allow more than one pass, got a {type(batches).__name__}; pass list(batches), "
                "or the DataLoader itself."
            )
        fixed = {n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers()) if n not in w}
        call = _Model(model, loss, fixed, training)
        data = [batches] if _is_pair(batches) else batches
        landscape = cls(Vector(w), call, data, _state(model, training))
        landscape._check()
        return landscape

    @classmethod
    def of_function(cls, f: Callable[[Weights], Tensor], w: Mapping[str, Tensor]) -> Landscape:
        """The landscape of any differentiable function of named tensors, without data.

        Args:
            f: Gives a 0-dim tensor.
            w: Where it is looked at.

        Example:
            >>> here = Landscape.of_function(lambda w: (w["x"] ** 4).sum(), {"x": torch.tensor([1.0])})
            >>> here.gradient()[1]
            Vector({'x': tensor([4.])})
        """
        point = {name: t.detach().clone() for name, t in w.items() if t.is_floating_point()}
        if not point:
            raise ValueError("w has no floating-point tensors, so there is nothing to differentiate by.")
        landscape = cls(Vector(point), _Function(f), [None])
        landscape._check()
        return landscape

    def scaled(self, eta: float = 0.01, scaled: Literal["weights", "matrices", "all"] = "weights") -> Landscape:
        r"""The same landscape in ASAM's coordinates, :math:`w + T u` with :math:`T = |w| + \eta`.

        Every measure then is the adaptive one: balls :math:`\|T^{-1}\epsilon\| \le \rho`, gradient :math:`T g`,
        Hessian :math:`T H T`. It hardly changes when one layer is scaled up and the next one down; the plain one
        does.

        Args:
            eta: Keeps weights near zero movable.
            scaled: Which tensors, as in :func:`samphire.optim.asam`.

        Example:
            >>> f = lambda w: 0.5 * (w["weight"] ** 2).sum()
            >>> here = Landscape.of_function(f, {"weight": torch.tensor([3.0])})
            >>> here.scaled(eta=0.0).gradient()[1]
            Vector({'weight': tensor([9.])})
        """
        return replace(self, metric=partial(Magnitude(eta, scaled), self.w))

    def only(self, chosen: Any) -> Landscape:
        """The landscape of some of the examples.

        Args:
            chosen: A truth value for each example, in the order of the batches.

        Example:
            >>> x, y = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [0.0]])
            >>> here = Landscape.of(nn.Linear(1, 1), nn.functional.mse_loss, (x, y))
            >>> here.only([False, True]).n
            1
        """
        mask = torch.as_tensor(np.asarray(chosen))
        if mask.dtype != torch.bool or mask.shape != (self.n,):
            raise ValueError(
                f"chosen must be a truth value for each of the {self.n} examples, got {mask.dtype} of shape "
                f"{tuple(mask.shape)}."
            )
        if not mask.any():
            raise ValueError(f"the group is empty: none of the {self.n} examples is chosen; leave it out.")
        return replace(self, batches=_Chosen(self.batches, mask))

    def groups(self, labels: Any) -> dict[Any, Landscape]:
        """The landscape of each group of examples: sharp for whom?

        Args:
            labels: A group for each example, in the order of the batches: numbers or names.

        Example:
            >>> x, y = torch.tensor([[1.0], [3.0], [5.0]]), torch.zeros(3, 1)
            >>> here = Landscape.of(nn.Linear(1, 1), nn.functional.mse_loss, (x, y))
            >>> {name: part.n for name, part in here.groups(["land", "water", "land"]).items()}
            {'land': 2, 'water': 1}
        """
        labels = np.asarray(labels)
        if labels.shape != (self.n,):
            raise ValueError(f"labels must be a group for each of {self.n} examples, got shape {labels.shape}.")
        return {group: self.only(labels == group) for group in np.unique(labels).tolist()}

    def chunks(self, m: int) -> Iterator[Landscape]:
        """The landscapes of ``m`` examples each, in order; the last one may have fewer."""
        chunk: list[tuple[Tensor, Tensor]] = []
        for x, y in self._pairs():
            while len(y):
                missing = m - sum(len(part) for _, part in chunk)
                chunk.append((x[:missing], y[:missing]))
                x, y = x[missing:], y[missing:]
                if sum(len(part) for _, part in chunk) == m:
                    yield replace(self, batches=chunk)
                    chunk = []
        if chunk:
            yield replace(self, batches=chunk)

    @cached_property
    def loss(self) -> float:
        """The mean loss at the weights; refused if it is not finite."""
        value, _ = self._here
        if not math.isfinite(value):
            raise ValueError(
                f"the loss is {value} at the weights themselves; look at the data and the weights for values that "
                "are not finite."
            )
        return value

    @property
    def n(self) -> int:
        """The number of examples."""
        return self._here[1]

    @cached_property
    def _here(self) -> tuple[float, int]:
        return self._mean(HERE)

    @property
    def dimension(self) -> int:
        """The number of weights."""
        return sum(t.numel() for t in self.w.tensors.values())

    def value(self, u: Vector = HERE) -> float:
        """The loss at ``w + T u``, summed in float64; inf or nan where the model overflows.

        Args:
            u: The displacement; none for the weights themselves.
        """
        return self._mean(u)[0]

    def gradient(self, u: Vector = HERE) -> tuple[float, Vector]:
        """The loss at ``w + T u`` and its gradient by ``u``.

        Args:
            u: The displacement; none for the weights themselves.
        """
        w = self._leaves(u)
        loss, n, total = 0.0, 0, [torch.zeros_like(t) for t in w.values()]
        with self.evaluate.undisturbed(), torch.enable_grad():
            for batch in self.batches:
                part, size = self.evaluate(w, batch)
                loss, n = loss + _sum(part, size), n + size
                _add(total, torch.autograd.grad(_scalar(part, size), list(w.values()), materialize_grads=True))
        return loss / n, self.metric(Vector(dict(zip(w, total, strict=True)), 1 / n))

    def products(self, vectors: Sequence[Vector]) -> list[Vector]:
        """Exact Hessian-vector products ``T H T v`` at the weights, by differentiating the gradient.

        All vectors share one forward and one backward pass for each batch, a third of the cost of a product.

        Args:
            vectors: In the coordinates ``u``.

        Example:
            >>> here = Landscape.of_function(lambda w: (w["x"] ** 3).sum(), {"x": torch.tensor([2.0, 1.0])})
            >>> here.products([Vector({"x": torch.tensor([1.0, 1.0])})])
            [Vector({'x': tensor([12.,  6.])})]
        """
        w = self._leaves(HERE)
        leaves, n = list(w.values()), 0
        along = [_aligned(self.metric(v).dense(), w) for v in vectors]
        totals = [[torch.zeros_like(t) for t in leaves] for _ in vectors]
        with self.evaluate.undisturbed(), torch.enable_grad():
            for batch in self.batches:
                part, size = self.evaluate(w, batch)
                n += size
                g = torch.autograd.grad(_scalar(part, size), leaves, create_graph=True, materialize_grads=True)
                varying = [i for i, t in enumerate(g) if t.requires_grad]  # what is linear has no second derivative
                for i, (v, total) in enumerate(zip(along, totals, strict=True)):
                    if varying:
                        outputs, directions = [g[j] for j in varying], [v[j] for j in varying]
                        more = i + 1 < len(along)
                        h = torch.autograd.grad(
                            outputs, leaves, directions, retain_graph=more, materialize_grads=True
                        )
                        _add(total, h)
                del part, g  # the graph of one batch is gone before the next one is built
        return [self.metric(Vector(dict(zip(w, total, strict=True)), 1 / n)) for total in totals]

    def __repr__(self) -> str:
        data = f"{self.n} examples, " if self.state else ""
        return f"Landscape({data}{self.dimension} weights, loss {self.loss:.4g}{', ' * bool(self.state)}{self.state})"

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches for a caller whose own random numbers must not shift: a DataLoader draws some."""
        with self.evaluate.undisturbed():
            batches = iter(self.batches)
        while True:
            with self.evaluate.undisturbed():
                batch = next(batches, None)
            if batch is None:
                return
            yield _pair(batch)

    def _mean(self, u: Vector) -> tuple[float, int]:
        w = (self.w + self.metric(u)).dense()
        loss, n = 0.0, 0
        with self.evaluate.undisturbed(), torch.no_grad():
            for batch in self.batches:
                part, size = self.evaluate(w, batch)
                loss, n = loss + _sum(part, size), n + size
        if n == 0:
            raise ValueError("batches has no examples; an exhausted or empty data set cannot be measured.")
        return loss / n, n

    def _leaves(self, u: Vector) -> Weights:
        return {name: t.detach().requires_grad_() for name, t in (self.w + self.metric(u)).dense().items()}

    def _check(self) -> None:
        """Refuse what is no function of the weights: a loss that is not finite, random, constant or unrepeatable."""
        self.loss  # noqa: B018
        with self.evaluate.undisturbed(), torch.enable_grad():
            first, again = next(iter(self.batches)), next(iter(self.batches))
            w = self._leaves(HERE)
            losses = [_sum(*self.evaluate(w, first)) for _ in range(4)]
            if _differ(losses):
                raise ValueError(
                    f"{_culprit(self.evaluate, w, first)} gives different results for the same input; switch its "
                    "randomness off (dropout: training=False), since a landscape needs one loss for each point."
                )
            if first is not None and not all(
                torch.equal(a, b) for a, b in zip(_pair(first), _pair(again), strict=True)
            ):
                raise ValueError(
                    "batches gives other examples at a second pass; pass list(batches), or a DataLoader with "
                    "shuffle=False and no random augmentation."
                )
            if not self.evaluate(w, first)[0].requires_grad:
                raise ValueError("the loss does not depend on the differentiable parameters; look for a detach().")


@dataclass(frozen=True, eq=False)
class _Model:
    model: nn.Module
    loss: Callable[[Any, Tensor], Tensor]
    fixed: Weights
    training: bool

    def __call__(self, w: Weights, batch: Any) -> tuple[Tensor, int]:
        x, y = (t.to(next(iter(w.values())).device) for t in _pair(batch))
        part = self.loss(torch.func.functional_call(self.model, {**self.fixed, **w}, (x,)), y)
        if not isinstance(part, Tensor) or part.shape not in ((), (len(y),)):
            got = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise ValueError(f"the loss of {len(y)} examples must be their mean or a number for each, got {got}.")
        return part, len(y)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        state = rng_state({t.device for t in self.model.parameters()})
        with kept_modes(self.model), replayed_rng(state):
            self.model.train(self.training)
            yield


@dataclass(frozen=True, eq=False)
class _Function:
    f: Callable[[Weights], Tensor]

    def __call__(self, w: Weights, batch: Any) -> tuple[Tensor, int]:
        value = self.f(w)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the function must give a 0-dim tensor, got {got}.")
        return value.reshape(()), 1

    def undisturbed(self) -> Any:
        return torch.random.fork_rng([])


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Batches without the examples that are not chosen."""

    batches: Iterable[Any]
    mask: Tensor

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for x, y in map(_pair, self.batches):
            here = self.mask[start : start + len(y)].to(x.device)
            start += len(y)
            if here.any():
                yield x[here], y[here.to(y.device)]


def _state(model: nn.Module, training: bool) -> str:
    norms = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    drops = sum(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules())
    said = ["training mode" if training else "eval mode"]
    if norms:
        said.append(f"{norms} BatchNorm by {'the statistics of each batch' if training else 'running statistics'}")
    if drops:
        said.append(f"{drops} dropout off")
    return ", ".join(said)


def _is_pair(batches: Any) -> bool:
    return isinstance(batches, (tuple, list)) and len(batches) == 2 and all(isinstance(t, Tensor) for t in batches)


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    try:
        x, y = map(torch.as_tensor, batch)
        if len(x) == len(y):
            return x, y
        got = f"{len(x)} inputs and {len(y)} labels"
    except (TypeError, ValueError, RuntimeError):
        got = type(batch).__name__
    raise ValueError(f"each batch must be a pair (x, y) of tensors with as many examples, got {got}.")


def _scalar(part: Tensor, size: int) -> Tensor:
    """The sum over the batch, to differentiate."""
    return part.sum() if part.ndim else part * size


def _sum(part: Tensor, size: int) -> float:
    """The same as a number, in float64: differences of losses are small."""
    exact = part.detach().cpu().double()
    return (exact.sum() if part.ndim else exact * size).item()


def _add(total: list[Tensor], part: Sequence[Tensor]) -> None:
    torch._foreach_add_(total, list(part))


def _aligned(v: Weights, w: Weights) -> list[Tensor]:
    return [v[name].to(t.dtype) if name in v else torch.zeros_like(t) for name, t in w.items()]


def _differ(losses: Sequence[float]) -> bool:
    """Beyond what a reduction in another order changes."""
    return max(losses) - min(losses) > 1e-5 * max(map(abs, losses))


def _culprit(evaluate: Evaluate, w: Weights, batch: Any) -> str:
    """The innermost layer whose output differs between two passes, in words."""
    if not isinstance(evaluate, _Model):
        return "the function"
    outputs: list[tuple[str, nn.Module, Tensor]] = []
    names = {module: name for name, module in evaluate.model.named_modules()}

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs.append((names[module], module, output.detach()))

    hooks = [module.register_forward_hook(keep) for module in names]
    try:
        for _ in range(8):
            evaluate(w, batch)
    finally:
        for hook in hooks:
            hook.remove()
    calls = len(outputs) // 8
    for i, (name, module, output) in enumerate(outputs[:calls]):
        others = (outputs[i + k * calls][2] for k in range(1, 8))
        if not all(torch.allclose(output, other, rtol=1e-5, equal_nan=True) for other in others):
            return f"layer {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
    return "the loss function"
