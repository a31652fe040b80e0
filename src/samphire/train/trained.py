"""A finished run: its rows, and its network loaded again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from samphire import models
from samphire.models.layers import Normalise
from samphire.records import Row
from samphire.train.configs import Config

__all__ = ["TrainedRun", "load_network", "load_weights"]


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
    """A trained network in evaluation mode, with the scale of its inputs as ``normalise``.

    Args:
        folder: Of the run.
        weights: Which of its weights, for instance ``"epoch-5.pt"``.
    """
    folder = Path(folder)
    for name in ("config.json", weights):
        if not (folder / name).exists():
            raise FileNotFoundError(f"run {folder} has no {name}; it is not finished, or its training stopped.")
    config = json.loads((folder / "config.json").read_text())
    classes = json.loads((folder / "input.json").read_text())["classes"]
    return load_weights(config["model"], classes, folder / weights).eval()


def load_weights(spec: str, classes: int, weights: Path) -> nn.Module:
    """A network with the weights of a file and, where ``input.json`` lies beside it, its scale of inputs.

    Args:
        spec: The network's name, see :func:`samphire.models.load`.
        classes: Its outputs.
        weights: The file.
    """
    net: Any = models.load(spec, classes, weights)
    beside = weights.with_name("input.json")
    if beside.exists():
        scale = json.loads(beside.read_text())
        net.normalise = Normalise(tuple(scale["mean"]), tuple(scale["std"]))
    return net
