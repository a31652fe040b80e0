"""A network that was trained before, from its run folder or from a file of weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from samphire import models
from samphire.checks import Count, check_fields, hint, read_regular
from samphire.data.opening import Opened
from samphire.data.parts import Parts, ProbeOn, at_size, load_parts
from samphire.data.split import Split
from samphire.models.loading import PACKAGES
from samphire.models.weights import is_url
from samphire.progress import Progress, silent
from samphire.records.files import parsed
from samphire.train.configs import DEFAULTS
from samphire.train.examples import check_examples, splits_of
from samphire.train.trained import load_weights

__all__ = ["SavedNetwork", "saved_network"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class SavedNetwork:
    """Trained weights, and what must be known to measure them.

    Args:
        weights: File with the state dict.
        data: Name of the data set.
        model: Name of the network.
        target: Domain to transfer to, for sets with domains.
        size: Side of the images, for sets of image files.
        layer: Where its features are read; by default the input of the last linear layer.
        initial: Weights the training began with, see :func:`samphire.models.load`.
        trained_on: How many training examples, see :func:`samphire.data.parts.some`.
        probe_on: What probes are trained on, see :func:`samphire.data.parts.load_parts`.
        own: Data of one's own, see :func:`samphire.data.open`; ``None`` for a built-in set.
    """

    weights: Path
    data: str
    model: str
    target: str | None = None
    size: Count = 96
    layer: str | None = None
    initial: str | None = None
    trained_on: Count | None = None
    probe_on: ProbeOn = "val"
    own: Opened | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def parts(self, root: PathLike, cache: PathLike | None = None, progress: Progress = silent) -> Parts:
        """The examples to judge it on; the training images stay encoded unless probes are trained on them."""
        chosen: Any = {"size": self.size, "examples": self.trained_on, "probe_on": self.probe_on, "cache": cache}
        return load_parts(self.data, splits=self._splits(root), judged_only=True, progress=progress, **chosen)

    def examples(
        self, part: str, n: int, root: PathLike, cache: PathLike | None = None, progress: Progress = silent
    ) -> Split:
        """At most n random examples of one part, decoded; always the same ones."""
        parts = self._splits(root)
        if part not in parts:
            raise ValueError(f"{self.data} has no part {part!r}; {hint(part, parts)}")
        chosen = np.random.default_rng(0).permutation(len(parts[part]))[:n]
        return at_size(parts[part].subset(np.sort(chosen)), self.size, cache, progress)

    def _splits(self, root: PathLike) -> Mapping[str, Split]:
        """The examples, which must be those of the run, if it says which they were."""
        splits = splits_of(self.data, root, self.target, self.own)
        check_examples(self.weights.parent, self.data, splits)
        return splits

    def network(self, split: Split) -> nn.Module:
        """The trained network, with an output for each class of a split."""
        return load_weights(self.model, split.n_classes, self.weights)

    def networks(self, split: Split) -> dict[str, nn.Module]:
        """The trained network, and the same before training: with its initial weights, if any, and random ones."""
        trained: Any = self.network(split)
        networks = {"trained": trained}
        if self.initial is not None:
            networks["pretrained, untouched"] = models.load(self.model, split.n_classes, self.initial)
        random = torch.Generator().manual_seed(0)
        networks["random weights"] = models.load(self.model, split.n_classes, generator=random)
        for network in networks.values():
            network.normalize = trained.normalize
        return networks


def saved_network(path: PathLike, *, trust: bool = False, **settings: Any) -> SavedNetwork:
    """A network from the folder of its run, or from a file with a state dict.

    A folder may come from somebody else. Code that it names (``module:function``) is not run and an address that it
    names is not fetched, unless ``settings`` repeat it or ``trust`` is given.

    Args:
        path: A folder written by :func:`samphire.train.fit`, or a file.
        trust: Whether to run and fetch what the folder names.
        **settings: Fields of :class:`SavedNetwork` that the folder does not say, or that replace what it says.

    Example:
        >>> saved_network("runs/none")
        Traceback (most recent call last):
            ...
        FileNotFoundError: there is no run at runs/none; give a folder with model.pt, or a file of weights.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no run at {path}; give a folder with model.pt, or a file of weights.")
    config = path / "config.json"
    stored = parsed(read_regular(config)) if config.exists() else {}
    if stored is None:
        raise ValueError(f"{config} is damaged: it holds no configuration; name what it should say with options.")
    known = {name: stored.get(name) for name in ("data", "model", "target", "size", "layer", "probe_on")}
    known |= {"initial": stored.get("weights"), "trained_on": stored.get("examples")}
    known |= {name: value for name, value in settings.items() if value is not None}
    own = settings.get("own")
    if own is not None:
        known["data"] = own.name
    for name in ("data", "model"):
        if not isinstance(known[name], str):
            raise ValueError(f"{path} does not say its {name}; name it with --{name} (in Python {name}=...).")
    if not isinstance(known["initial"], str | None):
        raise ValueError(f"{config} is damaged: its weights are {known['initial']!r}; name them with --pretrained.")
    for name, what, option in (("model", "run", "model"), ("initial", "fetch", "pretrained")):
        if not trust and settings.get(name) is None and _reaches_out(known[name]):
            raise ValueError(
                f"{path} wants to {what} {known[name]!r}; if you know what that is, allow it by "
                f"--{option} {known[name]}, or by --trust (in Python trust=True)."
            )
    usual = {"probe_on": DEFAULTS.get(str(known["data"]), {}).get("probe_on", "val")}
    fields = usual | {name: value for name, value in known.items() if value is not None}
    return SavedNetwork(weights=path / "model.pt" if path.is_dir() else path, **fields)


def _reaches_out(name: str | None) -> bool:
    """Whether a network or weights by this name run code of your own, or ask a server."""
    package, colon, network = (name or "").partition(":")
    known = package in PACKAGES and re.fullmatch(r"[\w.]+", network)  # others, such as timm:hf-hub:..., are fetched
    return is_url(name or "") or bool(colon and not known)
