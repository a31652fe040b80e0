"""What the networks share: layers with weights from a generator, and the scale of their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Source = torch.Generator | None

__all__ = ["IMAGENET", "Normalize", "Source", "conv", "drawn"]


@dataclass(frozen=True)
class Normalize:
    """The scale a network expects of its images: ``(x - mean) / std`` for each channel, with x from 0 to 1.

    Args:
        mean: One number, or one for each channel.
        std: The same.

    Example:
        >>> Normalize((0.5,), (0.25,))(torch.tensor([[[0, 255]]], dtype=torch.uint8)).round(decimals=4)
        tensor([[[-2.,  2.]]])
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, images: Tensor, *, white: float | None = None, out: Tensor | None = None) -> Tensor:
        """Put images on that scale.

        Args:
            images: Bytes or floats, (..., channels, height, width).
            white: The value that stands for 1; 255 for bytes and 1 for floats unless given.
            out: Where the result is written; a new tensor unless given.
        """
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise TypeError(f"images must be uint8 from 0 to 255 or floats from 0 to 1, got {images.dtype}.")
        channels = max(len(self.mean), len(self.std))
        if channels > 1 and images.shape[-3:-2] != (channels,):
            raise ValueError(
                f"images must have the {channels} channels the network expects, got shape {tuple(images.shape)}; "
                "repeat a single channel with images.expand."
            )
        dtype = images.dtype if images.is_floating_point() else torch.get_default_dtype()
        white = white or (255 if images.dtype == torch.uint8 else 1)
        mean, std = (
            torch.tensor(v, dtype=dtype, device=images.device).reshape((-1, 1, 1) if len(v) > 1 else ())
            for v in (self.mean, self.std)
        )
        return torch.addcmul(-mean / std, images, 1 / (white * std), out=out)


IMAGENET = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # torchvision's models


def drawn(kind: type[nn.Module], i: int, *shape: int, generator: Source, **settings: Any) -> nn.Module:
    """A layer with PyTorch's own initial distribution, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), from this generator."""
    layer: Any = nn.utils.skip_init(kind, i, *shape, **settings)
    bound = layer.weight[0].numel() ** -0.5
    for p in (layer.weight, layer.bias):
        nn.init.uniform_(p, -bound, bound, generator=generator)
    return layer


def conv(i: int, o: int, k: int, stride: int, generator: Source, depthwise: bool = False) -> nn.Conv2d:
    """A padded convolution without bias, with weights N(0, 2 / fan_out) (He et al. 2015).

    The fan-out of a depthwise convolution is its fan-in, k * k; PyTorch would count all its channels.
    """
    layer = nn.utils.skip_init(nn.Conv2d, i, o, k, stride, k // 2, groups=i if depthwise else 1, bias=False)
    nn.init.kaiming_normal_(
        layer.weight, mode="fan_in" if depthwise else "fan_out", nonlinearity="relu", generator=generator
    )
    return layer
