"""Data of one's own: every layout and source gives what the built-in loader of Waterbirds gives."""

import contextlib
import io
import os
import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from layout_trees import png, write, write_csv
from own_trees import (
    ASKED,
    LAYOUTS,
    PARTS,
    ROWS,
    WORDS,
    csv_beside_images,
    csv_guessed,
    pictures,
    pixels,
    records,
    tree_of_folders,
)  # fmt: skip
from samphire import data
from samphire.data.cache import decoded
from samphire.data.files import decode


@pytest.fixture(scope="module")
def built_in(tmp_path_factory):
    """Waterbirds' own layout, read by its own loader."""
    place = tmp_path_factory.mktemp("own") / "waterbirds"
    rows = [[i, f"b{i:03d}.png", y, s, a] for i, y, a, s in ROWS]
    write_csv(place / "metadata.csv", ["img_id", "img_filename", "y", "split", "place"], rows)
    pictures(place)
    return data.load("waterbirds", place)


def mapping_of_arrays(root):
    _, y, a, s = (np.array(column) for column in zip(*ROWS, strict=True))
    bird, place = (np.array(WORDS[name])[codes] for name, codes in (("bird", y), ("place", a)))
    return {"x": pixels().transpose(0, 2, 3, 1), "bird": bird, "split": torch.tensor(s), "place": list(place)}, {"label": "bird"}  # fmt: skip


class Frame:
    """What a pandas frame shows of itself."""

    def __init__(self, rows):
        self.rows, self.columns = rows, list(rows[0])

    def __getitem__(self, name):
        return np.array([row[name] for row in self.rows], object)


def frame(root):
    pictures(root)
    return Frame(records()), ASKED | {"root": root}


class Birds(torch.utils.data.Dataset):
    def __init__(self, make, part=None):
        self.rows, self.make = [row for row in ROWS if part is None or row[3] == part], make

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.make(*self.rows[k])


def dataset_of_dicts(root):
    return Birds(lambda i, y, a, s: {"pixel_values": torch.from_numpy(decode(png(i), "")), "bird": WORDS["bird"][y],
                                     "split": s, "place": WORDS["place"][a]}), {"label": "bird"}  # fmt: skip


def dataset_of_pictures(root):
    def example(i, y, a, s):
        return Image.fromarray(decode(png(i), "").transpose(1, 2, 0)), WORDS["bird"][y], WORDS["place"][a]

    return {PARTS[s]: Birds(example, s) for s in range(3)}, {"features": ["place"]}


def loaders_of_tuples(root):
    def example(i, y, a, s):
        return torch.from_numpy(decode(png(i), "")), WORDS["bird"][y], WORDS["place"][a]

    loaders = {PARTS[s]: torch.utils.data.DataLoader(Birds(example, s), batch_size=3) for s in range(3)}
    return loaders, {"features": ["place"]}


def loader_of_dicts(root):
    examples, asked = dataset_of_dicts(root)
    return torch.utils.data.DataLoader(examples, batch_size=4), asked


SOURCES = (
    *LAYOUTS, mapping_of_arrays, frame, dataset_of_dicts, dataset_of_pictures, loaders_of_tuples, loader_of_dicts,
)  # fmt: skip


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_every_source_gives_what_the_built_in_loader_gives(tmp_path, built_in, make):
    (tmp_path / "data").mkdir()
    source, asked = make(tmp_path / "data")
    opened = data.open(source, **asked)
    assert list(opened.parts) == list(PARTS)
    for part, expected in built_in.items():
        split = opened.parts[part]
        order = np.lexsort([split.label, split.group])  # a tree has another order
        theirs = np.lexsort([expected.label, expected.group])
        if make is not tree_of_folders:
            order = theirs = np.arange(len(split))
        label, place = (next(name for name in split.features if split.values[name] == WORDS[w]) for w in WORDS)
        assert split.classes == WORDS["bird"]
        assert np.array_equal(split.label[order], expected.label[theirs])
        assert np.array_equal(split.features[label], split.label)
        assert np.array_equal(split.features[place][order], expected.features["place"][theirs])
        assert np.array_equal(split.ids, expected.ids)
        images = split.images if isinstance(split.images, np.ndarray) else decoded(split, 4, tmp_path / "c").images
        native = decoded(expected, 4, tmp_path / "c").images
        assert sorted(image.tobytes() for image in images) == sorted(image.tobytes() for image in native)
        if make is not tree_of_folders:
            assert np.array_equal(images, native)


def test_the_built_in_sets_open_by_name(tmp_path, built_in):
    csv_beside_images(tmp_path / "waterbirds")
    write_csv(tmp_path / "waterbirds" / "metadata.csv", ["img_filename", "y", "split", "place"], [[f"b{i:03d}.png", y, s, a] for i, y, a, s in ROWS])  # fmt: skip
    opened = data.open("waterbirds", root=tmp_path)
    assert opened.name == "waterbirds"
    assert np.array_equal(opened.parts["val"].label, built_in["val"].label)
    with pytest.raises(ValueError, match="waterbirds is a built-in set with columns of its own, got label='y'"):
        data.open("waterbirds", root=tmp_path, label="y")


def test_own_data_in_a_folder_called_as_a_built_in_set_are_not_it(tmp_path):
    source, asked = csv_beside_images(tmp_path)
    shutil.copytree(source, tmp_path / "waterbirds")
    assert data.open(tmp_path / "waterbirds", **asked).name.startswith("waterbirds@")


# What is guessed is said


def test_every_guess_is_a_sentence(tmp_path):
    source, _ = csv_guessed(tmp_path)
    assert data.open(source).notes == (
        "anything.csv: column filename is taken for the image.",
        "anything.csv: the images are in images.",
        "anything.csv: column label is taken for the label.",
        "anything.csv: column split is taken for the split.",
        "The classes of label are landbird, waterbird.",
        "Attributes: place.",
    )


def arrays(n=60, **columns):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 1, 4, 4)).astype(np.uint8)
    return {"image": images, "label": np.arange(n) % 2, **columns}


def test_a_split_is_drawn_within_groups_and_does_not_change(tmp_path):
    place = ["land", "land", "water"] * 20
    first, again, other = (data.open(arrays(place=place), seed=seed) for seed in (0, 0, 1))
    assert {name: len(part) for name, part in first.parts.items()} == {"train": 36, "val": 12, "test": 12}
    assert np.bincount(first.parts["test"].group).tolist() == [4, 2, 4, 2]
    assert first.notes[-2:] == (
        "There is no split: a fifth is test and a fifth val, drawn within groups with seed 0.",
        "A network that was trained on some of these examples already seems better on them than it is.",
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    together = np.concatenate([part.images for part in first.parts.values()])
    assert len({image.tobytes() for image in together}) == 60


@pytest.mark.parametrize(
    ("given", "sizes", "note"),
    [
        (["train"] * 40 + ["test"] * 20, {"train": 32, "val": 8, "test": 20}, "no val part: a fifth of train is val"),
        (["train"] * 40 + ["dev"] * 20, {"train": 40, "val": 10, "test": 10}, "no test part: half of val is test"),
        (["test"] * 60, {"test": 60}, ""),
    ],
)
def test_parts_that_training_needs_are_drawn(given, sizes, note):
    opened = data.open(arrays(split=given))
    assert {name: len(part) for name, part in opened.parts.items()} == sizes
    assert note in " ".join(opened.notes)


def test_rows_that_lack_an_attribute_count_where_they_can():
    place = np.array(["land", "water"] * 30, object)
    place[:6] = ["", None, float("nan"), "NA", "n/a", " "]
    opened = data.open(arrays(place=place), features="place")
    codes = np.concatenate([part.features["place"] for part in opened.parts.values()])
    assert (codes == -1).sum() == 6
    assert "6 of 60 examples have no place." in opened.notes
    assert sum((part.group == -1).sum() for part in opened.parts.values()) == 6


def test_numbers_of_many_values_become_quarters():
    opened = data.open(arrays(age=np.arange(60) / 2), features=["age"])
    whole = np.concatenate([part.features["age"] for part in opened.parts.values()])
    assert np.bincount(whole).tolist() == [15, 15, 15, 15]
    assert opened.parts["train"].values["age"] == ("0 to 7", "7.5 to 14.5", "15 to 22", "22.5 to 29.5")
    assert "age has 60 values; they are grouped in 4 of about equal size." in opened.notes


def test_whole_numbers_from_0_keep_their_code_and_others_are_counted():
    stars = data.open({**arrays(), "label": [1, 5] * 30})
    assert stars.parts["train"].classes == ("1", "5")
    assert "label has the values 1, 5; they are counted from 0 in this order." in stars.notes
    outputs = data.open({**arrays(), "label": [0, 2] * 30})
    assert outputs.parts["train"].classes == ("0", "1", "2")
    assert set(outputs.parts["train"].label) == {0, 2}


def test_logits_and_feature_rows_of_any_framework(tmp_path):
    rng = np.random.default_rng(0)
    saved = {"features": rng.normal(size=(60, 5)).astype(np.float32), "logits": rng.normal(size=(60, 2))}
    np.savez(tmp_path / "run.npz", **saved, label=np.arange(60) % 2, gender=["f", "m", "m"] * 20)
    opened = data.open(tmp_path / "run.npz")
    for part, split in opened.parts.items():
        assert split.images.shape == (len(split), 5)
        rows = [np.flatnonzero((saved["features"] == x).all(1))[0] for x in split.images]
        assert np.array_equal(opened.logits[part], saved["logits"][rows])


def test_images_in_two_parts_are_counted(tmp_path):
    source, asked = csv_beside_images(tmp_path)
    train, test = (next(i for i, _, _, s in ROWS if s == part) for part in (0, 2))
    shutil.copy(tmp_path / f"b{train:03d}.png", tmp_path / f"b{test:03d}.png")
    notes = " ".join(data.open(source, **asked).notes)
    n = sum(s == 2 for *_, s in ROWS)
    assert f"1 of {n} images of test are in train too, with the same content (the first: {tmp_path}/b{test:03d}.png" in notes  # fmt: skip


def test_no_image_is_decoded_before_it_is_needed(tmp_path, monkeypatch):
    source, asked = csv_beside_images(tmp_path)
    monkeypatch.setattr("PIL.Image.open", None)
    assert len(data.open(source, **asked).parts["train"].images) == 16


# What cannot be opened: one sentence each


def replaced(old, new):
    return lambda root: (root / "list.csv").write_text((root / "list.csv").read_text().replace(old, new))


def outside(named):
    """An image that is there, but beside the folder, listed by a name that leads to it."""

    def spoil(root):
        path = root.parent / "out.png"
        path.write_bytes(png(3))
        replaced("b003.png", named(path))(root)

    return spoil


FAULTS = {
    "no label": (lambda r: None, {"label": "brid"}, r"list.csv has no column 'brid' for the label; did you mean 'bird'\?"),
    "no attribute": (lambda r: None, {"features": ["plaec"]}, r"has no column 'plaec' for an attribute; did you mean 'place'"),
    "label unknown": (lambda r: None, {"label": None}, r"list.csv must say which column is the label, got bird, fold, place"),
    "one class": (replaced("landbird", "waterbird"), {}, r"bird has one value only, 'waterbird'; a label needs two"),
    "image gone": (lambda r: (r / "b003.png").unlink(), {}, r"list.csv line 4 lists b003.png, which is not in"),
    "outside": (outside(lambda path: "../out.png"), {}, r"list.csv line 4 lists ../out.png, which is not in"),
    "outside, absolute": (outside(str), {}, r"list.csv line 4 lists /.*/out.png, which is not in"),
    "no name": (replaced("b003.png", ""), {}, r"list.csv line 4 names no image, but ''"),
    "part unknown": (replaced("val", "hold"), {}, r"list.csv line \d+: fold is 'hold', none of train, val, test"),
    "label missing": (replaced("waterbird", ""), {}, r"list.csv line \d+ has no bird; every example needs a label"),
    "short row": (lambda r: (r / "list.csv").write_text((r / "list.csv").read_text() + "x.png,landbird\n"), {}, r"line \d+ has 2 entries for 4 columns"),
    "empty": (lambda r: (r / "list.csv").write_text("picture,bird,fold,place\n"), {}, r"list.csv holds 0 rows"),
    "two tables": (lambda r: shutil.copy(r / "list.csv", r / "more.csv"), {}, r"has 2 tables \(list.csv, more.csv\); give the one"),
    "binary": (lambda r: (r / "list.csv").write_bytes(b"\xff\x00\x81"), {}, r"list.csv is not a list in text"),
    "columns twice": (replaced("fold", "bird"), {}, r"list.csv has two columns named 'bird'"),
    "pipe": (lambda r: ((r / "list.csv").unlink(), os.mkfifo(r / "list.csv")), {}, r"list.csv must be an ordinary file"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "asked", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_are_named_by_file_and_row(tmp_path, spoil, asked, message):
    (tmp_path / "set").mkdir()
    source, usual = csv_beside_images(tmp_path / "set")
    spoil(source)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        data.open(source, **{**usual, **asked})


@pytest.mark.parametrize(("gone", "others"), [(1, ""), (3, ", and 2 of 24 others are missing too")])
def test_the_first_image_may_be_the_one_that_is_missing(tmp_path, gone, others):
    """Most of the images are in a folder of the table's folder, so the first is looked for there too."""
    source, _ = csv_guessed(tmp_path)
    names = [line.split(",")[0] for line in (source / "anything.csv").read_text().splitlines()[1:]]
    assert len(names) == len(ROWS)
    for name in names[:gone]:
        (source / "images" / name).unlink()
    counted = others.replace("24", str(len(names)))
    with pytest.raises(FileNotFoundError, match=rf"line 2 lists {names[0]}, which is not in .*images{counted}; put"):
        data.open(source)


def test_a_column_of_parts_is_the_split_whatever_its_name():
    """To draw another split would test a network on what it was trained on."""
    teil = ["train"] * 30 + ["val"] * 10 + ["Test"] * 20
    opened = data.open(arrays(Teil=teil))
    assert {name: len(part) for name, part in opened.parts.items()} == {"train": 30, "val": 10, "test": 20}
    note = "the data: column Teil is taken for the split, since its values are train, val, Test."
    assert note in opened.notes


def test_a_damaged_image_is_named_with_its_row(tmp_path):
    source, asked = csv_beside_images(tmp_path)
    (tmp_path / "b003.png").write_bytes(png(3)[:60])
    part = PARTS[ROWS[2][3]]
    with pytest.raises(ValueError, match=r"image .*b003.png \(list.csv line 4\) cannot be decoded"):
        decoded(data.open(source, **asked).parts[part], 4, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*/images.npy"))


REFUSED = {
    "nothing there": ("no-such-set", {}, r"no data set is named 'no-such-set'; .* there is no such folder either"),
    "a number": (7, {}, r"data must be a folder, a mapping of arrays, a frame"),
    "no inputs": ({"label": [0, 1]}, {}, r"the data must say which column has the images' file names, got label"),
    "lengths": ({**arrays(), "label": [0, 1]}, {}, r"must have one entry for each example in every array, got image 60, label 2"),
    "labels of 0.5": ({**arrays(), "label": [0.5, 1] * 30}, {}, r"row 0: label is 0.5, not a class"),
    "many words": (arrays(name=[f"n{i}" for i in range(60)]), {"features": ["name"]}, r"name has 60 different words, more than the 20"),
    "label of ids": ({**arrays(), "label": [f"n{i}" for i in range(60)]}, {}, r"label has 60 classes for 60 examples; name the label's column"),
    "gap in label": ({**arrays(), "label": ["a", ""] * 30}, {}, r"row 1 has no label; every example needs a label"),
    "target": (arrays(), {"target": "photo"}, r"target is for built-in sets with domains, got 'photo'"),
    "other shapes": ([(np.zeros((1, 2, 2)), 0), (np.zeros((1, 3, 3)), 1)], {}, r"example 1 is float64 of shape \(1, 3, 3\), but the first"),
    "pictures in a loader": (iter([(Image.new("RGB", (2, 2)), 0)]), {}, r"images of Pillow are taken from a Dataset, one by one, got a list_iterator"),
    "no labels": ([np.zeros(3)], {}, r"example 0 must be a tuple \(input, label, ...\) or a dict, got ndarray"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "asked", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_opened_is_refused_in_one_sentence(source, asked, message):
    with pytest.raises((ValueError, TypeError), match=message):
        data.open(source, **asked)


def test_an_empty_folder_and_loose_images_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no table .* and no images"):
        data.open(tmp_path)
    write(tmp_path / "a.png", png(1))
    with pytest.raises(ValueError, match=r"a.png must be in a folder of its class"):
        data.open(tmp_path)


def test_an_archive_of_arrays_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", image=np.zeros((2, 10**6)), label=[0, 1])
    monkeypatch.setattr("samphire.data.folders.MOST_UNPACKED", 10**6)
    with pytest.raises(ValueError, match=r"bomb.npz cannot be read as arrays .it would unpack to 16000"):
        data.open(tmp_path / "bomb.npz")


def header(shape, descr="<f8"):
    """The beginning of an .npy file that promises an array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"image.npy": header((10**12,))}, r"image.npy holds 128 bytes of the 8000000000000 its header promises"),
        ({"image.npy": b"no array"}, "magic string is not correct"),
        ({"image.npy": header((2, 3)) + bytes(48), "label.npy": header(()) + bytes(8)}, "got one value as label"),
        ({"image.npy": header((2, 1), "<c16") + bytes(32)}, "got complex numbers as image"),
    ],
)
def test_arrays_that_are_not_what_they_promise_are_refused(tmp_path, entries, said):
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=f"own.npz .*{said}"):
        data.open(tmp_path / "own.npz")


def test_whatever_byte_of_packed_arrays_is_damaged_they_are_read_or_refused(tmp_path):
    features = np.random.default_rng(0).random((50, 3))
    np.savez_compressed(tmp_path / "whole.npz", image=features, label=np.arange(50) % 2)
    whole = (tmp_path / "whole.npz").read_bytes()
    for i in range(0, len(whole), 5):
        (tmp_path / "own.npz").write_bytes(whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1 :])
        with contextlib.suppress(ValueError):  # any other error is no sentence
            assert data.open(tmp_path / "own.npz").parts


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", image=np.array([{}, {}], object), label=[0, 1])
    with pytest.raises(ValueError, match=r"own.npz cannot be read as arrays"):
        data.open(tmp_path / "own.npz")
