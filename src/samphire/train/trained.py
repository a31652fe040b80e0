"""A finished run: its rows, and its network loaded again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from samphire import models
from samphire.checks import Range, read_regular
from samphire.models.layers import Normalize
from samphire.models.weights import fill, read
from samphire.records import Row
from samphire.records.files import parsed
from samphire.train.configs import Config

__all__ = ["TrainedRun", "load_network", "load_weights", "scale_file"]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run.

    Attributes:
        config: What was run.
        folder: Where it is: ``config.json``, ``rows.jsonl``, ``model.pt``, ``input.json`` and kept weights.
        rows: One for each epoch.
    """

    config: Config
    folder: Path
    rows: tuple[Row, ...]

    @property
    def stopped(self) -> str | None:
        """Why training ended early, if it did."""
        return self.rows[-1].get("stopped")


def load_network(folder: str | os.PathLike[str], weights: str = "model.pt") -> nn.Module:
    """A trained network in evaluation mode, with the scale of its inputs as ``normalize``.

    Args:
        folder: Of the run.
        weights: Which of its weights, for instance ``"epoch-5.pt"``.
    """
    folder = Path(folder)
    for name in ("config.json", weights):
        if not (folder / name).exists():
            raise FileNotFoundError(f"run {folder} has no {name}; it is not finished, or its training stopped.")
    config, scale = _parsed(folder / "config.json", "model"), _parsed(folder / "input.json", "mean", "std", "classes")
    return load_weights(config["model"], scale["classes"], folder / weights).eval()


def load_weights(spec: str, classes: int, weights: Path) -> nn.Module:
    """A network with all weights of a file and, where one lies beside it, the file with its scale of inputs.

    For ``fixed.pt`` that is ``fixed.input.json``, or ``input.json`` in the folder of a run.

    Args:
        spec: The network's name, see :func:`samphire.models.load`.
        classes: Its outputs.
        weights: The file.
    """
    net: Any = models.load(spec, classes)
    net.note = fill(net, read(weights), classes, spec, weights.name, other_classes=False)
    beside = next((p for p in (scale_file(weights), weights.with_name("input.json")) if p.exists()), None)
    if beside is None and weights.with_name("config.json").exists():
        raise FileNotFoundError(
            f"run {weights.parent} has no input.json, the scale of inputs; restore it from a copy, or train again."
        )
    if beside is not None:
        scale = _parsed(beside, "mean", "std")
        net.normalize = Normalize(tuple(scale["mean"]), tuple(scale["std"]))
    return net


def scale_file(weights: Path) -> Path:
    """Where the scale of inputs lies that belongs to a file of weights outside of a run's folder."""
    return weights.with_suffix(".input.json")


_KINDS: dict[str, Callable[[Any], bool]] = {
    "classes": lambda value: type(value) is int and value > 0,
    "model": lambda value: isinstance(value, str),
    "mean": lambda value: isinstance(value, list) and all(x in Range() for x in value),
    "std": lambda value: isinstance(value, list) and all(x in Range(above=0) for x in value),
}


def _parsed(path: Path, *names: str) -> Row:
    """A file of a run, with these entries as they must be."""
    content = parsed(read_regular(path)) or {}
    for name in names:
        if not _KINDS[name](content.get(name)):
            raise ValueError(
                f"{path} is damaged: its {name} is {content.get(name)!r}; train again, or restore it from a copy."
            )
    return content
