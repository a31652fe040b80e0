"""The readers of idx files and CIFAR batches: right bytes, no code run, damage named by file and row."""

import gzip
import hashlib
import os
import pickle
import re
import struct
import tracemalloc

import numpy as np
import pytest

from samphire.data import SETS, Split, arrays, load

BATCH_FILES = [*arrays.BATCHES["train"], *arrays.BATCHES["test"]]


def test_idx_by_hand(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]))
    assert arrays.read_idx(path).tolist() == [[1, 2, 3], [4, 5, 6]]
    (tmp_path / "x.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert arrays.read_idx(tmp_path / "x.gz").tolist() == [[1, 2, 3], [4, 5, 6]]
    arrays.write_idx(tmp_path / "y", np.array([[1, 2, 3], [4, 5, 6]], np.uint8))
    assert (tmp_path / "y").read_bytes() == path.read_bytes()


WHOLE = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, *range(8)])
IDX_FAULTS = {
    "truncated": (WHOLE[:-3], r"x holds 5 bytes of the 8 its header promises, whole up to row 1 of 2; get it again"),
    "too long": (WHOLE + b"\0", r"x holds 9 bytes of the 8"),
    "header only": (WHOLE[:16], r"x holds 0 bytes of the 8"),
    "in the header": (WHOLE[:7], r"x is not an idx file of bytes"),
    "empty": (b"", r"x is not an idx file of bytes"),
    "floats": (WHOLE[:2] + b"\x0d" + WHOLE[3:], r"x is not an idx file of bytes"),
    "a page instead": (b"<html>not found</html>", r"x is not an idx file of bytes"),
}


@pytest.mark.parametrize(("data", "message"), IDX_FAULTS.values(), ids=IDX_FAULTS)
def test_idx_faults(tmp_path, data, message):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        arrays.read_idx(tmp_path / "x")


@pytest.mark.parametrize("damage", [lambda z: z[:-9], lambda z: b"no" + z, lambda z: z[:300] + b"\xff\xff" + z[302:]])
def test_gzip_faults(tmp_path, damage):
    long = bytes([0, 0, 8, 1, 0, 0, 2, 88]) + np.random.default_rng(0).bytes(600)
    (tmp_path / "x.gz").write_bytes(damage(gzip.compress(long)))
    with pytest.raises(ValueError, match=r"x.gz cannot be unpacked"):
        arrays.read_idx(tmp_path / "x.gz")


def write_mnist(folder, labels=(3, 1), images=2):
    folder.mkdir(parents=True, exist_ok=True)
    for stem in ("train", "t10k"):
        arrays.write_idx(folder / f"{stem}-images-idx3-ubyte", np.zeros((images, 28, 28), np.uint8))
        arrays.write_idx(folder / f"{stem}-labels-idx1-ubyte", np.array(labels, np.uint8))


def test_idx_files_that_disagree_are_refused(tmp_path):
    write_mnist(tmp_path, images=3)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte holds \(3, 28, 28\) pixels for 2 labels"):
        load("mnist", tmp_path)
    write_mnist(tmp_path, labels=(3, 12))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte row 1: the label is 12, which is not in 0 to 9"):
        load("mnist", tmp_path)
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"lacks t10k-labels\?idx1-ubyte\*; get it from samphire data get mnist"
    ):
        load("mnist", tmp_path)


def python2(data, labels, filler=b""):
    """A batch as Python 2 and the NumPy of 2009 pickled it: byte strings, ``numpy.core``, an integer for align."""
    text = lambda b: b"T" + struct.pack("<i", len(b)) + b
    rows = struct.pack("<i", len(labels))
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\x01bt R".replace(b" ", b"")
        + b"(K\x01J" + rows + b"M\0\x0c\x86cnumpy\ndtype\n(U\x02u1K\0K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89"
        + text(data.tobytes()) + b"tb"
    )  # fmt: skip
    return (
        b"\x80\x02}(U\x04data"
        + array
        + b"U\x06labels]("
        + b"".join(b"K" + bytes([y]) for y in labels)
        + b"e"
        + filler
        + b"u."
    )


def batch(n=4, seed=0):
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (n, 3072), np.uint8), draw.integers(0, 10, n).tolist()


PICKLES = {
    "python 2": python2,
    **{
        f"protocol {k}": lambda data, labels, k=k: pickle.dumps({"labels": labels, "data": data}, protocol=k)
        for k in range(6)
    },
    "old numpy": lambda data, labels: pickle.dumps({"labels": labels, "data": data}, protocol=2).replace(
        b"numpy._core.", b"numpy.core."
    ),
    "labels as array": lambda data, labels: pickle.dumps({"labels": np.array(labels), "data": data}, protocol=2),
}


@pytest.mark.parametrize("dump", PICKLES.values(), ids=PICKLES)
def test_batches_of_every_protocol_load(tmp_path, dump):
    data, labels = batch()
    (tmp_path / "b").write_bytes(dump(data, labels))
    images, label = arrays.read_batch(tmp_path / "b")
    assert np.array_equal(images, data.reshape(4, 3, 32, 32))
    assert label.tolist() == labels


def test_python2_pickles_are_what_the_pickle_module_reads():
    data, labels = batch()
    plain = pickle.loads(python2(data, labels).replace(b"K\0K\x01tR", b"\x89\x88tR"), encoding="latin1")
    assert np.array_equal(plain["data"], data)
    assert plain["labels"] == labels


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def test_no_code_of_a_pickle_is_run(tmp_path):
    data, labels = batch()
    mark = tmp_path / "ran"
    for evil in (
        Evil(os.mkdir, str(mark)),
        Evil(eval, f"open({str(mark)!r}, 'w')"),
        Evil(np.load, str(mark)),
        Evil(np.ndarray, (3,)),
    ):
        for content in ({"labels": labels, "data": evil}, {"labels": labels, "data": data, "more": evil}, evil):
            (tmp_path / "b").write_bytes(pickle.dumps(content, protocol=2))
            with pytest.raises(ValueError, match=r"b is not a CIFAR-10 batch \(.*\); get it again"):
                arrays.read_batch(tmp_path / "b")
    assert not mark.exists()
    (tmp_path / "b").write_bytes(pickle.dumps(Evil(os.mkdir, str(mark)), protocol=2))
    with pytest.raises(ValueError, match=r"it asks for (posix|nt).mkdir, which is not part of an array"):
        arrays.read_batch(tmp_path / "b")


def test_a_pickle_cannot_ask_for_memory_it_does_not_fill(tmp_path):
    data, labels = batch()
    huge = python2(data, labels).replace(
        b"ndarray\nK\0\x85", b"ndarray\n" + b"\x8a\x06" + (2**45).to_bytes(6, "little") + b"\x85"
    )
    (tmp_path / "b").write_bytes(huge)
    assert np.array_equal(arrays.read_batch(tmp_path / "b")[0].reshape(4, 3072), data)


def test_a_short_pickle_cannot_ask_for_a_large_memo(tmp_path):
    tracemalloc.start()
    (tmp_path / "b").write_bytes(b"\x80\x02]r" + (2**27).to_bytes(4, "little") + b".")
    with pytest.raises(ValueError, match=r"b is not a CIFAR-10 batch \(it asks for 134217728 places in memory\)"):
        arrays.read_batch(tmp_path / "b")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize("promised", [8, 2**32 - 1])
def test_a_small_gzip_cannot_unpack_to_more_than_its_header_promises_or_we_allow(tmp_path, promised, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_BYTES", 2**20)
    header = bytes([0, 0, 8, 1]) + promised.to_bytes(4, "big")
    (tmp_path / "x.gz").write_bytes(gzip.compress(header + bytes(2**26)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"x.gz holds {min(promised, 2**20) + 1} bytes of the {promised}"):
        arrays.read_idx(tmp_path / "x.gz")
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def nested(innermost, levels):
    """Lists in lists, ten times the same in each: a few bytes a level on the disk, ten times more as an array."""
    for _ in range(levels):
        innermost = [innermost] * 10
    return innermost


BATCH_FAULTS = {
    "lists of lists": (
        lambda d, y: pickle.dumps({"data": nested([0] * 10, 4), "labels": [0]}),
        "it has no array of data with a list of labels",
    ),
    "labels of lists": (
        lambda d, y: pickle.dumps({"data": d, "labels": nested(y, 4)}),
        "it has no array of data with a list of labels",
    ),
    "truncated": (lambda d, y: python2(d, y)[:-200], "is not a CIFAR-10 batch"),
    "empty": (lambda d, y: b"", "is not a CIFAR-10 batch"),
    "no labels": (lambda d, y: pickle.dumps({"data": d}), "'labels'"),
    "rows lost": (
        lambda d, y: pickle.dumps({"data": d[:3], "labels": y}),
        r"uint8 of shape \(3, 3072\) for 4 labels",
    ),
    "floats": (lambda d, y: pickle.dumps({"data": d / 255, "labels": y}), "its data are float64"),
    "bad label": (lambda d, y: pickle.dumps({"data": d, "labels": [0, 1, 10, 2]}), "row 2: the label is 10"),
}


@pytest.mark.parametrize(("dump", "message"), BATCH_FAULTS.values(), ids=BATCH_FAULTS)
def test_batch_faults(tmp_path, dump, message):
    (tmp_path / "data_batch_1").write_bytes(dump(*batch()))
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/data_batch_1") + f".*{message}"):
        arrays.read_batch(tmp_path / "data_batch_1")


def test_whole_and_restricted_batches_load(tmp_path):
    everything = {}
    for k, name in enumerate(BATCH_FILES):
        everything[name] = batch(30, k)
        (tmp_path / name).write_bytes(python2(*everything[name]))
    whole = arrays.cifar10(tmp_path)
    assert {part: len(split) for part, split in whole.items()} == {"train": 150, "test": 30}
    for name, (data, labels) in everything.items():
        kept = [i for i, y in enumerate(labels) if y < 2]
        (tmp_path / name).write_bytes(python2(data[kept], [labels[i] for i in kept]))
    for part, split in arrays.cifar10(tmp_path).items():
        expected = whole[part].subset(whole[part].label < 2)
        assert np.array_equal(split.images, expected.images)
        assert np.array_equal(split.label, expected.label)
        assert split.classes == arrays.OBJECTS


def test_written_batches_are_those_torchvision_reads(tmp_path):
    data, labels = batch(13)
    part = arrays.labeled(data.reshape(-1, 3, 32, 32), np.array(labels), "object", arrays.OBJECTS)
    arrays.write_batches(tmp_path, {"train": part, "test": part})
    entries = [pickle.loads((tmp_path / name).read_bytes(), encoding="latin1") for name in BATCH_FILES]
    assert np.array_equal(np.concatenate([e["data"] for e in entries[:5]]), data)
    assert [y for e in entries[:5] for y in e["labels"]] == labels
    assert np.array_equal(entries[5]["data"], data)


def test_digest_by_hand_and_sensitive_to_everything():
    images, label = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2), np.array([3, 9])
    split = Split(images, label, {})
    assert arrays.digest(split) == hashlib.md5(bytes([3, 9, *range(8)])).hexdigest()
    assert (
        len(
            {arrays.digest(s) for s in (split, split.subset(np.array([1, 0])), Split(images, label[::-1].copy(), {}))}
        )
        == 3
    )


def test_official_numbers_add_up():
    totals = {name: [sum(counts) for counts in d.official.values()] for name, d in SETS.items()}
    assert totals == {
        "mnist": [60000, 10000],
        "fashion-mnist": [60000, 10000],
        "cifar10": [50000, 10000],
        "celeba": [162770, 19867, 19962],
        "waterbirds": [4795, 1199, 5794],
        "pacs": [2048, 2344, 1670, 3929],
        "vlcs": [1415, 2656, 3282, 3376],
        "officehome": [2427, 4365, 4439, 4357],
    }
    male = [sum(counts[1::2]) for counts in SETS["celeba"].official.values()]
    assert male == [68261, 8458, 7715]
