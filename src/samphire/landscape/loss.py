"""A model's loss over its data as one function of the weights, evaluated without changing the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from samphire.landscape.diagnosis import check_function
from samphire.landscape.evaluation import (
    ChosenExamples,
    Evaluate,
    FunctionLoss,
    ModelLoss,
    Weights,
    is_pair,
    mode_in_words,
    pair,
    summed,
    total,
)
from samphire.optim.rules.asam import Magnitude
from samphire.restore import unwrapped
from samphire.tree import Vector

HERE = Vector()

__all__ = ["Landscape"]


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
        evaluate: The loss of one batch.
        batches: The data.
        state: What the model's mode means for its layers, in words.
        metric: Multiplies a displacement by T.
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
            batches: One pair ``(x, y)`` of tensors, or pairs in the same order at every pass: a list, or a DataLoader
                with ``shuffle=False``.
            training: Whether layers behave as in training. BatchNorm then normalizes by each batch, so the division
                into batches matters, and dropout is refused, like everything that gives two losses for one input.

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
        evaluate = ModelLoss(model, loss, fixed, training)
        data = [batches] if is_pair(batches) else batches
        return cls(Vector(w), evaluate, data, mode_in_words(model, training))._checked()

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
        return cls(Vector(point), FunctionLoss(f), [None])._checked()

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
        return replace(self, batches=ChosenExamples(self.batches, mask))

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
        loss, n, g = 0.0, 0, [torch.zeros_like(t) for t in w.values()]
        with self.evaluate.undisturbed(), torch.enable_grad():
            for batch in self.batches:
                part, size = self.evaluate(w, batch)
                loss, n = loss + total(part, size), n + size
                _add(g, torch.autograd.grad(summed(part, size), list(w.values()), materialize_grads=True))
        return loss / n, self.metric(Vector(dict(zip(w, g, strict=True)), 1 / n))

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
        images = [[torch.zeros_like(t) for t in leaves] for _ in vectors]
        with self.evaluate.undisturbed(), torch.enable_grad():
            for batch in self.batches:
                part, size = self.evaluate(w, batch)
                n += size
                g = torch.autograd.grad(summed(part, size), leaves, create_graph=True, materialize_grads=True)
                varying = [i for i, t in enumerate(g) if t.requires_grad]  # what is linear has no second derivative
                outputs = [g[j] for j in varying]
                for v, image in zip(along, images, strict=True):
                    if varying:
                        directions, more = [v[j] for j in varying], v is not along[-1]
                        _add(image, torch.autograd.grad(outputs, leaves, directions, more, materialize_grads=True))
                del part, g, outputs  # the graph of one batch is gone before the next one is built
        return [self.metric(Vector(dict(zip(w, image, strict=True)), 1 / n)) for image in images]

    def __repr__(self) -> str:
        data = f"{self.n} examples, " if self.state else ""
        return f"Landscape({data}{self.dimension} weights, loss {self.loss:.4g}{', ' * bool(self.state)}{self.state})"

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches; a DataLoader draws random numbers, which must not shift those of the caller."""
        with self.evaluate.undisturbed():
            batches = iter(self.batches)
        while True:
            with self.evaluate.undisturbed():
                batch = next(batches, None)
            if batch is None:
                return
            yield pair(batch)

    def _mean(self, u: Vector) -> tuple[float, int]:
        w = (self.w + self.metric(u)).dense()
        loss, n = 0.0, 0
        with self.evaluate.undisturbed(), torch.no_grad():
            for batch in self.batches:
                part, size = self.evaluate(w, batch)
                loss, n = loss + total(part, size), n + size
        if n == 0:
            raise ValueError("batches has no examples; an exhausted or empty data set cannot be measured.")
        return loss / n, n

    def _leaves(self, u: Vector) -> Weights:
        return {name: t.detach().requires_grad_() for name, t in (self.w + self.metric(u)).dense().items()}

    def _checked(self) -> Landscape:
        """The landscape itself, if its loss is finite and a function of the weights."""
        self.loss  # noqa: B018
        check_function(self.evaluate, self.batches, self._leaves(HERE))
        return self


def _add(total: list[Tensor], part: Sequence[Tensor]) -> None:
    torch._foreach_add_(total, list(part))


def _aligned(v: Weights, w: Weights) -> list[Tensor]:
    return [v[name].to(t.dtype) if name in v else torch.zeros_like(t) for name, t in w.items()]
