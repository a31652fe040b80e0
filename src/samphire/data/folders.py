"""A user's folder of data as rows: a table beside images, a tree of class folders, files of arrays."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.checks import check_regular
from samphire.data import parquet, tables
from samphire.data.coding import plain_values
from samphire.data.files import ENDINGS, Files
from samphire.data.rows import PART_OF, Rows, guessed, image_column, joined
from samphire.data.tables import Table

MOST_UNPACKED = 2**30  # bytes, or 100 times the file, of an npz file

__all__ = ["channels_first", "from_columns", "read_folder"]


def read_folder(path: Path, image: str | None = None) -> Rows:
    """The rows of a folder or of one file in it.

    Args:
        path: A folder with a table (csv, tsv, jsonl, parquet), with one table for each part, with a saved Hugging
            Face set, or with folders of classes; or a table, or an ``.npz`` file.
        image: The column of the images, where it has an unusual name.
    """
    if path.is_file():
        return _read_file(path, image)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no data set or folder {path}; give one of the two.")
    saved = _saved(path)
    if saved:
        return joined({part: _shards(files, image) for part, files in saved.items()})
    listed = sorted(p for p in path.iterdir() if p.suffix.lower() in (*tables.ENDINGS, ".npz"))
    by_part = {PART_OF.get(_stem(p)): [q for q in listed if _stem(q) == _stem(p)] for p in listed}
    if listed and None not in by_part:
        return joined({part: _several(files, image) for part, files in by_part.items() if part})
    if len(listed) > 1:
        metadata = [p for p in listed if p.stem.startswith(("metadata", "labels"))]
        listed = metadata if len(metadata) == 1 else listed
    if len(listed) > 1:
        names = ", ".join(p.name for p in listed)
        raise ValueError(f"{path} has {len(listed)} tables ({names}); give the one that lists the images.")
    return _read_file(listed[0], image) if listed else _tree(path)


def _stem(path: Path) -> str:
    """``train`` of ``train.csv`` and of ``train-00000-of-00002.parquet``."""
    return path.stem.partition("-")[0].casefold()


def _several(files: list[Path], image: str | None) -> Rows:
    if files[0].suffix == ".parquet":
        return _shards(files, image)
    if len(files) > 1:
        raise ValueError(f"{files[0]} and {files[1]} are both called {files[0].stem}; move one of them away.")
    return _read_file(files[0], image)


def _read_file(path: Path, image: str | None) -> Rows:
    ending = path.suffix.lower()
    if ending == ".npz":
        return _arrays(path, image)
    if ending in (".parquet", ".arrow"):
        return _shards([path], image)
    if ending in tables.ENDINGS:
        return _listed(tables.read_table(path), image)
    raise ValueError(f"{path} must be a folder, or a file that ends with {', '.join((*tables.ENDINGS, '.npz'))}.")


def _listed(table: Table, image: str | None) -> Rows:
    """A table with the names of image files."""
    source = table.path.name
    name, note = image_column(image, table.columns, source)
    root = table.path.parent
    folders = [root, *sorted(p for p in root.iterdir() if p.is_dir())]
    folder, paths = tables.present(table, table.columns[name], folders)
    notes = [note] if note else []
    if folder != root:
        notes.append(f"{source}: the images are in {folder.name}.")
    return Rows(
        images=Files(paths, table.first + np.arange(len(paths)), f"{source} line"),
        columns={other: plain_values(values) for other, values in table.columns.items() if other != name},
        where=table.line,
        source=source,
        names=table.names or {},
        notes=tuple(notes),
    )


# Parquet and arrow files


def _saved(path: Path) -> dict[str, list[Path]]:
    """The arrow files of a saved Hugging Face set by part; none if the folder is no such set."""
    if any(path.glob("*.arrow")):
        return {"train": sorted(path.glob("*.arrow"))}
    if not (path / "dataset_dict.json").exists():
        return {}
    inside = {folder: sorted(folder.glob("*.arrow")) for folder in sorted(path.iterdir()) if folder.is_dir()}
    unknown = [folder.name for folder, files in inside.items() if files and folder.name not in PART_OF]
    if unknown:
        raise ValueError(f"{path} has the split {unknown[0]!r}, which is none of train, validation, test; rename it.")
    return {PART_OF[folder.name]: files for folder, files in inside.items() if files}


def _shards(files: list[Path], image: str | None) -> Rows:
    """Files of one part, with the images in a column, or their file names."""
    source = files[0].name
    parquet.check_whole(files)
    kinds = parquet.columns_of(files[0])
    pixels = [name for name, binary in kinds.items() if binary]
    if not pixels:
        table = parquet.read_columns(files, list(kinds))
        return _listed(table, image)
    name, note = guessed("image", image, pixels, source)
    name = name or pixels[0]
    table = parquet.read_columns(files, [other for other in kinds if other not in pixels])
    images = parquet.ParquetImages(files, name)
    columns = {other: plain_values(values) for other, values in table.columns.items()}
    return Rows(images, columns, images.name, source, table.names or {}, notes=(note,) if note else ())


# Arrays


def _arrays(path: Path, image: str | None) -> Rows:
    """A file of arrays: the inputs, and for each example its label, attributes and perhaps logits."""
    check_regular(path, most=np.inf)
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > max(MOST_UNPACKED, 100 * path.stat().st_size):
                raise ValueError(f"it would unpack to {unpacked} bytes")
            for entry in archive.infolist():
                _check_promise(archive, entry)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as arrays ({error}); write it with numpy.savez.") from None
    return from_columns(arrays, path.name, lambda i: f"{path} row {i}", image)


def _check_promise(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Refuse an array whose header promises more than the archive holds: NumPy takes the memory first."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in headers:
            raise ValueError(f"{entry.filename} has a header of version {version}")
        shape, _, dtype = headers[version](file)
    promised = math.prod(shape) * dtype.itemsize
    if promised > entry.file_size:
        raise ValueError(f"{entry.filename} holds {entry.file_size} bytes of the {promised} its header promises")


def from_columns(arrays: dict[str, Any], source: str, where: Callable[[int], str], image: str | None) -> Rows:
    """Arrays by name as rows: the inputs have two axes or more, the other columns one.

    Args:
        arrays: With one entry for each example.
        source: What has them, for messages.
        where: From a row to its place.
        image: The name of the inputs, where it is unusual.
    """
    arrays = {name: np.asarray(values) for name, values in arrays.items()}
    for column, array in arrays.items():
        if array.ndim == 0 or array.dtype.kind == "c":
            what = "one value" if array.ndim == 0 else "complex numbers"
            raise ValueError(f"{source} must have a real number or a word for each example, got {what} as {column}.")
    logits = next((arrays.pop(name) for name in list(arrays) if name.casefold() == "logits"), None)
    many = {name: array for name, array in arrays.items() if array.ndim > 1}
    single = {name: plain_values(array) for name, array in arrays.items() if array.ndim == 1}
    if logits is None and not many:
        raise ValueError(
            f"{source} must have inputs, an array of two axes or more, got {', '.join(arrays) or 'none'}."
        )
    name, note = guessed("image", image, many, source) if many else (None, "")
    name = name if name is not None or len(many) != 1 else next(iter(many))
    if many and name is None:
        raise ValueError(f"{source} has the arrays {', '.join(many)}; say with image= which of them are the inputs.")
    images, axes_note = channels_first(many[name]) if name is not None else (logits, "")
    lengths = {
        key: len(values) for key, values in {**arrays, **({} if logits is None else {"logits": logits})}.items()
    }
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{key} {n}" for key, n in lengths.items())
        raise ValueError(f"{source} must have one entry for each example in every array, got {described}.")
    return Rows(images, single, where, source, logits=logits, notes=tuple(filter(None, (note, axes_note))))


def channels_first(images: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Byte images with the channels' axis second, and a sentence if it was elsewhere."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        return images, ""
    if images.ndim == 3:
        return images[:, None], f"Images of shape {images.shape[1:]} are taken for gray ones."
    if images.shape[1] in (1, 3) or images.shape[3] not in (1, 3):
        return images, ""
    return images.transpose(
        0, 3, 1, 2
    ), f"The last axis of images of shape {images.shape[1:]} is taken for the color."


# Trees


def _tree(path: Path) -> Rows:
    """Images in folders: the last folder is the class, the first may be the part, others are attributes."""
    files = list(_images_below(path))
    if not files:
        raise FileNotFoundError(
            f"{path} has no table (csv, tsv, jsonl, parquet, npz, arrow) and no images; check the path."
        )
    inside = [PurePath(file).relative_to(path).parts[:-1] for file in files]
    for file, levels in zip(files, inside, strict=True):
        if len(levels) != len(inside[0]) or not levels:
            raise ValueError(
                f"{file} must be in a folder of its class, as deep as {files[0]}; "
                "without such folders, list the images in a table."
            )
    columns = {f"folder{k}": [levels[k] for levels in inside] for k in range(len(inside[0]))}
    first, *_ = columns
    has_parts = len(columns) > 1 and all(word.casefold() in PART_OF for word in columns[first])
    names = ["split"] * has_parts + ["folder", "folder2", "folder3"][: len(columns) - 1 - has_parts] + ["class"]
    if len(names) < len(columns):
        raise ValueError(f"{files[0]} is {len(columns)} folders deep; list the images in a table instead.")
    columns = dict(zip(names, columns.values(), strict=True))
    note = f"{path.name}: the folders are taken for {', '.join(names)}."
    roles = {"label": "class"} | ({"split": "split"} if has_parts else {})
    return Rows(Files(files), columns, lambda i: files[i], path.name, roles=roles, notes=(note,))


def _images_below(path: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(path):
        folders.sort()
        yield from (
            os.path.join(folder, name)
            for name in sorted(files)
            if name.lower().endswith(ENDINGS) and not name.startswith(".")
        )
