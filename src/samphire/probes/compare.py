"""What a trained network has learned, beside networks that were not trained and beside shuffled labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from samphire.data.parts import Parts
from samphire.probes.frozen import features
from samphire.probes.groups import errors
from samphire.probes.logistic import SCALINGS, Scaling
from samphire.probes.protocol import domain_probe, learning_curve, probes
from samphire.probes.results import Probe
from samphire.progress import Progress, named, silent
from samphire.records import Row

__all__ = ["PROBING_SETS", "Comparison", "compare"]

PROBING_SETS = {
    "train": "images the network was trained on, groups balanced",
    "val": "images the network never saw, groups balanced",
    "target": "the target domain's training part",
}
"""What probes are trained on, by its short name."""


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` measured.

    Attributes:
        errors: Test errors of the first network, by group and by four averages.
        probes: One row for each feature and network.
        curves: Of the first network, by feature: the probes by training examples per group.
        probing: What the probing set is, and how features were scaled.
    """

    errors: Row
    probes: list[Row]
    curves: dict[str, dict[int, Probe]]
    probing: str


def compare(
    networks: Mapping[str, nn.Module],
    parts: Parts,
    *,
    layer: str | None = None,
    feature: str | None = None,
    resamples: int = 5,
    scaling: Scaling = "global",
    curves: bool = False,
    progress: Progress = silent,
) -> Comparison:
    """Errors by group of the first network, and probe errors of all.

    The first network is also probed for shuffled labels, which shows what a probe reaches without any information.
    Where the probing parts are another domain, there is one probe of the label for each network.

    Args:
        networks: The trained one first.
        parts: What it was trained and is judged on.
        layer: A module's name; by default the input of the last linear layer.
        feature: One feature instead of all.
        resamples: Balanced halves that choose the penalty, see :func:`samphire.probes.fitted_probes`.
        scaling: Of the features, as there.
        curves: Also compute learning curves of the first network.
        progress: Called with what is being measured.
    """
    trained = next(iter(networks))
    logits = features(networks[trained], parts.test.images, "", progress=named(progress, "predictions"))
    predicted = logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).astype(np.int64)
    about = f"{PROBING_SETS[parts.probe_on]}, n = {len(parts.probe_train)}; features scaled: {SCALINGS[scaling]}"
    judged = {"measure": "errors by group"} | errors(predicted, parts.test, parts.train).row()
    result = Comparison(judged, [], {}, about)

    def add(measure: str, network: str, measured: Probe) -> None:
        about = {"measure": measure, "network": network, "probing set": parts.probe_on, "n": len(parts.probe_train)}
        result.probes.append(about | measured.row())

    for name, network in networks.items():
        read = partial(features, network, layer=layer, progress=named(progress, f"features ({name})"))
        train, test = parts.probe_train, parts.probe_test
        inputs = (read(train.images), train, read(test.images), test)
        if parts.domain:
            add("domain probe", name, domain_probe(*inputs, scaling=scaling))
            continue
        only = [feature] if feature else list(train.features)
        measure: Any = partial(probes, *inputs, only=only, resamples=resamples, scaling=scaling)
        for measured in measure(progress=named(progress, f"probes ({name})")).values():
            add("probe", name, measured)
        if name != trained:
            continue
        shuffled = measure(shuffle_labels=True, progress=named(progress, "probes of shuffled labels"))
        for measured in shuffled.values():
            add("probe", f"{name}, labels shuffled", measured)
        for f in only if curves else ():
            settings: Any = {"resamples": min(resamples, 5), "scaling": scaling}
            learning = named(progress, f"learning curve ({f})")
            result.curves[f] = learning_curve(*inputs, f, progress=learning, **settings)
    return result
