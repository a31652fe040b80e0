"""Whole batches as a network's input: each image is a box cut out, resampled, perhaps mirrored, and normalized."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from samphire.checks import Range, check_number, check_whole
from samphire.data.cache import height_and_width, in_order, shapes_of
from samphire.data.resampling import resample
from samphire.data.split import Split
from samphire.models.layers import Normalize

Boxes = Callable[[Tensor, Generator | None], Tensor]
"""From shapes (n, 2: height, width) to boxes (n, 4: top, left, height, width), in pixels; all ``float64``."""

__all__ = ["Boxes", "Transform", "batches", "moments", "random_resized_crop"]


def _whole(shapes: Tensor, generator: Generator | None) -> Tensor:
    return torch.cat([torch.zeros_like(shapes), shapes], 1)


@dataclass(frozen=True)
class Transform:
    r"""From ``uint8`` images to the network's input.

    .. math:: x = \bigl(R\, X\, C^\top / 255 - \text{mean}\bigr) / \text{std},

    where the rows of :math:`R` and :math:`C` are the weights of :func:`samphire.data.resampling.resample`. Boxes are
    drawn on the CPU, so the same generator gives the same crops on every device.

    Args:
        normalize: The scale of the result. The paper's dominoes, "normalized by the mean pixel value", have a mean
            only.
        size: Height and width of the result; ``None`` leaves the pixels where they are.
        boxes: Where to look, given the shapes the images had on disk; the whole image by default.
        flip: Probability of mirroring an image left to right, for a given ``size``.

    Example:
        >>> Transform(Normalize((0.5,)))(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """

    normalize: Normalize = Normalize()  # noqa: RUF009
    size: tuple[int, int] | None = None
    boxes: Boxes = _whole
    flip: float = 0.0

    def __call__(
        self, images: Tensor, shapes: NDArray[Any] | Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        """Transform a batch.

        Args:
            images: ``uint8`` of shape (n, channels, height, width), on any device; also floats of any shape, which
                are normalized alone.
            shapes: Height and width of each image before it was stored, (n, 2); as stored unless given. Boxes are
                drawn in these pixels, so stretched images are cropped as their originals would be.
            generator: Of the CPU; the only source of randomness.
        """
        if images.is_floating_point() and self.size is None:
            return self.normalize(images.float())
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise TypeError(
                f"images must be uint8 of shape (n, channels, height, width), got {images.dtype} of shape "
                f"{tuple(images.shape)}; decode them with samphire.data.cache.decoded."
            )
        x = images if self.size is None else self._resampled(images, self.size, shapes, generator)
        return self.normalize(x, white=255, out=torch.empty(x.shape, device=x.device))

    def _resampled(
        self, images: Tensor, size: tuple[int, int], shapes: NDArray[Any] | Tensor | None, generator: Generator | None
    ) -> Tensor:
        stored = torch.tensor([images.shape[2:]], dtype=torch.float64).expand(len(images), 2)
        original = stored if shapes is None else torch.as_tensor(shapes, dtype=torch.float64)
        boxes = self.boxes(original, generator) * (stored / original).repeat(1, 2)
        mirrored = torch.rand(len(images), generator=generator) < self.flip if self.flip else None
        return resample(images, boxes, size, mirrored)


def random_resized_crop(
    size: int | tuple[int, int] = 96,
    scale: tuple[float, float] = (0.7, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    normalize: Normalize = Normalize(),  # noqa: B008
) -> Transform:
    """The paper's training transform for Waterbirds: a random part of the image, resized and perhaps mirrored.

    Area and logarithm of the ratio are uniform. A box that does not fit is drawn again up to ten times, then the
    largest central one within ``ratio`` is taken: torchvision's rule, for all images at once.

    Args:
        size: Of the result; a number stands for a square.
        scale: Bounds of the crop's share of the image's area.
        ratio: Bounds of its width divided by its height.
        flip: Probability of mirroring.
        normalize: The scale of the result; :func:`moments` measures one.

    Example:
        >>> images = torch.zeros(8, 3, 128, 128, dtype=torch.uint8)
        >>> random_resized_crop(96)(images, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 96, 96])

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendix B.

    Differences:
        Pillow rounds to whole gray levels after each of its two passes; here nothing is rounded.
    """
    for name, (low, high), most in (("scale", scale, 1.0), ("ratio", ratio, math.inf)):
        if not 0 < low <= high <= most:
            raise ValueError(f"{name} must be (low, high) with 0 < low <= high <= {most}, got {(low, high)!r}.")
    check_number("flip", flip, Range(least=0, most=1))
    return Transform(normalize, height_and_width(size), partial(_random_boxes, scale=scale, ratio=ratio), flip)


def _random_boxes(
    shapes: Tensor, generator: Generator | None, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Boxes as torchvision's ``RandomResizedCrop`` draws them; always from ``22 * n`` numbers of the generator."""
    if generator is None:
        raise ValueError("random crops need a generator; pass generator=torch.Generator().manual_seed(...).")
    height, width = shapes.T
    uniform = torch.rand(22, len(shapes), generator=generator, dtype=torch.float64)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * uniform[:10])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    wide = (low + (high - low) * uniform[10:20]).exp()
    w, h = (area * wide).sqrt().round(), (area / wide).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(0, keepdim=True)
    box = torch.cat([h.gather(0, first), w.gather(0, first)])
    spare = torch.stack([height.minimum((width / ratio[0]).round()), width.minimum((height * ratio[1]).round())])
    box = torch.where(fits.any(0), box, spare)
    room = shapes.T - box
    corner = torch.where(fits.any(0), (uniform[20:] * (room + 1)).floor(), (room / 2).floor())
    return torch.cat([corner, box]).T


def moments(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels, values in 0 to 1; exact, from a histogram.

    Args:
        images: ``uint8`` (n, channels, height, width); a memory map is read piece by piece.

    Example:
        >>> moments(np.array([[[[0, 255]]], [[[255, 0]]]], np.uint8))
        ((0.5,), (0.5,))
    """
    counts = np.zeros((images.shape[1], 256), np.int64)
    for i in range(0, len(images), 1024):
        for channel, pixels in enumerate(images[i : i + 1024].swapaxes(0, 1)):
            counts[channel] += np.bincount(pixels.ravel(), minlength=256)
    levels = np.arange(256) / 255
    share = counts / counts.sum(1, keepdims=True)
    mean = share @ levels
    std = np.sqrt((share * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(std.tolist())


def batches(
    split: Split,
    size: int,
    transform: Transform,
    generator: Generator | None = None,
    *,
    positions: NDArray[np.int64] | None = None,
    rank: int = 0,
    ranks: int = 1,
    device: torch.device | str = "cpu",
    ahead: int = 1,
) -> Iterator[tuple[Tensor, Tensor, NDArray[np.int64]]]:
    """One pass over a split: inputs, labels, and the examples' positions in the split.

    Pixels travel to the device as ``uint8`` and are transformed there. A pass takes one number from the generator, so
    what comes later depends neither on an early end nor on ``ahead``.

    Args:
        split: Its images are decoded: an array or a memory map.
        size: Examples in a batch; the last one may have fewer.
        transform: How images become inputs.
        generator: Of the CPU, for the order and the crops; None takes the examples in order.
        positions: Which examples, with repeats; each once unless given.
        rank: Which share of every batch to yield.
        ranks: Number of shares. All have the same order, and crops of their own. Batches with fewer examples than
            shares are left out.
        device: Where inputs and labels go.
        ahead: How many batches a thread prepares while the caller computes; 0 for no thread.

    Example:
        >>> split = Split(np.zeros((5, 3, 2, 2), np.uint8), np.arange(5), {})
        >>> [(tuple(x.shape), y.tolist(), at.tolist()) for x, y, at in batches(split, 3, Transform())]
        [((3, 3, 2, 2), [0, 1, 2], [0, 1, 2]), ((2, 3, 2, 2), [3, 4], [3, 4])]
    """
    check_whole("size", size)
    shapes = shapes_of(split)
    own = None
    order = np.arange(len(split)) if positions is None else positions
    if generator is not None:
        drawn = int(torch.randint(2**62, (), generator=generator))
        own = Generator().manual_seed(drawn)
        order = order[torch.randperm(len(order), generator=own).numpy()]
        own.manual_seed(drawn + 1 + rank)

    def batch(at: NDArray[np.int64]) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        images = torch.from_numpy(np.asarray(split.images[at])).to(device)
        return transform(images, shapes[at], own), torch.from_numpy(split.label[at]).to(device), at

    whole = (order[i : i + size] for i in range(0, len(order), size))
    parts = (at[rank::ranks] for at in whole if len(at) >= ranks)
    return in_order(batch, parts, threads=1, ahead=ahead) if ahead else map(batch, parts)
