"""The remedy, predicted before it is applied: the last layer retrained on examples balanced over the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samphire import records
from samphire.audits.seen import Crossing, Seen, crossing, some_of_each
from samphire.optim.scopes import find_head
from samphire.probes import Probe, fitted_probe, learning_curve
from samphire.probes.groups import Codes, GroupError
from samphire.probes.logistic import Linear
from samphire.probes.resampling import members_of
from samphire.progress import Progress, silent
from samphire.statistics import Interval

__all__ = ["Predicted", "Remedy", "fixed_weights", "predictive", "remedy"]

FOLDS = 5
MOST = 6000  # rows of the validation part that the head is retrained on


@dataclass(frozen=True)
class Predicted:
    """One cell before and after the remedy.

    Args:
        before: Its error on the test part with the head as it is.
        expected: Its error after retraining, cross-fitted on the validation part.
        interval: Where the error measured on the test part should lie, 95 %.
        after: That error.
    """

    before: GroupError
    expected: float
    interval: Interval
    after: float


@dataclass(frozen=True)
class Remedy:
    """What retraining the last layer would do.

    Args:
        attribute: What examples are balanced over, beside the label.
        cells: Every cell with examples in both parts.
        curve: By labeled examples per cell: the error of a head trained on so many.
        head: Retrained on all of the validation part.
        per_cell: Examples of each cell it was trained on.
    """

    attribute: str
    cells: tuple[Predicted, ...]
    curve: dict[int, Probe]
    head: Linear
    per_cell: int

    @property
    def worst_before(self) -> GroupError:
        """The worst cell as it is."""
        return max((cell.before for cell in self.cells), key=lambda g: g.error)

    @property
    def worst_expected(self) -> Predicted:
        """The worst cell after the remedy."""
        return max(self.cells, key=lambda cell: cell.expected)


def remedy(val: Seen, test: Seen, label: str, attribute: str, progress: Progress = silent) -> Remedy:
    r"""Predict the cells' errors after last-layer retraining, and measure them.

    The head is multinomial logistic regression with an L2 penalty on a subset with as many examples of every cell
    (:func:`samphire.probes.fitted_probe`), so the label's probe error is its equal-group error. Each fifth of the
    validation part is predicted by a head trained on the other four; the errors counted there give, by cell,

    .. math:: k_{test} \sim \mathrm{BetaBinomial}(n_{test},\ k + \tfrac12,\ n - k + \tfrac12),

    the predictive distribution of the errors on the test part (Jeffreys' prior), whose 95 % is the interval.

    Args:
        val: Examples with known attribute, at least ten of every cell.
        test: Where the prediction is checked.
        label: The label's name.
        attribute: The attribute's name.
        progress: Counts fits.

    References:
        Kirichenko et al., Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations, ICLR 2023.
    """
    known, measured = crossing(val.split, label, attribute), crossing(test.split, label, attribute)
    known = known.subset(some_of_each(known.split.group, MOST, "remedy"))
    x = val.features[known.rows]
    smallest = int(min(len(m) for m in members_of(known.split.group)))
    if smallest < 2 * FOLDS:
        name = known.name(*np.argwhere(known.count() == smallest)[0])
        raise ValueError(
            f"retraining the last layer needs {2 * FOLDS} labeled validation examples of every cell, but {name} has "
            f"{smallest}; label more of it."
        )
    fold = _folds(known.split.group)
    crossfit = np.zeros(len(x), bool)
    for i in range(FOLDS):
        rest, held = np.flatnonzero(fold != i), np.flatnonzero(fold == i)
        crossfit[held] = _head(x[rest], known.subset(rest), label).predict(x[held]) != known.y[held]
        progress("last-layer retraining", i + 1, FOLDS + 2)
    n, k = known.count(), known.count(crossfit.astype(float))
    head = _head(x, known, label)
    progress("last-layer retraining", FOLDS + 1, FOLDS + 2)
    before = measured.count(test.wrong[measured.rows].astype(float))
    after = measured.count((_predict(head, test.features, measured.rows) != measured.y).astype(float))
    m = measured.count()
    some = measured.subset(some_of_each(measured.split.group, purpose="probed"))
    curve = learning_curve(x, known.split, test.features[some.rows], some.split, label, resamples=3)
    progress("last-layer retraining", FOLDS + 2, FOLDS + 2)
    cells = tuple(
        Predicted(
            GroupError(measured.name(int(y), int(a)), int(m[y, a]), float(before[y, a] / m[y, a])),
            float(k[y, a] / n[y, a]),
            predictive(int(k[y, a]), int(n[y, a]), int(m[y, a])),
            float(after[y, a] / m[y, a]),
        )
        for y, a in np.argwhere((n > 0) & (m > 0))
    )
    return Remedy(attribute, cells, curve, head, smallest)


def predictive(k: int, n: int, m: int, level: float = 0.95) -> Interval:
    """Where the share of errors among m new examples lies, when k of n were wrong.

    Example:
        >>> predictive(0, 10, 10)
        (0.0, 0.3)
    """
    from scipy import stats

    law = stats.betabinom(m, k + 0.5, n - k + 0.5)  # type: ignore[attr-defined]
    return float(law.ppf((1 - level) / 2)) / m, float(law.ppf((1 + level) / 2)) / m


def _head(x: Any, known: Crossing, label: str) -> Linear:
    return fitted_probe(x, known.split, label, resamples=3)


def _predict(head: Linear, features: Any, rows: Codes, chunk: int = 4096) -> Codes:
    return np.concatenate([head.predict(features[rows[i : i + chunk]]) for i in range(0, len(rows), chunk)])


def _folds(group: Codes) -> Codes:
    """A number from 0 to FOLDS - 1 for each example, every cell spread evenly."""
    draw = np.random.default_rng(records.seed(0, "folds"))
    fold = np.empty(len(group), np.int64)
    for members in members_of(group):
        fold[draw.permutation(members)] = np.arange(len(members)) % FOLDS
    return fold


def fixed_weights(model: nn.Module, head: Linear) -> dict[str, Tensor]:
    """The model's state dict with the retrained last layer in it; the model itself is not changed.

    Args:
        model: Its last Linear must have been given the features.
        head: From :func:`remedy`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> state = fixed_weights(model, Linear(np.ones((2, 3)), np.zeros(2)))
        >>> state["1.weight"].sum().item(), state["1.bias"].tolist()
        (6.0, [0.0, 0.0])
    """
    name = find_head(model)
    state = {key: value.detach().clone() for key, value in model.state_dict().items()}
    weight, bias = head.weight, head.bias
    if len(state[f"{name}.weight"]) == 1:  # a single logit is the difference of two
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    if f"{name}.bias" not in state:
        raise ValueError(f"the last layer {name!r} has no bias, so the retrained one does not fit; give it one.")
    for key, value in ((f"{name}.weight", weight), (f"{name}.bias", bias)):
        state[key].copy_(torch.from_numpy(np.ascontiguousarray(value)))
    return state
