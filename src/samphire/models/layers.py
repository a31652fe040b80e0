"""What the networks share: layers whose weights come from a generator, and the scale of their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Source = torch.Generator | None


@dataclass(frozen=True)
class Normalise:
    """The scale a network expects of its images: ``(x - mean) / std`` for each channel, of x between 0 and 1.

    Args:
        mean: One number, or one for each channel.
        std: The same.

    Example:
        >>> Normalise((0.5,), (0.25,))(torch.tensor([[[0, 255]]], dtype=torch.uint8))
        tensor([[[-2.,  2.]]])
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __call__(self, images: Tensor) -> Tensor:
        """Images (..., channels, height, width) on that scale: bytes from 0 to 255, or floats from 0 to 1."""
        if images.dtype == torch.uint8:
            images = images.to(torch.get_default_dtype()) / 255
        if not images.is_floating_point():
            raise TypeError(f"images must be uint8 from 0 to 255 or floats from 0 to 1, got {images.dtype}.")
        if {len(self.mean), len(self.std)} - {1, images.shape[-3]}:
            raise ValueError(
                f"images must have the {len(self.mean)} channels the network expects, "
                f"got shape {tuple(images.shape)}; repeat a single channel with images.expand."
            )
        mean, std = (images.new_tensor(v)[:, None, None] for v in (self.mean, self.std))
        return (images - mean) / std


IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # torchvision's models


def drawn(kind: type[nn.Module], i: int, *shape: Any, generator: Source, **settings: Any) -> nn.Module:
    """A layer with PyTorch's own initial distribution, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), from this generator."""
    layer: Any = nn.utils.skip_init(kind, i, *shape, **settings)
    bound = layer.weight[0].numel() ** -0.5
    for p in (layer.weight, layer.bias):
        nn.init.uniform_(p, -bound, bound, generator=generator)
    return layer


def conv(i: int, o: int, k: int, stride: int, generator: Source, depthwise: bool = False) -> nn.Conv2d:
    """A padded convolution without bias, its weights N(0, 2 / fan_out) (He et al. 2015).

    The fan-out of a depthwise convolution is its fan-in, k * k; PyTorch would count all its channels.
    """
    layer = nn.utils.skip_init(nn.Conv2d, i, o, k, stride, k // 2, groups=i if depthwise else 1, bias=False)
    nn.init.kaiming_normal_(
        layer.weight, mode="fan_in" if depthwise else "fan_out", nonlinearity="relu", generator=generator
    )
    return layer
