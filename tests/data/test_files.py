"""Encoded images: chosen without being touched, decoded as Pillow does, refused when damaged."""

import io

import numpy as np
import pytest
from PIL import Image

from samphire.data.files import Files, decode
from samphire.data.split import Split
from trees import pictures


def test_files_are_chosen_without_being_touched(tmp_path):
    files = Files([tmp_path / "a", tmp_path / "b", str(tmp_path / "c")])  # none exists
    assert len(files) == 3
    assert [files[np.array([2, 0])].name(i) for i in (0, 1)] == [str(tmp_path / "c"), str(tmp_path / "a")]
    assert len(files[np.array([True, False, True])]) == 2
    assert len(files[np.array([False] * 3)]) == 0
    assert len(Split(files, np.arange(3), {}).subset(np.array([1])).images) == 1
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "a")):
        files.read(0)


def test_decoding_is_pillows_conversion(tmp_path):
    for path in pictures(tmp_path):
        expected = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)
        got = decode(path.read_bytes(), path.name)
        assert got.dtype == np.uint8
        assert got.flags.c_contiguous
        assert np.array_equal(got, expected)


def encoded(size=(40, 40), kind="jpeg"):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"no image", encoded()[:300], encoded(kind="png")[:-200], encoded(kind="png")[:20]]
)
def test_a_damaged_image_is_named(data):
    with pytest.raises(ValueError, match=r"image some/file\.jpg cannot be decoded \(.+\); get a fresh copy"):
        decode(data, "some/file.jpg")


def test_an_image_may_not_be_too_large():
    data = encoded((40, 40))
    assert decode(data, "a", most_pixels=1600).shape == (3, 40, 40)
    with pytest.raises(ValueError, match="image a has 40 x 40 pixels, more than the 1599 allowed"):
        decode(data, "a", most_pixels=1599)
