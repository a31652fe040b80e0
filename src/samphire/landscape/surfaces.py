"""The loss along directions: lines, planes, and the plane a training run moved in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samphire import tree
from samphire.landscape.loss import Landscape
from samphire.tree import Vector

Array = NDArray[np.float64]

__all__ = ["Line", "Plane", "Trajectory", "line", "plane", "random_direction", "trajectory"]


@dataclass(frozen=True)
class Line:
    """The loss at steps along a direction.

    Attributes:
        at: Multiples of the direction, shape (n,).
        loss: There; inf or nan where the model overflows.
    """

    at: Array
    loss: Array

    def in_words(self) -> str:
        return (
            f"The loss is least, {np.nanmin(self.loss):.4g}, at {self.at[np.nanargmin(self.loss)]:.3g} along it. "
            "One line of a space with very many dimensions: a valley here may be a ridge in another direction."
        )


def line(landscape: Landscape, direction: Vector, at: Sequence[float] | Array) -> Line:
    """The loss along one direction.

    Args:
        landscape: The landscape.
        direction: For instance the gradient's, an eigenvector, or another network's weights minus these.
        at: Multiples of the direction.

    Example:
        >>> here = Landscape.of_function(lambda w: (w["x"] ** 2).sum(), {"x": torch.tensor([1.0])})
        >>> line(here, Vector({"x": torch.tensor([1.0])}), [-1.0, 0.0, 1.0]).loss
        array([0., 1., 4.])
    """
    at = np.asarray(at, np.float64)
    return Line(at, np.array([landscape.value(float(a) * direction) for a in at]))


@dataclass(frozen=True)
class Plane:
    """The loss over a grid of two directions.

    Attributes:
        x: Multiples of the first direction, shape (n,).
        y: Multiples of the second, shape (m,).
        loss: Shape (m, n), as matplotlib's ``contour(x, y, loss)`` takes it.
    """

    x: Array
    y: Array
    loss: Array

    def in_words(self) -> str:
        return (
            f"Over this plane the loss runs from {np.nanmin(self.loss):.4g} to {np.nanmax(self.loss):.4g}. Two "
            "directions of very many: convex here does not mean convex, and random directions see the average "
            "curvature, not the largest. Compare pictures of different networks only on filter-normalized directions "
            "and one scale."
        )


def plane(
    landscape: Landscape, right: Vector, up: Vector, x: Sequence[float] | Array, y: Sequence[float] | Array
) -> Plane:
    """The loss over the plane of two directions.

    Args:
        landscape: The landscape.
        right: The first direction, for instance a :func:`random_direction`.
        up: The second.
        x: Multiples of the first.
        y: Multiples of the second.

    Example:
        >>> origin = {"x": torch.zeros(()), "y": torch.zeros(())}
        >>> here = Landscape.of_function(lambda w: w["x"] ** 2 + w["y"] ** 4, origin)
        >>> east, north = Vector({"x": torch.ones(())}), Vector({"y": torch.ones(())})
        >>> plane(here, east, north, x=[0, 1], y=[0, 2]).loss
        array([[ 0.,  1.],
               [16., 17.]])
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    loss = [[landscape.value(float(a) * right + float(b) * up) for a in x] for b in y]
    return Plane(x, y, np.array(loss).reshape(len(y), len(x)))


def random_direction(landscape: Landscape, seed: int = 0) -> Vector:
    r"""A random direction with every filter as long as the network's own.

    .. math:: d_{ij} \leftarrow \frac{d_{ij}}{\|d_{ij}\|} \|w_{ij}\|

    for the filters (or rows) j of each layer i, and 0 for biases and norm scales; so the picture does not change when
    layers are rescaled.

    Args:
        landscape: The landscape.
        seed: Of the direction.

    Example:
        >>> here = Landscape.of_function(lambda w: (w["a"] ** 2).sum(), {"a": torch.tensor([[3.0, 4.0], [0.0, 2.0]])})
        >>> random_direction(here).dense()["a"].norm(dim=1).round(decimals=4)
        tensor([5., 2.])

    References:
        Li et al., Visualizing the Loss Landscape of Neural Nets, NeurIPS 2018, https://arxiv.org/abs/1712.09913
    """
    drawn = tree.randn_like(landscape.w, seed).tensors
    return Vector({name: _as_long_as(w, drawn[name]) for name, w in landscape.w.tensors.items()})


def _as_long_as(w: Tensor, d: Tensor) -> Tensor:
    if w.ndim < 2:
        return torch.zeros_like(w)
    rest = tuple(range(1, w.ndim))
    length = torch.linalg.vector_norm(d, dim=rest, keepdim=True).clamp_min(torch.finfo(d.dtype).tiny)
    return d / length * torch.linalg.vector_norm(w, dim=rest, keepdim=True)


@dataclass(frozen=True)
class Trajectory:
    """A run in the plane that holds most of it.

    Attributes:
        coordinates: Of each point, relative to the landscape's weights, shape (points, 2).
        directions: The plane's two orthonormal directions, for :func:`plane`.
        explained: The share of the squared distances that each direction holds.
    """

    coordinates: Array
    directions: tuple[Vector, Vector]
    explained: Array

    def in_words(self) -> str:
        """How much of the run the plane holds, and why that is little evidence."""
        return (
            f"The plane holds {self.explained.sum():.1%} of the squared distances ({self.explained[0]:.1%} and "
            f"{self.explained[1]:.1%}). A random walk in many dimensions also lies almost in such a plane, on smooth "
            "curves: a high share says little about the loss."
        )


def trajectory(landscape: Landscape, points: Sequence[Mapping[str, Tensor]]) -> Trajectory:
    r"""Checkpoints of a run, projected on the two principal directions of :math:`w_t - w`.

    Args:
        landscape: The landscape, usually at the end of the run.
        points: Weights by name (a state dict will do), two at least.

    Example:
        >>> here = Landscape.of_function(lambda w: (w["x"] ** 2).sum(), {"x": torch.zeros(3)})
        >>> run = trajectory(here, [{"x": torch.tensor([3.0, 0.0, 0.0])}, {"x": torch.tensor([0.0, 1.0, 0.0])}])
        >>> run.coordinates.round(6) + 0.0
        array([[3., 0.],
               [0., 1.]])

    References:
        Li et al. 2018, section 7; Antognini and Sohl-Dickstein, PCA of high dimensional random walks, NeurIPS 2018.

    Differences:
        Not centered, so that the plane goes through the landscape's weights; Li et al. subtract the mean for the
        directions.
    """
    if len(points) < 2:
        raise ValueError(f"a trajectory needs two points at least, got {len(points)}.")
    missing = [name for name in landscape.w if any(name not in point for point in points)]
    if missing:
        raise ValueError(f"a point has no weights named {missing[0]!r}; pass state dicts of the same model.")
    steps = {
        name: torch.stack([p[name].detach().to(w) - w for p in points]) for name, w in landscape.w.tensors.items()
    }
    gram = sum(_gram(s) for s in steps.values())  # (t, t), where the points are few and the weights many
    squares, u = np.linalg.eigh(gram)
    total = max(squares.sum(), np.finfo(np.float64).tiny)
    squares, u = squares[:-3:-1].clip(0), u[:, :-3:-1]
    u = u * np.where(u[np.abs(u).argmax(0), [0, 1]] < 0, -1, 1)
    lengths = np.sqrt(squares)
    right, up = (_combined(steps, u[:, i] / lengths[i] if lengths[i] else 0 * u[:, i]) for i in (0, 1))
    return Trajectory(u * lengths, (right, up), squares / total)


def _gram(steps: Tensor) -> Array:
    flat = steps.reshape(len(steps), -1).cpu().double()
    return (flat @ flat.T).numpy()


def _combined(steps: Mapping[str, Tensor], weights: Array) -> Vector:
    return Vector({name: torch.tensordot(torch.as_tensor(weights).to(s), s, 1) for name, s in steps.items()})
