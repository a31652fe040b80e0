"""Encoded images: chosen without being touched, decoded as Pillow does, refused when damaged."""

import io
import os
from pathlib import Path

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


def test_an_image_format_that_starts_a_program_is_refused(monkeypatch):
    """Pillow gives encapsulated PostScript to Ghostscript, whatever the file is called."""
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: started.append(a))
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    with Image.open(io.BytesIO(postscript)) as image:
        assert image.format == "EPS"
    with pytest.raises(
        ValueError, match=r"image bird.jpg cannot be decoded \(it is none of JPEG, PNG, .*\); get a fresh"
    ):
        decode(postscript, "bird.jpg")
    assert not started


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_ordinary_files_are_read(tmp_path, make):
    make(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a.png must be an ordinary file, got a folder, pipe or device"):
        Files([tmp_path / "a.png"]).read(0)


def test_a_file_may_not_have_too_many_bytes(tmp_path):
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(ValueError, match=r"a.png has 268435457 bytes, more than the 268435456 allowed"):
        Files([tmp_path / "a.png"]).read(0)


def test_an_image_may_not_be_too_large():
    data = encoded((40, 40))
    assert decode(data, "a", most_pixels=1600).shape == (3, 40, 40)
    with pytest.raises(ValueError, match="image a has 40 x 40 pixels, more than the 1599 allowed"):
        decode(data, "a", most_pixels=1599)
