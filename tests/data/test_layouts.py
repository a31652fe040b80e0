"""Every layout of every data set, written small, loads to the same splits; what is missing is named."""

import gzip
import io
from functools import partial

import numpy as np
import pytest
from PIL import Image

from layout_trees import (
    BIRD,
    BLOND,
    HUB,
    PARTS,
    ROWS,
    TREES,
    WATERBIRDS,
    attributes,
    celeba_csv,
    celeba_text,
    folders,
    metadata,
    parquet_domains,
    parquet_groups,
    png,
    subpopbench,
    write,
    write_parquet,
)  # fmt: skip
from samphire.data import SETS, arrays, celeba_waterbirds, load
from samphire.data.layouts import find

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
