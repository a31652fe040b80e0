"""Gradients of single examples, by torch.func and in chunks: Fisher information, and PEGR's penalty on their norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.parallel import DistributedDataParallel

from samphire import tree
from samphire.restore import evaluation_mode

Loss = Callable[[Tensor, Tensor], Tensor]
Weights = dict[str, Tensor]


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
    _check_chunk(chunk)
    w = _weights(model)
    total, n = {name: torch.zeros_like(t) for name, t in w.items()}, 0
    with evaluation_mode(model):
        each = vmap(grad(_of_one(model, loss)), (None, 0, 0))
        for x, y in batches:
            for some_x, some_y in zip(x.split(chunk), y.split(chunk), strict=True):
                for name, g in each(w, some_x, some_y).items():
                    total[name] += g.square().sum(0)
            n += len(x)
    if n == 0:
        raise ValueError("fisher: batches must have at least one example, got none; a generator serves once.")
    return {tree.plain_name(model, name): t / n for name, t in total.items()}


def pegr(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, lam: float = 0.01, chunk: int = 16) -> Tensor:
    r"""Per-example gradient-norm regularisation: the mean loss plus a penalty on each example's gradient.

    .. math:: \tfrac1n \textstyle\sum_i \ell_i + \tfrac\lambda2\, \tfrac1n \sum_i \|\nabla \ell_i\|^2, \qquad
              \text{of gradient } \tfrac1n \sum_i (g_i + \lambda H_i g_i).

    To first order this is SAM without normalisation for each example by itself (m = 1). It is a loss, so it can be
    minimised by any optimizer and under any rule; ``backward`` finds the gradient ready.

    Args:
        model: The model. BatchNorm layers must be in evaluation mode: in training, examples share statistics and
            no gradient is one example's.
        loss: Of outputs and targets, such as ``F.cross_entropy``; it is called with one example at a time.
        x: Inputs.
        y: Targets.
        lam: Weight of the penalty.
        chunk: Examples whose gradients are in memory at once: some ``3 * chunk`` copies of the parameters.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> half_square = lambda out, y: (out - y).square().mean() / 2
        >>> pegr(model, half_square, torch.ones(1, 1), torch.zeros(1, 1), lam=0.1).backward()
        >>> bool(torch.isclose(model.weight.grad, 1.1 * model.weight).all())
        True

    References:
        Meng, Cao and Zou, Per-Example Gradient Regularization Improves Learning Signals from Noisy Data, 2023,
        https://arxiv.org/abs/2303.17940
    """
    _check_chunk(chunk)
    if not lam >= 0:
        raise ValueError(f"pegr: lam must be >= 0, got {lam!r}.")
    _check_norms(model)
    w = _weights(model)
    one = _of_one(model, loss)

    def regularised(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        g, value = grad_and_value(one)(w, x, y)
        return value + lam / 2 * sum(t.square().sum() for t in g.values())

    # vmap outside: with it between the two derivatives, torch 2.13 differentiates LayerNorm wrongly.
    each = vmap(grad_and_value(regularised), (None, 0, 0), randomness="different")
    total, gradient = torch.zeros((), device=x.device), {name: torch.zeros_like(t) for name, t in w.items()}
    for some_x, some_y in zip(x.split(chunk), y.split(chunk), strict=True):
        g, values = each(w, some_x, some_y)
        total = total + values.sum()
        for name, t in g.items():
            gradient[name] += t.sum(0)
    return _with_gradient(total, gradient, dict(model.named_parameters())) / len(x)


def _with_gradient(value: Tensor, gradient: Weights, parameters: dict[str, nn.Parameter]) -> Tensor:
    """A scalar of this value, whose gradient is already known."""
    return value + sum(
        ((p - p.detach()) * gradient[name]).sum() for name, p in parameters.items() if name in gradient
    )


def _of_one(model: nn.Module, loss: Loss) -> Callable[[Weights, Tensor, Tensor], Tensor]:
    """The loss of one example as a function of the weights."""
    return lambda w, x, y: loss(functional_call(model, w, (x[None],)), y[None]).mean()


def _weights(model: nn.Module) -> Weights:
    if isinstance(model, DistributedDataParallel) or any(map(tree.is_sharded, model.parameters())):
        raise ValueError("per-example gradients need whole parameters without data parallelism; pass model.module.")
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def _check_norms(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(
                f"pegr: {name!r} is a BatchNorm layer in training mode, where examples share statistics and none "
                "has a gradient of its own; call .eval() on it, or use GroupNorm."
            )


def _check_chunk(chunk: int) -> None:
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk must be a number of examples >= 1, got {chunk!r}.")
