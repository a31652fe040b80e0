import numpy as np
import pytest

from samphire.data.files import Files
from samphire.data.paired import components, dominoes, paired, paired_anew
from samphire.data.split import Split

DIGITS = {"train": (5923, 6742, 5958, 6131, 5842), "test": (980, 1135, 1032, 1010, 982)}  # of MNIST
FIVE = tuple((c, c) for c in range(5))


def source(counts, shape=(1, 1, 1), seed=0, first=0):
    """Images of labels 0, 1, ... in the given numbers, shuffled, with ids from `first`."""
    draw = np.random.default_rng(seed)
    label = draw.permutation(np.repeat(np.arange(len(counts)), counts))
    images = draw.integers(0, 256, (len(label), *shape), dtype=np.uint8)
    names = tuple(f"class {c}" for c in range(len(counts)))
    return Split(images, label, {"label": label}, ids=first + np.arange(len(label)), classes=names)


def combinations(split):
    sizes = tuple(split.sizes.values())
    return np.bincount(split.group, minlength=np.prod(sizes)).reshape(sizes)


def check_made_of(split, top, bottom, classes):
    """Features are the components' labels and no component is used twice."""
    for side, (part, ids) in enumerate(zip((top, bottom), components(split), strict=True)):
        assert len(set(ids.tolist())) == len(ids)
        labels = np.array(classes)[:, side]
        feature = list(split.features.values())[side]
        assert np.array_equal(part.label[ids - part.ids[0]], labels[feature])


@pytest.mark.parametrize(
    ("correlation", "counts"),
    [
        (1.0, [[7, 0, 0], [0, 8, 0], [0, 0, 6]]),  # each class as its own scarcer source
        (0.5, [[3, 2, 1], [1, 3, 2], [2, 1, 3]]),  # 6 a class, 3 agree, the third disagreement goes to the next class
        (0.0, [[0, 3, 3], [3, 0, 3], [3, 3, 0]]),
        (0.9, [[5, 1, 0], [0, 5, 1], [1, 0, 5]]),
        (None, [[2, 2, 2], [2, 2, 2], [2, 2, 2]]),
    ],
)
def test_combinations_are_exactly_as_frequent_as_asked(correlation, counts):
    top, bottom = source([7, 8, 9]), source([10, 8, 6], seed=1)
    split = paired(top, bottom, [(0, 0), (1, 1), (2, 2)], correlation)
    assert combinations(split).tolist() == counts
    assert np.array_equal(split.label, split.features["top"])
    check_made_of(split, top, bottom, [(0, 0), (1, 1), (2, 2)])


def test_equal_takes_the_scarcest_for_all():
    split = paired(source([7, 8, 9]), source([10, 8, 6]), [(0, 0), (1, 1), (2, 2)], equal=True)
    assert combinations(split).tolist() == [[6, 0, 0], [0, 6, 0], [0, 0, 6]]


@pytest.mark.parametrize("k", [2, 3, 5, 10])
@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.37, 0.5, 0.95, 0.999, 1.0, None])
def test_every_class_is_as_frequent_below_as_above(k, correlation):
    top, bottom = source([31] * k), source([33] * k, seed=1)
    counts = combinations(paired(top, bottom, [(c, c) for c in range(k)], correlation))
    assert np.array_equal(counts.sum(0), counts.sum(1))
    if correlation is None:
        assert (counts == 31 // k).all()
    else:
        assert (np.diag(counts) == round(31 * correlation)).all()
        off = counts[~np.eye(k, dtype=bool)]
        assert off.max() - off.min() <= 1
        assert counts.sum() == 31 * k


@pytest.mark.parametrize(
    ("top", "bottom", "size", "field"),
    [
        ((1, 28, 28), (3, 32, 32), None, (32, 32)),
        ((1, 28, 28), (1, 28, 28), (32, 32), (32, 32)),
        ((3, 5, 9), (1, 8, 4), None, (8, 9)),
    ],
)
def test_images_are_padded_repeated_and_stacked(top, bottom, size, field):
    top, bottom = source([3, 4], top), source([5, 5], bottom, seed=1, first=100)
    split = paired(top, bottom, [(0, 1), (1, 0)], size=size)
    assert split.images.shape == (7, 3, 2 * field[0], field[1])
    for image, up, low in zip(split.images, *components(split), strict=True):
        halves = []
        for pixels in (top.images[up], bottom.images[low - 100]):
            spare = [f - s for f, s in zip(field, pixels.shape[1:], strict=True)]
            margins = [(s // 2, s - s // 2) for s in spare]
            halves.append(np.pad(np.broadcast_to(pixels, (3, *pixels.shape[1:])), [(0, 0), *margins]))
        assert np.array_equal(image, np.concatenate(halves, 1))
    check_made_of(split, top, bottom, [(0, 1), (1, 0)])


def test_names_of_classes_follow_the_pairs():
    split = paired(source([3, 3, 3]), source([3, 3, 3]), [(2, 0), (1, 1)], names=("easy", "hard"))
    assert split.values == {"easy": ("class 2", "class 1"), "hard": ("class 0", "class 1")}
    assert split.classes == ("class 2", "class 1")


def test_the_seed_decides_everything():
    top, bottom = source([50, 60]), source([55, 55], seed=1)
    one, same, other = (paired(top, bottom, [(0, 0), (1, 1)], 0.8, seed) for seed in (3, 3, 4))
    assert np.array_equal(one.ids, same.ids)
    assert np.array_equal(one.images, same.images)
    assert len(np.intersect1d(one.ids, other.ids)) < 20
    assert (np.diff(one.label) != 0).sum() > 20  # shuffled, not class after class


def test_pairing_within_a_class_is_random():
    part = source([200, 200])
    top, bottom = components(paired(part, part, [(0, 0), (1, 1)]))
    for c in (0, 1):
        of_class = part.label[top] == c
        assert abs(np.corrcoef(top[of_class], bottom[of_class])[0, 1]) < 4 / np.sqrt(200)


@pytest.mark.parametrize(
    ("bottom", "k", "equal", "counts"),
    [
        ({"train": 5000, "test": 1000}, 2, True, (9000, 1000, 1960, 9000, 1000, 1960)),  # CIFAR-MNIST
        ({"train": 6000, "test": 1000}, 5, False, (26751, 2972, 4962, 26275, 2900, 4900)),  # FMNIST-MNIST
    ],
)
def test_official_counts(bottom, k, equal, counts):
    upper = {part: source(numbers) for part, numbers in DIGITS.items()}
    lower = {part: source([number] * k, seed=1) for part, number in bottom.items()}
    parts = dominoes(upper, lower, FIVE[:k], equal=equal)
    assert tuple(parts) == ("train", "val", "test", "probe_train", "probe_val", "probe_test")
    assert tuple(map(len, parts.values())) == counts


@pytest.mark.parametrize("correlation", [1.0, 0.8])
def test_no_component_is_on_both_sides(correlation):
    upper = {"train": source([200, 230, 220]), "test": source([40, 50, 45])}
    lower = {"train": source([210, 210, 210], seed=1), "test": source([41, 42, 43], seed=1)}
    parts = dominoes(upper, lower, FIVE[:3], correlation, seed=5)
    for side in (0, 1):
        of = {name: set(components(part)[side].tolist()) for name, part in parts.items()}
        assert not of["train"] & of["val"]
        for name in ("train", "val"):
            assert of[f"probe_{name}"] <= of[name]
            assert len(of[f"probe_{name}"]) == len(parts[f"probe_{name}"])  # so rows apart are images apart
    for name in ("probe_train", "probe_val", "probe_test"):
        frequencies = combinations(parts[name])
        assert frequencies.size == 9
        assert len(set(frequencies.ravel())) == 1
        where = "test" if name == "probe_test" else "train"
        check_made_of(parts[name], upper[where], lower[where], FIVE[:3])
    share = np.bincount(parts["val"].label) / np.bincount(np.concatenate([parts["val"].label, parts["train"].label]))
    np.testing.assert_allclose(share, 0.1, atol=0.01)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"classes": []}, ValueError, r"classes must be pairs .*got \[\]"),
        ({"classes": [(0, 0), (0, 1)]}, ValueError, "no label twice"),
        ({"classes": [(0, 0, 1)]}, ValueError, "classes must be pairs"),
        ({"classes": [(0, 0), (5, 1)]}, ValueError, r"no image has label 5; there are \[0, 1\]"),
        ({"correlation": 1.5}, ValueError, r"correlation must be a finite number in \[0, 1\], got 1.5"),
        ({"correlation": float("nan")}, ValueError, "got nan"),
        ({"classes": [(0, 0)], "correlation": 0.5}, ValueError, "must be 1 or None for a single class, got 0.5"),
        ({"size": (1, 1)}, ValueError, "give a larger size"),
        ({"bottom": Split(Files(["a", "b"]), np.array([0, 1]), {})}, TypeError, "must be decoded"),
        ({"bottom": source([3, 3], first=2**31)}, ValueError, "renumber"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(change, error, message):
    given = {"top": source([3, 3], (1, 2, 2)), "bottom": source([3, 3], (1, 2, 2)), "classes": [(0, 0), (1, 1)]}
    with pytest.raises(error, match=message):
        paired(**(given | change))


def test_dominoes_are_cut_apart_exactly_and_paired_in_another_way():
    """Every pixel of a new pair is that of the image its id names; names and values stay."""
    top, bottom = source([12, 15], (1, 5, 4)), source([14, 13], (3, 6, 6), seed=1)
    split = paired(top, bottom, [(1, 0), (0, 1)], names=("easy", "hard"))
    again, other = paired_anew(split, seed=1), paired_anew(split, seed=2)
    assert combinations(again).tolist() == [[6, 6], [6, 6]]
    assert (again.values, again.classes) == (split.values, split.classes)
    assert not np.array_equal(again.ids, other.ids)
    half = split.images.shape[2] // 2
    for side, rows in enumerate((slice(None, half), slice(half, None))):
        whole = dict(zip(components(split)[side].tolist(), split.images[:, :, rows], strict=True))
        for i, image in zip(components(again)[side].tolist(), again.images[:, :, rows], strict=True):
            assert np.array_equal(image, whole[i])
        name = ("easy", "hard")[side]
        classes = dict(zip(components(split)[side].tolist(), split.features[name].tolist(), strict=True))
        assert [classes[i] for i in components(again)[side].tolist()] == again.features[name].tolist()


def test_held_out_must_be_a_share():
    part = {"train": source([3, 3]), "test": source([3, 3])}
    with pytest.raises(ValueError, match=r"held_out must be a finite number in \(0, 1\), got 1.0"):
        dominoes(part, part, FIVE[:2], held_out=1.0)
