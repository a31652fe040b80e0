"""What a network has learned: errors by group, and the probe error of every feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from samphire import probes, records
from samphire.data.parts import Parts
from samphire.data.split import Split
from samphire.probes.protocol import halves
from samphire.records import Row

__all__ = ["judge", "probe_features"]


def judge(part: str, net: nn.Module, examples: Split, parts: Parts) -> Row:
    """Loss and errors on a part, by four averages and by group.

    Args:
        part: What the names of the cells begin with, ``"val"`` or ``"test"``.
        net: The network.
        examples: The part.
        parts: All parts; errors are weighted by the groups' sizes in training.
    """
    logits = probes.features(net, examples.images, "")
    errors = probes.errors(logits.argmax(1), examples, parts.train)
    return {
        f"{part}_loss": F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(examples.label)).item(),
        f"{part}_error": errors.train_weighted,
        f"{part}_plain": errors.plain,
        f"{part}_equal": errors.equal_group,
        f"{part}_worst": errors.worst.error,
        f"{part}_worst_group": errors.worst.name,
        f"{part}_groups": {group.name: group.error for group in errors.groups},
    }


def probe_features(net: nn.Module, parts: Parts, resamples: int) -> Row:
    """The probe errors of every feature.

    ``probe`` is tested on the probing test part. ``probe_val``, to select by, is trained on one half of the probing
    training part and tested on the other.
    """
    train, test = parts.probe_train, parts.probe_test
    x, x_test = (probes.features(net, part.images) for part in (train, test))
    tested = _probes(parts.domain, x, train, x_test, test, resamples)
    a, b = halves(train.group, np.random.default_rng(records.seed(0, "halves")))
    held_out = _probes(parts.domain, x[a], train.subset(a), x[b], train.subset(b), max(1, resamples // 4))
    return {
        "probe": {name: probe.mean for name, probe in tested.items()},
        "probe_low": {name: probe.interval[0] for name, probe in tested.items()},
        "probe_high": {name: probe.interval[1] for name, probe in tested.items()},
        "probe_val": {name: probe.mean for name, probe in held_out.items()},
    }


def _probes(domain: bool, x: Any, train: Split, x_test: Any, test: Split, resamples: int) -> dict[str, probes.Probe]:
    if domain:
        return {"label": probes.domain_probe(x, train, x_test, test)}
    return probes.probes(x, train, x_test, test, resamples=resamples)
