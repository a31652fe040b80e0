"""Every layout of every data set, written small, loads to the same splits; what is damaged or missing is named."""

import csv
import gzip
import hashlib
import io
import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from samphire.data import SETS, arrays, celeba_waterbirds, domains, load
from samphire.data.layouts import find
from samphire.data.parquet import ParquetImages

PARTS = ("train", "val", "test")


def png(i, mode="RGB", size=(4, 4)):
    """An encoded image that is unlike those of other i."""
    pixels = np.random.default_rng(i).integers(0, 256, (*size, 3) if mode == "RGB" else size, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content)
    else:
        path.write_bytes(content)


def write_csv(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_parquet(path, columns, names=None, image="image"):
    """As the datasets library writes it: images as structs, class names in the schema's metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = dict(columns)
    columns[image] = [{"bytes": data, "path": None} for data in columns.pop("image")]
    features = {column: {"names": n, "_type": "ClassLabel"} for column, n in (names or {}).items()}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=2)


# Sets with groups: rows of (image number, label, attribute, part), in the order of the lists

ROWS = [(i, y, a, part) for i, (y, a, part) in enumerate([(0, 0, 0), (1, 0, 0), (1, 1, 2), (0, 1, 1), (0, 1, 0), (1, 1, 1), (0, 0, 2)], 1)]  # fmt: skip
ATTRIBUTES = [f"attribute{k}" for k in range(40)]
ATTRIBUTES[9], ATTRIBUTES[20] = "Blond_Hair", "Male"


def attributes(y, a, low=-1):
    values = [low] * 40
    values[9], values[20] = (1 if y else low), (1 if a else low)
    return values


def faces(folder, name="{:06d}.jpg"):
    for i, *_ in ROWS:
        write(folder / name.format(i), png(i))


def celeba_text(place, images="img_align_celeba"):
    faces(place / images)
    rows = [f"{i:06d}.jpg  {' '.join(map(str, attributes(y, a)))}" for i, y, a, _ in ROWS]
    write(place / "list_attr_celeba.txt", "\n".join([str(len(ROWS)), " ".join(ATTRIBUTES), *rows, ""]))
    write(place / "list_eval_partition.txt", "".join(f"{i:06d}.jpg {part}\n" for i, _, _, part in ROWS))


def celeba_csv(place, images="img_align_celeba"):
    faces(place / images)
    rows = [[f"{i:06d}.jpg", *attributes(y, a)] for i, y, a, _ in ROWS]
    write_csv(place / "list_attr_celeba.csv", ["image_id", *ATTRIBUTES], rows)
    parts = [[f"{i:06d}.jpg", part] for i, _, _, part in reversed(ROWS)]  # the lists are joined, whatever their order
    write_csv(place / "list_eval_partition.csv", ["image_id", "partition"], parts)


def metadata(place, images=".", spurious="place", name="{:06d}.jpg"):
    faces(place / images, name)
    rows = [[i, name.format(i), y, part, a, "/o/ocean.jpg"] for i, y, a, part in ROWS]
    write_csv(place / "metadata.csv", ["img_id", "img_filename", "y", "split", spurious, "place_filename"], rows)


def subpopbench(path, images, name="{:06d}.jpg"):
    faces(images, name)
    rows = [[i, name.format(i), part, y, a] for i, y, a, part in ROWS]
    write_csv(path, ["id", "filename", "split", "y", "a"], rows)


def parquet_groups(place, columns, parts=PARTS, shards=1):
    for k, part in enumerate(parts):
        rows = [row for row in ROWS if row[3] == k]
        for s, chosen in enumerate(np.array_split(np.arange(len(rows)), shards)):
            mine = [rows[j] for j in chosen]
            values = {"image": [png(i) for i, *_ in mine]} | {
                c: [f(y, a) for _, y, a, _ in mine] for c, f in columns.items()
            }
            write_parquet(place / f"{part}-{s:05d}-of-{shards:05d}.parquet", values)


BLOND = {"Blond_Hair": lambda y, a: bool(y), "Male": lambda y, a: bool(a)}
HUB = ("train", "validation", "test")
BIRD = "001.Albatross/bird_{:04d}.jpg"
WATERBIRDS = "waterbird_complete95_forest2water2"

# data set, layout, where the root is below the folder given to the writer, writer
GROUPS = [
    ("celeba", "torchvision", ".", lambda r: celeba_text(r / "celeba")),
    ("celeba", "torchvision", "celeba", lambda r: celeba_text(r / "celeba")),
    ("celeba", "torchvision", ".", lambda r: celeba_text(r / "celeba", "img_align_celeba/img_align_celeba")),
    ("celeba", "Kaggle", ".", celeba_csv),
    ("celeba", "Kaggle", ".", lambda r: celeba_csv(r, "img_align_celeba/img_align_celeba")),
    ("celeba", "WILDS", ".", lambda r: celeba_csv(r / "celebA_v1.0")),
    ("celeba", "WILDS", "celebA_v1.0", lambda r: celeba_csv(r / "celebA_v1.0")),
    ("celeba", "group_DRO", ".", lambda r: celeba_csv(r / "celebA/data")),
    ("celeba", "group_DRO", "celebA/data", lambda r: celeba_csv(r / "celebA/data")),
    ("celeba", "Kaggle", "celebA", lambda r: celeba_csv(r / "celebA/data")),
    ("celeba", "DFR metadata.csv", ".", lambda r: metadata(r / "celeba")),
    ("celeba", "DFR metadata.csv", ".", lambda r: metadata(r, "img_align_celeba", "spurious")),
    ("celeba", "DFR metadata.csv", "img_align_celeba", lambda r: metadata(r / "img_align_celeba")),
    ("celeba", "SubpopBench", ".", lambda r: subpopbench(r / "celeba/metadata_celeba.csv", r / "celeba/img_align_celeba")),
    ("celeba", "SubpopBench", "celeba", lambda r: subpopbench(r / "celeba/metadata_celeba.csv", r / "celeba/img_align_celeba")),
    ("celeba", "SubpopBench", ".", lambda r: subpopbench(r / "metadata_celeba.csv", r / "celeba/img_align_celeba")),
    ("celeba", "Hugging Face parquet", ".", lambda r: parquet_groups(r / "celeba/img_align+identity+attr", BLOND, ("train", "valid", "test"))),
    ("celeba", "Hugging Face parquet", ".", lambda r: parquet_groups(r / "celeba/data", {"attributes": attributes}, HUB)),
    ("celeba", "Hugging Face parquet", ".", lambda r: parquet_groups(r / "data", {"attributes": partial(attributes, low=0)}, HUB)),
    ("celeba", "Hugging Face parquet", ".", lambda r: parquet_groups(r / "datasets--flwrlabs--celeba/snapshots/0a1b/data", BLOND, HUB)),
    ("waterbirds", "DFR metadata.csv", ".", lambda r: metadata(r / WATERBIRDS, name=BIRD)),
    ("waterbirds", "DFR metadata.csv", WATERBIRDS, lambda r: metadata(r / WATERBIRDS, name=BIRD)),
    ("waterbirds", "DFR metadata.csv", ".", lambda r: metadata(r, spurious="spurious", name=BIRD)),
    ("waterbirds", "group_DRO", ".", lambda r: metadata(r / "cub/data" / WATERBIRDS, name=BIRD)),
    ("waterbirds", "group_DRO", "cub", lambda r: metadata(r / "cub/data" / WATERBIRDS, name=BIRD)),
    ("waterbirds", "WILDS", ".", lambda r: metadata(r / "waterbirds_v1.0", name=BIRD)),
    ("waterbirds", "SubpopBench", ".", lambda r: subpopbench(r / "waterbirds/metadata_waterbirds.csv", r / "waterbirds" / WATERBIRDS, BIRD)),
    ("waterbirds", "SubpopBench", "waterbirds", lambda r: subpopbench(r / "waterbirds/metadata_waterbirds.csv", r / "waterbirds" / WATERBIRDS, BIRD)),
    ("waterbirds", "SubpopBench", ".", lambda r: subpopbench(r / "metadata_waterbirds.csv", r / "waterbirds" / WATERBIRDS, BIRD)),
    ("waterbirds", "Hugging Face parquet", ".", lambda r: parquet_groups(r / "waterbirds/data", {"label": lambda y, a: y, "place": lambda y, a: a}, HUB)),
    ("waterbirds", "Hugging Face parquet", ".", lambda r: parquet_groups(r, {"label": lambda y, a: y, "place": lambda y, a: a}, HUB, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layout", "below", "make"), GROUPS, ids=lambda v: v if isinstance(v, str) else "")
def test_groups_load_from_every_layout(tmp_path, name, layout, below, make):
    make(tmp_path)
    assert find(SETS[name], tmp_path / below)[0].name == layout
    splits = load(name, tmp_path / below)
    values = {"celeba": celeba_waterbirds.HAIR, "waterbirds": celeba_waterbirds.BIRDS}[name]
    assert list(splits) == ["train", "val", "test"]
    for k, part in enumerate(PARTS):
        rows, split = [row for row in ROWS if row[3] == k], splits[part]
        assert [split.images.read(j) for j in range(len(split))] == [png(i) for i, *_ in rows]
        assert split.label.tolist() == [y for _, y, _, _ in rows]
        assert [f.tolist() for f in split.features.values()] == [
            [y for _, y, _, _ in rows],
            [a for _, _, a, _ in rows],
        ]
        assert split.group.tolist() == [2 * y + a for _, y, a, _ in rows]
        assert split.ids.tolist() == list(range(len(rows)))
        assert dict(split.values) == values
        assert split.classes == next(iter(values.values()))


# Sets with domains: two images of each class that is listed, numbered in the order of domain, class, file

TREES = {
    "pacs": (domains._PACS, domains.ANIMALS),
    "vlcs": (domains._VLCS, domains.SCENES),
    "officehome": (domains._OFFICE, domains.OFFICE),
}


def folders(place, name, spell=lambda text: text, per_class=2):
    names, classes = TREES[name]
    i = 0
    for domain in names:
        for label in classes:
            for k in range(per_class):
                i += 1
                write(place / spell(domain) / label / f"pic_{k:03d}.jpg", png(i))
    write(place / spell(names[0]) / classes[0] / "Thumbs.db", b"no image")


def parquet_domains(place, name, spell=lambda text: text):
    """Rows in another order than the folders', with class names in another order too."""
    names, classes = TREES[name]
    shown = [spell(c) for c in reversed(classes)]
    rows = [(d, c, k) for k in range(2) for c in range(len(classes)) for d in range(len(names))]
    values = {
        "image": [png(1 + k + 2 * c + 2 * len(classes) * d) for d, c, k in rows],
        "domain": [names[d] for d, _, _ in rows],
        "label": [len(classes) - 1 - c for _, c, _ in rows],
    }
    write_parquet(place / "train-00000-of-00001.parquet", values, {"label": shown})


DOMAINS = [
    ("pacs", "DomainBed folders", ".", lambda r: folders(r / "PACS", "pacs")),
    ("pacs", "DomainBed folders", "PACS", lambda r: folders(r / "PACS", "pacs")),
    ("pacs", "DomainBed folders", ".", lambda r: folders(r / "kfold", "pacs")),
    ("pacs", "DomainBed folders", ".", lambda r: folders(r / "PACS/kfold", "pacs")),
    ("pacs", "Hugging Face parquet", ".", lambda r: parquet_domains(r / "pacs/data", "pacs")),
    ("vlcs", "DomainBed folders", ".", lambda r: folders(r / "VLCS", "vlcs")),
    ("officehome", "DomainBed folders", ".", lambda r: folders(r / "office_home", "officehome")),
    ("officehome", "DomainBed folders", ".", lambda r: folders(r / "OfficeHomeDataset_10072016", "officehome")),
    ("officehome", "DomainBed folders", "x", lambda r: folders(r / "x", "officehome", lambda t: t.replace(" ", "_"))),
    ("officehome", "Hugging Face parquet", ".", lambda r: parquet_domains(r / "office-home/data", "officehome", lambda t: t.replace("_", " "))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layout", "below", "make"), DOMAINS, ids=lambda v: v if isinstance(v, str) else "")
def test_domains_load_from_every_layout(tmp_path, name, layout, below, make):
    make(tmp_path)
    names, classes = TREES[name]
    match, place = find(SETS[name], tmp_path / below)
    assert match.name == layout
    whole = match.read(place)["all"]
    n = 2 * len(classes) * len(names)
    assert whole.ids.tolist() == list(range(n))
    assert [whole.images.read(i) for i in range(n)] == [png(i + 1) for i in range(n)]
    assert whole.label.tolist() == [i // 2 % len(classes) for i in range(n)]
    assert whole.features["domain"].tolist() == [i // 2 // len(classes) for i in range(n)]
    assert whole.classes == classes
    assert dict(whole.values) == {"class": classes, "domain": names}


@pytest.fixture
def pacs(tmp_path):
    folders(tmp_path / "PACS", "pacs", per_class=10)
    return tmp_path


def test_domains_are_arranged_for_transfer(pacs):
    splits = load("pacs", pacs, target="photo", seed=3)
    assert list(splits) == ["train", "val", "test", "target_train", "target_test"]
    # of ten images in a class two are tested on, and of the other eight one is for validation
    expected = {"train": (7, 3), "val": (1, 3), "test": (2, 3), "target_train": (8, 1), "target_test": (2, 1)}
    for part, (per_class, of_domains) in expected.items():
        counts = np.bincount(splits[part].group, minlength=28)
        photo = np.arange(28) % 4 == 2
        assert (counts[photo if "target" in part else ~photo] == per_class).all()
        assert len(splits[part]) == per_class * of_domains * 7
    ids = np.concatenate([split.ids for split in splits.values()])
    assert sorted(ids) == list(range(280))


def manifest(splits):
    """Part, domain, class and file of every image."""
    return [
        (part, split.values["domain"][split.features["domain"][i]], split.classes[split.label[i]], domains._short(split.images.name(i)))
        for part, split in splits.items()
        for i in range(len(split))
    ]  # fmt: skip


def test_the_arrangement_is_the_same_again_and_another_with_another_seed(pacs):
    rows = manifest(load("pacs", pacs, target="sketch"))
    assert rows == manifest(load("pacs", pacs, target="sketch", seed=0))
    assert rows != manifest(load("pacs", pacs, target="sketch", seed=1))
    assert len(rows) == 280
    assert {(domain, label, image) for _, domain, label, image in rows} == {
        (d, c, f"{d}/{c}/pic_{k:03d}.jpg") for d in domains._PACS for c in domains.ANIMALS for k in range(10)
    }
    assert {part for part, domain, _, _ in rows if domain == "sketch"} == {"target_train", "target_test"}
    # the two of the ten with the smallest SHA-256 of "test:<seed>:<group>:<place in the group>"
    by_hand = sorted(range(10), key=lambda k: hashlib.sha256(f"test:0:0:{k}".encode()).hexdigest())[:2]
    held = [image for part, _, _, image in rows if part == "test" and image.startswith("art_painting/dog")]
    assert held == [f"art_painting/dog/pic_{k:03d}.jpg" for k in sorted(by_hand)]


def test_the_target_does_not_change_who_is_held_out(pacs):
    held = lambda target: set(
        np.concatenate([load("pacs", pacs, target=target)[part].ids for part in ("test", "target_test")])
    )
    assert held("photo") == held("Art Painting")


def write_lists(folder):
    for domain in domains._PACS:
        lines = [f"{domain}/{c}/pic_{k:03d}.jpg {n}" for n, c in enumerate(domains.ANIMALS, 1) for k in range(10)]
        write(folder / f"{domain}_train_kfold.txt", "\n".join(line for i, line in enumerate(lines) if i % 10 < 9))
        write(folder / f"{domain}_crossval_kfold.txt", "\n".join(line for i, line in enumerate(lines) if i % 10 == 9))


def test_official_lists_may_be_named(pacs):
    write_lists(pacs / "lists")
    splits = load("pacs", pacs, target="cartoon", lists=pacs / "lists")
    for part in ("test", "target_test"):
        names = [splits[part].images.name(i) for i in range(len(splits[part]))]
        assert all(name.endswith("pic_009.jpg") for name in names)
    assert {part: len(split) for part, split in splits.items()} == {
        "train": 8 * 21, "val": 21, "test": 21, "target_train": 9 * 7, "target_test": 7,
    }  # fmt: skip
    (pacs / "lists/photo_crossval_kfold.txt").write_text("")
    with pytest.raises(ValueError, match=r"photo/dog/pic_009.jpg and 6 others are in none of the lists"):
        load("pacs", pacs, target="cartoon", lists=pacs / "lists")
    (pacs / "lists/photo_crossval_kfold.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"photo_crossval_kfold.txt is missing"):
        load("pacs", pacs, target="cartoon", lists=pacs / "lists")


# Sets that are arrays: eight images, three in the test part

LABELS = {"train": [5, 0, 4, 1, 9], "test": [7, 2, 1]}


def gray(part):
    return np.random.default_rng(len(part)).integers(0, 256, (len(LABELS[part]), 28, 28), np.uint8)


def color(part):
    return np.random.default_rng(len(part)).integers(0, 256, (len(LABELS[part]), 3, 32, 32), np.uint8)


def idx_files(place, dotted=False, zipped=False):
    place.mkdir(parents=True, exist_ok=True)
    for part, stem in (("train", "train"), ("test", "t10k")):
        for kind, array in (("images-idx3", gray(part)), ("labels-idx1", np.array(LABELS[part], np.uint8))):
            path = place / f"{stem}-{kind.replace('-', '.') if dotted else kind}-ubyte"
            arrays.write_idx(path, array)
            if zipped:
                write(path.with_name(path.name + ".gz"), gzip.compress(path.read_bytes()))
                path.unlink()


def encoded(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels if pixels.ndim == 2 else pixels.transpose(1, 2, 0)).save(file, "png")
    return file.getvalue()


def parquet_arrays(place, pixels, image="image"):
    for part in ("train", "test"):
        values = {"image": [encoded(p) for p in pixels(part)], "label": LABELS[part]}
        write_parquet(place / f"{part}-00000-of-00001.parquet", values, image=image)


def batches(place):
    place.mkdir(parents=True, exist_ok=True)
    parts = {p: arrays.labeled(color(p), np.array(LABELS[p]), "object", arrays.OBJECTS) for p in ("train", "test")}
    arrays.write_batches(place, parts)


ARRAYS = [
    ("mnist", "torchvision idx files", ".", lambda r: idx_files(r / "MNIST/raw")),
    ("mnist", "torchvision idx files", "MNIST", lambda r: idx_files(r / "MNIST/raw")),
    ("mnist", "torchvision idx files", ".", lambda r: idx_files(r / "MNIST/raw", zipped=True)),
    ("mnist", "torchvision idx files", ".", lambda r: idx_files(r, dotted=True)),
    ("mnist", "Hugging Face parquet", ".", lambda r: parquet_arrays(r / "mnist/mnist", gray)),
    ("mnist", "Hugging Face parquet", "mnist", lambda r: parquet_arrays(r / "mnist/mnist", gray)),
    ("fashion-mnist", "torchvision idx files", ".", lambda r: idx_files(r / "FashionMNIST/raw")),
    ("fashion-mnist", "Hugging Face parquet", ".", lambda r: parquet_arrays(r / "fashion_mnist/fashion_mnist", gray)),
    ("cifar10", "torchvision python batches", ".", lambda r: batches(r / "cifar-10-batches-py")),
    ("cifar10", "torchvision python batches", "cifar-10-batches-py", lambda r: batches(r / "cifar-10-batches-py")),
    ("cifar10", "Hugging Face parquet", ".", lambda r: parquet_arrays(r / "cifar10/plain_text", color, "img")),
]


@pytest.mark.parametrize(("name", "layout", "below", "make"), ARRAYS, ids=lambda v: v if isinstance(v, str) else "")
def test_arrays_load_from_every_layout(tmp_path, name, layout, below, make):
    make(tmp_path)
    assert find(SETS[name], tmp_path / below)[0].name == layout
    splits = load(name, tmp_path / below)
    assert list(splits) == ["train", "test"]
    for part, split in splits.items():
        expected = color(part) if name == "cifar10" else gray(part)[:, None]
        assert split.images.dtype == np.uint8
        assert np.array_equal(split.images, expected)
        assert split.label.tolist() == LABELS[part]
        assert split.label.dtype == np.int64
        assert len(split.classes) == 10
        assert [f.tolist() for f in split.features.values()] == [LABELS[part]]


def test_every_layout_is_in_the_tables():
    written = {(name, layout) for name, layout, _, _ in GROUPS + DOMAINS + ARRAYS}
    assert written == {(name, layout.name) for name, dataset in SETS.items() for layout in dataset.layouts}


def test_paired_sets_are_made_from_their_sources(tmp_path):
    idx_files(tmp_path / "MNIST/raw")
    with pytest.raises(FileNotFoundError, match="no cifar10 under"):
        load("cifar-mnist", tmp_path)


# Faults


def listed_again(path):
    path.write_text(path.read_text() + "000001.jpg,0\n")


def with_cell(row, column, value):
    """Change a cell of a list that is written; both are counted from 0, the header is row 0."""

    def change(path):
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        rows[row][rows[0].index(column)] = value
        write_csv(path, rows[0], rows[1:])

    return change


def dropped(row):
    def change(path):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for i, line in enumerate(lines) if i != row))

    return change


LIST, PARTITION = "list_attr_celeba.{}", "list_eval_partition.{}"
FAULTS = {
    "unknown split": (celeba_csv, PARTITION, with_cell(3, "partition", "3"), r"list_eval_partition.csv line 4: split is '3', which is none of 0, 1, 2"),
    "unknown value": (celeba_csv, LIST, with_cell(3, "Male", "x"), r"list_attr_celeba.csv line 4: male is 'x'"),
    "row only here": (celeba_csv, PARTITION, dropped(3), r"list_attr_celeba.csv line 6 lists 000005.jpg, which .*partition.csv lacks"),
    "row only there": (celeba_csv, LIST, dropped(3), r"partition.csv line 6 lists 000003.jpg, which .*attr_celeba.csv lacks"),
    "listed twice": (celeba_csv, LIST, with_cell(5, "image_id", "000002.jpg"), r"list_attr_celeba.csv line 6 lists 000002.jpg again, after line 3"),
    "short row": (celeba_csv, LIST, lambda p: p.write_text(p.read_text()[:-4]), r"line 8 has 40 entries for 41 columns"),
    "truncated text": (celeba_text, LIST, dropped(8), r"attr_celeba.txt holds 6 rows instead of the 7 rows its first line"),
    "listed again there": (celeba_csv, PARTITION, listed_again, r"list_eval_partition.csv line 9 lists 000001.jpg again, after line 8"),
    "no column": (celeba_csv, LIST, lambda p: p.write_text(p.read_text().replace("Male", "Mail")), r"has no column Male, only image_id, attribute0"),
    "empty": (celeba_csv, LIST, lambda p: p.write_text(""), r"list_attr_celeba.csv holds 0 rows instead of one row or more"),
    "not text": (celeba_csv, LIST, lambda p: p.write_bytes(b"\xff\xfe\x00"), r"list_attr_celeba.csv is not a list in text"),
    "image missing": (celeba_csv, "img_align_celeba/000004.jpg", Path.unlink, r"line 5 lists 000004.jpg, which is not in .*img_align_celeba, and 0 others are missing too"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "file", "change", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_are_named_by_file_and_row(tmp_path, make, file, change, message):
    make(tmp_path)
    change(tmp_path / file.format("csv" if make is celeba_csv else "txt"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load("celeba", tmp_path)


def test_an_image_outside_the_folder_is_not_taken(tmp_path):
    metadata(tmp_path / "waterbirds")
    write(tmp_path / "secret.jpg", png(1))
    with_cell(2, "img_filename", "../secret.jpg")(tmp_path / "waterbirds/metadata.csv")
    with pytest.raises(FileNotFoundError, match=r"metadata.csv line 3 lists ../secret.jpg, which is not in"):
        load("waterbirds", tmp_path)


def test_a_missing_file_is_named_with_where_to_get_it(tmp_path):
    celeba_text(tmp_path / "celeba")
    (tmp_path / "celeba/list_eval_partition.txt").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"celeba \(torchvision layout\) lacks list_eval_partition.txt; get it from mmlab"
    ):
        load("celeba", tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"no waterbirds under .* \(WILDS in waterbirds_v1.0, .*get it from nlp.stanford"
    ):
        load("waterbirds", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere; give the one that holds waterbirds"):
        load("waterbirds", tmp_path / "nowhere")


def test_bad_names_and_settings_are_one_sentence(tmp_path, pacs):
    for name, settings, message in [
        ("waterbird", {}, r"^no data set is named 'waterbird'; did you mean 'waterbirds'\?$"),
        ("imagenet", {}, r"^no data set is named 'imagenet'; there are mnist, "),
        ("pacs", {}, r"^target must be one of the domains art_painting, cartoon, photo, sketch, got None.$"),
        ("pacs", {"target": "real"}, r"got 'real'"),
        ("pacs", {"target": "photo", "sede": 1}, r"^no setting of pacs is named 'sede'; did you mean 'seed'\?$"),
        ("mnist", {"seed": 1}, r"^no setting of mnist is named 'seed'; there are none.$"),
        ("cifar-mnist", {"sede": 1}, r"^no setting of cifar-mnist is named 'sede'; did you mean 'seed'"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(name, tmp_path, **settings)


def test_a_folder_that_is_no_class_is_refused(pacs):
    write(pacs / "PACS/photo/cat/a.jpg", png(1))
    with pytest.raises(ValueError, match=r"photo/cat is none of the classes dog, elephant"):
        load("pacs", pacs, target="photo")


def test_domains_without_images_are_refused(tmp_path):
    for domain in domains._VLCS:
        (tmp_path / domain).mkdir()
    with pytest.raises(FileNotFoundError, match="no images in them"):
        load("vlcs", tmp_path, target="SUN09")


# Parquet


def test_parquet_images_are_read_by_position_and_named_by_row(tmp_path):
    files = [tmp_path / f"train-0000{k}-of-00002.parquet" for k in range(2)]
    write_parquet(files[0], {"image": [png(i) for i in range(3)]})
    with pq.ParquetWriter(files[1], pa.schema({"image": pa.binary()})) as file:
        for group in ([10], [11, 12, 13]):
            file.write_table(pa.table({"image": [png(i) for i in group]}))
    images = ParquetImages(files, "image")
    expected = [png(i) for i in (0, 1, 2, 10, 11, 12, 13)]
    assert [images.read(i) for i in range(7)] == expected
    some = images[np.array([5, 0, 6])]
    assert len(some) == 3
    assert [some.read(i) for i in range(3)] == [expected[5], expected[0], expected[6]]
    assert some.name(0) == f"{files[1]} row 2"
    assert len(images[np.arange(7) > 4]) == 2
    assert len({images.stamp(i) for i in range(7)}) == 7
    before = images.stamp(0)
    write_parquet(files[0], {"image": [png(5)] * 4})
    assert images.stamp(0) != before
    assert images.read(0) == png(5)


def test_damaged_parquet_is_named(tmp_path):
    place = tmp_path / "waterbirds/data"
    columns = {"label": lambda y, a: y, "place": lambda y, a: a}
    parquet_groups(place, columns, HUB, shards=2)
    shard = place / "train-00001-of-00002.parquet"
    whole = shard.read_bytes()
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"has 1 of the 2 files of train-00000-of-00002.parquet"):
        load("waterbirds", tmp_path)
    shard.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet cannot be read as parquet"):
        load("waterbirds", tmp_path)
    write_parquet(shard, {"image": [png(1), png(2)], "label": [0, 1], "place": [0, 7]})
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet row 1: place is 7"):
        load("waterbirds", tmp_path)
    write_parquet(shard, {"image": [None, png(2)], "label": [0, 1], "place": [0, 1]})
    images = load("waterbirds", tmp_path)["train"].images
    with pytest.raises(ValueError, match=r"train-00001-of-00002.parquet row 0 holds no image in column 'image'"):
        [images.read(i) for i in range(len(images))]
    shard.write_bytes(whole)
    write_parquet(place / "extra-00000-of-00001.parquet", {"image": [png(1)]})
    with pytest.raises(ValueError, match=r"has split 'extra', which is none of train"):
        load("waterbirds", tmp_path)


def test_parts_that_are_missing_are_named(tmp_path):
    parquet_groups(tmp_path / "celeba/data", BLOND, HUB)
    (tmp_path / "celeba/data/validation-00000-of-00001.parquet").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"celeba/data \(Hugging Face parquet layout\) lacks val\*-\*.parquet"
    ):
        load("celeba", tmp_path)


def test_vectors_that_are_too_short_are_refused(tmp_path):
    parquet_groups(tmp_path / "celeba/data", {"attributes": lambda y, a: [y, a]}, HUB)
    with pytest.raises(
        ValueError, match=r"train-00000-of-00001.parquet: column attributes has a row without an entry 9"
    ):
        load("celeba", tmp_path)


def test_parquet_of_another_set_is_told_by_its_columns(tmp_path):
    parquet_groups(tmp_path / "data", BLOND, HUB)
    with pytest.raises(ValueError, match=r"has no column label, only Blond_Hair, Male, image; it belongs to another"):
        load("waterbirds", tmp_path)
