"""What a network has learned: errors by group, and the probe error of every feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from samphire import probes, records
from samphire.checks import Count, Positive, check_fields
from samphire.data.parts import Parts
from samphire.data.split import Split
from samphire.probes import resampling
from samphire.probes.logistic import Scaling
from samphire.records import Row

__all__ = ["ProbeSettings", "check_judgeable", "judge", "probe_features"]

Examples = tuple[Any, Split]  # frozen features, and whose they are
Tested = dict[str, tuple[probes.Probe, probes.Probe]]  # of each feature: on the test part, and on the tenth


@dataclass(frozen=True)
class ProbeSettings:
    """How features are probed; see :func:`samphire.probes.fitted_probes`.

    Args:
        resamples: Balanced halves that choose the penalty.
        scaling: Of the features.
        l2: One penalty instead of the grid.
        per_group: Examples of each group instead of all.
    """

    resamples: Count = 5
    scaling: Scaling = "global"
    l2: Positive | None = None
    per_group: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def chosen(self) -> dict[str, Any]:
        """As arguments."""
        given: dict[str, Any] = {"resamples": self.resamples, "scaling": self.scaling, "per_group": self.per_group}
        return given if self.l2 is None else given | {"l2": [self.l2]}


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


def probe_features(net: nn.Module, parts: Parts, settings: ProbeSettings) -> Row:
    """The probe errors of every feature.

    Probes are trained on nine tenths of the probing set. ``probe`` is their error on the probing test part, with a
    95 % interval, ``probe_val``, to select by, that on the tenth. ``probe_l2`` has the penalties, ``probe_l2_tried``
    the range they were chosen from, ``probe_held_out`` the errors they were chosen by, ``probing`` what the probing
    set was, with its size, and the scaling.

    Args:
        net: The network.
        parts: The examples.
        settings: How to probe.
    """
    x, x_test = (probes.features(net, part.images) for part in (parts.probe_train, parts.probe_test))
    return _probed(x, x_test, parts, settings)


def check_judgeable(parts: Parts, settings: ProbeSettings | None) -> None:
    """Refuse groups that cannot be judged or probed before a network is trained: the same, with numbers for features.

    Args:
        parts: The examples.
        settings: How to probe; ``None`` for no probes.
    """
    try:
        for part in (parts.val, parts.test):
            probes.errors(np.zeros(len(part), np.int64), part, parts.train)
        if settings is not None:
            x, x_test = ((np.arange(len(part)) % 7)[:, None] for part in (parts.probe_train, parts.probe_test))
            _probed(x, x_test, parts, settings)
    except ValueError as error:
        way = "name fewer attributes (--features)" + (", or write resamples=0" if settings is not None else "")
        raise ValueError(f"{str(error).rstrip('.')}; {way}.") from None


def _probed(x: Any, x_test: Any, parts: Parts, settings: ProbeSettings) -> Row:
    train, test = parts.probe_train, parts.probe_test
    rest, tenth = resampling.tenth(train.group, np.random.default_rng(records.seed(0, "tenth")))
    trained_on, held = (x[rest], train.subset(rest)), (x[tenth], train.subset(tenth))
    fitted = _domain_probes if parts.domain else _feature_probes
    results = fitted(trained_on, (x_test, test), held, settings)
    any_probe, _ = next(iter(results.values()))
    n = any_probe.per_group * len(any_probe.groups)
    return {
        "probe": {name: tested.mean for name, (tested, _) in results.items()},
        "probe_low": {name: tested.interval[0] for name, (tested, _) in results.items()},
        "probe_high": {name: tested.interval[1] for name, (tested, _) in results.items()},
        "probe_val": {name: selecting.mean for name, (_, selecting) in results.items()},
        "probe_l2": {name: tested.tuned.l2 for name, (tested, _) in results.items()},
        "probe_l2_tried": {name: tested.tuned.tried for name, (tested, _) in results.items()},
        "probe_held_out": {name: _as_text(tested.tuned.held_out) for name, (tested, _) in results.items()},
        "probing": {"on": parts.probe_on, "n": n, "held_out": len(tenth), "scaling": settings.scaling},
    }


def _as_text(errors: Mapping[float, float]) -> dict[str, float]:
    """JSON has texts for keys."""
    return {f"{l2:g}": error for l2, error in errors.items()}


def _feature_probes(train: Examples, test: Examples, held: Examples, settings: ProbeSettings) -> Tested:
    fitted = probes.fitted_probes(*train, **settings.chosen)
    return {name: (probe.test(*test), probe.test(*held)) for name, probe in fitted.items()}


def _domain_probes(train: Examples, test: Examples, held: Examples, settings: ProbeSettings) -> Tested:
    tested = probes.domain_probe(*train, *test, scaling=settings.scaling)
    return {"label": (tested, probes.domain_probe(*train, *held, scaling=settings.scaling, l2=[tested.tuned.l2]))}
