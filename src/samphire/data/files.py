"""Encoded images on disk, and the one place where their bytes become pixels."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

MOST_PIXELS = 2**26  # of one image: 200 MB decoded; a photograph has less, a decompression bomb more

__all__ = ["MOST_PIXELS", "Encoded", "Files", "decode"]


class Encoded(Protocol):
    """Images still encoded, wherever they are stored."""

    def __len__(self) -> int: ...
    def __getitem__(self, chosen: NDArray[Any] | slice) -> Encoded: ...
    def name(self, i: int) -> str: ...
    def read(self, i: int) -> bytes: ...
    def stamp(self, i: int) -> str: ...


class Files:
    """Encoded images in files; immutable, and no file is touched before it is read.

    Indexing with positions or a mask copies references only.

    Args:
        paths: One for each image.

    Example:
        >>> files = Files(["a.jpg", "b.jpg", "c.jpg"])
        >>> len(files), files[np.array([True, False, True])].name(1)
        (3, 'c.jpg')
    """

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self._paths = np.array([os.fspath(path) for path in paths], dtype=object)
        self._paths.flags.writeable = False

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, chosen: NDArray[Any] | slice) -> Files:
        return Files(self._paths[chosen])

    def __repr__(self) -> str:
        return f"Files({len(self)} images)"

    def name(self, i: int) -> str:
        """The path of image ``i``, for messages."""
        return str(self._paths[i])

    def read(self, i: int) -> bytes:
        """The bytes of image ``i``, still encoded."""
        return Path(self._paths[i]).read_bytes()

    def stamp(self, i: int) -> str:
        """Path, size and time of modification of image ``i``, which change with it; its bytes are not read."""
        status = os.stat(self._paths[i])
        return f"{os.path.abspath(self._paths[i])} {status.st_size} {status.st_mtime_ns}"


def decode(data: bytes, name: str, *, most_pixels: int = MOST_PIXELS) -> NDArray[np.uint8]:
    """Bytes of an encoded image as ``uint8`` RGB of shape (3, height, width).

    Args:
        data: JPEG, PNG or anything else that Pillow reads; gray, palette and transparent images become RGB. EXIF
            rotation is ignored, as in torchvision's loaders.
        name: Of the image, for messages.
        most_pixels: Larger images are refused before they are decoded.

    Example:
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (4, 2), 7).save(file, "png")
        >>> decode(file.getvalue(), "gray.png").shape
        (3, 2, 4)
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if width * height <= most_pixels:
                return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except Exception as error:  # Pillow's plugins raise anything
        raise ValueError(f"image {name} cannot be decoded ({error}); get a fresh copy of it.") from error
    raise ValueError(
        f"image {name} has {width} x {height} pixels, more than the {most_pixels} allowed; shrink it first."
    )
