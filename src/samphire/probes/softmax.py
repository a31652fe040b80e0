r"""Softmax regression to the optimum: every feature and every penalty of one set of examples at once.

``x`` (n, d) are features, ``y`` (n,) classes counted from 0. Results are float64 and deterministic.

Why it is fast. Probes of several features with several penalties share their examples, so their products with ``x``
are one product with a matrix, which costs little more than that with a vector. L-BFGS starts from an inverse Hessian
that is known well: :math:`X^\top \mathrm{diag}(p(1-p)) X / n + \lambda` is nearly
:math:`c\,X^\top X / n + \lambda`, whose leading axes all problems share. Along a direction the scores are linear, so
the step size is found without touching ``x``. Most iterations are in single precision; the last ones are in double.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import helmert
from torch import Tensor

from samphire.checks import Range, check_number
from samphire.probes.logistic import Array, Classes, Linear

__all__ = ["softmax_regression", "softmax_regressions"]

SINGLE = 1e-8  # share of the objective that steps in single precision still gain
AXES = 128  # leading axes that are told apart at the start
MEMORY = 10  # past steps that L-BFGS remembers
STEPS = 2000  # at most; far beyond what any problem took


def softmax_regression(
    x: Array, y: Classes, classes: int, l2: Sequence[float], tolerance: float = 1e-8
) -> list[Linear]:
    r"""Multinomial logistic regression for every penalty.

    .. math:: \min_{W, b}\ \frac1n \sum_i \Big(\log \sum_k e^{z_{ik}} - z_{i y_i}\Big)
              + \frac\lambda2 \|W\|_F^2, \qquad z_i = W x_i + b.

    Args:
        x: Features.
        y: Classes.
        classes: How many there are; each must occur, or its bias would have no optimum.
        l2: Penalties :math:`\lambda > 0`. The bias is free.
        tolerance: Stop when the next step promises to lower the objective by less than this share of it.

    Returns:
        One classifier for each penalty, in the order given.

    Example:
        >>> from scipy.special import expit
        >>> x, y = np.array([[-1.0], [1.0]]), np.array([0, 1])
        >>> fit = softmax_regression(x, y, 2, [0.5], tolerance=1e-12)[0]  # w = 2 W_1 has w = expit(-w) / 0.25
        >>> w = fit.weight[1, 0] - fit.weight[0, 0]
        >>> bool(abs(w * 0.25 - expit(-w)) < 1e-5)
        True

    Differences:
        Always the softmax, also for two classes. W_1 - W_0 then has half the penalty of scikit-learn's binary form,
        which at C is this at :math:`\lambda = 2/(nC)`; with more classes :math:`\lambda = 1/(nC)`.
    """
    return softmax_regressions(x, [(y, classes)], l2, tolerance)[0]


def softmax_regressions(
    x: Array, targets: Sequence[tuple[Classes, int]], l2: Sequence[float], tolerance: float = 1e-8
) -> list[list[Linear]]:
    """:func:`softmax_regression` of several targets on the same features, all at once.

    Args:
        x: Features.
        targets: Classes of the examples, and how many there are, of each.
        l2: Penalties, the same for all.
        tolerance: As there.

    Returns:
        For each target one classifier for each penalty.

    Example:
        >>> x = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> fits = softmax_regressions(x, [(np.array([0, 0, 1, 1]), 2), (np.array([0, 1, 0, 1]), 2)], [0.1])
        >>> [fit.predict(x).tolist() for (fit,) in fits]
        [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    for y, classes in targets:
        absent = np.setdiff1d(np.arange(classes), y)
        if len(absent):
            raise ValueError(
                f"every class must occur among the examples, but class {absent[0]} of {classes} does not."
            )
    for penalty in l2:
        check_number("l2", penalty, Range(above=0))
    mean = x.mean(0, dtype=np.float64)  # the bias is free, so centering changes the way to the optimum alone
    centered = x - mean
    unit = float(np.linalg.norm(centered)) / centered.size**0.5 or 1.0  # so that single precision does not overflow
    centered /= unit
    problems = _Problems.of(targets, [penalty / unit**2 for penalty in l2])
    v = torch.zeros(len(problems), problems.contrasts.shape[1], x.shape[1] + 1, dtype=torch.float64)
    wide = torch.from_numpy(centered)
    axes = _Axes.of(wide.float())
    v = _minimized(axes, problems, v, max(tolerance, SINGLE))
    v = _minimized(axes.double(wide), problems, v, tolerance)
    w = (problems.contrasts.mT @ v).numpy().reshape(len(targets), len(l2), -1, v.shape[2])
    return [
        [Linear(fit[:k, :-1] / unit, fit[:k, -1] - fit[:k, :-1] @ (mean / unit)) for fit in path]
        for path, (_, k) in zip(w, targets, strict=True)
    ]


@dataclass(frozen=True)
class _Axes:
    """Centered features, and the leading axes of their covariance with its eigenvalues along them."""

    x: Tensor
    axes: Tensor
    along: Tensor
    across: Tensor  # a bound of the eigenvalues of what is left

    @classmethod
    def of(cls, x: Tensor) -> _Axes:
        n, d = x.shape
        q = torch.randn(d, min(AXES, n, d), dtype=x.dtype, generator=torch.Generator().manual_seed(0))
        for _ in range(2):
            q = torch.linalg.qr(x.T @ (x @ q))[0]
        y = x @ q
        along, turn = torch.linalg.eigh((y.T @ y / n).double())  # in single precision it may not converge
        along = along.clamp_min(0).to(x.dtype)
        return cls(x, q @ turn.to(x.dtype), along, along[0])

    def double(self, x: Tensor) -> _Axes:
        """The same axes with products in double precision."""
        return _Axes(x.double(), self.axes.double(), self.along.double(), self.across.double())

    def scores(self, v: Tensor) -> Tensor:
        """Of every example: (problems, contrasts, n) from weights and biases (problems, contrasts, d + 1)."""
        flat = v.reshape(-1, v.shape[2])
        return (flat[:, :-1] @ self.x.T + flat[:, -1:]).reshape(*v.shape[:2], -1)

    def back(self, r: Tensor) -> Tensor:
        """The transpose of :meth:`scores`."""
        flat = r.reshape(-1, r.shape[2])
        return torch.cat([flat @ self.x, flat.sum(1, keepdim=True)], 1).reshape(*r.shape[:2], -1)

    def solve(self, g: Tensor, c: Tensor, l2: Tensor) -> Tensor:
        """The inverse of ``c * covariance + l2`` (``c`` for the bias) applied to gradients."""
        w, b = g[..., :-1], g[..., -1:]
        rest = 1 / (c * self.across + l2)
        change = 1 / (c * self.along + l2) - rest
        return torch.cat([rest * w + ((w @ self.axes) * change) @ self.axes.T, b / c], 2)


@dataclass(frozen=True)
class _Problems:
    """One problem for each target and penalty.

    The weights of all classes sum to zero, so one set fewer is sought: those of ``contrasts``. A target with fewer
    classes than others has rows and columns of zeros, and its missing classes are ``closed``.
    """

    onehot: Tensor  # (problems, classes, n)
    contrasts: Tensor  # (problems, classes - 1, classes)
    closed: Tensor  # (problems, classes, 1)
    l2: Tensor  # (problems, 1, 1)

    @classmethod
    def of(cls, targets: Sequence[tuple[Classes, int]], l2: Sequence[float]) -> _Problems:
        most = max(classes for _, classes in targets)
        contrasts = torch.zeros(len(targets), most - 1, most, dtype=torch.float64)
        for at, (_, k) in enumerate(targets):
            contrasts[at, : k - 1, :k] = torch.from_numpy(helmert(k))
        onehot = torch.stack([torch.eye(most, dtype=torch.float64)[:, torch.from_numpy(y)] for y, _ in targets])
        closed = torch.stack([torch.arange(most) >= classes for _, classes in targets])[..., None]
        onehot, contrasts, closed = (t.repeat_interleave(len(l2), 0) for t in (onehot, contrasts, closed))
        penalties = torch.tensor(l2, dtype=torch.float64).repeat(len(targets))[:, None, None]
        return cls(onehot, contrasts, closed, penalties)

    def __len__(self) -> int:
        return len(self.l2)

    def some(self, chosen: Tensor) -> _Problems:
        return _Problems(*(t[chosen] for t in (self.onehot, self.contrasts, self.closed, self.l2)))

    def to(self, dtype: torch.dtype) -> _Problems:
        return _Problems(self.onehot.to(dtype), self.contrasts.to(dtype), self.closed, self.l2.to(dtype))

    def logits(self, scores: Tensor) -> Tensor:
        """Of each class (problems, classes, n), from the scores of the contrasts."""
        return self.contrasts.mT @ scores

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.masked_fill(self.closed, -torch.inf).softmax(1)

    def objective(self, logits: Tensor, v: Tensor) -> Tensor:
        """(problems,), in double precision."""
        wide = logits.double()
        losses = wide.masked_fill(self.closed, -torch.inf).logsumexp(1) - (wide * self.onehot).sum(1)
        return losses.mean(1) + 0.5 * self.l2.double().flatten() * v[..., :-1].double().square().sum((1, 2))


def _minimized(axes: _Axes, problems: _Problems, start: Tensor, tolerance: float) -> Tensor:
    """L-BFGS of all problems at once; one that is solved, or that rounding keeps from falling further, leaves."""
    result = start.clone()
    active, rest = torch.arange(len(problems)), problems.to(axes.x.dtype)
    v = start.to(axes.x.dtype)
    logits = rest.logits(axes.scores(v))
    past: list[tuple[Tensor, Tensor, Tensor]] = []  # steps, changes of the gradient, and what pairs weigh
    step = before = torch.empty(0)
    lowest = torch.full((len(problems),), torch.inf, dtype=torch.float64)
    for _ in range(STEPS):
        p = rest.probabilities(logits)
        penalty = torch.cat([rest.l2 * v[..., :-1], torch.zeros_like(v[..., -1:])], 2)
        gradient = axes.back(rest.contrasts @ (p - rest.onehot)) / len(axes.x) + penalty
        if len(before):
            change = gradient - before
            past = [*past[1 - MEMORY :], (step, change, _weight(step, change))]
        c = ((1 - p.square().sum(1)).mean(1) / v.shape[1]).clamp_min(1e-6)[:, None, None]
        direction = -_inverse_hessian(axes, gradient, past, c, rest.l2)
        gain = -(gradient * direction).sum((1, 2)) / 2
        value = rest.objective(logits, v)
        if not gain.isfinite().all():
            raise FloatingPointError("softmax regression broke down; are the features finite and of one scale?")
        falling = value < lowest[active]
        result[active[falling]], lowest[active[falling]] = v[falling].double(), value[falling]
        left = falling & (gain > tolerance * value)
        if not left.any():
            return result
        if not left.all():
            active, rest, v, logits, gradient, direction = (
                active[left], rest.some(left), v[left], logits[left], gradient[left], direction[left],
            )  # fmt: skip
            past = [(s[left], y[left], r[left]) for s, y, r in past]
        ahead = rest.logits(axes.scores(direction))
        size = _step_size(rest, logits, ahead, v, direction)
        step, before = size * direction, gradient
        v, logits = v + step, logits + size * ahead
    raise RuntimeError(f"softmax regression took more than {STEPS} steps; are the features finite?")


def _inverse_hessian(
    axes: _Axes, gradient: Tensor, past: list[tuple[Tensor, Tensor, Tensor]], c: Tensor, l2: Tensor
) -> Tensor:
    """The gradient times L-BFGS' inverse Hessian (Nocedal and Wright, algorithm 7.4)."""
    q, alphas = gradient, []
    for s, y, r in reversed(past):
        alphas.append(r * _dot(s, q))
        q = q - alphas[-1] * y
    q = axes.solve(q, c, l2)
    for (s, y, r), alpha in zip(past, reversed(alphas), strict=True):
        q = q + (alpha - r * _dot(y, q)) * s
    return q


def _weight(s: Tensor, y: Tensor) -> Tensor:
    """The inverse of the curvature along a step; 0 leaves out what rounding spoils."""
    r = _dot(s, y).reciprocal()
    return torch.where(r.isfinite() & (r > 0), r, 0.0)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2), keepdim=True)


def _step_size(problems: _Problems, logits: Tensor, ahead: Tensor, v: Tensor, direction: Tensor) -> Tensor:
    """Where the objective is lowest along a direction, nearly: Newton's method within a bracket."""
    w, u = v[..., :-1], direction[..., :-1]
    wu, uu = _dot(w, u), _dot(u, u)
    right = (problems.onehot * ahead).sum(1, keepdim=True)
    size, low, high = torch.ones_like(wu), torch.zeros_like(wu), torch.full_like(wu, torch.inf)
    for _ in range(20):
        p = problems.probabilities(logits + size * ahead)
        mean = (p * ahead).sum(1, keepdim=True)
        slope = (mean - right).mean(2, keepdim=True)
        slope = slope + problems.l2 * (wu + size * uu)
        curvature = (p * (ahead - mean).square()).sum(1, keepdim=True).mean(2, keepdim=True) + problems.l2 * uu
        low, high = torch.where(slope < 0, size, low), torch.where(slope < 0, high, size)
        newton = size - slope / curvature
        if ((newton - size).abs() <= 0.1 * size).all():
            break
        beyond = torch.where(high.isinf(), 2 * size, (low + high) / 2)
        size = torch.where((newton > low) & (newton < high), newton, beyond)
    return size
