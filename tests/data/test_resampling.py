"""Boxes resampled as torch, Pillow and the formula do."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from samphire.data.augment import Transform
from samphire.data.resampling import resample


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(n=5, c=3, h=40, w=56):
    return torch.randint(0, 256, (n, c, h, w), dtype=torch.uint8, generator=seeded(7))


def dense_weights(start, length, pixels, results):
    """The formula of `resample`, entry by entry."""
    w = np.zeros((results, pixels))
    step = length / results
    for k in range(results):
        for j in range(pixels):
            inside = max(0.0, min(j + 1, start + length) - max(j, start))
            w[k, j] = max(0.0, 1 - abs(j + 0.5 - start - (k + 0.5) * step) / max(step, 1)) * inside
    return w / w.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [(40, 56), (20, 20), (33, 17), (80, 60), (7, 100), (1, 1)])
def test_whole_pixel_boxes_are_crop_then_interpolate(size):
    images = noise()
    boxes = torch.tensor([[0, 0, 40, 56], [3, 5, 30, 31], [10, 20, 11, 36], [39, 0, 1, 56], [0, 55, 40, 1]])
    got = resample(images, boxes, size)
    for x, (top, left, h, w), y in zip(images.double(), boxes.tolist(), got, strict=True):
        cut = x[None, :, top : top + h, left : left + w]
        expected = interpolate(cut, size, mode="bilinear", antialias=True, align_corners=False)[0]
        torch.testing.assert_close(y.double(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [(24, 31), (61, 90)])
def test_fractional_boxes_are_the_formula(size):
    images = noise()
    u = torch.rand(5, 4, generator=seeded(1), dtype=torch.float64)
    length = torch.tensor([40.0, 56.0]) * (0.02 + 0.9 * u[:, 2:])
    boxes = torch.cat([(torch.tensor([40.0, 56.0]) - length) * u[:, :2], length], 1)
    got = resample(images, boxes, size)
    for x, (top, left, h, w), y in zip(images.double().numpy(), boxes.tolist(), got, strict=True):
        expected = dense_weights(top, h, 40, size[0]) @ x @ dense_weights(left, w, 56, size[1]).T
        np.testing.assert_allclose(y, expected, atol=1e-3)


@pytest.mark.parametrize(("length", "results"), [(20, 50), (40, 20), (40, 40)])  # where linear functions stay linear
def test_a_ramp_stays_the_same_ramp(length, results):
    ramp = (10 + 4 * torch.arange(48)).to(torch.uint8)
    images = ramp.expand(1, 1, 48, 48)
    got = resample(images, torch.tensor([[4, 4, length, length]]), (results, results))[0, 0, 0]
    step = length / results
    at = 4 + (torch.arange(results) + 0.5) * step - 0.5
    inner = slice(math.ceil(1 / step), -math.ceil(1 / step))  # the edges are cut off at the box
    torch.testing.assert_close(got[inner], (10 + 4 * at)[inner], atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [(64, 64), (20, 30)])
def test_resizes_as_pillow_does_up_to_its_rounding(size):
    pixels = noise(1)
    image = Image.fromarray(pixels[0].permute(1, 2, 0).numpy())
    expected = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1) / 255
    assert np.abs(Transform(size=size)(pixels)[0].numpy() - expected).max() <= 1.01 / 255


def test_resizing_to_the_stored_size_changes_no_pixel():
    images = noise()
    assert torch.equal(Transform(size=(40, 56))(images), torch.addcmul(torch.zeros(1), images, torch.tensor(1 / 255)))


def test_mirroring_mirrors_the_chosen_images():
    images, boxes = noise(), torch.tensor([[2.5, 3.5, 30, 40]]).expand(5, 4)
    mirrored = torch.tensor([True, False, True, False, False])
    plain = resample(images, boxes, (24, 24))
    assert torch.equal(resample(images, boxes, (24, 24), mirrored)[mirrored], plain[mirrored].flip(3))
    assert torch.equal(resample(images, boxes, (24, 24), mirrored)[~mirrored], plain[~mirrored])
