"""Images decoded once, into a file that is mapped into memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from samphire.checks import check_whole
from samphire.data.files import MOST_PIXELS, Encoded, decode
from samphire.data.split import Split
from samphire.pool import cores, in_turn
from samphire.progress import Progress, silent
from samphire.records.files import flocked

S = TypeVar("S")
T = TypeVar("T")
_FORMAT = 1  # part of the key: raise it when the stored pixels change

__all__ = ["Decoded", "decoded", "height_and_width", "in_order", "shapes_of"]


@dataclass(frozen=True)
class Decoded(Split):
    """A split with images stored at one size, and the shapes they had before.

    Args:
        shapes: Height and width of each image in its file, (n, 2).
    """

    shapes: NDArray[np.int64] = None  # type: ignore[assignment]

    def subset(self, chosen: NDArray[Any]) -> Decoded:
        """Some of the examples; their pixels are copied from the map into memory."""
        return replace(self, **_fields(super().subset(chosen)), shapes=self.shapes[chosen])


def shapes_of(split: Split) -> NDArray[np.int64]:
    """Height and width of each image before it was stored, (n, 2)."""
    if not isinstance(split.images, np.ndarray):
        raise TypeError("the split's images are still encoded; decode them with samphire.data.cache.decoded.")
    if isinstance(split, Decoded):
        return split.shapes
    if split.images.ndim != 4:  # rows of numbers
        return np.zeros((len(split), 2), np.int64)
    return np.broadcast_to(np.array(split.images.shape[2:]), (len(split), 2))


def decoded(
    split: Split,
    size: int | tuple[int, int],
    folder: str | os.PathLike[str],
    *,
    progress: Progress = silent,
    workers: int | None = None,
) -> Decoded:
    r"""The split with its images decoded, resized to one size and mapped into memory; the work is done once.

    Every image is resized to ``size`` by Pillow's bilinear filter with antialiasing, as torchvision's
    ``Resize((h, w))`` does. The shapes in the files are kept, so :class:`samphire.data.augment.Transform` draws its
    crops in the pixels of the original: their geometry is exact although the stored image may be stretched.

    With crops the pixels are filtered twice, here and at the crop. Compared with one filter on the original, the root
    mean square difference is 4.4 gray levels of 255 (35 dB) if 4/3 of the network's side is stored, 2.4 (41 dB) for
    twice the side and 0.5 (54 dB) for four times; measured on Waterbirds at a quarter of the scale, 24-pixel crops of
    images of 96 pixels and more. Without crops (CelebA at 64) store the network's size, and they are filtered once.

    Choose examples before decoding: a subset of files costs nothing, a subset of decoded images is copied.

    Args:
        split: With images in files or otherwise :class:`samphire.data.files.Encoded`.
        size: Height and width; a number stands for a square.
        folder: Of all caches. Each is a folder named by a hash of the size and of all files' paths, sizes and times
            of modification, so a changed image gives a new cache. Old ones may be deleted at any time.
        progress: Counts images.
        workers: Threads that decode (Pillow releases the interpreter's lock); one per available core unless given.

    Returns:
        The split with ``images`` a read-only ``np.memmap`` of shape (n, 3, height, width).

    Raises:
        ValueError: For an image that cannot be decoded, with its file name; nothing is left behind.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from samphire.data.files import Files
        >>> with tempfile.TemporaryDirectory() as out:
        ...     Image.new("RGB", (6, 3), (255, 0, 0)).save(f"{out}/red.png")
        ...     split = Split(Files([f"{out}/red.png"]), np.array([0]), {})
        ...     small = decoded(split, 2, f"{out}/cache")
        ...     small.images[0, :, 0, 0].tolist(), small.images.shape, small.shapes.tolist()
        ([255, 0, 0], (1, 3, 2, 2), [[3, 6]])
    """
    if isinstance(split.images, np.ndarray):
        raise TypeError("the split's images are an array and need no decoding; use the split as it is.")
    size = height_and_width(size)
    place = Path(folder) / _key(split.images, size)
    if not place.exists():
        with _writable(place.parent), _alone(place):
            if not place.exists():  # another process may have filled it while this one waited
                _fill(place, split.images, size, progress, workers)
    images = np.load(place / "images.npy", mmap_mode="r")
    return Decoded(**{**_fields(split), "images": images}, shapes=np.load(place / "shapes.npy"))


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Both sides; a number stands for a square.

    Example:
        >>> height_and_width(96), height_and_width((64, 32))
        ((96, 96), (64, 32))
    """
    height, width = size if isinstance(size, tuple) else (size, size)
    check_whole("height", height)
    check_whole("width", width)
    if height * width > MOST_PIXELS:
        raise ValueError(
            f"size must be at most {MOST_PIXELS} pixels, got {height} x {width}; larger images are not decoded."
        )
    return height, width


def _fields(split: Split) -> dict[str, Any]:
    return {f.name: getattr(split, f.name) for f in fields(Split)}


def _key(images: Encoded, size: tuple[int, int]) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {size}".encode())
    for i in range(len(images)):
        digest.update(f"\n{images.stamp(i)}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _fill(place: Path, images: Encoded, size: tuple[int, int], progress: Progress, workers: int | None) -> None:
    """Write a cache beside its place, and rename it when it is complete."""
    part = place.with_name(f"{_part(place)}{secrets.token_hex(8)}")
    part.mkdir()
    try:
        shapes = _write(part / "images.npy", images, size, progress, workers)
        np.save(part / "shapes.npy", shapes)
        if _key(images, size) != place.name:
            raise ValueError("images changed while they were decoded; decode them again.")
        for file in part.iterdir():
            _sync(file)
        try:
            os.rename(part, place)
        except OSError:
            if not place.exists():  # otherwise a process without the lock was faster
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(
    path: Path, images: Encoded, size: tuple[int, int], progress: Progress, workers: int | None
) -> NDArray[np.int64]:
    """Write all pixels in order; return the shapes the images had."""
    n, threads = len(images), workers or cores()
    header = {"descr": "|u1", "fortran_order": False, "shape": (n, 3, *size)}
    shapes = np.zeros((n, 2), np.int64)
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        stored = in_order(lambda i: _stored(images, i, size), range(n), threads=threads, ahead=16 * threads)
        for i, (pixels, shape) in enumerate(stored):
            file.write(pixels)
            shapes[i] = shape
            progress("decoding images", i + 1, n)
    return shapes


def _stored(images: Encoded, i: int, size: tuple[int, int]) -> tuple[bytes, tuple[int, ...]]:
    from PIL import Image

    pixels = decode(images.read(i), images.name(i))
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    small = image.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1).tobytes(), pixels.shape[1:]


def in_order(make: Callable[[S], T], inputs: Iterable[S], *, threads: int, ahead: int) -> Iterator[T]:
    """``map(make, inputs)`` by threads, with at most ``ahead`` results waiting for the caller.

    Example:
        >>> list(in_order(abs, [-3, 1, -2], threads=2, ahead=1))
        [3, 1, 2]
    """
    executor = ThreadPoolExecutor(threads)
    try:
        yield from in_turn((executor.submit(make, item) for item in inputs), ahead)
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Wait until no other process fills this place, then remove what a crashed one may have left."""
    with flocked(place.with_name(f".{place.name}.lock"), wait=True) as alone:
        for part in place.parent.glob(f"{_part(place)}*") if alone else ():  # else the first result is taken
            shutil.rmtree(part, ignore_errors=True)  # another user's stays
        yield


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Make the folder of caches; say in one sentence that it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        if Path(error.filename or folder).is_relative_to(folder):
            reason = f"cannot write decoded images to {folder}: {error.strerror}; choose another folder (--cache)."
            raise type(error)(error.errno, reason) from None
        raise


def _part(place: Path) -> str:
    return f".{place.name}.part-"


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
