"""The toy of Springer et al. (2024), appendix E: a linear (easy) and a spiral (hard) feature in four dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from samphire.checks import Count, Positive, Range, check_fields, check_number

A_EASY, A_HARD = 2.0, 0.25

Spiral = Literal["point", "literal"]
Noise = Literal["inside", "outside"]
Corruption = Literal["none", "label", "gaussian", "dropout"]
Where = Literal["both", "hard"]

__all__ = ["A_EASY", "A_HARD", "Corruption", "Noise", "Points", "Spiral", "Where", "check_toy", "toy"]


class Points(NamedTuple):
    """Examples.

    Attributes:
        x: Shape (n, 4): easy feature first, then hard.
        y: Shape (n,), -1 or 1.
    """

    x: Tensor
    y: Tensor


def toy(
    n: int = 300,
    chi: float = 360.0,
    *,
    generator: torch.Generator,
    spiral: Spiral = "point",
    noise: Noise = "inside",
    corruption: Corruption = "none",
    level: float = 0.0,
    where: Where = "both",
    dtype: torch.dtype = torch.float32,
) -> Points:
    r"""Points with a linear and a spiral feature, drawn independently given a fair label.

    With :math:`z \sim U(0,1)`, :math:`r^2 \sim U(0, (2\pi\chi/360)^2)`, :math:`s(r) = [-r\cos r, r\sin r]` and
    :math:`\eta \sim U[0,.5]^2`, equations 41 to 45 are

    .. math:: x_\text{easy} = y\, a_\text{easy}\,[z, z], \qquad
              x_\text{hard} = y\, a_\text{hard}\,(s(r) + \eta), \qquad
              x_k \leftarrow \varepsilon + u\, v\, x_k.

    All random numbers are drawn in one order for all settings: with one seed, a change of ``chi``, of the variant or
    of the corruption changes nothing else.

    Args:
        n: Number of points.
        chi: Complexity: how far the spiral turns, in degrees.
        generator: The only source of randomness.
        spiral: ``"point"``: the second arm is the first reflected in the origin. ``"literal"``: equation 43 as
            printed, :math:`s(y r)`, where the arms are mirror images and cross.
        noise: Whether the arms' noise :math:`\eta` is scaled (and reflected) with the spiral, or added outside,
            the same for both arms, as equation 44 is printed.
        corruption: Noise of equation 45: ``"label"`` flips a feature's sign (:math:`u=-1`), ``"gaussian"`` adds
            :math:`\varepsilon`, ``"dropout"`` puts a zero in its place (:math:`v=0`).
        level: Chance of a flip or a drop, or the standard deviation.
        where: Which features are corrupted, each by its own draws.
        dtype: Of the result; it does not change the draws.

    Example:
        >>> x, y = toy(4, generator=torch.Generator().manual_seed(0))
        >>> x.shape, bool((x[:, 0] * y > 0).all())
        (torch.Size([4, 4]), True)

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendix E.

    Differences:
        Printed literally the hard feature is not fully predictive (1-NN error 0.18 at 360 degrees), against the
        text; hence the default, which is the well-known two-spirals snippet. Equation 45 has ``[z, z]`` for the
        hard feature too (read: the spiral) and ``v ~ B(q)`` with ``q`` the dropout rate (read: ``1 - q``).
    """
    check_toy(n, chi, spiral, noise, corruption, level, where)
    uniform = torch.rand(7, n, generator=generator, dtype=torch.float64)
    gauss = torch.randn(n, 2, 2, generator=generator, dtype=torch.float64)
    y = torch.where(uniform[0] < 0.5, -1.0, 1.0).double()
    easy = A_EASY * (y * uniform[1])[:, None].expand(n, 2)  # eq. 42
    r = math.radians(chi) * uniform[2].sqrt()
    hard = _hard(y, r, 0.5 * uniform[3:5].T, spiral, noise)
    features = torch.stack([easy, hard], 1)  # (n, 2 features, 2 coordinates)
    if corruption != "none":
        noisy = _corrupted(features, corruption, level, gauss, uniform[5:7].T[..., None])
        features = noisy if where == "both" else torch.stack([easy, noisy[:, 1]], 1)
    return Points(features.reshape(n, 4).to(dtype), y.to(dtype))


def _hard(y: Tensor, r: Tensor, eta: Tensor, spiral: Spiral, noise: Noise) -> Tensor:
    y = y[:, None]
    if spiral == "literal":
        z = y * r[:, None]
        arm = torch.cat([-z * z.cos(), z * z.sin()], 1)  # eq. 43-44 as printed
        return A_HARD * (arm + eta) if noise == "inside" else A_HARD * arm + eta
    arm = torch.stack([-r * r.cos(), r * r.sin()], 1)
    return y * A_HARD * (arm + eta) if noise == "inside" else y * A_HARD * arm + eta


def _corrupted(x: Tensor, kind: Corruption, level: float, gauss: Tensor, uniform: Tensor) -> Tensor:
    """Equation 45."""
    if kind == "gaussian":
        return x + level * gauss
    hit = uniform < level
    return torch.where(hit, -x if kind == "label" else torch.zeros_like(x), x)


@dataclass(frozen=True)
class _Settings:
    n: Count
    chi: Positive
    spiral: Spiral
    noise: Noise
    corruption: Corruption
    where: Where


def check_toy(
    n: int, chi: float, spiral: Spiral, noise: Noise, corruption: Corruption, level: float, where: Where
) -> None:
    """Refuse settings that have no meaning for :func:`toy`, in one sentence."""
    check_fields(_Settings(n, chi, spiral, noise, corruption, where))
    check_number("level", level, Range(least=0, most=math.inf if corruption == "gaussian" else 1))
    if level > 0 and corruption == "none":
        raise ValueError(
            f"level is {level!r} but corruption is 'none'; choose 'label', 'gaussian' or 'dropout', or level 0."
        )
