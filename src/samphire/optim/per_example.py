"""Gradients of single examples, by torch.func and in chunks: the Fisher information."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from samphire import tree
from samphire.checks import check_whole
from samphire.restore import data_parallel, evaluation_mode

Loss = Callable[[Tensor, Tensor], Tensor]
Weights = dict[str, Tensor]

__all__ = ["fisher"]


def fisher(
    model: nn.Module, loss: Loss, batches: Iterable[tuple[Tensor, Tensor]], *, chunk: int = 16
) -> dict[str, Tensor]:
    r"""The diagonal of the empirical Fisher information: the mean over examples of the squared gradient.

    .. math:: F = \tfrac1n \textstyle\sum_i (\nabla_w \ell_i)^2.

    The model is in evaluation mode meanwhile (BatchNorm by its running statistics, no dropout) and as it was
    afterwards: weights, gradients, buffers, modes.

    Args:
        model: The model.
        loss: Of outputs and targets, such as ``F.cross_entropy``; it is called with one example at a time.
        batches: Pairs (x, y); 128 to 1024 examples in all are usual.
        chunk: Examples whose gradients are in memory at once.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> half_square = lambda out, y: (out - y).square().mean() / 2
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)
        >>> fisher(model, half_square, [(x, y)])["weight"] / model.weight.detach() ** 2  # (1 + 2**4) / 2
        tensor([[8.5000]])

    References:
        Mi et al., NeurIPS 2022 (for :func:`samphire.optim.ssam_f`), https://arxiv.org/abs/2210.05177
    """
    check_whole("fisher: chunk", chunk)
    w = whole_weights(model)
    total, n = {name: torch.zeros_like(t) for name, t in w.items()}, 0
    with evaluation_mode(model):
        each = vmap(grad(loss_of_one(model, loss)), (None, 0, 0))
        for x, y in batches:
            for some_x, some_y in zip(x.split(chunk), y.split(chunk), strict=True):
                for name, g in each(w, some_x, some_y).items():
                    total[name] += g.square().sum(0)
            n += len(x)
    if n == 0:
        raise ValueError("fisher: batches must have at least one example, got none; a generator serves once.")
    return {tree.plain_name(model, name): t / n for name, t in total.items()}


def loss_of_one(model: nn.Module, loss: Loss) -> Callable[[Weights, Tensor, Tensor], Tensor]:
    """The loss of one example as a function of the weights."""
    return lambda w, x, y: loss(functional_call(model, w, (x[None],)), y[None]).mean()


def whole_weights(model: nn.Module) -> Weights:
    """The weights that are trained, by name."""
    if data_parallel(model) is not None or any(map(tree.is_sharded, model.parameters())):
        raise ValueError("per-example gradients need whole parameters without data parallelism; pass model.module.")
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
