"""What a training of one thread takes on this machine, and beside others, from a few of its steps."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache as once
from statistics import median
from typing import Any

import torch

from samphire import data
from samphire.data.parts import load_parts
from samphire.progress import Progress, silent
from samphire.restore import threads
from samphire.train.configs import Config
from samphire.train.distributed import joined
from samphire.train.training import Training

__all__ = ["expected_seconds", "steps_in_turns"]

STEPS = 5  # measured together, after as many that are not
ROUNDS = 15


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
    ((seconds,),) = _rounds([config], root, cache, device, 1)
    return seconds * math.ceil(_examples(config, root) / config.batch) * config.epochs


def steps_in_turns(
    configs: Sequence[Config],
    root: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    progress: Progress = silent,
) -> list[float]:
    """What a step of each training takes over what one of the first takes: medians of ratios, measured in turns.

    A machine that does other work meanwhile slows all of a round alike: ratios can be trusted where seconds cannot.

    Args:
        configs: What is trained; of one data set.
        root: The folder of the data set, or the one above it.
        cache: For decoded images; the user's cache by default.
        device: Where to compute; a GPU if there is one.
        progress: Called with what is done, the rounds done and those to do.
    """
    rounds = _rounds(configs, root, cache, device, ROUNDS, progress)
    ratios = [[seconds / times[0] for seconds in times] for times in rounds]
    return [median(of_one) for of_one in zip(*ratios, strict=True)]


def _examples(config: Config, root: Any) -> int:
    return config.examples or len(data.load(config.data, root, target=config.target)["train"])


def _rounds(
    configs: Sequence[Config], root: Any, cache: Any, device: Any, rounds: int, progress: Progress = silent
) -> list[list[float]]:
    """Seconds of a step of each, round by round after one that is not measured; the networks train on."""

    @once
    def parts(examples: int, **chosen: Any) -> Any:
        return load_parts(configs[0].data, root, examples=examples, cache=cache, **chosen)

    def training(config: Config) -> Training:
        few = min(_examples(config, root), STEPS * config.batch)
        chosen = {name: getattr(config, name) for name in ("size", "target", "augment")}
        short = replace(config, epochs=max(config.epochs, rounds + 1), examples=few, probe_at=(), keep=())
        return Training(short, parts(few, **chosen), ranks, None)

    times = []
    with joined(device) as ranks, threads(1):  # as each of several trainings at once has
        trainings = [training(config) for config in configs]
        for i in range(rounds + 1):
            times.append([one.epoch(silent)["seconds"] / one.steps for one in trainings])
            progress("what steps cost", i, rounds)
    return times[1:]
