"""What the methods against spurious correlations add to plain training, before it and after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from samphire import probes, records
from samphire.baselines import GroupDRO, reweighting, slow_part
from samphire.data.parts import Parts
from samphire.optim import last_layer
from samphire.probes.resampling import halves
from samphire.records import Row
from samphire.train.configs import Config
from samphire.train.judging import judge
from samphire.train.trained import TrainedRun, load_network

__all__ = ["Positions", "example_loss", "first_training", "positions", "retrain_head"]

Positions = Callable[[torch.Generator], NDArray[np.int64]]


def first_training(config: Config) -> Config | None:
    """The plain training that a method builds on, if any."""
    plain = replace(config, method="erm", method_settings=())
    if config.method == "dfr":
        return plain
    if config.method in ("jtt", "useful"):
        return replace(plain, epochs=config.method_setting("epochs"), resamples=0, probe_at=(), keep=())
    return None


def positions(config: Config, before: TrainedRun | None, parts: Parts, device: torch.device) -> Positions | None:
    """Which training examples an epoch visits; ``None`` for each once."""
    if config.method in ("jtt", "useful"):
        assert before is not None
        net = load_network(before.folder).to(device)
        logits = torch.from_numpy(probes.features(net, parts.whole.images, ""))
        repeated = reweighting.error_set if config.method == "jtt" else slow_part
        again = repeated(logits, parts.whole.label)
        chosen = reweighting.upsampled(again, len(parts.train), config.method_setting("times")).numpy()
        return lambda generator: chosen
    if config.method in ("reweight", "group_dro"):
        _check_known(config, parts)
        group = np.unique(parts.train.group, return_inverse=True)[1]
        return lambda generator: np.array(list(reweighting.balanced_sampler(group, generator=generator)))
    return None


def _check_known(config: Config, parts: Parts) -> None:
    unknown = int((~parts.train.known).sum())
    if unknown:
        raise ValueError(
            f"{config.method} needs the group of every training example, but {unknown} of {len(parts.train)} lack a "
            "feature; leave these out, name other features, or take method=erm."
        )


def example_loss(config: Config, parts: Parts) -> GroupDRO | None:
    """The loss of examples and their groups; ``None`` for the plain mean."""
    if config.method != "group_dro":
        return None
    eta, adjustment = (config.method_setting(name) for name in ("eta", "adjustment"))
    return GroupDRO(np.bincount(parts.train.group), eta=eta, adjustment=adjustment)


def retrain_head(config: Config, before: TrainedRun, parts: Parts, device: torch.device) -> tuple[nn.Module, Row]:
    """DFR: the network with another last layer on the same features, and its row; the probes' cells stay."""
    net = load_network(before.folder).to(device)
    part = parts.val if parts.domain else parts.probe_train
    features = probes.features(net, part.images)
    parent, _, name = last_layer(net).name.rpartition(".")

    def retrained(chosen: NDArray[Any]) -> nn.Module:
        head = probes.retrain_last_layer(
            features[chosen], part.subset(chosen), resamples=config.method_setting("resamples"), seed=config.seed
        )
        setattr(net.get_submodule(parent), name, head.to(device))
        return net

    half, other = halves(part.group, np.random.default_rng(records.seed(config.seed, "halves")))
    row = {cell: value for cell, value in before.rows[-1].items() if cell not in ("loss", "train_error")}
    row |= judge("val", retrained(half), part.subset(other), parts)
    row |= judge("test", retrained(np.arange(len(part))), parts.test, parts)
    return net, row
