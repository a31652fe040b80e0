"""What a training will take on this machine, from a few of its steps."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import torch

from samphire import data
from samphire.data.parts import load_parts
from samphire.progress import silent
from samphire.train.configs import Config
from samphire.train.distributed import joined
from samphire.train.training import Training

__all__ = ["expected_seconds"]

STEPS = 5  # measured, after as many that are not


def expected_seconds(
    config: Config,
    root: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
) -> float:
    """The seconds that the epochs of a training will take, without probes; measured from a few steps.

    Args:
        config: What would be trained.
        root: The folder of the data set, or the one above it.
        cache: For decoded images; the user's cache by default.
        device: Where to compute; a GPU if there is one.
    """
    n = config.examples or len(data.load(config.data, root, target=config.target)["train"])
    few = min(n, STEPS * config.batch)
    chosen: Any = {name: getattr(config, name) for name in ("size", "target", "augment")}
    parts = load_parts(config.data, root, examples=few, cache=cache, **chosen)
    short = replace(config, epochs=2, examples=few, probe_at=(), keep=())
    with joined(device) as ranks:
        training = Training(short, parts, ranks, None)
        training.epoch(silent)
        seconds: float = training.epoch(silent)["seconds"]
    return seconds / math.ceil(few / config.batch) * math.ceil(n / config.batch) * config.epochs
