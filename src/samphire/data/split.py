"""One part of a data set: images, label, named features, group, example id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire.data.coding import MISSING, as_codes

__all__ = ["Split"]


@dataclass(frozen=True)
class Split:
    """Examples with everything that is known about them; immutable.

    Args:
        images: ``uint8`` of shape (n, channels, height, width): an array, a memory map, or
            :class:`samphire.data.files.Files` still to be decoded. Also rows of numbers, (n, d).
        label: What the network is trained on, counted from 0. Words are coded by their names.
        features: Every named feature of the examples, counted from 0, with the label among them
            (``{"bird": label, "place": ...}``); -1 where it is not known. Words are coded by their names.
        ids: A number for each example, kept by subsets and shuffles; counted from 0 unless given.
        classes: The names of the label's values.
        values: The names of each feature's values.

    Example:
        >>> images, bird, place = np.zeros((3, 3, 8, 8), np.uint8), np.array([0, 1, 1]), np.array([0, 0, 1])
        >>> split = Split(images, bird, {"bird": bird, "place": place}, values={"bird": ("land", "water"),
        ...     "place": ("land", "water")})
        >>> split
        Split(3 examples, 2 classes, values of features: {'bird': 2, 'place': 2})
        >>> split.group
        array([0, 2, 3])
        >>> len(split.subset(split.group == 2))
        1
        >>> Split(images, ["cat", "dog", "cat"], {}).classes
        ('cat', 'dog')
    """

    images: Any
    label: NDArray[np.int64]
    features: Mapping[str, NDArray[np.int64]]
    ids: NDArray[np.int64] = None  # type: ignore[assignment]
    classes: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        label, classes = as_codes("label", self.label, self.classes)
        coded = {name: as_codes(name, v, self.values.get(name, ()), gaps=True) for name, v in self.features.items()}
        self._set(label=label, classes=classes, images=_indexable(self.images))
        if any(codes is not self.features[name] for name, (codes, _) in coded.items()):
            words = {name: names for name, (_, names) in coded.items() if names}
            self._set(features={name: codes for name, (codes, _) in coded.items()}, values={**self.values, **words})
        self._set(ids=np.arange(len(label)) if self.ids is None else as_codes("ids", self.ids)[0])
        for name, array in {"images": self.images, "ids": self.ids, **self.features}.items():
            if len(array) != len(self.label):
                raise ValueError(f"{name} has {len(array)} entries for {len(self.label)} labels; give one for each.")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.label)

    def __repr__(self) -> str:
        return f"Split({len(self)} examples, {self.n_classes} classes, values of features: {self.sizes})"

    @property
    def n_classes(self) -> int:
        """How many values the label has."""
        return len(self.classes) or int(self.label.max(initial=-1)) + 1

    @property
    def sizes(self) -> dict[str, int]:
        """How many values each feature has."""
        named = {name: len(self.values.get(name, ())) for name in self.features}
        return {name: named[name] or int(v.max(initial=0)) + 1 for name, v in self.features.items()}

    @property
    def group(self) -> NDArray[np.int64]:
        """The group of each example: its features as digits, the first one leading (``2 * bird + place``).

        An example of which some feature is not known has no group: -1.
        """
        group = np.zeros(len(self), np.int64)
        for name, size in self.sizes.items():
            group = group * size + self.features[name]
        return np.where(self.known, group, MISSING)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether every feature of an example is known."""
        known = np.ones(len(self), bool)
        for codes in self.features.values():
            known &= codes != MISSING
        return known

    def subset(self, chosen: NDArray[Any]) -> Split:
        """Some of the examples, by their positions or by a mask."""
        features = {name: values[chosen] for name, values in self.features.items()}
        return replace(
            self, images=self.images[chosen], label=self.label[chosen], features=features, ids=self.ids[chosen]
        )


def _indexable(images: Any) -> Any:
    """Images that can be counted and chosen from: tensors and lists become arrays."""
    if hasattr(images, "detach"):
        images = images.detach().cpu().numpy()
    if isinstance(images, (list, tuple)):
        try:
            images = np.stack([np.asarray(image) for image in images])
        except ValueError:
            raise ValueError("images have different shapes; resize them, or give their files.") from None
    if isinstance(images, np.ndarray) and images.dtype.kind not in "buif":
        raise TypeError(f"images must be numbers, got an array of {images.dtype}; for file names use data.open.")
    if not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        raise TypeError(f"images must be an array, a tensor or files, got {type(images).__name__}; see data.open.")
    return images
