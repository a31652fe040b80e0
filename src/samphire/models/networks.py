"""The networks of the papers: the toy's, the small CNN, a plain MLP, and ResNet-18 with torchvision's names.

Every constructor takes a ``generator``: with one, the weights depend on it alone and the global RNG is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from samphire.models.layers import IMAGENET, Normalize, Source, conv, drawn

__all__ = ["ResNet18", "ToyNet", "mlp", "small_cnn", "two_views"]


class ToyNet(nn.Module):
    r"""The toy's network: two features from one shared MLP, and a head that weighs them.

    .. math:: \Phi(x) = [\Phi_\theta([x_\text{easy}, 0]),\ \Phi_\theta([0, x_\text{hard}])], \qquad
              f(x) = \langle v, \Phi(x) \rangle, \qquad v = (1, 1) \text{ at first.}

    :math:`\Phi_\theta`: Linear(4, 100), LayerNorm, ReLU, Linear(100, 100), LayerNorm, ReLU, Linear(100, 1).

    Args:
        width: Units of the hidden layers.
        generator: Source of the initial weights; ``None`` for PyTorch's global one.

    Example:
        >>> net = ToyNet(generator=torch.Generator().manual_seed(0))
        >>> x = torch.tensor([[1.0, 1.0, 0.5, -0.5]])
        >>> net.features(x).shape, bool(torch.allclose(net(x), net.features(x).sum(1)))
        (torch.Size([1, 2]), True)

    References:
        Springer et al. 2024, equation 4 and appendix B, which does not say how the head starts.
    """

    def __init__(self, width: int = 100, generator: Source = None) -> None:
        super().__init__()
        self.phi = nn.Sequential(
            drawn(nn.Linear, 4, width, generator=generator),
            nn.LayerNorm(width),
            nn.ReLU(),
            drawn(nn.Linear, width, width, generator=generator),
            nn.LayerNorm(width),
            nn.ReLU(),
            drawn(nn.Linear, width, 1, generator=generator),
        )
        self.head = nn.utils.skip_init(nn.Linear, 2, 1, bias=False)
        nn.init.ones_(self.head.weight)

    def features(self, x: Tensor) -> Tensor:
        """``[Phi_easy, Phi_hard]``, shape (n, 2)."""
        return self.phi(two_views(x)).squeeze(-1)

    def forward(self, x: Tensor) -> Tensor:
        """The logit of the label 1, shape (n,)."""
        return self.head(self.features(x)).squeeze(-1)


def two_views(x: Tensor) -> Tensor:
    """``[x_easy, 0]`` and ``[0, x_hard]`` of every point: shape (..., 4) to (..., 2, 4).

    Example:
        >>> two_views(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([[1., 2., 0., 0.],
                [0., 0., 3., 4.]])
    """
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=x.dtype, device=x.device)
    return x[..., None, :] * mask


def mlp(widths: Sequence[int], generator: Source = None) -> nn.Sequential:
    """A plain ReLU network; it flattens its input.

    Args:
        widths: Units from input to output; the review's network is ``(784, 500, 300, 10)``.
        generator: Source of the initial weights.

    Example:
        >>> sum(p.numel() for p in mlp((784, 500, 300, 10)).parameters())
        545810
    """
    if len(widths) < 2:
        raise ValueError(f"mlp: widths must have at least an input and an output, got {tuple(widths)!r}.")
    layers: list[nn.Module] = [nn.Flatten()]
    for i, o in pairwise(widths):
        layers += [drawn(nn.Linear, i, o, generator=generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn(num_classes: int = 2, in_features: int = 4096, generator: Source = None) -> nn.Sequential:
    """The paper's network for dominoes: three strided convolutions and a linear layer.

    Args:
        num_classes: Outputs.
        in_features: Inputs of the linear layer; 4096 for 3x64x32 (or 3x32x64) images, 3584 for 3x56x28.
        generator: Source of the initial weights.

    Example:
        >>> small_cnn()(torch.zeros(1, 3, 64, 32)).shape
        torch.Size([1, 2])

    References:
        Springer et al. 2024, appendix B.

    Differences:
        The listing has its last ReLU twice, which changes nothing; here it appears once.
    """

    def halved(i: int, o: int, k: int) -> nn.Module:
        return drawn(nn.Conv2d, i, o, kernel_size=k, stride=2, padding=k // 2, generator=generator)

    return nn.Sequential(
        halved(3, 32, 5), nn.ReLU(), halved(32, 64, 3), nn.ReLU(), halved(64, 128, 3), nn.ReLU(),
        nn.Flatten(), drawn(nn.Linear, in_features, num_classes, generator=generator),
    )  # fmt: skip


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2016)."""

    def __init__(self, i: int, o: int, stride: int, generator: Source) -> None:
        super().__init__()
        self.conv1 = conv(i, o, 3, stride, generator)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = conv(o, o, 3, 1, generator)
        self.bn2 = nn.BatchNorm2d(o)
        self.downsample = (
            None if stride == 1 and i == o else nn.Sequential(conv(i, o, 1, stride, generator), nn.BatchNorm2d(o))
        )

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.downsample is None else self.downsample(x)
        h = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(h)) + short).relu()


class ResNet18(nn.Module):
    """ResNet-18 with torchvision's parameter names, so that ``load_state_dict`` takes the official checkpoint.

    Args:
        num_classes: Outputs of ``fc``.
        generator: Source of the initial weights.

    Example:
        >>> net = ResNet18()
        >>> sum(p.numel() for p in net.parameters()), net.layer2[0].downsample[0].weight.shape
        (11689512, torch.Size([128, 64, 1, 1]))

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016; initial weights as in torchvision.
    """

    normalize: ClassVar[Normalize] = IMAGENET
    num_features: ClassVar[int] = 512

    def __init__(self, num_classes: int = 1000, generator: Source = None) -> None:
        super().__init__()
        self.conv1 = conv(3, 64, 7, 2, generator)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, 1, generator)
        self.layer2 = _stage(64, 128, 2, generator)
        self.layer3 = _stage(128, 256, 2, generator)
        self.layer4 = _stage(256, 512, 2, generator)
        self.fc = drawn(nn.Linear, self.num_features, num_classes, generator=generator)

    def features(self, x: Tensor) -> Tensor:
        """What ``fc`` sees, shape (n, 512), for images of any size."""
        h = nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            h = stage(h)
        return h.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


def _stage(i: int, o: int, stride: int, generator: Source) -> nn.Sequential:
    return nn.Sequential(_Block(i, o, stride, generator), _Block(o, o, 1, generator))
