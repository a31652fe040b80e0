"""Which penalty a probe needs: the lowest error on held-out halves; the grid grows if that lies at its edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samphire.probes.groups import Codes
from samphire.probes.logistic import Array, Linear, Scaler, Scaling, predictions
from samphire.probes.softmax import softmax_regressions
from samphire.progress import Progress, silent

__all__ = ["L2", "Resample", "Tuned", "fits_of", "tuned"]

L2 = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
GROWTH = 6  # penalties that may be added
AT_ONCE = 3  # of these together, which costs little more than one


@dataclass(frozen=True)
class Resample:
    """Examples to train on and as many to choose the penalty by, with the classes of each target.

    Args:
        train: Positions.
        held: Positions of others.
        targets: Classes of all examples, by feature.
    """

    train: Codes
    held: Codes
    targets: Mapping[str, Codes]

    @property
    def both(self) -> Codes:
        """All positions."""
        return np.concatenate([self.train, self.held])


@dataclass(frozen=True)
class Tuned:
    """A penalty and what it was chosen from.

    Attributes:
        l2: The penalty.
        held_out: The error on held-out halves, averaged over resamples, of every penalty that was tried; empty where
            one was given.
        grown: How many of these were added because the lowest error lay at an edge.
    """

    l2: float
    held_out: Mapping[float, float]
    grown: int = 0

    @property
    def tried(self) -> str:
        """The range of penalties, in words.

        Example:
            >>> Tuned(0.1, {0.1: 0.2, 1.0: 0.3, 10.0: 0.4}, 1).tried
            '0.1 to 10, grown by 1, still at an edge'
        """
        if not self.held_out:
            return "given"
        low, high = min(self.held_out), max(self.held_out)
        grown = f", grown by {self.grown}" if self.grown else ""
        return f"{low:g} to {high:g}{grown}" + (", still at an edge" if self.l2 in (low, high) else "")


def fits_of(
    x: Array, rows: Codes, targets: Mapping[str, Codes], l2: Sequence[float], scaling: Scaling
) -> dict[str, list[Linear]]:
    """For each target the classifiers of features as they are, one for each penalty on scaled ones."""
    chosen = x[rows]
    scaler = Scaler.of(chosen, scaling)
    each = [(y[rows], int(y.max()) + 1) for y in targets.values()]
    paths = softmax_regressions(scaler(chosen), each, l2)
    return {name: [scaler.undo(fit) for fit in path] for name, path in zip(targets, paths, strict=True)}


def tuned(
    x: Array, resamples: Sequence[Resample], l2: Sequence[float], scaling: Scaling, progress: Progress = silent
) -> dict[str, Tuned]:
    """The penalty of each target with the lowest error on the held-out halves, averaged over resamples.

    Ties go to the largest penalty inside the grid. If the lowest error lies at an edge alone, the grid grows there by
    its own ratio, :data:`AT_ONCE` penalties at a time, up to :data:`GROWTH`; one or two are taken as they are.

    Args:
        x: Features.
        resamples: Which examples are trained on, and which held out; all have the same targets.
        l2: Penalties.
        scaling: Of the features.
        progress: Counts resamples.
    """
    names = tuple(resamples[0].targets)
    if len(set(l2)) == 1:
        return {name: Tuned(l2[0], {}) for name in names}
    errors: dict[str, dict[float, float]] = {name: {} for name in names}
    wanted = dict.fromkeys(names, tuple(l2))
    for more in range(0, GROWTH + 1, AT_ONCE):
        for penalties in dict.fromkeys(wanted.values()):
            same = [name for name in wanted if wanted[name] == penalties]
            for name, held_out in _held_out(x, resamples, same, penalties, scaling, progress).items():
                errors[name] |= dict(zip(penalties, held_out.tolist(), strict=True))
        wanted = {name: new for name in names if len(l2) > 2 and more < GROWTH and (new := _beyond(errors[name]))}
    return {name: Tuned(_best(e), dict(sorted(e.items())), len(e) - len(set(l2))) for name, e in errors.items()}


def _held_out(
    x: Array,
    resamples: Sequence[Resample],
    names: Sequence[str],
    l2: Sequence[float],
    scaling: Scaling,
    progress: Progress,
) -> dict[str, Array]:
    """Of each target the error for each penalty."""
    wrong = {name: np.zeros(len(l2), np.int64) for name in names}  # counts, so that equal errors are equal
    for i, resample in enumerate(resamples):
        targets = {name: resample.targets[name] for name in names}
        held = x[resample.held]
        for name, path in fits_of(x, resample.train, targets, l2, scaling).items():
            wrong[name] += np.count_nonzero(predictions(path, held) != targets[name][resample.held], 1)
        progress(f"penalties of {', '.join(names)}", i + 1, len(resamples))
    n = sum(len(resample.held) for resample in resamples)
    return {name: count / n for name, count in wrong.items()}


def _best(errors: Mapping[float, float]) -> float:
    """The penalty with the lowest error; ties go to the largest that is not at an edge."""
    lowest = [penalty for penalty in sorted(errors) if errors[penalty] == min(errors.values())]
    inside = [penalty for penalty in lowest if min(errors) < penalty < max(errors)]
    return max(inside or lowest)


def _beyond(errors: Mapping[float, float]) -> tuple[float, ...]:
    """The penalties beyond the edge at which the lowest error lies; none if it lies inside."""
    penalties, best = sorted(errors), _best(errors)
    neighbor = {penalties[0]: penalties[1], penalties[-1]: penalties[-2]}.get(best)
    return () if neighbor is None else tuple(best * (best / neighbor) ** i for i in range(1, AT_ONCE + 1))
