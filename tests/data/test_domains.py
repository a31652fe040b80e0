"""Sets with domains, arranged for transfer to one of them."""

import hashlib

import numpy as np
import pytest

from layout_trees import png, write
from samphire.data import domains, load


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
        (d, c, f"{d}/{c}/pic_{k:03d}.jpg") for d in domains.PACS.official for c in domains.ANIMALS for k in range(10)
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
    for domain in domains.PACS.official:
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


def test_a_folder_that_is_no_class_is_refused(pacs):
    write(pacs / "PACS/photo/cat/a.jpg", png(1))
    with pytest.raises(ValueError, match=r"photo/cat is none of the classes dog, elephant"):
        load("pacs", pacs, target="photo")


def test_domains_without_images_are_refused(tmp_path):
    for domain in domains.VLCS.official:
        (tmp_path / domain).mkdir()
    with pytest.raises(FileNotFoundError, match="no images in them"):
        load("vlcs", tmp_path, target="SUN09")
