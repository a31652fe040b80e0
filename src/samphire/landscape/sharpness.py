r"""How much the loss rises nearby: :math:`\kappa_\rho(w) = \max_{\|u\| \le \rho} L(w + u) - L(w)` and its relatives.

Definition 1 and examples 1 and 2 of the review. On :meth:`Landscape.scaled` the same functions give the adaptive
(ASAM) forms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from samphire import tree
from samphire.checks import Range, check_number, check_whole
from samphire.landscape.hessian import eigenvalues
from samphire.landscape.loss import Landscape
from samphire.statistics import Estimate, estimate
from samphire.tree import Vector, dot, norm, unit

__all__ = [
    "AverageSharpness", "MSharpness", "SecondOrder", "Sharpness",
    "average_sharpness", "m_sharpness", "normal_steps", "second_order", "sharpness", "smoothed_rise",
]  # fmt: skip

COMPARABLE = (
    "It does not compare architectures, nor weights of different scale: multiplying one ReLU layer and dividing the "
    "next changes it but not the network (the scaled form hardly moves). Low sharpness does not prove generalization."
)


@dataclass(frozen=True)
class Sharpness:
    r"""The worst rise found within a ball.

    Attributes:
        rho: Radius of the ball.
        loss: At the weights.
        gradient_norm: There.
        first_order: :math:`\rho\|g\|`.
        one_step: The rise at SAM's own point, :math:`u = \rho g/\|g\|`.
        worst: The largest rise found, at least ``one_step`` and 0: a lower bound of :math:`\kappa_\rho`.
        traces: The rise after each step of each ascent; the first ascent starts at SAM's point.
        point: Its displacement ``u``.
    """

    rho: float
    loss: float
    gradient_norm: float
    first_order: float
    one_step: float
    worst: float
    traces: list[list[float]]
    point: Vector

    def in_words(self) -> str:
        share = f", {self.worst / self.loss:.2g} of itself" if self.loss > 0 else ""
        seen = f"{self.one_step / self.worst:.0%} of it" if self.worst > 0 else "no rise"
        return (
            f"Within distance {self.rho:g} of the weights the loss rises by {self.worst:.4g} at least "
            f"(from {self.loss:.4g}{share}); one SAM step sees {seen}, its linear forecast is "
            f"{self.first_order:.4g}. Large means that a small change of the weights undoes the fit. "
            f"{COMPARABLE}"
        )


def sharpness(
    landscape: Landscape, rho: float = 0.05, steps: int = 10, restarts: int = 2, seed: int = 0
) -> Sharpness:
    r"""Worst-case sharpness: first order, at SAM's point, and the maximum by projected ascent.

    .. math:: \kappa_\rho(w) = \max_{\|u\| \le \rho} L(w + u) - L(w)
              = \rho \|g\| + \tfrac12 \rho^2 \frac{g^\top H g}{\|g\|^2} + O(\rho^3). \qquad (1)

    The ascent is :math:`u \leftarrow P_\rho(u + s\,\rho\, \nabla L/\|\nabla L\|)`, once from SAM's point and
    ``restarts`` times from a random point of the sphere; a step that does not rise is taken back and ``s`` quartered,
    one that does doubles ``s``, up to 4. (At the maximum the gradient is :math:`\mu u`, and the step is a power
    iteration with :math:`H + \mu/s`: the shift keeps it from swinging along directions that curve down.)

    Args:
        landscape: The landscape.
        rho: Radius of the ball.
        steps: Gradients for each ascent.
        restarts: Random starts. At a minimum SAM's point does not exist, and only these find the maximum.
        seed: Of the random starts.

    Example:
        >>> f = lambda w: 0.5 * (torch.tensor([1.0, 4.0]) * w["x"] ** 2).sum()
        >>> minimum = Landscape.of_function(f, {"x": torch.zeros(2)})
        >>> round(sharpness(minimum, rho=0.1).worst, 6)  # 1/2 rho^2 lambda_1
        0.02

    References:
        Foret et al., Sharpness-Aware Minimization, ICLR 2021, https://arxiv.org/abs/2010.01412
    """
    check_number("rho", rho, Range(above=0))
    check_whole("steps", steps, least=0)
    check_whole("restarts", restarts, least=0)
    _, g = landscape.gradient()
    starts = [unit(g), *map(unit, normal_steps(landscape, restarts, seed))]
    ascents = [_ascend(landscape, rho * start, rho, steps) for start in starts]
    traces = [trace for _, trace in ascents]
    point, (*_, best) = max(ascents, key=lambda ascent: ascent[1][-1])
    length = norm(g).item()
    return Sharpness(
        rho=rho,
        loss=landscape.loss,
        gradient_norm=length,
        first_order=rho * length,
        one_step=traces[0][0],
        worst=max(best, 0.0),
        traces=traces,
        point=point if best > 0 else Vector(),
    )


def _ascend(landscape: Landscape, u: Vector, rho: float, steps: int) -> tuple[Vector, list[float]]:
    value, g = _finite_gradient(landscape, u, rho)
    trace, s = [value - landscape.loss], 1.0
    for _ in range(steps):
        v = _into_ball(u + s * rho * unit(g), rho)
        higher, h = _finite_gradient(landscape, v, rho)
        if higher > value:
            u, value, g, s = v, higher, h, min(2 * s, 4.0)
        else:
            s /= 4
        trace.append(value - landscape.loss)
    return u, trace


def _finite_gradient(landscape: Landscape, u: Vector, rho: float) -> tuple[float, Vector]:
    value, g = landscape.gradient(u)
    if not (math.isfinite(value) and tree.finite(g)):
        raise ValueError(f"the loss or its gradient is not finite within rho={rho:g}; take a smaller rho.")
    return value, g


def _into_ball(u: Vector, rho: float) -> Vector:
    length = norm(u).item()
    return u if length <= rho else (rho / length) * u


@dataclass(frozen=True)
class SecondOrder:
    r"""What the gradient and the Hessian forecast for :math:`\kappa_\rho`.

    Attributes:
        rho: Radius of the ball.
        first_order: :math:`\rho\|g\|`.
        along_gradient: :math:`\rho\|g\| + \frac12\rho^2 g^\top H g/\|g\|^2`, right to second order where
            :math:`g \ne 0`.
        at_minimum: :math:`\frac12\rho^2\max(\lambda_1, 0)`, right to second order where :math:`g = 0`.
        eigenvalue: :math:`\lambda_1`.
        residual: Its error bar :math:`\|Hv - \lambda_1 v\|`.
    """

    rho: float
    first_order: float
    along_gradient: float
    at_minimum: float
    eigenvalue: float
    residual: float

    @property
    def is_minimum(self) -> bool:
        """Whether, at this radius, the curvature counts for more than the slope."""
        return self.first_order < self.at_minimum

    def in_words(self) -> str:
        """Which of the two forecasts applies."""
        if self.is_minimum:
            applies = f"1/2 rho^2 lambda_1 = {self.at_minimum:.4g} is the forecast here: the slope matters less"
        else:
            applies = (
                f"the slope matters more than the curvature, so {self.along_gradient:.4g} is the forecast, and "
                f"1/2 rho^2 lambda_1 = {self.at_minimum:.4g}, which supposes a minimum, is not"
            )
        return f"At rho = {self.rho:g} {applies}. Both are expansions: compare them with the measured maximum."


def second_order(landscape: Landscape, rho: float = 0.05, tol: float = 1e-4) -> SecondOrder:
    r"""The forecast of :math:`\kappa_\rho` from gradient and Hessian.

    Args:
        landscape: The landscape.
        rho: Radius of the ball.
        tol: Of the eigenvalue, see :func:`eigenvalues`.

    Example:
        >>> f = lambda w: 0.5 * (torch.tensor([1.0, 4.0]) * w["x"] ** 2).sum()
        >>> forecast = second_order(Landscape.of_function(f, {"x": torch.zeros(2)}), rho=0.1)
        >>> round(forecast.at_minimum, 6), forecast.is_minimum
        (0.02, True)

    Differences:
        Example 2 of the review prints :math:`\rho^2\lambda_1`, which lacks the 1/2 of Taylor's formula.
    """
    check_number("rho", rho, Range(above=0))
    _, g = landscape.gradient()
    top = eigenvalues(landscape, k=1, tol=tol)
    (hg,) = landscape.products([unit(g)])
    first, lambda_1 = rho * norm(g).item(), float(top.values[0])
    return SecondOrder(
        rho=rho,
        first_order=first,
        along_gradient=first + 0.5 * rho**2 * dot(unit(g), hg).item(),
        at_minimum=0.5 * rho**2 * max(lambda_1, 0.0),
        eigenvalue=lambda_1,
        residual=float(top.residuals[0]),
    )


@dataclass(frozen=True)
class AverageSharpness:
    r"""The mean rise under random displacements.

    Attributes:
        sigma: Standard deviation of each coordinate.
        rise: :math:`E\,L(w + u) - L(w)` with its standard error.
    """

    sigma: float
    rise: Estimate

    def in_words(self) -> str:
        return (
            f"A random step (N(0, {self.sigma:.3g}^2) in every coordinate) raises the loss by {self.rise} on "
            "average; for small steps that is sigma^2 tr(H)/2. Random directions hardly meet the few sharp ones, so "
            "it is far below the worst case, and it may be negative away from a minimum."
        )


def average_sharpness(landscape: Landscape, rho: float = 0.05, samples: int = 32, seed: int = 0) -> AverageSharpness:
    r"""Average-case sharpness for steps of length about rho.

    .. math:: E_{u \sim N(0, \sigma^2 I)} L(w + u) - L(w) = \tfrac12 \sigma^2\, \mathrm{tr} H + O(\sigma^4),
              \qquad \sigma = \rho / \sqrt d.

    Every draw is used with both signs, so that the slope cancels exactly.

    Args:
        landscape: The landscape.
        rho: Root mean square length of the steps.
        samples: Pairs of draws.
        seed: Of the draws.

    Example:
        >>> f = lambda w: 0.5 * (torch.tensor([1.0, 4.0]) * w["x"] ** 2).sum()
        >>> average = average_sharpness(Landscape.of_function(f, {"x": torch.zeros(2)}), rho=0.1, samples=500)
        >>> abs(average.rise.mean - 0.1**2 / 2 * 5 / 2) < 3 * average.rise.error
        True
    """
    check_number("rho", rho, Range(above=0))
    sigma = rho / math.sqrt(landscape.dimension)
    return AverageSharpness(sigma, smoothed_rise(landscape, sigma, samples, seed))


def smoothed_rise(landscape: Landscape, sigma: float, samples: int, seed: int = 0) -> Estimate:
    """The mean rise of the loss under Gaussian steps of this standard deviation, by pairs of opposite steps."""
    check_whole("samples", samples)
    steps = (sigma * z for z in normal_steps(landscape, samples, seed))
    return estimate([(landscape.value(u) + landscape.value(-u)) / 2 - landscape.loss for u in steps])


def normal_steps(landscape: Landscape, n: int, seed: int) -> Iterator[Vector]:
    """Standard normal displacements, one at a time."""
    return (tree.randn_like(landscape.w, int(s)) for s in np.random.SeedSequence(seed).generate_state(n))


@dataclass(frozen=True)
class MSharpness:
    r"""Sharpness of chunks of m examples.

    Attributes:
        m: Examples in a chunk.
        rise: Mean over the chunks (each counts by its size) of the rise at the chunk's own SAM point.
        error: Standard error of that mean over chunks; nan for one chunk.
        chunks: How many.
    """

    m: int
    rise: float
    error: float
    chunks: int

    def in_words(self) -> str:
        return (
            f"With {self.m} examples choosing the step, their loss rises by {self.rise:.4g} ± {self.error:.1g} "
            f"({self.chunks} chunks). Fewer examples find steeper steps, so it falls as m grows, whatever the "
            "network: compare networks at one m."
        )


def m_sharpness(landscape: Landscape, rho: float = 0.05, m: Sequence[int] = (1, 16, 128)) -> list[MSharpness]:
    r"""m-sharpness: every chunk of m examples has its own worst step.

    .. math:: \frac1n \sum_{\text{chunks } C} |C|\, \bigl( L_C(w + \rho\, g_C/\|g_C\|) - L_C(w) \bigr).

    Args:
        landscape: The landscape.
        rho: Length of the steps.
        m: Sizes of chunks; each costs a gradient and two losses of all data.

    Example:
        >>> x, y = torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [1.0]])
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> here = Landscape.of(model, nn.functional.mse_loss, (x, y))
        >>> [round(row.rise, 4) for row in m_sharpness(here, rho=0.1, m=(1, 2))]  # two opposite slopes cancel
        [0.21, 0.0]

    References:
        Foret et al. 2021, section 4.1; section 2.3 of the review.
    """
    check_number("rho", rho, Range(above=0))
    for size in m:
        check_whole("m", size, most=landscape.n)
    return [_m_sharpness(landscape, rho, size) for size in m]


def _m_sharpness(landscape: Landscape, rho: float, m: int) -> MSharpness:
    rises, sizes = [], []
    for chunk in landscape.chunks(m):
        loss, g = _finite_gradient(chunk, Vector(), rho)
        rises.append(chunk.value(rho * unit(g)) - loss)
        sizes.append(chunk.n)
    mean = float(np.average(rises, weights=sizes))
    return MSharpness(m, mean, estimate(rises).error, len(rises))
