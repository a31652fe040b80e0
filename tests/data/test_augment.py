import math

import numpy as np
import pytest
import torch
from scipy import stats

from samphire.data.augment import Transform, _random_boxes, batches, moments, random_resized_crop
from samphire.data.cache import Decoded
from samphire.data.files import Files
from samphire.data.split import Split
from samphire.models import Normalize

RULE = {"scale": (0.7, 1.0), "ratio": (3 / 4, 4 / 3)}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(n=5, c=3, h=40, w=56):
    return torch.randint(0, 256, (n, c, h, w), dtype=torch.uint8, generator=seeded(7))


# Boxes


def scalar_box(height, width, uniform, scale, ratio):
    """torchvision's rule for one image, in plain Python."""
    for area_u, ratio_u in zip(uniform[:10], uniform[10:20], strict=True):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * area_u)
        wide = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * ratio_u)
        w, h = round(math.sqrt(area * wide)), round(math.sqrt(area / wide))
        if 0 < w <= width and 0 < h <= height:
            return [math.floor(uniform[20] * (height - h + 1)), math.floor(uniform[21] * (width - w + 1)), h, w]
    w, h = width, height
    if width / height < ratio[0]:
        h = round(w / ratio[0])
    elif width / height > ratio[1]:
        w = round(h * ratio[1])
    return [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize("shape", [(96, 96), (96, 128), (128, 96), (96, 345), (256, 96), (1, 1), (2, 50), (75, 100)])
def test_boxes_are_torchvisions_rule_with_the_same_numbers(shape):
    shapes = torch.tensor([shape], dtype=torch.float64).expand(500, 2)
    uniform = torch.rand(22, 500, generator=seeded(3), dtype=torch.float64)
    expected = [scalar_box(*shape, u, **RULE) for u in uniform.T.tolist()]
    assert _random_boxes(shapes, seeded(3), **RULE).tolist() == expected


def test_area_ratio_and_place_are_uniform_where_every_box_fits():
    side, n = 100_000, 4000
    shapes = torch.full((n, 2), side, dtype=torch.float64)
    top, left, h, w = _random_boxes(shapes, seeded(0), scale=(0.1, 0.5), ratio=(3 / 4, 4 / 3)).numpy().T
    uniforms = (
        (h * w / side**2 - 0.1) / 0.4,
        (np.log(w / h) - math.log(3 / 4)) / (2 * math.log(4 / 3)),
        top / (side - h),
        left / (side - w),
    )
    for u in uniforms:
        assert stats.kstest(u, "uniform").pvalue > 0.01
    correlation = np.corrcoef(uniforms) - np.eye(4)
    assert np.abs(correlation).max() < 4 / math.sqrt(n)


def test_a_share_of_the_images_is_mirrored():
    left_to_right = torch.arange(64, dtype=torch.uint8).expand(2000, 1, 64, 64)
    x = random_resized_crop(8, flip=0.3)(left_to_right, generator=seeded(0))
    mirrored = (x[:, 0, 0, 0] > x[:, 0, 0, -1]).double().mean().item()
    assert abs(mirrored - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 2000)


def test_stretched_storage_is_cropped_as_the_original_would_be():
    """A function of the place, sampled on 60 x 150 pixels and, stretched, on 64 x 64."""

    def drawn(h, w):
        y, x = (np.arange(h)[:, None] + 0.5) / h, (np.arange(w) + 0.5) / w
        return torch.from_numpy(np.round(20 + 100 * y + 120 * x).astype(np.uint8)).expand(50, 1, h, w)

    crop = random_resized_crop(32)
    original = crop(drawn(60, 150), generator=seeded(5))
    stored = crop(drawn(64, 64), shapes=np.full((50, 2), (60, 150)), generator=seeded(5))
    square = crop(drawn(64, 64), generator=seeded(5))
    inner = (slice(None), slice(None), slice(2, -2), slice(2, -2))
    assert (stored - original)[inner].abs().max() < 1.5 / 255
    assert (square - original)[inner].abs().max() > 20 / 255


# Normalization


def test_moments_are_numpys():
    images = np.random.default_rng(0).integers(0, 256, (2100, 3, 4, 5), dtype=np.uint8)
    images[:, 1] //= 3
    mean, std = moments(images)
    np.testing.assert_allclose(mean, (images / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, (images / 255).std((0, 2, 3)), rtol=1e-12)


@pytest.mark.parametrize("size", [None, (40, 56)])
def test_moments_normalize(size):
    images = noise()
    mean, std = moments(images.numpy())
    x = Transform(Normalize(mean, std), size)(images).double()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-6, rtol=0)


def test_the_same_generator_gives_the_same_batch():
    images = noise()
    assert torch.equal(
        random_resized_crop(24)(images, None, seeded(1)), random_resized_crop(24)(images, None, seeded(1))
    )
    assert not torch.equal(
        random_resized_crop(24)(images, None, seeded(1)), random_resized_crop(24)(images, None, seeded(2))
    )


def test_results_are_contiguous_float32():
    x = random_resized_crop(24)(noise(), generator=seeded())
    assert x.dtype == torch.float32
    assert x.is_contiguous()


# Batches


def coded(n=23):
    """A split in which every pixel is the example's number."""
    label = np.arange(n) * 2
    return Split(np.arange(n, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(6, 2).repeat(6, 3), label, {})


@pytest.mark.parametrize("ahead", [0, 1, 3, 100])
def test_a_pass_has_every_example_once_with_its_label(ahead):
    split = coded()
    seen = []
    for x, y, at in batches(split, 5, random_resized_crop(4), seeded(), ahead=ahead):
        torch.testing.assert_close(x, (torch.from_numpy(at) / 255)[:, None, None, None].expand(-1, 3, 4, 4).float())
        assert y.tolist() == split.label[at].tolist()
        seen += at.tolist()
    assert sorted(seen) == list(range(23))
    assert seen != list(range(23))


def test_the_thread_and_an_early_end_change_nothing():
    split = Split(noise(23).numpy(), np.zeros(23, np.int64), {})
    passes = []
    for ahead, stop in ((0, None), (2, None), (1, 2)):
        generator = seeded(4)
        for _, _ in zip(
            batches(split, 5, random_resized_crop(8), generator, ahead=ahead), range(stop or 99), strict=False
        ):
            pass
        passes.append([x for x, _, _ in batches(split, 5, random_resized_crop(8), generator, ahead=ahead)])
    for other in passes[1:]:
        assert all(torch.equal(a, b) for a, b in zip(passes[0], other, strict=True))


def test_without_a_generator_examples_come_in_order():
    assert [at.tolist() for _, _, at in batches(coded(5), 2, Transform())] == [[0, 1], [2, 3], [4]]


def test_batches_hand_each_image_its_original_shape():
    split = coded(4)
    split = Decoded(split.images, split.label, {}, shapes=np.array([[6, 6], [6, 12], [12, 6], [6, 6]]))
    seen = []
    transform = random_resized_crop(4)
    watched = type(transform)(
        size=(4, 4), boxes=lambda shapes, generator: (seen.append(shapes), transform.boxes(shapes, generator))[1]
    )
    at = np.concatenate([at for _, _, at in batches(split, 3, watched, seeded(), ahead=0)])
    assert torch.cat(seen).tolist() == split.shapes[at].tolist()


def test_an_error_in_the_thread_reaches_the_caller():
    with pytest.raises(ValueError, match="need a generator"):
        next(batches(coded(), 5, random_resized_crop(4)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: random_resized_crop(0), ValueError, "height must be a whole number >= 1, got 0"),
        (lambda: random_resized_crop((3, -1)), ValueError, "width must be a whole number >= 1, got -1"),
        (lambda: random_resized_crop(scale=(0.5, 1.2)), ValueError, "scale must be"),
        (lambda: random_resized_crop(ratio=(2, 1)), ValueError, "ratio must be"),
        (lambda: random_resized_crop(flip=2), ValueError, r"flip must be a finite number in \[0, 1\], got 2"),
        (lambda: Transform(size=(4, 4))(torch.zeros(1, 3, 4, 4)), TypeError, "got torch.float32 of shape"),
        (lambda: Transform(size=(4, 4))(torch.zeros(3, 4, 4, dtype=torch.uint8)), TypeError, r"shape \(3, 4, 4\)"),
        (lambda: batches(coded(), 0, Transform()), ValueError, "size must be a whole number >= 1, got 0"),
        (lambda: batches(Split(Files(["a"]), np.zeros(1), {}), 1, Transform()), TypeError, "still encoded"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()
