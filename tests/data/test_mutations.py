"""Damaged data: whatever happens to a file, a set is read whole or refused in one sentence. ``make fuzz`` runs more."""

import os
import shutil

import numpy as np
import pytest
import test_opening as own

import layout_trees as built
from samphire import data
from samphire.data import arrays
from samphire.data.files import decode

RUNS = int(os.environ.get("SAMPHIRE_FUZZ", "12"))  # of each tree


def mnist(root):
    draw = np.random.default_rng(0)
    root.mkdir()
    for stem in ("train", "t10k"):
        arrays.write_idx(root / f"{stem}-images-idx3-ubyte", draw.integers(0, 256, (20, 28, 28), np.uint8))
        arrays.write_idx(root / f"{stem}-labels-idx1-ubyte", np.arange(20, dtype=np.uint8) % 10)


def cifar10(root):
    draw = np.random.default_rng(0)
    root.mkdir()
    label = np.arange(10)
    images = draw.integers(0, 256, (10, 3, 32, 32), np.uint8)
    split = arrays.labeled(images, label, "object", arrays.OBJECTS)
    arrays.write_batches(root, {"train": split, "test": split})


TREES = {
    "mnist": mnist,
    "cifar10": cifar10,
    "celeba csv": lambda root: built.celeba_csv(root),
    "celeba txt": lambda root: built.celeba_text(root),
    "waterbirds": lambda root: built.metadata(root),
    "waterbirds parquet": lambda root: built.parquet_groups(
        root, {"label": lambda y, a: y, "place": lambda y, a: a}, built.HUB
    ),
    "pacs": lambda root: built.folders(root, "pacs", per_class=10),
}
OWN = (own.csv_beside_images, own.jsonl, own.parquet_shards, own.saved_by_datasets, own.tree_of_folders, own.npz)


# Mutations: each takes a file of a tree and a source of random numbers


def flipped(path, draw):
    content = bytearray(path.read_bytes())
    for at in draw.integers(0, max(len(content), 1), 3):
        if content:
            content[at % len(content)] ^= 1 << int(draw.integers(8))
    path.write_bytes(content)


def cut(path, draw):
    content = path.read_bytes()
    path.write_bytes(content[: int(draw.integers(len(content) + 1))])


def doubled(path, draw):
    path.write_bytes(path.read_bytes() * 2)


def emptied(path, draw):
    path.write_bytes(b"")


def noise(path, draw):
    path.write_bytes(draw.bytes(int(draw.integers(1, 200))))


def gone(path, draw):
    path.unlink()


def a_folder(path, draw):
    path.unlink()
    path.mkdir()


def a_pipe(path, draw):
    path.unlink()
    os.mkfifo(path)


def endless(path, draw):
    path.unlink()
    path.symlink_to("/dev/zero")


def spliced(path, draw):
    """A piece of the file put elsewhere in it: rows with too many cells, headers in the middle."""
    content = path.read_bytes()
    a, b, at = sorted(draw.integers(0, len(content) + 1, 3).tolist())
    path.write_bytes(content[:b] + content[a:at] + content[b:])


def words(path, draw):
    """Digits become other cells: fractions, signs, words, other scripts."""
    choices = [b"0.5", b"-1", b"nan", b"1e9", "é".encode(), b"\xff", b'"', b"9" * 30, b"", b"../x", b"/etc/passwd"]
    content = path.read_bytes()
    digits = [i for i, byte in enumerate(content[:20_000]) if 48 <= byte <= 57]
    if digits:
        at = digits[int(draw.integers(len(digits)))]
        path.write_bytes(content[:at] + choices[int(draw.integers(len(choices)))] + content[at + 1 :])


def parent_a_file(path, draw):
    parent = path.parent
    shutil.rmtree(parent)
    parent.write_bytes(b"no folder")


MUTATIONS = (flipped, cut, doubled, emptied, noise, gone, a_folder, a_pipe, endless, spliced, words, parent_a_file)


def check(parts):
    """A set that was read can be used: classes are whole, every image is there or named."""
    assert parts
    for split in parts.values():
        assert len(split)
        assert split.label.dtype == np.int64
        assert 0 <= split.label.min() <= split.label.max() < split.n_classes
        if not isinstance(split.images, np.ndarray):
            for i in range(len(split)):
                decode(split.images.read(i), split.images.name(i))


def outcome(load):
    """``read``, or the sentence of a refusal; anything else is raised."""
    try:
        check(load())
    except (ValueError, OSError) as error:
        sentence = str(error)
        assert sentence.strip()
        assert "Traceback" not in sentence
        return sentence
    return "read"


def spoiled(tree, root, seed):
    """A copy of a tree with one or two of its files mutated."""
    draw = np.random.default_rng(seed)
    shutil.copytree(tree, root)
    for _ in range(int(draw.integers(1, 3))):
        files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        if files:
            lists = [path for path in files if path.suffix != ".png"] or files  # more lists than images
            pool = lists if draw.random() < 0.7 else files
            MUTATIONS[int(draw.integers(len(MUTATIONS)))](pool[int(draw.integers(len(pool)))], draw)
    return root


@pytest.mark.parametrize("name", TREES)
def test_built_in_sets_are_read_whole_or_refused(tmp_path, name):
    TREES[name](tmp_path / "tree")
    short = name.split()[0]
    settings = {"target": "photo"} if short == "pacs" else {}
    assert outcome(lambda: data.load(short, tmp_path / "tree", **settings)) == "read"
    outcomes = [
        outcome(lambda: data.load(short, spoiled(tmp_path / "tree", tmp_path / str(seed), seed), **settings))
        for seed in range(RUNS)
    ]
    assert any(sentence != "read" for sentence in outcomes)


@pytest.mark.parametrize("make", OWN, ids=lambda make: make.__name__)
def test_own_data_are_read_whole_or_refused(tmp_path, make):
    (tmp_path / "tree").mkdir()
    source, asked = make(tmp_path / "tree")
    assert outcome(lambda: data.open(source, **asked).parts) == "read"
    inside = source.relative_to(tmp_path / "tree")
    outcomes = []
    for seed in range(RUNS):
        root = tmp_path / str(seed)
        shutil.rmtree(root, ignore_errors=True)
        outcomes.append(outcome(lambda: data.open(spoiled(tmp_path / "tree", root, seed) / inside, **asked).parts))
    assert any(sentence != "read" for sentence in outcomes)
