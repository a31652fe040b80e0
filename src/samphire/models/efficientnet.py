"""EfficientNet-Lite0: its ImageNet weights come as a Python package, for transfer learning offline."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu6

from samphire.models.layers import Normalize, Source, conv, drawn

__all__ = ["EfficientNetLite0"]

# repeats, kernel, stride of the first, expansion, channels in, channels out
_STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


class _Block(nn.Module):
    """An inverted bottleneck: widen, convolve each channel alone, narrow; a shortcut where the shape allows."""

    def __init__(self, i: int, o: int, k: int, stride: int, expand: int, generator: Source) -> None:
        super().__init__()
        wide = i * expand
        if expand > 1:
            self._expand_conv = conv(i, wide, 1, 1, generator)
            self._bn0 = _norm(wide)
        self._depthwise_conv = conv(wide, wide, k, stride, generator, depthwise=True)
        self._bn1 = _norm(wide)
        self._project_conv = conv(wide, o, 1, 1, generator)
        self._bn2 = _norm(o)
        self.widens, self.shortcut = expand > 1, stride == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        h = relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        h = relu6(self._bn1(_same(self._depthwise_conv, h)))
        h = self._bn2(self._project_conv(h))
        return h + x if self.shortcut else h


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 with the parameter names of efficientnet-lite-pytorch, so that its weights load.

    Args:
        num_classes: Outputs of ``_fc``.
        generator: Source of the initial weights.

    Example:
        >>> net = EfficientNetLite0()
        >>> sum(p.numel() for p in net.parameters()), net.features(torch.zeros(2, 3, 96, 96)).shape
        (4652008, torch.Size([2, 1280]))

    References:
        Tan and Le, EfficientNet, ICML 2019; Liu, Higher accuracy on vision models with EfficientNet-Lite, 2020;
        inputs, shapes and initial convolutions as in TensorFlow's ``efficientnet/lite``.

    Differences:
        No dropout and no dropped blocks in training, so that two passes over a batch see one function. The package
        pads for 224 pixels by default; here, as in TensorFlow, padding follows the size of the input. BatchNorm's
        momentum is torch's 0.1: with the official 0.01 (TensorFlow's 0.99), the statistics of ImageNet outlast the
        few hundred steps of a fine-tuning, and evaluation is of another network than the one that was trained.
    """

    normalize: ClassVar[Normalize] = Normalize((127 / 255,), (128 / 255,))
    num_features: ClassVar[int] = 1280

    def __init__(self, num_classes: int = 1000, generator: Source = None) -> None:
        super().__init__()
        self._conv_stem = conv(3, 32, 3, 2, generator)
        self._bn0 = _norm(32)
        self._blocks = nn.Sequential(
            *(
                _Block(o if n else i, o, k, 1 if n else stride, expand, generator)
                for repeats, k, stride, expand, i, o in _STAGES
                for n in range(repeats)
            )
        )
        self._conv_head = conv(320, self.num_features, 1, 1, generator)
        self._bn1 = _norm(self.num_features)
        self._fc = drawn(nn.Linear, self.num_features, num_classes, generator=generator)

    def features(self, x: Tensor) -> Tensor:
        """What ``_fc`` sees, shape (n, 1280), for images of any size."""
        h = self._blocks(relu6(self._bn0(_same(self._conv_stem, x))))
        return relu6(self._bn1(self._conv_head(h))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self._fc(self.features(x))


def _norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm with TensorFlow's epsilon, and torch's momentum for fine-tuning."""
    return nn.BatchNorm2d(channels, eps=1e-3)


def _same(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The layer with TensorFlow's padding: ceil(size / stride) outputs, an odd pixel of padding at the end.

    Along each axis that is ``(ceil(size / stride) - 1) * stride + k - size`` pixels in all, which for stride 1 is the
    layer's own ``k // 2`` on both sides.
    """
    (k, _), (stride, _) = layer.kernel_size, layer.stride
    if stride == 1:
        return layer(x)
    pads = [max((math.ceil(size / stride) - 1) * stride + k - size, 0) for size in x.shape[:1:-1]]
    x = pad(x, [side for both in pads for side in (both // 2, both - both // 2)])
    return conv2d(x, layer.weight, None, stride, groups=layer.groups)
