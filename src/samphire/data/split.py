"""One part of a data set: images, label, named features, group, example id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Split"]


@dataclass(frozen=True)
class Split:
    """Examples with everything that is known about them; immutable.

    Args:
        images: ``uint8`` of shape (n, channels, height, width): an array, a memory map, or
            :class:`samphire.data.files.Files` still to be decoded.
        label: What the network is trained on, counted from 0.
        features: Every named feature of the examples, counted from 0, with the label among them
            (``{"bird": label, "place": ...}``).
        ids: A number for each example, kept by subsets and shuffles; counted from 0 unless given.
        classes: The names of the label's values.
        values: The names of each feature's values.

    Example:
        >>> images, bird, place = np.zeros((3, 3, 8, 8), np.uint8), np.array([0, 1, 1]), np.array([0, 0, 1])
        >>> split = Split(images, bird, {"bird": bird, "place": place}, values={"bird": ("land", "water"),
        ...     "place": ("land", "water")})
        >>> split.group
        array([0, 2, 3])
        >>> len(split.subset(split.group == 2))
        1
    """

    images: Any
    label: NDArray[np.int64]
    features: Mapping[str, NDArray[np.int64]]
    ids: NDArray[np.int64] = None  # type: ignore[assignment]
    classes: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ids is None:
            object.__setattr__(self, "ids", np.arange(len(self.label)))
        for name, array in {"images": self.images, "ids": self.ids, **self.features}.items():
            if len(array) != len(self.label):
                raise ValueError(f"{name} has {len(array)} entries for {len(self.label)} labels; give one for each.")

    def __len__(self) -> int:
        return len(self.label)

    @property
    def n_classes(self) -> int:
        """How many values the label has."""
        return len(self.classes) or int(self.label.max()) + 1

    @property
    def sizes(self) -> dict[str, int]:
        """How many values each feature has."""
        named = {name: len(self.values.get(name, ())) for name in self.features}
        return {name: named[name] or int(v.max(initial=0)) + 1 for name, v in self.features.items()}

    @property
    def group(self) -> NDArray[np.int64]:
        """The group of each example: its features as digits, the first one leading (``2 * bird + place``)."""
        if not self.features:
            return np.zeros(len(self), np.int64)
        return np.ravel_multi_index(tuple(self.features.values()), tuple(self.sizes.values())).astype(np.int64)

    def subset(self, chosen: NDArray[Any]) -> Split:
        """Some of the examples, by their positions or by a mask."""
        features = {name: values[chosen] for name, values in self.features.items()}
        return replace(
            self, images=self.images[chosen], label=self.label[chosen], features=features, ids=self.ids[chosen]
        )
