"""Dominoes: two images glued together, with classes that agree as often as wanted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire import records
from samphire.checks import Range, check_number
from samphire.data.arrays import cifar10, fashion_mnist, mnist
from samphire.data.split import Split

Classes = Sequence[tuple[int, int]]
_BELOW = 2**32  # the id of an example is the top's id times this, plus the bottom's id

__all__ = ["Classes", "cifar_mnist", "components", "dominoes", "fmnist_mnist", "paired", "paired_anew"]


def paired(
    top: Split,
    bottom: Split,
    classes: Classes,
    correlation: float | None = 1.0,
    seed: int = 0,
    *,
    names: tuple[str, str] = ("top", "bottom"),
    size: tuple[int, int] | None = None,
    equal: bool = False,
) -> Split:
    r"""Images of one source glued on top of images of another, each used at most once.

    Pair :math:`c` of ``classes`` makes class :math:`c`. With :math:`k` classes, the scarcest of them with :math:`m`
    images in one source, the number of examples with top :math:`c` and bottom :math:`d` is

    .. math:: N_{cc} = [p\,m], \qquad N_{cd} = \frac{m - [p\,m]}{k - 1} \quad (d \ne c),

    where a remainder goes to :math:`d = c+1, c+2, \dots` (cyclically), so every class is as frequent below as above.
    At correlation 1 each class has as many examples as its own scarcer source, unless ``equal``.

    The ids are the manifest: :func:`components` reads from them which images an example is made of. The label is the
    top's class; to train on the bottom's, use ``dataclasses.replace(split, label=split.features["bottom"])``.

    Args:
        top: Where the upper images come from.
        bottom: Where the lower ones come from.
        classes: For each class of the result, the label of the upper images and that of the lower ones.
        correlation: Share of the examples with two classes that agree. ``None`` is for probing: every combination
            is exactly equally frequent.
        seed: Decides which images are taken, how they are paired, and the order.
        names: Of the two features.
        size: Height and width to which both images are padded with zeros; the larger of the two unless given.
        equal: Whether all classes have as many examples as the scarcest at correlation 1 too, as in Shah et al.

    Returns:
        Images of shape (n, 3, 2 * height, width), gray ones repeated in the three channels.

    Example:
        >>> gray = Split(np.zeros((6, 1, 28, 28), np.uint8), np.array([0, 0, 0, 1, 1, 1]), {})
        >>> color = Split(np.zeros((4, 3, 32, 32), np.uint8), np.array([7, 7, 9, 9]), {})
        >>> split = paired(gray, color, [(0, 7), (1, 9)], names=("digit", "object"))
        >>> split.images.shape, bool((split.features["digit"] == split.features["object"]).all())
        ((4, 3, 64, 32), True)

    References:
        Shah et al., The Pitfalls of Simplicity Bias in Neural Networks, NeurIPS 2020,
        https://arxiv.org/abs/2006.07710
    """
    pairs = _pairs(classes)
    pools = [
        [_images_of(part, label) for label in labels] for part, labels in zip((top, bottom), pairs.T, strict=True)
    ]
    most = np.array([[len(pool) for pool in side] for side in pools]).min(0)
    counts = _counts(np.full_like(most, most.min()) if equal else most, correlation)
    draw = np.random.default_rng(records.seed(seed, "paired"))
    cells = draw.permutation(np.repeat(np.arange(counts.size), counts.ravel()))
    rows = [_drawn(side, wanted, draw) for side, wanted in zip(pools, np.divmod(cells, len(counts)), strict=True)]
    return _glued(top, bottom, rows, pairs, names, size)


def components(split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids of the upper and of the lower image of each example, in their sources."""
    upper, lower = np.divmod(split.ids, _BELOW)
    return upper, lower


def paired_anew(split: Split, seed: int = 0) -> Split:
    """The images of dominoes cut apart and paired again, so that every combination is exactly equally frequent.

    Each image is used at most once: two parts of the result that share no example share no image either. Where
    combinations cannot be equally frequent otherwise, some images are left out.

    Args:
        split: Dominoes, from :func:`paired` or :func:`dominoes`.
        seed: Decides how they are paired, and the order.

    Example:
        >>> gray = Split(np.zeros((8, 1, 28, 28), np.uint8), np.repeat([0, 1], 4), {})
        >>> split = paired(gray, gray, [(0, 0), (1, 1)])
        >>> np.bincount(split.group), np.bincount(paired_anew(split).group)
        (array([4, 0, 0, 4]), array([2, 2, 2, 2]))
    """
    half = split.images.shape[2] // 2
    images = (split.images[:, :, :half], split.images[:, :, half:])
    upper, lower = (
        Split(pixels, values, {}, ids, split.values.get(name, ()))
        for pixels, (name, values), ids in zip(images, split.features.items(), components(split), strict=True)
    )
    names: Any = tuple(split.features)
    classes = [(value, value) for value in range(split.sizes[names[0]])]
    return paired(upper, lower, classes, None, seed, names=names)


def dominoes(
    top: Mapping[str, Split],
    bottom: Mapping[str, Split],
    classes: Classes,
    correlation: float = 1.0,
    seed: int = 0,
    *,
    names: tuple[str, str] = ("top", "bottom"),
    size: tuple[int, int] | None = None,
    equal: bool = False,
    held_out: float = 0.1,
) -> dict[str, Split]:
    """A whole data set of pairs: ``train``, ``val``, ``test``, and a probing set of each (``probe_train``, ...).

    In the probe sets every combination of the two features is equally frequent. ``probe_train`` and ``probe_val``
    pair the images of ``train`` and of ``val`` again (:func:`paired_anew`), ``probe_test`` the sources' test images:
    no image is in two of the three.

    Args:
        top: Source of the upper images, with parts ``train`` and ``test``.
        bottom: Source of the lower ones, with the same parts.
        classes: For each class of the result, the label of the upper images and that of the lower ones.
        correlation: Of ``train``, ``val`` and ``test``.
        seed: Decides everything random.
        names: Of the two features.
        size: Height and width to which both images are padded.
        equal: Whether all classes are equally frequent at correlation 1.
        held_out: Share of each combination of the features that goes into ``val`` instead of ``train``.
    """
    check_number("held_out", held_out, Range(above=0, below=1))

    def pair(upper: Split, lower: Split, purpose: str, correlation: float | None = correlation) -> Split:
        own = records.seed(seed, purpose)
        return paired(upper, lower, classes, correlation, own, names=names, size=size, equal=equal)

    whole = pair(top["train"], bottom["train"], "train")
    val = np.zeros(len(whole), bool)
    for group in np.unique(whole.group):
        members = np.flatnonzero(whole.group == group)  # in random order already
        val[members[: round(held_out * len(members))]] = True
    parts = {"train": whole.subset(~val), "val": whole.subset(val)}
    return {
        **parts,
        "test": pair(top["test"], bottom["test"], "test"),
        **{f"probe_{name}": paired_anew(part, records.seed(seed, f"probe_{name}")) for name, part in parts.items()},
        "probe_test": pair(top["test"], bottom["test"], "probe_test", None),
    }


def cifar_mnist(
    root: str | os.PathLike[str], classes: Classes = ((0, 0), (1, 1)), correlation: float = 1.0, seed: int = 0
) -> dict[str, Split]:
    """CIFAR-MNIST: a digit above an object, two classes, 3x64x32; 9000 / 1000 / 1960 examples.

    Args:
        root: A folder with both sources.
        classes: Digit and CIFAR class of each class; the paper's are 0 with airplane and 1 with automobile.
        correlation: Share of the examples with two classes that agree.
        seed: Decides everything random.

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendix B. Shah et al., NeurIPS 2020.

    Differences:
        Shah et al. have automobile and truck: ``classes=((0, 1), (1, 9))``. The split into training and validation is
        random within each class. The paper does not describe its probing sets; see :func:`dominoes`.
    """
    return dominoes(mnist(root), cifar10(root), classes, correlation, seed, names=("mnist", "cifar"), equal=True)


def fmnist_mnist(
    root: str | os.PathLike[str],
    classes: Classes = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4)),
    correlation: float = 1.0,
    seed: int = 0,
) -> dict[str, Split]:
    """FMNIST-MNIST: a digit above a garment, five classes, 3x64x32; 26751 / 2972 / 4962 examples.

    The arguments are those of :func:`cifar_mnist`.

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, appendix B.

    Differences:
        The paper's "digits 0-5" are six; five classes have the digits 0 to 4. Both images are padded from 28 to 32
        pixels, to fit the network of CIFAR-MNIST. The rest as for :func:`cifar_mnist`.
    """
    parts = mnist(root), fashion_mnist(root)
    return dominoes(*parts, classes, correlation, seed, names=("mnist", "fmnist"), size=(32, 32))


def _pairs(classes: Classes) -> NDArray[np.int64]:
    """The pairs as an array (k, 2)."""
    pairs = np.array(classes)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or any(len(np.unique(side)) < len(side) for side in pairs.T):
        raise ValueError(
            f"classes must be pairs (top label, bottom label) with no label twice on a side, got {classes!r}; "
            "for instance ((0, 0), (1, 1))."
        )
    return pairs


def _images_of(part: Split, label: int) -> NDArray[np.int64]:
    rows = np.flatnonzero(part.label == label)
    if not len(rows):
        raise ValueError(f"no image has label {label}; there are {np.unique(part.label).tolist()}.")
    return rows


def _drawn(pools: list[NDArray[np.int64]], wanted: NDArray[np.int64], draw: np.random.Generator) -> NDArray[np.int64]:
    """For each example an image of its class, none twice."""
    rows = np.empty_like(wanted)
    for c, pool in enumerate(pools):
        rows[wanted == c] = draw.permutation(pool)[: (wanted == c).sum()]
    return rows


def _counts(most: NDArray[np.int64], correlation: float | None) -> NDArray[np.int64]:
    """The number of examples with top c (row) and bottom d (column), given the most that each class can have."""
    k, m = len(most), int(most.min())
    if correlation is None:
        return np.full((k, k), m // k)
    check_number("correlation", correlation, Range(least=0, most=1))
    if k == 1 and correlation < 1:
        raise ValueError(f"correlation must be 1 or None for a single class, got {correlation!r}.")
    if correlation == 1:
        return np.diag(most)
    agree = round(correlation * m)
    each, left = divmod(m - agree, k - 1)
    first = np.array([agree] + [each + (s < left) for s in range(k - 1)])
    return np.stack([np.roll(first, c) for c in range(k)])


def _glued(
    top: Split,
    bottom: Split,
    rows: Sequence[NDArray[np.int64]],
    pairs: NDArray[np.int64],
    names: tuple[str, str],
    size: tuple[int, int] | None,
) -> Split:
    """The examples made of the images at these positions in the two sources."""
    parts = (top, bottom)
    for part in parts:
        if not isinstance(part.images, np.ndarray):
            raise TypeError("images must be decoded before they are paired; see samphire.data.cache.decoded.")
        if not 0 <= part.ids.min(initial=0) <= part.ids.max(initial=0) < _BELOW // 2:
            raise ValueError(f"ids of paired images must be from 0 to {_BELOW // 2 - 1}; renumber the source.")
    height, width = size or np.max([part.images.shape[2:] for part in parts], axis=0).tolist()
    images = np.zeros((len(rows[0]), 3, 2 * height, width), np.uint8)
    features, values = {}, {}
    for i, (part, name, labels) in enumerate(zip(parts, names, pairs.T, strict=True)):
        _paste(part.images[rows[i]], images[:, :, i * height : (i + 1) * height])
        features[name] = (part.label[rows[i], None] == labels).argmax(1)
        values[name] = tuple(part.classes[label] for label in labels) if part.classes else ()
    ids = top.ids[rows[0]] * _BELOW + bottom.ids[rows[1]]
    return Split(images, features[names[0]], features, ids, values[names[0]], values)


def _paste(images: NDArray[np.uint8], field: NDArray[np.uint8]) -> None:
    """Put images into the middle of a field."""
    spare = [f - i for f, i in zip(field.shape[2:], images.shape[2:], strict=True)]
    if min(spare) < 0 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images of {images.shape[1]} channels and {images.shape[2:]} pixels do not fit into 3 channels and "
            f"{field.shape[2:]} pixels; give a larger size."
        )
    (up, left), (height, width) = (s // 2 for s in spare), images.shape[2:]
    field[:, :, up : up + height, left : left + width] = images
