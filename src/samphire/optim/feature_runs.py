r"""Many small runs of a stack of Linear, LayerNorm and ReLU layers under a head that weighs its features.

The backward pass is written out, and the algorithms of section 6 of Springer et al. (2024) are one table.

Symbols: R runs, B examples, K features, ``P`` the features (R, B, K), ``v`` the head (R, 1, K).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from samphire.optim.batched import Weights

__all__ = ["ALGORITHMS", "Algorithm", "FeatureRuns", "Stack"]


class _Scratch:
    """Tensors by use and shape, allocated once: allocation costs more than the arithmetic."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, use: str, shape: Sequence[int], like: Tensor) -> Tensor:
        key = (use, *shape)
        if key not in self._kept:
            self._kept[key] = torch.empty(*shape, dtype=like.dtype, device=like.device)
        return self._kept[key]


class _Linear:
    """``z = x W' + b``."""

    def __init__(self, layer: nn.Linear, name: str, scratch: _Scratch) -> None:
        self.weight, self.bias, self.scratch = f"{name}.weight", f"{name}.bias", scratch
        self.o = layer.out_features

    def forward(self, w: Weights, x: Tensor) -> Tensor:
        self.x = x
        z = self.scratch(self.weight, (*x.shape[:2], self.o), x)
        return torch.baddbmm(w[self.bias].unsqueeze(1), x, w[self.weight].mT, out=z)

    def backward(self, w: Weights, d: Tensor, into: Weights, alpha: float, first: bool) -> Tensor:
        dx = d if first else torch.bmm(d, w[self.weight], out=self.scratch(self.bias, self.x.shape, d))
        into[self.weight].baddbmm_(d.mT, self.x, alpha=alpha)
        into[self.bias].add_(d.sum(1), alpha=alpha)
        return dx


class _LayerNorm:
    """``h = gamma n + beta``, ``n = (z - mean z) / std z`` over the last axis."""

    def __init__(self, layer: nn.LayerNorm, name: str, scratch: _Scratch) -> None:
        self.gamma, self.beta, self.scratch, self.eps = f"{name}.weight", f"{name}.bias", scratch, layer.eps

    def forward(self, w: Weights, z: Tensor) -> Tensor:
        self.z = z
        self.n, self.mean, self.rstd = torch.native_layer_norm(z, z.shape[-1:], None, None, self.eps)
        h = self.scratch(self.gamma, z.shape, z)
        return torch.addcmul(w[self.beta].unsqueeze(1), self.n, w[self.gamma].unsqueeze(1), out=h)

    def backward(self, w: Weights, d: Tensor, into: Weights, alpha: float, first: bool) -> Tensor:
        dgamma, dbeta = torch.mul(d, self.n, out=self.scratch("dgamma", d.shape, d)).sum(1), d.sum(1)
        dn = d.mul_(w[self.gamma].unsqueeze(1))
        into[self.gamma].add_(dgamma, alpha=alpha)
        into[self.beta].add_(dbeta, alpha=alpha)
        return torch.ops.aten.native_layer_norm_backward(
            dn, self.z, d.shape[-1:], self.mean, self.rstd, None, None, [True, False, False]
        )[0]


class _ReLU:
    """``h = max(z, 0)``."""

    def __init__(self, layer: nn.ReLU, name: str, scratch: _Scratch) -> None:
        pass

    def forward(self, w: Weights, z: Tensor) -> Tensor:
        self.h = z.relu_()
        return self.h

    def backward(self, w: Weights, d: Tensor, into: Weights, alpha: float, first: bool) -> Tensor:
        return torch.ops.aten.threshold_backward.grad_input(d, self.h, 0, grad_input=d)


KERNELS: dict[type[nn.Module], Any] = {nn.Linear: _Linear, nn.LayerNorm: _LayerNorm, nn.ReLU: _ReLU}


class Stack:
    r"""A chain of Linear, LayerNorm and ReLU layers for R runs at once, with its backward pass written out.

    ``backward`` adds ``alpha`` times the gradient to a set of weights: to zeros for the gradient itself, or to the
    weights it was taken at for a step of descent, which then costs no memory and no second pass over them.

    Args:
        layers: The chain; it must start with a Linear layer with bias. Its own weights are not used.
        prefix: What the names of the weights start with.

    Example:
        >>> w = {"0.weight": torch.tensor([[[2.0]], [[3.0]]]), "0.bias": torch.zeros(2, 1)}
        >>> stack = Stack(nn.Sequential(nn.Linear(1, 1)))
        >>> stack.forward(w, torch.ones(2, 1, 1)).flatten()
        tensor([2., 3.])
        >>> stack.backward(w, torch.ones(2, 1, 1), into=w, alpha=-0.5)
        >>> w["0.weight"].flatten()
        tensor([1.5000, 2.5000])
    """

    def __init__(self, layers: nn.Sequential, prefix: str = "") -> None:
        kinds = [type(layer) for layer in layers]
        unknown = [kind.__name__ for kind in kinds if kind not in KERNELS]
        if unknown or not kinds or kinds[0] is not nn.Linear:
            raise ValueError(
                f"a Stack is a Linear layer and then Linear, LayerNorm or ReLU layers, got "
                f"{', '.join(kind.__name__ for kind in kinds) or 'nothing'}; use ModuleRuns for other modules."
            )
        scratch = _Scratch()
        self._kernels = [KERNELS[type(m)](m, f"{prefix}{name}", scratch) for name, m in layers.named_children()]

    def forward(self, w: Weights, x: Tensor) -> Tensor:
        """From (R, rows, inputs) to (R, rows, outputs); the result is overwritten by the next call."""
        for kernel in self._kernels:
            x = kernel.forward(w, x)
        return x

    def backward(self, w: Weights, d: Tensor, into: Weights, alpha: float = 1.0) -> None:
        """``into += alpha * gradient`` at ``w``, for the cotangent ``d`` of the last output, which is overwritten."""
        for i, kernel in reversed(list(enumerate(self._kernels))):
            d = kernel.backward(w, d, into, alpha, first=i == 0)


@dataclass(frozen=True)
class Algorithm:
    r"""What goes back into the features: the cotangent :math:`-y\,\lambda(v_a)\,v_b / B`.

    Args:
        climb: What moves to the phantom point: ``"nothing"``, the ``"head"`` (equation 5) or ``"everything"``.
        star_weights: Whether the importance weights are those at the fixed head v* (else the phantom one).
        star_rates: Whether the features are weighed by v* (else by the phantom head).
    """

    climb: Literal["nothing", "head", "everything"] = "nothing"
    star_weights: bool = False
    star_rates: bool = False


ALGORITHMS = {
    "sgd": Algorithm(),
    "lsam": Algorithm(climb="head"),
    "sam": Algorithm(climb="everything"),
    "weights": Algorithm(star_weights=True),  # eq. 7 and 10
    "rates": Algorithm(star_rates=True),  # eq. 8 and 11
    "both": Algorithm(star_weights=True, star_rates=True),  # eq. 9 and 12
}


class FeatureRuns:
    r"""Runs of :math:`f(x) = \langle v, \Phi(x)\rangle` with logistic loss; one forward and one backward pass a step.

    .. math:: \tilde v = v + \rho\,\nabla_v L / \|\nabla_v L\|, \qquad
              \lambda_i(u) = \sigma(-y_i \langle u, \Phi(x_i)\rangle),

    .. math:: \theta \leftarrow \theta
              + \tfrac{\eta}{B} \sum_i y_i\, \lambda_i(v_a)\, \nabla_\theta \langle v_b, \Phi(x_i)\rangle

    with :math:`(v_a, v_b)` by the table :data:`ALGORITHMS`: SGD and LSAM have the (phantom) head in both places, the
    interventions a fixed v* in one or both. The head descends along its gradient at the phantom point. Where the
    algorithm moves everything (SAM), a first pass finds :math:`\tilde w`; algorithms may be mixed, but one SAM run
    makes the runs beside it pay for that pass.

    Args:
        body: The chain of layers (see :class:`Stack`), shared by the K views of an example, with one output.
        weights: Shape (R, ...): the body's under ``phi.``, the head's, (R, 1, K), as ``head.weight``. Written to.
        algorithms: A name in :data:`ALGORITHMS` for each run.
        rho: Shape (R,); used by the algorithms that climb.
        lr: Shape (R,).
        v_star: Shape (R, K).
        train_head: Shape (R,), booleans.

    Example:
        >>> phi = nn.Sequential(nn.Linear(2, 1))
        >>> w = {"phi.0.weight": torch.eye(2)[None, 1:], "phi.0.bias": torch.zeros(1, 1),
        ...      "head.weight": torch.ones(1, 1, 2)}
        >>> one = torch.ones(1)
        >>> runs = FeatureRuns(phi, w, ["lsam"], 0.5 * one, lr=one, v_star=torch.ones(1, 2), train_head=one.bool())
        >>> v, phantom = runs.step(torch.tensor([[[[0.0, 3.0], [0.0, 4.0]]]]), torch.ones(1, 1))  # Phi = (3, 4)
        >>> phantom
        tensor([[[0.7000, 0.6000]]])

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, sections 5.1 and 6.2, appendix C.

    Differences:
        Equation 6 as printed lacks the label's sign and equations 10 to 12 the mean. The paper does not say what the
        head does during the interventions; here it follows its ordinary gradient.
    """

    def __init__(
        self,
        body: nn.Sequential,
        weights: Weights,
        algorithms: Sequence[str],
        rho: Tensor,
        lr: Tensor,
        v_star: Tensor,
        train_head: Tensor,
    ) -> None:
        self.phi, self.weights = Stack(body, "phi."), weights
        table = [ALGORITHMS[name] for name in algorithms]

        def column(values: list[bool]) -> Tensor:
            return torch.tensor(values, device=rho.device)[:, None, None]

        self._rho_head = column([a.climb == "head" for a in table]) * rho[:, None, None]
        self._rho_all = column([a.climb == "everything" for a in table]) * rho[:, None, None]
        self._star_weights = column([a.star_weights for a in table])
        self._star_rates = column([a.star_rates for a in table])
        self._v_star, self._lr = v_star[:, None], lr[:, None, None]
        self._trains = train_head[:, None, None]
        self._climbs, self._sam = bool(self._rho_head.any()), bool(self._rho_all.any())
        self._intervenes = bool((self._star_weights | self._star_rates).any())

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One step of every run; returns the head before it and the phantom head, each (R, 1, K).

        Args:
            x: Shape (R, B, K, inputs): each example as the body sees it for each feature.
            y: Shape (R, B), -1 or 1.
        """
        runs, batch, k, inputs = x.shape
        rows, minus_y = x.reshape(runs, batch * k, inputs), -y.unsqueeze(-1)
        real = self.weights["head.weight"]
        w = self._displaced(rows, minus_y, k) if self._sam else self.weights
        # Q = -y P, so that <Q_i, v> = -y_i f_i, lambda = sigmoid(Q v') and dL/dv = lambda' Q / B.
        Q = self.phi.forward(w, rows).view(runs, batch, k) * minus_y
        phantom = w["head.weight"]
        if self._climbs:
            phantom = phantom + self._rho_head * _unit(torch.bmm(_lambda(Q, phantom).mT, Q))  # eq. 5
        weight, rates, lr = _lambda(Q, phantom), phantom, self._lr / batch
        self.weights["head.weight"] = real - self._trains * lr * torch.bmm(weight.mT, Q)
        if self._intervenes:
            weight = torch.where(self._star_weights, _lambda(Q, self._v_star), weight)  # eq. 7
            rates = torch.where(self._star_rates, self._v_star, rates)  # eq. 8
        cotangent = (weight * minus_y * (lr * rates)).view(runs, batch * k, 1)
        self.phi.backward(w, cotangent, into=self.weights, alpha=-1.0)
        return real, phantom

    def _displaced(self, rows: Tensor, minus_y: Tensor, k: int) -> Weights:
        """The weights at ``w + rho g/|g|``, the norm over all of a run's weights."""
        v, batch = self.weights["head.weight"], minus_y.shape[1]
        Q = self.phi.forward(self.weights, rows).view(-1, batch, k) * minus_y
        weight = _lambda(Q, v)
        g = {name: torch.zeros_like(t) for name, t in self.weights.items()}
        g["head.weight"] = torch.bmm(weight.mT, Q) / batch
        self.phi.backward(self.weights, (weight * minus_y * v / batch).view(-1, batch * k, 1), into=g)
        length = torch.linalg.vector_norm(torch.stack([t.flatten(1).norm(dim=1) for t in g.values()]), dim=0)
        step = self._rho_all.flatten() / length.clamp_min(torch.finfo(length.dtype).tiny)
        return {
            name: torch.addcmul(t, step.view(-1, *[1] * (t.ndim - 1)), g[name]) for name, t in self.weights.items()
        }


def _lambda(Q: Tensor, v: Tensor) -> Tensor:
    """The importance weights at the head v, (R, B, 1)."""
    # torch computes the last few numbers of a tensor one by one and the others eight at a time, and the two kinds of
    # exp differ in the last bit. Padded, no run is the last, so none depends on its place among the others.
    minus_margin = torch.bmm(Q, v.mT)
    n = minus_margin.numel()
    return nn.functional.pad(minus_margin.view(n), (0, -n % 64)).sigmoid_()[:n].view_as(minus_margin)


def _unit(g: Tensor) -> Tensor:
    """``g/|g|`` for each run, and zero where g is zero."""
    return g / torch.linalg.vector_norm(g, dim=-1, keepdim=True).clamp_min(torch.finfo(g.dtype).tiny)
