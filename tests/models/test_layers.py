"""The scale of a network's inputs."""

from __future__ import annotations

import pytest
import torch

from samphire.models import NETWORKS, Normalize, ResNet18, load

SCALES = [
    ("small_cnn", (0, 51, 255), (0, 0.2, 1)),
    ("mlp", (0, 51, 255), (0, 0.2, 1)),
    ("resnet18", (0, 51, 255), (-0.485 / 0.229, (0.2 - 0.456) / 0.224, (1 - 0.406) / 0.225)),
    ("efficientnet_lite0", (0, 127, 255), (-127 / 128, 0, 1)),
]


@pytest.mark.parametrize(("spec", "pixels", "expected"), SCALES, ids=[s for s, _, _ in SCALES])
def test_every_network_says_the_scale_of_its_inputs(
    spec: str, pixels: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    assert {s for s, _, _ in SCALES} == set(NETWORKS)
    images = torch.tensor(pixels, dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 2, 2)
    scaled = load(spec, 2).normalize(images)
    torch.testing.assert_close(scaled, torch.tensor(expected).view(1, 3, 1, 1).expand(2, 3, 2, 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(load(spec, 2).normalize(images.double() / 255), scaled.double(), atol=1e-6, rtol=0)


def test_normalize_refuses_what_it_would_get_wrong() -> None:
    with pytest.raises(
        TypeError, match=r"images must be uint8 from 0 to 255 or floats from 0 to 1, got torch\.int64"
    ):
        Normalize()(torch.zeros(1, 3, 2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"must have the 3 channels the network expects, got shape \(1, 1, 2, 2\)"):
        ResNet18.normalize(torch.zeros(1, 1, 2, 2))


def test_bytes_floats_and_floats_up_to_any_white_have_one_scale() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    scale = Normalize((0.5,), (0.25,))
    expected = (levels.double() / 255 - 0.5) / 0.25
    torch.testing.assert_close(scale(levels).double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(scale(levels.double() / 255), expected)
    torch.testing.assert_close(scale(levels.double(), white=255), expected)
    torch.testing.assert_close(scale(levels.double().mT, white=255, out=torch.empty_like(expected)), expected.mT)


def test_one_number_normalizes_any_shape_and_lets_gradients_through() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    scaled = Normalize((0.5,), (0.25,))(x)
    assert scaled.tolist() == [-2.0, 2.0]
    scaled.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 4.0]
