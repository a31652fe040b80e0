"""MNIST, Fashion-MNIST and CIFAR-10 as arrays, read from their published files."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import pickle
import pickletools
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.checks import MOST_BYTES, check_regular, read_regular
from samphire.data import layouts
from samphire.data.files import decode
from samphire.data.layouts import DataSet, Layout, Parts
from samphire.data.parquet import Columns, hugging_face
from samphire.data.split import Split

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

IDX = {"train": "train", "test": "t10k"}
BATCHES = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)}
BATCH_FILES = (*BATCHES["train"], *BATCHES["test"])

__all__ = [
    "BATCHES", "BATCH_FILES", "CIFAR10", "CLOTHES", "DIGITS", "FASHION_MNIST", "IDX", "MNIST", "OBJECTS",
    "cifar10", "digest", "fashion_mnist", "labeled", "mnist", "read_batch", "read_idx", "write_batches", "write_idx",
]  # fmt: skip


def mnist(root: str | os.PathLike[str]) -> Parts:
    """MNIST: ``train`` and ``test``, images of shape (n, 1, 28, 28).

    Args:
        root: The folder with the four idx files, gzipped or not, or with the parquet files; or one above it.
    """
    return layouts.read(MNIST, root)[2]


def fashion_mnist(root: str | os.PathLike[str]) -> Parts:
    """Fashion-MNIST: ``train`` and ``test``, images of shape (n, 1, 28, 28).

    Args:
        root: The folder with the four idx files, gzipped or not, or with the parquet files; or one above it.
    """
    return layouts.read(FASHION_MNIST, root)[2]


def cifar10(root: str | os.PathLike[str]) -> Parts:
    """CIFAR-10, whole or restricted to some classes: ``train`` and ``test``, images of shape (n, 3, 32, 32).

    Args:
        root: The folder ``cifar-10-batches-py`` or the one of the parquet files; or one above it.
    """
    return layouts.read(CIFAR10, root)[2]


def digest(split: Split) -> str:
    r"""The MD5 sum of a part's labels and pixels in their order, from whatever files.

    Example:
        >>> one = Split(np.zeros((1, 1, 2, 2), np.uint8), np.array([3]), {})
        >>> digest(one) == hashlib.md5(b"\3" + bytes(4)).hexdigest()
        True
    """
    summed = hashlib.md5(split.label.astype(np.uint8).tobytes())
    summed.update(np.ascontiguousarray(split.images).data)
    return summed.hexdigest()


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file, gzipped or not.

    The header is two zero bytes, an 8 (for unsigned bytes), the number of axes, and four bytes for each length.

    Args:
        path: The file.
    """
    check_regular(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            axes = start[3] if start[:3] == b"\0\0\x08" and len(start) > 3 else 0
            lengths = file.read(4 * axes)
            if not axes or len(lengths) < 4 * axes:
                raise ValueError(f"{path} is not an idx file of bytes; get it again.")
            shape = tuple(np.frombuffer(lengths, ">u4").tolist())
            promised = math.prod(shape)
            data = file.read(min(promised, MOST_BYTES) + 1)  # of a small file that unpacks to a large one, no more
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}); get it again.") from None
    held = len(data)
    if held != promised:
        row = held * shape[0] // promised if 0 < held < promised else 0
        raise ValueError(
            f"{path} holds {held} bytes of the {promised} its header promises, whole up to row {row} of {shape[0]}; "
            "get it again."
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Store an array of bytes as an idx file, for :func:`read_idx`."""
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes())


# The parts of a pickled array, as functions that only build arrays. The shape in ``_reconstruct`` is ignored (the
# state that follows sets it), so a file cannot ask for memory it does not fill.
_ARRAY: dict[tuple[str, str], Any] = {
    ("multiarray", "_reconstruct"): lambda kind, shape, code: np.ndarray((0,), np.uint8),
    ("numeric", "_frombuffer"): lambda data, dtype, shape, order: np.frombuffer(data, dtype).reshape(shape),
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): lambda code, align=False, copy=False: np.dtype(code),
    ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
}


class _ArraysOnly(pickle.Unpickler):
    """Rebuilds plain containers and NumPy arrays and refuses everything else: a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        package, _, rest = module.rpartition(".")
        if package in ("", "numpy.core", "numpy._core") and (rest, name) in _ARRAY:
            return _ARRAY[rest, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of an array")


def _check_pickle(pickled: bytes) -> None:
    """Refuse a pickle that asks for memory it does not fill: a place in its memo beyond its own length."""
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(pickled):
            raise pickle.UnpicklingError(f"it asks for {argument} places in memory")


def read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images, shape (n, 3, 32, 32), and labels of one pickled CIFAR-10 batch; no code in the file is run."""
    try:
        pickled = read_regular(path)
        _check_pickle(pickled)
        batch = _ArraysOnly(io.BytesIO(pickled), encoding="latin1").load()
        data, label = batch["data"], batch["labels"]
        if not isinstance(data, np.ndarray) or not (isinstance(label, np.ndarray) or set(map(type, label)) <= {int}):
            raise ValueError("it has no array of data with a list of labels")  # lists of lists unpack to anything
        label = np.asarray(label)
        if data.dtype != np.uint8 or data.shape != (len(label), 3072):
            raise ValueError(f"its data are {data.dtype} of shape {data.shape} for {len(label)} labels")
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"{path} is not a CIFAR-10 batch ({error}); get it again.") from None
    return data.reshape(-1, 3, 32, 32), _labels(label, len(OBJECTS), path)


def write_batches(folder: Path, parts: Parts) -> None:
    """Store CIFAR-10 as five training batches and one test batch, for :func:`cifar10`."""
    for part, names in BATCHES.items():
        rows = np.array_split(np.arange(len(parts[part])), len(names))
        for name, chosen in zip(names, rows, strict=True):
            some = parts[part].subset(chosen)
            batch = {"labels": some.label.tolist(), "data": some.images.reshape(len(some), 3072)}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def labeled(images: NDArray[np.uint8], label: NDArray[np.int64], feature: str, classes: tuple[str, ...]) -> Split:
    """A Split with the label as its only feature."""
    return Split(images, label, {feature: label}, classes=classes, values={feature: classes})


def _labels(label: NDArray[Any], classes: int, path: Path) -> NDArray[np.int64]:
    if label.dtype.kind not in "iu":
        raise ValueError(f"{path}: the labels must be whole numbers, got {label.dtype}; get it again.")
    wrong = (label < 0) | (label >= classes)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{path} row {row}: the label is {label[row]}, which is not in 0 to {classes - 1}.")
    return label.astype(np.int64)


def _read_idx_parts(folder: Path, feature: str, classes: tuple[str, ...]) -> Parts:
    parts = {}
    for part, stem in IDX.items():
        image_path, label_path = (_idx_file(folder, stem, kind) for kind in ("images-idx3", "labels-idx1"))
        images, label = read_idx(image_path), read_idx(label_path)
        if images.shape != (label.size, 28, 28):
            raise ValueError(f"{image_path} holds {images.shape} pixels for {label.size} labels; get both again.")
        parts[part] = labeled(images[:, None], _labels(label, len(classes), label_path), feature, classes)
    return parts


def _idx_file(folder: Path, stem: str, kind: str) -> Path:
    """The file, gzipped or not; some copies have a dot in its name."""
    names = [f"{stem}-{k}-ubyte{end}" for k in (kind, kind.replace("-", ".")) for end in ("", ".gz")]
    for path in (folder / name for name in names):
        if path.exists():
            return path
    raise FileNotFoundError(f"{folder} lacks {names[0]} (or {names[1]}); get it again.")


def _read_batches(folder: Path) -> Parts:
    parts = {}
    for part, names in BATCHES.items():
        images, labels = zip(*(read_batch(folder / name) for name in names), strict=True)
        parts[part] = labeled(np.concatenate(images), np.concatenate(labels), "object", OBJECTS)
    return parts


def _decoded(parts: Parts, shape: tuple[int, int, int]) -> Parts:
    """The encoded images of small sets as arrays; gray ones keep one channel."""
    arrays = {}
    for part, split in parts.items():
        pixels = np.empty((len(split), *shape), np.uint8)
        for i in range(len(split)):
            image = decode(split.images.read(i), split.images.name(i))[: shape[0]]
            if image.shape != shape:
                raise ValueError(f"{split.images.name(i)} is an image of shape {image.shape}, not {shape}.")
            pixels[i] = image
        arrays[part] = replace(split, images=pixels)
    return arrays


def _idx_layout(folder: str, feature: str, classes: tuple[str, ...]) -> Layout:
    files = tuple(f"{stem}-{kind}-ubyte*" for stem in IDX.values() for kind in ("images?idx3", "labels?idx1"))
    read = partial(_read_idx_parts, feature=feature, classes=classes)
    return Layout("torchvision idx files", (f"{folder}/raw", folder, "raw", "."), files, read)


def _ten_classes(
    layout: Layout, repository: str, folder: str, feature: str, classes: tuple[str, ...], shape: tuple[int, int, int],
    **about: Any,
) -> DataSet:  # fmt: skip
    """A set of small images in a layout of its own, and as a Hugging Face repository."""
    columns = Columns(("image", "img"), {feature: {"label": None}}, {feature: classes})
    files = ("train-*.parquet", "test-*.parquet")
    parquet = hugging_face((repository,), (folder, "data"), files, columns, partial(_decoded, shape=shape))
    return DataSet(groups="10 classes", layouts=(layout, parquet), **about)


MNIST = _ten_classes(
    _idx_layout("MNIST", "digit", DIGITS), "ylecun/mnist", "mnist", "digit", DIGITS, (1, 28, 28),
    name="mnist",
    about="Handwritten digits, 28 x 28, gray",
    size="12 MB",
    sources=("samphire data get mnist", "yann.lecun.com/exdb/mnist", "Hugging Face ylecun/mnist"),
    content={"train": "deb40ecfc91e0c516bf881b22a9688b0", "test": "d4cab011c1395d2d46188c02af7a919a"},
    official={
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    },
)  # fmt: skip
FASHION_MNIST = _ten_classes(
    _idx_layout("FashionMNIST", "clothing", CLOTHES),
    "zalando-datasets/fashion_mnist", "fashion_mnist", "clothing", CLOTHES, (1, 28, 28),
    name="fashion-mnist",
    about="Clothes, 28 x 28, gray",
    size="31 MB",
    sources=(
        "samphire data get fashion-mnist",
        "github.com/zalandoresearch/fashion-mnist",
        "Hugging Face zalando-datasets/fashion_mnist",
    ),
    content={"train": "7e645a1f1e748ccbfdbe5ad8cbbef6ec", "test": "1bb745e8ce414bc8c9afd825a5a07bc7"},
    official={"train": (6000,) * 10, "test": (1000,) * 10},
)  # fmt: skip
CIFAR10 = _ten_classes(
    Layout("torchvision python batches", ("cifar-10-batches-py", "."), BATCH_FILES, _read_batches),
    "uoft-cs/cifar10", "plain_text", "object", OBJECTS, (3, 32, 32),
    name="cifar10",
    about="Animals and vehicles, 32 x 32, color",
    size="170 MB",
    sources=("samphire data get cifar10", "www.cs.toronto.edu/~kriz/cifar.html", "Hugging Face uoft-cs/cifar10"),
    content={"train": "5322796071306899ca68bd71f993ca41", "test": "9a7f62ca7c66585338e2a06d7e9b0bfa"},
    official={"train": (5000,) * 10, "test": (1000,) * 10},
)  # fmt: skip
