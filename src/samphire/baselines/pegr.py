"""PEGR: a penalty on the gradient norm of every example."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from samphire.checks import AtLeastZero, check_value, check_whole
from samphire.optim.per_example import Loss, Weights, loss_of_one, whole_weights

__all__ = ["pegr"]


def pegr(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, lam: float = 0.01, chunk: int = 16) -> Tensor:
    r"""Per-example gradient-norm regularization: the mean loss plus a penalty on each example's gradient.

    .. math:: \tfrac1n \textstyle\sum_i \ell_i + \tfrac\lambda2\, \tfrac1n \sum_i \|\nabla \ell_i\|^2, \qquad
              \text{of gradient } \tfrac1n \sum_i (g_i + \lambda H_i g_i).

    To first order this is SAM without normalization for each example by itself (m = 1). It is a loss, so it can be
    minimized by any optimizer and under any rule; ``backward`` finds the gradient ready.

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
    check_whole("pegr: chunk", chunk)
    check_value("pegr: lam", lam, AtLeastZero)
    _check_norms(model)
    w = whole_weights(model)
    one = loss_of_one(model, loss)

    def regularized(w: Weights, x: Tensor, y: Tensor) -> Tensor:
        g, value = grad_and_value(one)(w, x, y)
        return value + lam / 2 * sum(t.square().sum() for t in g.values())

    # vmap outside: with it between the two derivatives, torch 2.13 differentiates LayerNorm wrongly.
    each = vmap(grad_and_value(regularized), (None, 0, 0), randomness="different")
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


def _check_norms(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(
                f"pegr: {name!r} is a BatchNorm layer in training mode, where examples share statistics and none "
                "has a gradient of its own; call .eval() on it, or use GroupNorm."
            )
