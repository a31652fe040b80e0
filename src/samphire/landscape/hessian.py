r"""The Hessian :math:`H = \nabla^2 L(w)` by its products with vectors: eigenvalues, trace, spectral density.

On :meth:`Landscape.scaled` it is :math:`T H T`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samphire.checks import check_one_of, check_whole
from samphire.landscape.loss import Landscape
from samphire.statistics import Estimate, estimate
from samphire.tree import Vector

Array = NDArray[np.float64]

__all__ = ["Density", "Eigenvalues", "Trace", "density", "eigenvalues", "trace"]

_DENSE = 32  # up to this many weights the whole matrix is cheaper than a Krylov space
_NUMBERS = 2**27  # how many a measure may keep at once when it works on several vectors together


@dataclass(frozen=True)
class Eigenvalues:
    r"""Eigenvalues at one end of the spectrum.

    Attributes:
        values: Outermost first.
        residuals: :math:`\|Hv - \lambda v\|` for each: some eigenvalue lies within this distance.
        vectors: Of length 1, in the coordinates of the landscape; as directions for :func:`line` and :func:`plane`.
        products: Hessian-vector products that were needed.
        end: ``"top"`` or ``"bottom"``.
    """

    values: Array
    residuals: Array
    vectors: list[Vector]
    products: int
    end: str

    def in_words(self) -> str:
        pairs = zip(self.values, self.residuals, strict=True)
        listed = ", ".join(f"{value:.4g} ± {error:.1g}" for value, error in pairs)
        first = self.values[0]
        if self.end == "bottom":
            meaning = "A negative one is a direction in which the loss still curves down: no minimum."
        elif first > 0:
            meaning = (
                f"Gradient descent is unstable along the sharpest direction above lr = 2/lambda_1 = {2 / first:.3g}."
            )
        else:
            meaning = "None is positive: the loss curves up in no direction."
        return (
            f"Curvatures {listed}. {meaning} They describe a few directions and not the others, grow with the "
            "scale of the loss, and shrink when weights are scaled up."
        )


def eigenvalues(
    landscape: Landscape, k: int = 5, end: Literal["top", "bottom"] = "top", tol: float = 1e-4, seed: int = 0
) -> Eigenvalues:
    r"""The k largest or smallest eigenvalues of the Hessian with their eigenvectors.

    ARPACK's restarted Lanczos method (:func:`scipy.sparse.linalg.eigsh`) on exact products: it keeps the whole Krylov
    space, where power iteration keeps one vector, and needs many times fewer products. An eigenvalue that occurs
    several times (exact symmetries make many zeros) may be found fewer times.

    Args:
        landscape: The landscape.
        k: How many.
        end: The largest (``"top"``) or the smallest (``"bottom"``, negative at a saddle).
        tol: Residuals relative to the eigenvalues at which to stop; the eigenvalues' own errors are of its square.
        seed: Of the starting vector.

    Example:
        >>> f = lambda w: 0.5 * (torch.arange(50) * w["x"] ** 2).sum()
        >>> top = eigenvalues(Landscape.of_function(f, {"x": torch.ones(50)}), k=2)
        >>> top.values.round(3)
        array([49., 48.])

    Differences:
        PyHessian stops power iteration when an eigenvalue changes little, which says nothing of its error, and finds
        the eigenvalues largest in magnitude, negative ones among the positive.
    """
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    d = landscape.dimension
    check_whole("k", k, most=d)
    check_one_of("end of the spectrum", end, ("top", "bottom"))
    space = _Space(landscape)
    if d <= max(_DENSE, 2 * k + 1):
        matrix = np.stack([space.product(column) for column in np.eye(d, dtype=space.dtype)])
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    else:
        start = torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=space.torch_dtype)
        operator = LinearOperator((d, d), matvec=space.product, dtype=space.dtype)  # type: ignore[call-arg,misc]
        try:
            values, vectors = eigsh(operator, k, which="LA" if end == "top" else "SA", v0=start.numpy(), tol=tol)
        except ArpackError:
            if space.product(start.numpy()).any():
                raise
            values, vectors = np.zeros(k), np.eye(d, k, dtype=space.dtype)  # H = 0: a linear or a dead network
    order = np.argsort(values)[: -k - 1 : -1] if end == "top" else np.argsort(values)[:k]
    values, vectors = values[order].astype(np.float64), vectors[:, order]
    flats = torch.from_numpy(np.ascontiguousarray(vectors.T)).to(space.torch_dtype)
    off = space.products(flats).double() - torch.from_numpy(values)[:, None] * flats
    return Eigenvalues(values, off.norm(dim=1).numpy(), [space.vector(v) for v in flats], space.count, end)


@dataclass(frozen=True)
class Trace:
    r"""The sum of all eigenvalues.

    Attributes:
        trace: With its standard error.
        dimension: Number of eigenvalues.
    """

    trace: Estimate
    dimension: int

    def in_words(self) -> str:
        return (
            f"The curvatures of all {self.dimension} directions add up to {self.trace}, "
            f"{self.trace.mean / self.dimension:.3g} each on average. It governs how much random changes hurt; "
            "a small trace may hide steep directions, and both signs cancel in it."
        )


def trace(landscape: Landscape, samples: int = 64, seed: int = 0) -> Trace:
    r"""The trace of the Hessian by Hutchinson's estimator.

    .. math:: \mathrm{tr} H = E\, z^\top H z, \qquad z_i = \pm 1, \qquad
              \mathrm{var} = 2 \bigl( \|H\|_F^2 - \textstyle\sum_i H_{ii}^2 \bigr).

    Args:
        landscape: The landscape.
        samples: Draws of z; the standard error falls with their root.
        seed: Of the draws.

    Example:
        >>> f = lambda w: 0.5 * (torch.tensor([1.0, 4.0]) * w["x"] ** 2).sum()
        >>> trace(Landscape.of_function(f, {"x": torch.zeros(2)}), samples=2).trace  # exact: H is diagonal
        Estimate(mean=5.0, error=0.0, n=2)

    References:
        Hutchinson, A stochastic estimator of the trace of the influence matrix, 1989.
    """
    space, draws = _Space(landscape), []
    for probes in space.probes(samples, seed, each=2):
        images = space.products(probes)
        draws += [torch.dot(z.double(), h.double()).item() for z, h in zip(probes, images, strict=True)]
    return Trace(estimate(draws), landscape.dimension)


@dataclass(frozen=True)
class Density:
    r"""The spectrum as weighted nodes: a share ``weights[i]`` of the eigenvalues lies around ``nodes[i]``.

    Attributes:
        nodes: Shape (draws, steps).
        weights: The same shape; each row adds up to 1.
        dimension: Number of eigenvalues.
    """

    nodes: Array
    weights: Array
    dimension: int

    def at(self, grid: Array, width: float) -> Array:
        """The density with every node blurred by a Gaussian.

        Args:
            grid: Where, shape (g,).
            width: Standard deviation of the Gaussian.
        """
        z = (np.asarray(grid)[:, None, None] - self.nodes) / width
        bells = np.exp(-0.5 * z**2) / (width * np.sqrt(2 * np.pi))
        return (bells * self.weights).sum(2).mean(1)

    def share(self, low: float, high: float) -> float:
        """The share of eigenvalues between two numbers, both included."""
        inside = (self.nodes >= low) & (self.nodes <= high)
        return float((self.weights * inside).sum(1).mean())

    def in_words(self) -> str:
        top = self.nodes.max()
        small = 0.01 * abs(top)
        return (
            f"{self.share(-small, small):.1%} of the directions are flat to 1 % of the largest curvature {top:.4g}; "
            f"{self.share(-np.inf, -small):.2%} curve down more than that. A bulk at zero with few outliers is what "
            "trained networks have; it does not tell a good one from a bad one. Single eigenvalues inside the bulk "
            "are not resolved."
        )


def density(landscape: Landscape, steps: int = 40, samples: int = 8, seed: int = 0) -> Density:
    r"""The spectral density of the Hessian by stochastic Lanczos quadrature.

    For a random unit z, ``steps`` of Lanczos give a tridiagonal matrix. Its eigenvalues are the nodes, and the
    squared first entries of its eigenvectors the weights: Gauss quadrature, exact for :math:`z^\top H^p z` as long as
    p is below twice the steps.

    Args:
        landscape: The landscape.
        steps: Of Lanczos, with full reorthogonalization; memory for as many vectors.
        samples: Draws of z.
        seed: Of the draws.

    Example:
        >>> f = lambda w: 0.5 * (torch.tensor([1.0, 1.0, 1.0, 5.0]) * w["x"] ** 2).sum()
        >>> spectrum = density(Landscape.of_function(f, {"x": torch.zeros(4)}), samples=200)
        >>> round(spectrum.share(0.9, 1.1), 2)
        0.75

    References:
        Golub and Welsch 1969; Ghorbani et al., An Investigation into Neural Net Optimization via Hessian Eigenvalue
        Density, ICML 2019, https://arxiv.org/abs/1901.10159
    """
    check_whole("steps", steps)
    steps = min(steps, landscape.dimension)
    space = _Space(landscape)
    rules = [
        rule for probes in space.probes(samples, seed, each=steps + 2) for rule in _lanczos(space, probes, steps)
    ]
    nodes, weights = (np.stack(part) for part in zip(*rules, strict=True))
    return Density(nodes, weights, landscape.dimension)


def _lanczos(space: _Space, probes: Tensor, steps: int) -> Iterator[tuple[Array, Array]]:
    """Nodes and weights for each probe; all advance together, so that they share passes over the data."""
    q = probes / probes.norm(dim=1, keepdim=True)
    basis, alphas, betas = [q], [], []
    for _ in range(steps):
        r = space.products(q)
        alphas.append((q * r).sum(1))
        for _ in range(2):  # twice is enough (Kahan)
            for b in basis:
                r = r - (b * r).sum(1, keepdim=True) * b
        beta = r.norm(dim=1)
        q = torch.where(beta[:, None] > 0, r / beta[:, None], 0.0)  # 0: the Krylov space is complete
        betas.append(beta)
        basis.append(q)
    for a, b in zip(torch.stack(alphas, 1).double(), torch.stack(betas, 1).double(), strict=True):
        matrix = torch.diag(a) + torch.diag(b[:-1], 1) + torch.diag(b[:-1], -1)
        values, vectors = np.linalg.eigh(matrix.numpy())
        yield values, vectors[0] ** 2


class _Space:
    """Flat arrays in place of named tensors, on the CPU, and a count of products."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape, self.count = landscape, 0
        like = landscape.w.tensors
        dtypes = [t.dtype for t in like.values()]
        wide = torch.float64 if torch.float64 in dtypes else torch.float32
        self.torch_dtype, self.dtype = wide, np.dtype("float64" if wide == torch.float64 else "float32")

    def vector(self, flat: Tensor) -> Vector:
        like = self.landscape.w.tensors
        parts = flat.split([t.numel() for t in like.values()])
        return Vector({n: p.view_as(t).to(t) for (n, t), p in zip(like.items(), parts, strict=True)})

    def flat(self, v: Vector) -> Tensor:
        entries = v.dense()
        return torch.cat([entries[name].detach().reshape(-1).cpu() for name in self.landscape.w]).to(self.torch_dtype)

    def products(self, flats: Tensor | Sequence[Tensor]) -> Tensor:
        self.count += len(flats)
        return torch.stack([self.flat(h) for h in self.landscape.products([self.vector(v) for v in flats])])

    def product(self, flat: NDArray[Any]) -> NDArray[Any]:
        return self.products([torch.from_numpy(flat.reshape(-1)).to(self.torch_dtype)])[0].numpy()

    def probes(self, samples: int, seed: int, each: int) -> Iterator[Tensor]:
        """Vectors of random signs, in stacks as large as memory for ``each`` vectors a probe allows."""
        check_whole("samples", samples)
        generator, d = torch.Generator().manual_seed(seed), self.landscape.dimension
        together = max(1, _NUMBERS // (each * d))
        for start in range(0, samples, together):
            rows = [torch.randint(2, (d,), generator=generator) for _ in range(min(together, samples - start))]
            yield 2 * torch.stack(rows).to(self.torch_dtype) - 1
