"""Crops, flips and normalisation of whole batches: every transform is one box per image and one resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn.functional import embedding_bag

from samphire.data.cache import in_order, shapes_of
from samphire.data.split import Split

Boxes = Callable[[Tensor, Generator | None], Tensor]
"""From shapes (n, 2: height, width) to boxes (n, 4: top, left, height, width), in pixels; all ``float64``."""


@dataclass(frozen=True)
class Transform:
    r"""From ``uint8`` images to the network's input: cut out a box, resample it, perhaps mirror it, normalise.

    .. math:: x = \bigl(R\, X\, C^\top / 255 - \text{mean}\bigr) / \text{std},

    where the rows of :math:`R` and :math:`C` are the weights of :func:`resample`. Boxes are drawn on the CPU, so the
    same generator gives the same crops on every device.

    Args:
        size: Height and width of the result; None leaves the pixels where they are.
        boxes: Where to look, given the shapes the images had on disk.
        flip: Probability of mirroring an image left to right.
        mean: Subtracted from values in 0 to 1, one number or one for each channel.
        std: Divided by afterwards, likewise.
    """

    size: tuple[int, int] | None
    boxes: Boxes
    flip: float = 0.0
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0

    def __call__(
        self, images: Tensor, shapes: NDArray[Any] | Tensor | None = None, generator: Generator | None = None
    ) -> Tensor:
        """Transform a batch.

        Args:
            images: ``uint8`` of shape (n, channels, height, width), on any device.
            shapes: Height and width of each image before it was stored, (n, 2): a box is drawn in these pixels and
                carried over, so images stored with another ratio of the sides are cropped as their originals would
                be. None: as stored.
            generator: Of the CPU; the only source of randomness.
        """
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise TypeError(
                f"images must be uint8 of shape (n, channels, height, width), got {images.dtype} of shape "
                f"{tuple(images.shape)}; decode them with samphire.data.cache.decoded."
            )
        mean, std = (
            torch.as_tensor(v, dtype=torch.float32).reshape(-1, 1, 1).to(images.device) for v in (self.mean, self.std)
        )
        x = images if self.size is None else self._resampled(images, self.size, shapes, generator)
        out = torch.empty(x.shape, device=x.device)
        return torch.addcmul(-mean / std, x, 1 / (255 * std), out=out)

    def _resampled(
        self,
        images: Tensor,
        size: tuple[int, int],
        shapes: NDArray[Any] | Tensor | None,
        generator: Generator | None,
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
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
) -> Transform:
    """The paper's training transform for Waterbirds: a random part of the image, resized and perhaps mirrored.

    Area and logarithm of the ratio are uniform; a box that does not fit is drawn again up to ten times, then the
    largest central one within ``ratio`` is taken: torchvision's rule, for all images at once.

    Args:
        size: Of the result; a number stands for a square.
        scale: Bounds of the crop's share of the image's area.
        ratio: Bounds of its width divided by its height.
        flip: Probability of mirroring.
        mean: Subtracted from values in 0 to 1 (:func:`moments` measures it).
        std: Divided by afterwards.

    Example:
        >>> images = torch.zeros(8, 3, 128, 128, dtype=torch.uint8)
        >>> random_resized_crop(96)(images, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 96, 96])

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendix B.

    Differences:
        Pillow rounds to whole grey levels after each of its two passes; here nothing is rounded.
    """
    for name, (low, high), most in (("scale", scale, 1.0), ("ratio", ratio, math.inf)):
        if not 0 < low <= high <= most:
            raise ValueError(f"{name} must be (low, high) with 0 < low <= high <= {most}, got {(low, high)!r}.")
    if not 0 <= flip <= 1:
        raise ValueError(f"flip must be a probability in [0, 1], got {flip!r}.")
    return Transform(_pair(size), partial(random_boxes, scale=scale, ratio=ratio), flip, mean, std)


def centre_crop(
    size: int = 96,
    resize: int | None = None,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
) -> Transform:
    """The usual transform for evaluation: the shorter side to ``resize``, then the central square.

    Args:
        size: Side of the result.
        resize: Length of the shorter side before the crop; ``size * 256 / 224``, as for ImageNet, unless given.
            With ``resize=size`` the square spans the shorter side.
        mean: Subtracted from values in 0 to 1.
        std: Divided by afterwards.

    Example:
        >>> centre_crop(96)(torch.zeros(2, 3, 128, 128, dtype=torch.uint8)).shape
        torch.Size([2, 3, 96, 96])

    Differences:
        The paper does not print its transform for evaluation. ``Resize`` and ``CenterCrop`` are done as one
        resampling of an exactly centred square; as two steps each rounds to whole pixels.
    """
    resize = int(size * 256 / 224) if resize is None else resize
    if not resize >= size > 0:
        raise ValueError(f"resize must be >= size > 0, got resize={resize!r} and size={size!r}.")
    return Transform((size, size), partial(_central_squares, share=size / resize), mean=mean, std=std)


def resize(
    size: int | tuple[int, int] = 64, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0
) -> Transform:
    """The paper's transform for CelebA: the whole image at another size, whatever the ratio of its sides.

    Args:
        size: Of the result; a number stands for a square.
        mean: Subtracted from values in 0 to 1.
        std: Divided by afterwards.

    Example:
        >>> resize(2)(torch.full((1, 3, 4, 8), 51, dtype=torch.uint8))[0, 0]
        tensor([[0.2000, 0.2000],
                [0.2000, 0.2000]])
    """
    return Transform(_pair(size), _whole, mean=mean, std=std)


def normalise(mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0) -> Transform:
    """No resampling: the paper's dominoes, "normalised by the mean pixel value", have only a mean.

    Args:
        mean: Subtracted from values in 0 to 1.
        std: Divided by afterwards.

    Example:
        >>> normalise(mean=0.5)(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """
    return Transform(None, _whole, mean=mean, std=std)


def random_boxes(
    shapes: Tensor, generator: Generator | None, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """Boxes of random area and ratio, as torchvision's ``RandomResizedCrop`` draws them.

    Args:
        shapes: Heights and widths, (n, 2).
        generator: The only source of randomness; ``22 * n`` numbers are drawn whatever happens.
        scale: Bounds of the share of the area.
        ratio: Bounds of width / height.
    """
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


def _central_squares(shapes: Tensor, generator: Generator | None, share: float) -> Tensor:
    side = share * shapes.amin(1, keepdim=True).expand_as(shapes)
    return torch.cat([(shapes - side) / 2, side], 1)


def _whole(shapes: Tensor, generator: Generator | None) -> Tensor:
    return torch.cat([torch.zeros_like(shapes), shapes], 1)


def resample(images: Tensor, boxes: Tensor, size: tuple[int, int], mirrored: Tensor | None = None) -> Tensor:
    r"""A box of each image at a common size, bilinear with antialiasing.

    Along each side, with box :math:`[s, s + l)`, :math:`m` results, step :math:`d = l / m` and reach
    :math:`r = \max(d, 1)`, pixel :math:`j` enters result :math:`k` with the weight

    .. math:: w_{kj} \propto \max\Bigl(0, 1 - \frac{|j + \tfrac12 - s - (k + \tfrac12) d|}{r}\Bigr)
              \cdot \bigl|[j, j+1) \cap [s, s+l)\bigr|, \qquad \sum_j w_{kj} = 1.

    For boxes of whole pixels this is "crop, then resize" of Pillow and of ``interpolate(antialias=True)``. Only the
    few weights that are not zero are ever formed: each side is a weighted sum of rows, one ``embedding_bag`` for the
    whole batch, about twice as fast on a CPU as products with the matrices.

    Args:
        images: Of shape (n, channels, height, width).
        boxes: Top, left, height, width in pixels of ``images``, (n, 4), on the CPU.
        size: Height and width of the result.
        mirrored: Which images to flip left to right.

    Returns:
        ``float32`` (n, channels, *size), in grey levels; a permuted view.
    """
    n, c, height, width = images.shape
    top, left, high, wide = boxes.double().T
    down = _taps(top, high, height, size[0])
    across = _taps(left, wide, width, size[1])
    if mirrored is not None:
        across = tuple(torch.where(mirrored[:, None, None], t.flip(1), t) for t in across)
    x = _mix_rows(images.float(), *down)  # (n, c, h, width)
    x = _mix_rows(x.view(n, 1, c * size[0], width).transpose(2, 3), *across)  # (n, 1, w, c * h)
    return x.view(n, size[1], c, size[0]).permute(0, 2, 3, 1)


def _taps(start: Tensor, length: Tensor, pixels: int, results: int) -> tuple[Tensor, ...]:
    """The pixels that enter each result, and their weights: both (n, results, taps)."""
    start, length = start[:, None, None], length[:, None, None]
    d = length / results
    r = d.clamp_min(1)
    centre = start + (torch.arange(results)[:, None] + 0.5) * d
    j = (centre - r + 0.5).floor() + torch.arange(math.ceil(2 * r.amax().item()))
    covered = ((start + length).minimum(j + 1) - start.maximum(j)).clamp(0, 1)
    weight = (1 - (j + 0.5 - centre).abs() / r).clamp_min(0) * covered
    return j.long().clamp(0, pixels - 1), (weight / weight.sum(2, keepdim=True)).float()


def _mix_rows(x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Weighted sums of rows: x (n, m, rows, columns), taps (n, results, taps) -> (n, m, results, columns)."""
    n, m, rows, columns = x.shape
    index = index[:, None] + rows * torch.arange(n * m).view(n, m, 1, 1)
    taps = (-1, index.shape[-1])
    weight = weight[:, None].expand_as(index).reshape(taps)
    index, weight = index.view(taps).to(x.device), weight.to(x.device)
    return embedding_bag(index, x.reshape(-1, columns), per_sample_weights=weight, mode="sum").view(n, m, -1, columns)


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

    Pixels travel to the device as ``uint8`` and are transformed there. One number is taken from the generator for the
    whole pass, so a pass that is left early, or another ``ahead``, changes nothing that comes later.

    Args:
        split: Its images are decoded: an array or a memory map.
        size: Examples in a batch; the last one may have fewer.
        transform: How images become inputs.
        generator: Of the CPU, for the order and the crops; None takes the examples in order.
        positions: Which examples, as often as they stand there; each once unless given.
        rank: Which share of every batch to yield, of
        ranks: so many; all have the same order and crops of their own. Batches with fewer examples are left out.
        device: Where inputs and labels are wanted.
        ahead: How many batches a thread prepares while the caller computes; 0 for no thread.

    Example:
        >>> split = Split(np.zeros((5, 3, 2, 2), np.uint8), np.arange(5), {})
        >>> [(tuple(x.shape), y.tolist(), at.tolist()) for x, y, at in batches(split, 3, normalise())]
        [((3, 3, 2, 2), [0, 1, 2], [0, 1, 2]), ((2, 3, 2, 2), [3, 4], [3, 4])]
    """
    if size < 1:
        raise ValueError(f"size must be a number of examples >= 1, got {size!r}.")
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


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if not (height > 0 and width > 0):
        raise ValueError(f"size must be a positive number of pixels, or (height, width), got {size!r}.")
    return height, width
