"""Importance weights of a real network at the phantom parameter of each batch, under any rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from samphire.checks import check_one_of
from samphire.mechanisms.weights import importance_weights
from samphire.optim.requests import At, Memory, Rule, bind, drive
from samphire.restore import untouched
from samphire.tree import Vector

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Logits = Callable[[dict[str, Tensor]], Tensor]
Statistics = Literal["train", "eval"]

__all__ = ["BatchWeights", "Statistics", "batch_weights"]


@dataclass(frozen=True)
class BatchWeights:
    """Importance weights of examples, in the order of the batches.

    Attributes:
        real: At the model's own weights (n,), float64.
        phantom: At the phantom parameter of the example's batch (n,), float64.
        batch: Which batch that is, counted from 0 (n,).
    """

    real: Tensor
    phantom: Tensor
    batch: Tensor


def batch_weights(
    model: nn.Module,
    rule: Rule,
    batches: Iterable[Batch],
    *,
    loss: Loss = F.cross_entropy,
    batch_norm: Statistics = "train",
) -> BatchWeights:
    r"""Each example's importance weight at the real and at the phantom parameter, batch by batch as in training.

    For a batch B with :math:`\tilde w_B = w + \epsilon(\nabla L_B(w))`, where the rule reads its last gradient,

    .. math:: \lambda_i = 1 - p_w(y_i \mid x_i), \qquad \tilde\lambda_i = 1 - p_{\tilde w_B}(y_i \mid x_i),
              \qquad i \in B

    (:func:`importance_weights`). A batch costs one forward and backward pass for each gradient that the rule
    asks for, and less where the rule moves the last Linear alone, as ``lsam`` does: the body then runs once, without
    gradients. Afterwards weights, buffers, gradients and modes of the model and the random number generators are as
    before, also when a pass fails.

    Args:
        model: Any classifier that is called with ``x`` and returns logits.
        rule: A rule of :mod:`samphire.optim.rules` that takes the batch as a whole. It starts each batch without
            memory of earlier steps.
        batches: Pairs of inputs, as the network takes them, and labels; each example in one batch.
        loss: The mean loss of a batch, from logits and labels: what the rule climbs.
        batch_norm: ``"train"``: BatchNorm normalizes by the batch, at the real and at the phantom parameter, as in a
            step of training. ``"eval"``: by its running statistics. Other layers are in evaluation mode: no dropout.

    Example:
        >>> model = nn.Linear(1, 2, bias=False)
        >>> _ = nn.init.zeros_(model.weight)  # p = 1/2, the gradient is (1, -1), the phantom weight too
        >>> batch = torch.tensor([[2.0]]), torch.tensor([1])
        >>> weights = batch_weights(model, sam(rho=2**0.5), [batch])
        >>> weights.real, weights.phantom  # phantom: sigmoid(2 + 2)
        (tensor([0.5000], dtype=torch.float64), tensor([0.9820], dtype=torch.float64))

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, section 6.2 ("in a real-world setup"), which does not say how
        BatchNorm was treated.
    """
    check_one_of("mode of BatchNorm", batch_norm, ("train", "eval"))
    w = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    bound = bind(rule, model)
    wrt = next(bound.gradient(Vector(w), Memory(n=1))).wrt
    moved = {name: t for name, t in w.items() if not wrt or name in wrt}
    parts = []
    with _normalizing(model, batch_norm):
        for k, (x, y) in enumerate(batches):
            x, y = (t.to(next(iter(w.values())).device) for t in (x, y))
            logits = _visited(bound, moved, _logits_of(model, x, moved), loss, y)
            real, phantom = (importance_weights(z.double(), y).cpu() for z in (logits[0], logits[-1]))
            parts.append((real, phantom, torch.full((len(y),), k)))
    if not parts:
        raise ValueError("there are no batches to weigh the examples of; give at least one.")
    return BatchWeights(*map(torch.cat, zip(*parts, strict=True)))


@contextmanager
def _normalizing(model: nn.Module, batch_norm: Statistics) -> Iterator[None]:
    """BatchNorm in a given mode, all other layers in evaluation mode; afterwards everything is as before."""
    with untouched(model):
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train(batch_norm == "train")
        yield


def _visited(rule: Rule, w: dict[str, Tensor], logits: Logits, loss: Loss, y: Tensor) -> list[Tensor]:
    """The batch's logits at every point where the rule asks for a gradient: the first is real, the last phantom."""
    visited: list[Tensor] = []

    def answer(request: At) -> Vector:
        if request.examples is not None or request.weights is not None or request.losses:
            raise TypeError("batch_weights needs a rule that takes the batch as a whole, such as sam or lsam.")
        if request.output_gradient != "here":
            raise TypeError("batch_weights needs a rule that weighs the examples where it asks, such as sam or lsam.")
        point = {name: t.detach().requires_grad_() for name, t in (Vector(w) + request.eps).dense().items()}
        with torch.enable_grad():
            z = logits(point)
            g = torch.autograd.grad(loss(z, y), list(point.values()), materialize_grads=True)
        visited.append(z.detach())
        return Vector(dict(zip(point, g, strict=True)))

    drive(rule, w, Memory(n=len(y)), answer)
    return visited


def _logits_of(model: nn.Module, x: Tensor, moved: Iterable[str]) -> Logits:
    """A batch's logits as a function of the weights that move; where only a head moves, the body runs once."""
    layers = {name.rpartition(".")[0] for name in moved}
    if len(layers) == 1:
        (name,) = layers
        layer, calls = model.get_submodule(name), []
        hook = layer.register_forward_hook(lambda _, inputs, output: calls.append((inputs, output)))
        try:
            z = model(x)
        finally:
            hook.remove()
        if len(calls) == 1 and calls[0][1] is z:  # nothing follows the layer: it is the head
            return lambda w: functional_call(layer, {n.rpartition(".")[2]: t for n, t in w.items()}, calls[0][0])
    return lambda w: functional_call(model, w, (x,))
