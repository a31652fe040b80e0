r"""Mobahi's diffusion, which the review names as a predecessor of SAM.

The diffused function is the mean :math:`f_\sigma(x) = E f(x + \sigma z)` over standard normal :math:`z`. For a
polynomial it is the polynomial :math:`\exp(\sigma^2 D^2 / 2) f`. The function of figure 1 is a polynomial and a
proper fraction, :math:`(x - 1)^2 - a + a (2x + a - 1) / (x^2 + a)`, and the mean of :math:`1 / (x - i \sqrt a)` is
Faddeeva's function :math:`w`, so nothing is integrated numerically.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial
from scipy.special import factorial, wofz

from samphire import report
from samphire.experiments.experiment import Experiment, one_by_one
from samphire.experiments.review.fig1 import ENDS, LIMIT, STUCK, A, Array, ends, settle
from samphire.experiments.rows import Row, by
from samphire.statistics import fact

__all__ = ["DIFFUSION"]

ROOT = sqrt(A)
POLYNOMIAL = Polynomial([1 - A, -2, 1])
LAST_SIGMA = 1e-3
SAM_LR = LIMIT / 2


def diffused(polynomial: Polynomial, x: Array, sigma: Any) -> Array:
    r"""The mean of a polynomial under Gaussian noise, :math:`\sum_k \sigma^{2k} p^{(2k)}(x) / (2^k k!)`.

    Args:
        polynomial: Any.
        x: Where.
        sigma: Standard deviation, a number or one for each x.

    Example:
        >>> float(diffused(Polynomial([0, 0, 0, 0, 1]), np.array(1.0), 2.0))  # x⁴ + 6σ²x² + 3σ⁴
        73.0
    """
    halves = range(polynomial.degree() // 2 + 1)
    terms = (sigma ** (2 * k) / (2**k * factorial(k)) * polynomial.deriv(2 * k)(x) for k in halves)
    return sum(terms, np.zeros(()))


def smooth(x: Array, sigma: Any, order: int = 0) -> Array:
    r"""The diffused function of figure 1, or its first or second derivative.

    With :math:`\zeta = (-x + i\sqrt a) / (\sqrt 2 \sigma)` the mean of :math:`1 / (x + \sigma z - i\sqrt a)` is
    :math:`i\sqrt{\pi/2}\, w(\zeta) / \sigma`; its real part is the mean of :math:`u / (u^2 + a)`, its imaginary part
    :math:`\sqrt a` times that of :math:`1 / (u^2 + a)`. Derivatives follow from :math:`w' = 2i/\sqrt\pi - 2\zeta w`.

    Args:
        x: Where.
        sigma: Standard deviation, above 0, a number or one for each x.
        order: Of the derivative: 0, 1 or 2.
    """
    zeta = (-x + 1j * ROOT) / (sqrt(2) * sigma)
    w = wofz(zeta)
    first = 2j / sqrt(np.pi) - 2 * zeta * w
    value = (w, first, -2 * w - 2 * zeta * first)[order]
    pole = 1j * sqrt(np.pi / 2) / sigma * value * (-1 / (sqrt(2) * sigma)) ** order
    return diffused(POLYNOMIAL.deriv(order), x, sigma) + 2 * A * pole.real + (A - 1) * ROOT * pole.imag


@dataclass(frozen=True)
class Config:
    """How many starts and strengths (first standard deviations, radii); stages of the continuation, steps."""

    starts: int = 40  # an even number leaves out 0, where every method rests
    strengths: int = 31
    stages: int = 30
    steps: int = 1000
    last: int = 60_000  # on f itself: within 0.01 of 1 from anywhere beyond the barrier


@dataclass(frozen=True)
class Shape:
    """The diffused functions by themselves."""

    sigmas: tuple[float, ...]


@dataclass(frozen=True)
class Traced:
    """The continuation, from all starts and all first standard deviations."""

    strengths: tuple[float, ...]
    starts: int
    stages: int
    steps: int
    last: int


@dataclass(frozen=True)
class Sam:
    """SAM from all starts with all radii; 0 is gradient descent."""

    strengths: tuple[float, ...]
    starts: int
    steps: int


def runs(config: Config) -> list[Shape | Traced | Sam]:
    """The shape, and both methods at equal strengths."""
    sigmas, strengths = (
        tuple(float(f"{s:.4g}") for s in np.geomspace(low, 0.6, n))
        for low, n in ((LAST_SIGMA, 120), (0.003, config.strengths))
    )
    traced = Traced(strengths, config.starts, config.stages, config.steps, config.last)
    return [Shape(sigmas), traced, Sam((0.0, *strengths), config.starts, config.last)]


def steps(run: Shape | Traced | Sam) -> int:
    """In steps of the toy that take as long."""
    return {Shape: 100, Traced: 5000, Sam: 4000}[type(run)]


def row(run: Shape | Traced | Sam) -> Row:
    """Where the critical points are and the least curvature, by sigma; or where each start ends, by strength."""
    kind = {"kind": type(run).__name__.lower(), **asdict(run)}
    if isinstance(run, Shape):
        return {**kind, **_shape(run.sigmas)}
    x, strength, lr = np.linspace(-1, 1, run.starts), np.array(run.strengths)[:, None], np.array(SAM_LR)
    if isinstance(run, Sam):
        where = ends(*settle(x, lr, strength, run.steps), lr, strength)
    else:
        none = np.zeros(())
        traced = trace(x, strength, run.stages, run.steps)[-1]
        where = ends(*settle(traced, lr, none, run.last), lr, none)  # the last problem is f itself
    return {**kind, "ends": ["".join(line) for line in where]}


def _shape(sigmas: tuple[float, ...]) -> Row:
    x = np.linspace(-0.4, 1.2, 16_001)
    slopes = [smooth(x, s, 1) for s in sigmas]
    crossings = [x[:-1][np.diff(np.sign(slope)) != 0] + (x[1] - x[0]) / 2 for slope in slopes]
    curvature = [float(smooth(x, s, 2).min()) for s in sigmas]
    return {"critical": [c.round(5).tolist() for c in crossings], "curvature": curvature}


def trace(x: Array, sigma: Array, stages: int, steps: int) -> Array:
    """The points after each stage, along the first axis.

    Args:
        x: Starts.
        sigma: Standard deviations of the first problem.
        stages: Diffused problems.
        steps: Of gradient descent, in each.
    """
    line = np.linspace(-0.1, 0.1, 2001)  # where the curvature is largest
    path = []
    for s in np.geomspace(sigma, LAST_SIGMA, stages):
        lr = 1 / np.abs(smooth(line, s, 2)).max(-1, keepdims=True)
        for _ in range(steps):
            x = x - lr * smooth(x, s, 1)
        path.append(x)
    return np.stack(path)


def tables(rows: list[Row]) -> list[report.Table]:
    """Where the starts end, by method and strength."""
    lines = [
        [f"{name} = {strength:g}" if strength else "gradient descent", *(letters.count(end) for end in ENDS)]
        for kind, name in (("traced", "diffusion, σ"), ("sam", "SAM, ρ"))
        for strength, letters in _ends(rows, kind).items()
    ]
    caption = "How many of the starts, evenly from −1 to 1, end where."
    return [report.Table(["", *(words for words, _ in ENDS.values())], lines, caption)]


def _ends(rows: list[Row], kind: str) -> dict[float, str]:
    """A letter for each start, by strength."""
    (row,) = by(rows, "kind")[kind]
    return dict(zip(row["strengths"], row["ends"], strict=True))


def convex_from(row: Row) -> float:
    """The least standard deviation above which the diffused function has no negative curvature."""
    concave = [s for s, c in zip(row["sigmas"], row["curvature"], strict=True) if c < 0]
    return next((s for s in row["sigmas"] if s > max(concave, default=0.0)), float("nan"))


def single_from(row: Row) -> float:
    """The least standard deviation above which it has a single critical point."""
    several = [s for s, c in zip(row["sigmas"], row["critical"], strict=True) if len(c) != 1]
    return next((s for s in row["sigmas"] if s > max(several, default=0.0)), float("nan"))


def plots(rows: list[Row]) -> list[Any]:
    """The diffused functions, their critical points, and where both methods end."""
    from matplotlib import colormaps

    (shape,) = by(rows, "kind")["shape"]
    with report.figure(1, 3, size=(11.4, 3.9)) as (figure, (left, middle, right)):
        x = np.linspace(-0.35, 1.5, 1500)
        sigmas = (0.001, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4)
        for s, color in zip(sigmas, colormaps["viridis"](np.linspace(0, 0.9, len(sigmas))), strict=True):
            left.plot(x, smooth(x, s), color=color, linewidth=1.4, label=f"{s:g}")
        left.set(title="diffused functions", xlabel="x", ylabel="f_σ(x)", ylim=(-0.05, 2))
        left.legend(title="σ", ncols=2)
        points = [(s, c) for s, places in zip(shape["sigmas"], shape["critical"], strict=True) for c in places]
        middle.plot(*zip(*points, strict=True), ".", color="#555555", markersize=3, label="critical points")
        for bound, name, style in ((single_from(shape), "one minimum", "-"), (convex_from(shape), "convex", "--")):
            middle.axvline(bound, color=report.PALETTE[2], linestyle=style, label=f"{name} from {bound:.3g}")
        middle.set(xscale="log", xlabel="σ", ylabel="x", title="critical points of f_σ")
        middle.legend(loc="upper left", bbox_to_anchor=(0, 0.9), frameon=True)
        for kind, label, color in (("traced", "diffusion, σ", 0), ("sam", "SAM, ρ", 1)):
            share = {strength: where.count("1") / len(where) for strength, where in _ends(rows, kind).items()}
            if 0.0 in share:
                right.axhline(share.pop(0.0), color="#777777", linestyle=":", label="gradient descent")
            right.plot(list(share), list(share.values()), "o-", color=report.PALETTE[color], label=label)
        right.set(xscale="log", xlabel="σ or ρ", ylabel="share of starts that reach 1", ylim=(-0.03, 1.03))
        right.set_title("reaching the flat minimum")
        right.legend(loc="upper left")
    return [figure]


def claims(rows: list[Row]) -> list[report.Claim]:
    """The ultimate problem, the way back, and SAM from the same starts."""
    (shape,) = by(rows, "kind")["shape"]
    return [_convex(shape), _reaches(rows, shape), _sam_reaches(rows)]


def _convex(shape: Row) -> report.Claim:
    bound = convex_from(shape)
    return report.Claim(
        "Diffused enough, the problem is convex.",
        fact(bool(np.isfinite(bound))),
        ours=f"from σ = {bound:.3g}; it has one minimum from σ = {single_from(shape):.3g}",
        paper="the ultimate diffused problem is convex",
        detail="By the closed form of f_σ'' on a grid of x.",
    )


def _reaches(rows: list[Row], shape: Row) -> report.Claim:
    """From strengths where the first problem has one minimum."""
    letters = "".join(where for sigma, where in _ends(rows, "traced").items() if sigma >= single_from(shape))
    return report.Claim(
        "Traced back from a problem with one minimum, diffusion ends at the flat minimum from every start.",
        fact(set(letters) == {"1"}) if letters else "open",
        ours=f"{letters.count('1')} of {len(letters)} (starts and first σ)",
        paper="traces back (no experiment)",
    )


def _sam_reaches(rows: list[Row]) -> report.Claim:
    sam = _ends(rows, "sam")
    gd = sam.pop(0.0)
    stuck = [end for where in sam.values() for end, plain in zip(where, gd, strict=True) if plain in STUCK]
    return report.Claim(
        "From starts where gradient descent stays at the sharp minimum, SAM reaches the flat one.",
        fact(stuck.count("1") > len(stuck) / 2),
        ours=f"{stuck.count('1')} of {len(stuck)} (starts and ρ); it rests at x = ρ in {stuck.count('r')}",
        paper="SAM is simple and concerns sharpness directly",
        detail=f"At learning rate {SAM_LR:g}. More than half must reach it.",
    )


DIFFUSION = Experiment(
    name="review-diffusion",
    title="Diffusion, a predecessor of SAM, beside it on the function of figure 1.",
    source="the review",
    says="Section 1: diffusion creates a series of diffused problems, optimizes the ultimate one, which is convex, "
    "and traces its solution back through the less diffused ones. It is rather complicated, and its relationship "
    "with generalization remains mysterious; SAM is simple and concerns sharpness directly.",
    scales={"paper": Config(), "quick": Config(20, 13, 20, 500), "tiny": Config(4, 3, 4, 50, 2000)},
    runs=runs,
    compute=one_by_one(row, steps),
    tables=tables,
    plots=plots,
    claims=claims,
    notes=(
        "Each diffused problem is minimized by gradient descent with the step 1/max|f_σ''|; σ falls by a constant "
        "factor down to 0.001, and the last problem is f itself.",
        f"SAM has the learning rate {LIMIT / 2:g}, half of the largest at which gradient descent can rest at the "
        "sharp minimum.",
        "A network has no closed form. Mobahi diffuses each kind of unit by an approximation; we do not.",
    ),
    steps=steps,
)
