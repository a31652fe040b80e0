"""Decodability: whether a feature can be read off the network, beside networks that were not trained for it.

**The corners.** A feature is *decodable* from a network if the upper end of its probe error's 95 % interval lies a
tenth or more below the error of guessing, :math:`1 - 1/v` for v values. It is

- **never learned** if neither the trained network nor a control (the input itself, random weights, pretrained) makes
  it decodable;
- **lost** if a control makes it decodable and the trained network does not, or if the trained network's interval
  lies above that of the input itself or of random weights: training has made it worse than nothing;
- **used** or **known but unused** otherwise, by the judgment of its reliance.

Probes are trained on the validation part and tested on the test part, balanced over label and attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from samphire.audits.reliance import Judgment
from samphire.audits.seen import Seen, crossing, some_of_each
from samphire.probes import Probe, probes
from samphire.progress import Progress, silent, stretch

__all__ = [
    "INPUT", "RANDOM_WEIGHTS", "SHUFFLED", "Corner", "Decodability", "corner", "decodability", "probed_rows",
]  # fmt: skip

BELOW_CHANCE = 0.9
INPUT, RANDOM_WEIGHTS, SHUFFLED = "the input itself", "random weights", "labels shuffled"
Corner = Literal["used", "known but unused", "known, use undecided", "lost", "never learned", "cannot be probed"]


@dataclass(frozen=True)
class Decodability:
    """The probe error of a feature in the trained network and in its controls.

    Args:
        feature: Its name.
        values: How many it has.
        trained: In the network under audit; ``None`` if a cell has too few examples.
        controls: By name: :data:`INPUT`, see :func:`samphire.audits.reading.plain_inputs`; :data:`RANDOM_WEIGHTS`;
            ``"pretrained"``; and :data:`SHUFFLED`, the trained network's features with the feature's values in random
            order, which no probe can read.
        problem: Why it could not be probed.
    """

    feature: str
    values: int
    trained: Probe | None
    controls: Mapping[str, Probe]
    problem: str = ""

    @property
    def chance(self) -> float:
        """The error of guessing."""
        return 1 - 1 / self.values

    @property
    def untrained(self) -> tuple[str, Probe] | None:
        """The control without any training that a probe reads best, by name."""
        found = [(name, self.controls[name]) for name in (INPUT, RANDOM_WEIGHTS) if name in self.controls]
        return min(found, key=lambda control: control[1].mean, default=None)

    def readable(self, p: Probe) -> bool:
        """Whether a probe is clearly better than guessing."""
        return p.interval[1] < BELOW_CHANCE * self.chance


def probed_rows(seen: Seen, label: str, attribute: str) -> Any:
    """Which rows of a part are probed: those with the attribute known, small cells first."""
    crossed = crossing(seen.split, label, attribute)
    return crossed.subset(some_of_each(crossed.split.group, purpose="probed"))


def decodability(
    val: Seen,
    test: Seen,
    label: str,
    attribute: str,
    controls: Mapping[str, Mapping[str, Any]],
    *,
    resamples: int = 5,
    progress: Progress = silent,
) -> dict[str, Decodability]:
    """Probe errors of label and attribute, balanced over both.

    Args:
        val: Where probes are trained.
        test: Where they are tested.
        label: The label's name.
        attribute: The attribute's name.
        controls: By network and part (``val``, ``test``): its features of the rows of :func:`probed_rows`.
        resamples: Balanced samples.
        progress: Counts resamples.
    """
    a, b = probed_rows(val, label, attribute), probed_rows(test, label, attribute)
    values = {name: max(a.split.sizes[name], b.split.sizes[name]) for name in (label, attribute)}
    mine = {"val": val.features[a.rows], "test": test.features[b.rows]}
    networks: dict[str, tuple[Mapping[str, Any], bool]] = {"": (mine, False), SHUFFLED: (mine, True)}
    networks |= {name: (features, False) for name, features in controls.items()}
    results: dict[str, dict[str, Probe]] = {}
    try:
        for i, (name, (features, shuffled)) in enumerate(networks.items()):
            part = stretch(progress, i / len(networks), (i + 1) / len(networks))
            settings: Any = {"resamples": resamples, "shuffle_labels": shuffled, "progress": part}
            results[name] = probes(features["val"], a.split, features["test"], b.split, **settings)
    except ValueError as problem:
        return {name: Decodability(name, n, None, {}, str(problem)) for name, n in values.items()}
    return {
        name: Decodability(name, n, results[""][name], {k: p[name] for k, p in results.items() if k})
        for name, n in values.items()
    }


def corner(found: Decodability, judgment: Judgment) -> Corner:
    """Where a feature lies on the map; see the module's docstring for the rule."""
    if found.trained is None:
        return "cannot be probed"
    if not found.readable(found.trained):
        others = (p for name, p in found.controls.items() if name != SHUFFLED)
        return "lost" if any(map(found.readable, others)) else "never learned"
    if found.untrained is not None and found.trained.interval[0] > found.untrained[1].interval[1]:
        return "lost"
    known: dict[Judgment, Corner] = {"relied on": "used", "not relied on": "known but unused"}
    return known.get(judgment, "known, use undecided")
