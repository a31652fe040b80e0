"""A split codes words, lists and tensors, and refuses at once what it cannot."""

import numpy as np
import pytest
import torch

from samphire.data import Split
from samphire.data.coding import MISSING, coded_column, plain_values

IMAGES = np.zeros((3, 1, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("label", "codes", "classes"),
    [
        (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
        (np.array(["dog", "cat", "dog"]), [1, 0, 1], ("cat", "dog")),
        ([0, 2, 1], [0, 2, 1], ()),
        (torch.tensor([0, 2, 1]), [0, 2, 1], ()),
        (np.array([0, 2, 1], np.uint8), [0, 2, 1], ()),
        ([1.0, 0.0, 1.0], [1, 0, 1], ()),
        (torch.tensor([True, False, True]), [1, 0, 1], ()),
    ],
)
def test_labels_of_every_kind_are_coded(label, codes, classes):
    split = Split(IMAGES, label, {"label": label})
    assert split.label.dtype == split.features["label"].dtype == np.int64
    assert split.label.tolist() == codes == split.features["label"].tolist()
    assert split.classes == classes
    assert split.values.get("label", ()) == classes


def test_words_are_coded_by_given_names_and_survive_a_subset():
    split = Split(IMAGES, ["dog", "cat", "dog"], {}, classes=("dog", "cat", "horse"))
    assert split.label.tolist() == [0, 1, 0]
    assert split.subset(np.array([1])).classes == ("dog", "cat", "horse")
    assert split.n_classes == 3


def test_images_may_be_tensors_or_lists():
    assert Split(torch.zeros(3, 1, 2, 2), [0, 1, 0], {}).images.shape == (3, 1, 2, 2)
    assert Split([np.zeros((1, 2, 2))] * 3, [0, 1, 0], {}).images.shape == (3, 1, 2, 2)


def test_an_example_without_a_feature_has_no_group():
    place = ["land", None, "water"]
    split = Split(IMAGES, [0, 1, 1], {"label": [0, 1, 1], "place": place})
    assert split.features["place"].tolist() == [0, MISSING, 1]
    assert split.known.tolist() == [True, False, True]
    assert split.group.tolist() == [0, -1, 3]


REFUSED = {
    "a fraction": (lambda: Split(IMAGES, [0.5, 1, 0], {}), "label must be classes, words or whole numbers from 0, got 0.5 in row 0"),
    "nan": (lambda: Split(IMAGES, [0, float("nan"), 1], {}), "label must be classes, words or whole numbers from 0, got None in row 1"),
    "infinite": (lambda: Split(IMAGES, [0, float("inf"), 1], {}), "label must be classes, words or whole numbers from 0, got inf in row 1"),
    "huge": (lambda: Split(IMAGES, [0, 10**30, 1], {}), "label must be classes, words or whole numbers from 0, got 10+ in row 1"),
    "negative": (lambda: Split(IMAGES, [0, -1, 1], {}), "label must be whole numbers from 0, got -1 in row 1"),
    "beyond names": (lambda: Split(IMAGES, [0, 2, 1], {}, classes=("a", "b")), "label must be whole numbers from 0 to 1, got 2 in row 1"),
    "unknown word": (lambda: Split(IMAGES, ["a", "c", "b"], {}, classes=("a", "b")), "label is 'c' in row 1, which is none of a, b"),
    "mixed": (lambda: Split(IMAGES, ["a", 1, "b"], {}), "label must be classes, words or whole numbers from 0, got 1 in row 1"),
    "a matrix": (lambda: Split(IMAGES, [[0, 1]] * 3, {}), r"label must be classes, words or whole numbers from 0, got \[0, 1\] in row 0"),
    "no list": (lambda: Split(IMAGES, 3, {}), "label must be a list, array or tensor of one entry for each example, got 3"),
    "lengths": (lambda: Split(IMAGES, [0, 1], {}), "images has 3 entries for 2 labels"),
    "file names": (lambda: Split(["a.jpg", "b.jpg"], [0, 1], {}), "images must be numbers, got an array of <U5; for file names use data.open"),
    "shapes": (lambda: Split([np.zeros(2), np.zeros(3)], [0, 1], {}), "images have different shapes"),
    "no images": (lambda: Split(None, [0, 1], {}), "images must be an array, a tensor or files, got NoneType"),
    "attribute": (lambda: Split(IMAGES, [0, 1, 1], {"place": [0, -2, 1]}), "place must be whole numbers from 0, got -2 in row 1"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_split_is_refused_at_once(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


# Columns


def test_gaps_are_known_in_every_spelling():
    class NAType:
        """As pandas has it."""

    values = ["a", "", " NA ", "nan", None, float("nan"), NAType(), np.float64("nan"), b"b", "none"]
    assert plain_values(values) == ["a", *[None] * 7, "b", "none"]


@pytest.mark.parametrize(
    ("values", "codes", "names"),
    [
        (["1", "0", "1"], [1, 0, 1], ("0", "1")),
        (["-1", "1", "-1"], [0, 1, 0], ("-1", "1")),
        (["10", "9", "10"], [1, 0, 1], ("9", "10")),
        ([2.5, 1.5, None], [1, 0, -1], ("1.5", "2.5")),
        ([True, False, None], [1, 0, -1], ("0", "1")),
        (["1.0", "0.0", "1.0"], [1, 0, 1], ("0", "1")),
        (
            ["90000000000000000001", "90000000000000000002", None],
            [0, 1, -1],
            ("90000000000000000001", "90000000000000000002"),
        ),
        (["b", "a", "1"], [2, 1, 0], ("1", "a", "b")),
        (["1_0", "2", "2"], [1, 0, 0], ("2", "1_0")),
    ],
)
def test_columns_of_text_are_numbers_where_all_are(values, codes, names):
    got, words, _ = coded_column("x", values, str)
    assert (got.tolist(), words) == (codes, names)


def test_names_of_whole_numbers_are_the_sources():
    codes, names, _ = coded_column("label", [1, 0, 1], str, ("cat", "dog", "horse"), label=True)
    assert (codes.tolist(), names) == ([1, 0, 1], ("cat", "dog", "horse"))
    with pytest.raises(ValueError, match="row 2: label is 3, but only 0 to 2 have names"):
        coded_column("label", [1, 0, 3], lambda i: f"row {i}", ("cat", "dog", "horse"), label=True)


def test_numbers_with_ties_give_fewer_groups_and_no_empty_one():
    values = [0.0] * 60 + [float(i) for i in range(1, 41)]
    codes, names, note = coded_column("age", values, str)
    assert sorted(np.unique(codes)) == list(range(len(names)))
    assert np.bincount(codes).min() > 0
    assert "age has 41 values" in note
