"""Encoded images on disk, and the one place where their bytes become pixels."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from samphire.checks import check_regular

MOST_PIXELS = 2**26  # of one image: 200 MB decoded; a photograph has less, a decompression bomb more
PIECE = 1024  # bytes of an image that are looked at first, where two have one size
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # Pillow would start a program for others
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

__all__ = ["ENDINGS", "FORMATS", "MOST_PIXELS", "Encoded", "Files", "Joined", "decode"]


class Encoded(Protocol):
    """Images still encoded, wherever they are stored."""

    def __len__(self) -> int: ...
    def __getitem__(self, chosen: NDArray[Any] | slice) -> Encoded: ...
    def name(self, i: int) -> str: ...
    def read(self, i: int) -> bytes: ...
    def stamp(self, i: int) -> str: ...
    def size(self, i: int) -> int: ...
    def piece(self, i: int) -> bytes: ...


class Files:
    """Encoded images in files; immutable, and no file is touched before it is read.

    Indexing with positions or a mask copies references only.

    Args:
        paths: One for each image.
        rows: The number of each image's row in what lists them, if anything does.
        table: What the numbers count, for messages.

    Example:
        >>> files = Files(["a.jpg", "b.jpg", "c.jpg"], [2, 3, 4], "birds.csv line")
        >>> len(files), files[np.array([True, False, True])].name(1)
        (3, 'c.jpg (birds.csv line 4)')
    """

    def __init__(self, paths: Iterable[str | Path], rows: Any = None, table: str = "") -> None:
        self._paths = np.array([os.fspath(path) for path in paths], dtype=object)
        self._paths.flags.writeable = False
        self._rows, self._table = None if rows is None else np.asarray(rows), table

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, chosen: NDArray[Any] | slice) -> Files:
        return Files(self._paths[chosen], None if self._rows is None else self._rows[chosen], self._table)

    def __repr__(self) -> str:
        return f"Files({len(self)} images)"

    def name(self, i: int) -> str:
        """The path of image ``i`` and its row, for messages."""
        return str(self._paths[i]) + ("" if self._rows is None else f" ({self._table} {self._rows[i]})")

    def read(self, i: int) -> bytes:
        """The bytes of image ``i``, still encoded."""
        try:
            check_regular(self._paths[i])
            with open(self._paths[i], "rb", buffering=0) as file:
                return file.readall()
        except OSError as error:
            raise type(error)(error.errno, f"image {self.name(i)} cannot be read: {error.strerror}.") from None

    def size(self, i: int) -> int:
        """How many bytes the file of image ``i`` has; different sizes are different images."""
        return os.stat(self._paths[i]).st_size

    def piece(self, i: int) -> bytes:
        """Some bytes in the middle of the file of image ``i``; different ones are different images."""
        check_regular(self._paths[i])
        with open(self._paths[i], "rb", buffering=0) as file:
            file.seek(self.size(i) // 2)
            return file.read(PIECE)

    def stamp(self, i: int) -> str:
        """Path, size and time of modification of image ``i``, which change with it; its bytes are not read."""
        status = os.stat(self._paths[i])
        return f"{os.path.abspath(self._paths[i])} {status.st_size} {status.st_mtime_ns}"


class Joined:
    """Encoded images of several sources, one after the other.

    Args:
        sources: Each of them :class:`Encoded`.
    """

    def __init__(self, sources: Iterable[Encoded]) -> None:
        self._sources = tuple(sources)
        self._rows = np.array([(k, i) for k, source in enumerate(self._sources) for i in range(len(source))])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, chosen: NDArray[Any] | slice) -> Joined:
        some = object.__new__(Joined)
        some.__dict__ = self.__dict__ | {"_rows": self._rows[chosen]}
        return some

    def name(self, i: int) -> str:
        """The name of image ``i`` in its source, for messages."""
        return self._of(i, "name")

    def read(self, i: int) -> bytes:
        """The bytes of image ``i``, still encoded."""
        return self._of(i, "read")

    def stamp(self, i: int) -> str:
        """What changes with image ``i``."""
        return self._of(i, "stamp")

    def size(self, i: int) -> int:
        """How many bytes image ``i`` has; different sizes are different images."""
        return self._of(i, "size")

    def piece(self, i: int) -> bytes:
        """Some bytes of image ``i``; different ones are different images."""
        return self._of(i, "piece")

    def _of(self, i: int, what: str) -> Any:
        source, row = self._rows[i].tolist()
        return getattr(self._sources[source], what)(row)


def decode(data: bytes, name: str, *, most_pixels: int = MOST_PIXELS) -> NDArray[np.uint8]:
    """Bytes of an encoded image as ``uint8`` RGB of shape (3, height, width).

    Args:
        data: One of :data:`FORMATS`; gray, palette and transparent images become RGB. EXIF
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
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height <= most_pixels:
                return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except Exception as error:  # Pillow's plugins raise anything
        reason = f"it is none of {', '.join(FORMATS)}" if isinstance(error, UnidentifiedImageError) else error
        raise ValueError(f"image {name} cannot be decoded ({reason}); get a fresh copy of it.") from error
    raise ValueError(
        f"image {name} has {width} x {height} pixels, more than the {most_pixels} allowed; shrink it first."
    )
