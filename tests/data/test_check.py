"""Copies against the published sets: complete, a subset, or wrong, in the library and on the command line."""

import csv
import io
import itertools
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from samphire.cli import data as cli
from samphire.data import SETS, arrays, check, load
from samphire.data.catalog import PAIRED

runner = CliRunner()
LOOKALIKE = {"train": (3525, 186, 54, 1030), "val": (467, 466, 133, 133), "test": (2255, 2255, 642, 642)}


def write_image(path, color=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (color, 0, 0)).save(path, "png")


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """A folder of as many images as Waterbirds has."""
    folder = tmp_path_factory.mktemp("birds")
    write_image(folder / "0.jpg")
    for i in range(1, 11788):
        os.link(folder / "0.jpg", folder / f"{i}.jpg")
    return folder


def write_groups(folder, counts):
    """A metadata.csv of the given numbers of images by part and group."""
    name = (f"{i}.jpg" for i in itertools.count())
    with (folder / "metadata.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["img_id", "img_filename", "y", "split", "place"])
        for part, groups in enumerate(counts.values()):
            for group, n in enumerate(groups):
                rows.writerows([0, next(name), group // 2, part, group % 2] for _ in range(n))


def test_a_whole_copy_is_complete(birds):
    write_groups(birds, SETS["waterbirds"].official)
    checked = check("waterbirds", birds)
    assert checked.verdict == "complete"
    assert (checked.layout, checked.place, checked.notes) == ("DFR metadata.csv", birds, ())
    numbers = {}
    for count in checked.counts:
        assert count.found == count.official
        numbers.setdefault(count.part, []).append(count.found)
    assert numbers == {part: list(counts) for part, counts in SETS["waterbirds"].official.items()}
    assert [c.group for c in checked.counts[:4]] == [
        "landbird land",
        "landbird water",
        "waterbird land",
        "waterbird water",
    ]


def test_a_copy_with_fewer_images_is_a_subset(birds):
    write_groups(birds, SETS["waterbirds"].official | {"train": (3498, 184, 55, 1057)})
    checked = check("waterbirds", birds)
    assert checked.verdict == "subset"
    assert [(c.part, c.group, c.found) for c in checked.counts if c.found != c.official] == [
        ("train", "waterbird land", 55)
    ]
    assert checked.notes == ("All images of landbird land, landbird water, waterbird water are present.",)


def test_a_copy_with_other_images_is_wrong(birds):
    write_groups(birds, SETS["waterbirds"].official | {"train": (3498, 183, 57, 1057)})
    checked = check("waterbirds", birds)
    assert checked.verdict == "wrong"
    assert checked.notes == (
        "1 of 12 counts are above the published ones; train has 57 images of waterbird land, not 56.",
    )


def test_the_lookalike_of_waterbirds_is_refused_by_name(birds):
    write_groups(birds, LOOKALIKE)
    checked = check("waterbirds", birds)
    assert checked.verdict == "wrong"
    assert "look-alike of Waterbirds" in checked.notes[0]
    assert "3498, 184, 56 and 1057" in checked.notes[0]
    with pytest.raises(ValueError, match=r"is not waterbirds: its metadata.csv is a look-alike of Waterbirds"):
        load("waterbirds", birds)


def test_domains_are_counted_by_class(tmp_path, monkeypatch):
    official = {
        "Caltech101": (2, 1, 1, 1, 3),
        "LabelMe": (1, 1, 1, 1, 1),
        "SUN09": (20, 1, 1, 2, 1),
        "VOC2007": (1, 2, 3, 4, 5),
    }
    monkeypatch.setitem(SETS, "vlcs", replace(SETS["vlcs"], official=official))
    for domain, counts in official.items():
        for label, n in zip(("bird", "car", "chair", "dog", "person"), counts, strict=True):
            (tmp_path / domain / label).mkdir(parents=True)
            for i in range(n):
                (tmp_path / domain / label / f"{i}.jpg").touch()
    assert check("vlcs", tmp_path).verdict == "complete"
    (tmp_path / "SUN09/bird/7.jpg").unlink()
    checked = check("vlcs", tmp_path)
    assert checked.verdict == "subset"
    assert [(c.part, c.group, c.found, c.official) for c in checked.counts if c.found != c.official] == [
        ("SUN09", "bird", 19, 20)
    ]


def test_where_only_totals_are_published_totals_are_compared(tmp_path):
    for domain in SETS["officehome"].official:
        write_image(tmp_path / domain / "Bed/a.jpg")
    checked = check("officehome", tmp_path)
    assert checked.verdict == "subset"
    assert [(c.part, c.group, c.found, c.official) for c in checked.counts] == [
        ("Art", "all", 1, 2427), ("Clipart", "all", 1, 4365), ("Product", "all", 1, 4439), ("Real World", "all", 1, 4357),
    ]  # fmt: skip


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """A set of twelve digits that is published as it is written."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
    for stem in ("train", "t10k"):
        arrays.write_idx(tmp_path / f"{stem}-images-idx3-ubyte", pixels)
        arrays.write_idx(tmp_path / f"{stem}-labels-idx1-ubyte", np.array([0, 1, 2, 3, 3, 9], np.uint8))
    parts = load("mnist", tmp_path)
    official = dict.fromkeys(("train", "test"), (1, 1, 1, 2, 0, 0, 0, 0, 0, 1))
    content = {part: arrays.digest(split) for part, split in parts.items()}
    monkeypatch.setitem(SETS, "mnist", replace(SETS["mnist"], official=official, content=content))
    return tmp_path


def test_pixels_are_compared_where_they_are_known(digits):
    assert check("mnist", digits).verdict == "complete"
    pixels = arrays.read_idx(digits / "t10k-images-idx3-ubyte").copy()
    pixels[3, 5, 5] ^= 1
    arrays.write_idx(digits / "t10k-images-idx3-ubyte", pixels)
    checked = check("mnist", digits)
    assert checked.verdict == "wrong"
    assert checked.notes == ("the numbers of images in test are right, but pixels, labels or their order are not.",)


def bomb():
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "png")
    return file.getvalue()


def test_images_are_decoded_only_when_asked(tmp_path):
    seen = []
    for d, domain in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        for i in range(3):
            write_image(tmp_path / domain / "dog" / f"{i}.jpg", 40 * d + i)
    assert check("pacs", tmp_path, images=True, progress=lambda *now: seen.append(now)).verdict == "subset"
    assert seen == [("decoding images", i, 12) for i in range(1, 13)]
    whole = (tmp_path / "photo/dog/1.jpg").read_bytes()
    (tmp_path / "photo/dog/1.jpg").write_bytes(whole[:-25])
    (tmp_path / "sketch/dog/0.jpg").write_bytes(bomb())
    assert check("pacs", tmp_path).verdict == "subset"
    checked = check("pacs", tmp_path, images=True)
    assert checked.verdict == "wrong"
    assert len(checked.notes) == 2
    assert "photo/dog/1.jpg cannot be decoded" in checked.notes[0]
    assert "sketch/dog/0.jpg has 9000 x 9000 pixels" in checked.notes[1]


def test_many_damaged_images_are_counted(tmp_path):
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        (tmp_path / domain / "dog").mkdir(parents=True)
        for i in range(4):
            (tmp_path / domain / "dog" / f"{i}.jpg").write_bytes(b"no image")
    checked = check("pacs", tmp_path, images=True)
    assert len(checked.notes) == 11
    assert checked.notes[-1] == "6 more images cannot be decoded."


def test_paired_sets_point_to_their_sources(tmp_path):
    with pytest.raises(ValueError, match=r"^cifar-mnist is made of cifar10 and mnist and has no files of its own"):
        check("cifar-mnist", tmp_path)


# The command line


def test_list_has_every_set():
    result = runner.invoke(cli.app, ["list", "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["name"] for row in rows] == [*SETS, *PAIRED]
    images = {row["name"]: row["images"] for row in rows}
    assert images["waterbirds"] == 11788
    assert images["celeba"] == 202599
    assert all(row["about"] and row["from"] for row in rows)
    shown = runner.invoke(cli.app, ["list"]).stdout
    assert all(name in shown for name in [*SETS, *PAIRED])
    assert "mmlab.ie.cuhk.edu.hk/projects/CelebA.html" in shown


def test_check_prints_a_table_or_json(birds):
    write_groups(birds, SETS["waterbirds"].official | {"train": (3498, 184, 55, 1057)})
    result = runner.invoke(cli.app, ["check", "waterbirds", "--root", str(birds)])
    assert result.exit_code == 0
    assert "waterbirds: subset, layout: DFR metadata.csv" in result.stdout
    assert "55 of 56" in result.stdout
    assert str(birds) in result.stdout
    result = runner.invoke(cli.app, ["check", "waterbirds", "--root", str(birds), "--json"])
    row = json.loads(result.stdout)
    assert (row["verdict"], row["place"]) == ("subset", str(birds))
    assert {"part": "train", "group": "waterbird land", "found": 55, "official": 56} in row["counts"]


def test_check_of_a_wrong_copy_exits_with_1(birds):
    write_groups(birds, LOOKALIKE)
    result = runner.invoke(cli.app, ["check", "waterbirds", "--root", str(birds)])
    assert result.exit_code == 1
    assert "look-alike" in result.stdout


def test_images_are_checked_with_a_bar_on_stderr(birds):
    write_groups(birds, {"train": (1, 1, 1, 1), "val": (1, 1, 1, 1), "test": (1, 1, 1, 1)})
    result = runner.invoke(cli.app, ["check", "waterbirds", "--root", str(birds), "--images", "--json"])
    assert json.loads(result.stdout)["verdict"] == "subset"
    assert "decoding images" in result.stderr


@pytest.mark.parametrize("command", ["list", "check", "get"])
def test_help_has_an_example(command):
    result = runner.invoke(cli.app, [command, "--help"])
    assert "Example:  samphire data" in result.stdout


def test_bad_input_is_an_error_that_main_prints(tmp_path):
    result = runner.invoke(cli.app, ["check", "mnits", "--root", str(tmp_path)])
    assert isinstance(result.exception, ValueError)
    assert str(result.exception) == "no data set is named 'mnits'; did you mean 'mnist'?"
