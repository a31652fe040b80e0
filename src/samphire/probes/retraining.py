"""Last-layer retraining (deep feature reweighting): a head from a few balanced examples, for the same network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from samphire import records
from samphire.checks import check_whole
from samphire.data.split import Split
from samphire.probes.groups import Codes, values_of
from samphire.probes.logistic import Array, Linear, Scaler, sparse_regression
from samphire.probes.protocol import checked
from samphire.probes.resampling import balanced, halves, members_of
from samphire.progress import Progress, silent

__all__ = ["C", "RetrainedHead", "dfr", "retrain_last_layer"]

C = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)


@dataclass(frozen=True)
class RetrainedHead:
    """A head, and how it was chosen.

    Args:
        linear: For features as they are: the scaler is folded in.
        c: The weight of the loss that was taken.
        tuning: Worst-group accuracy on the held-out half for each value of C tried.
        per_group: Examples of each group in a resample.
    """

    linear: Linear
    c: float
    tuning: dict[float, float]
    per_group: int

    def predict(self, features: Any) -> Codes:
        """The class of each row of features."""
        return self.linear.predict(np.asarray(features, np.float64))

    def head(self) -> nn.Linear:
        """The head as a layer, in float32 on the CPU: ``model.fc = retrained.head()``."""
        classes, d = self.linear.weight.shape
        head = nn.utils.skip_init(nn.Linear, d, classes)
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(self.linear.weight))
            head.bias.copy_(torch.from_numpy(self.linear.bias))
        return head


def dfr(
    features: Any,
    split: Split,
    feature: str | None = None,
    *,
    scale_by: Any = None,
    c: Sequence[float] = C,
    resamples: int = 20,
    seed: int = 0,
    progress: Progress = silent,
) -> RetrainedHead:
    r"""Deep feature reweighting: the head that L1 logistic regression finds on group-balanced held-out examples.

    C is chosen on two halves of the examples: a balanced subset of one trains, the other gives the worst-group
    accuracy (ties go to the largest C). Then ``resamples`` balanced subsets of all examples are fitted at
    that C, and their coefficients and biases averaged. The bias is penalized, as in liblinear; more than two classes
    are fitted each against the rest.

    Args:
        features: Frozen features (n, d) of held-out examples, such as the validation set.
        split: These examples.
        feature: What to predict; ``None`` for the label. Groups are the same either way.
        scale_by: Features that give the mean and deviation of the final fits. The published evaluation takes those of
            the *training set*, although C was tuned on features scaled by the balanced half; its successor, and
            this by default, the held-out examples themselves.
        c: Values of C to try.
        resamples: 20 for the validation set, 10 where the training set is used.
        seed: Of the draws.
        progress: Counts fits.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> y, place = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), y, {"y": y, "place": place})
        >>> phi = np.stack([y + 0.1 * draw.normal(size=80), place + 0.1 * draw.normal(size=80)], 1)
        >>> retrained = dfr(phi, split, resamples=3)
        >>> bool((retrained.predict(phi) == y).all()), retrained.head()
        (True, Linear(in_features=2, out_features=2, bias=True))

    References:
        Kirichenko, Izmailov, Wilson, Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations,
        ICLR 2023, https://arxiv.org/abs/2204.02937

    Differences:
        The two halves are drawn within groups, so that neither lacks one; the released code shuffles everything.
        The solver is ours: its call of scikit-learn takes no third class since version 1.8 and ends with 1.10.
    """
    x, group = checked(features, split, "held-out"), split.group
    y = split.label if feature is None else values_of(split, feature)
    check_whole("resamples", resamples)
    smallest = min(len(members) for members in members_of(group))
    if smallest < 2 or len(np.unique(y)) < 2:
        raise ValueError(
            f"dfr needs two classes and two examples of every group or more, got {len(np.unique(y))} and {smallest}."
        )
    draw = np.random.default_rng(records.seed(seed, "dfr"))
    total = len(c) + resamples
    held, train = halves(group, draw)
    train = train[balanced(group[train], draw)]
    scaler = Scaler.of(x[train])
    z, z_held = scaler(x[train]), scaler(x[held])
    tuning: dict[float, float] = {}
    for value in sorted(c):
        guess = _fit(z, y[train], value).predict(z_held)
        tuning[value] = min(float(np.mean(guess[members] == y[held][members])) for members in members_of(group[held]))
        progress("last-layer retraining", len(tuning), total)
    best = max(value for value in tuning if tuning[value] == max(tuning.values()))
    scaler = Scaler.of(x if scale_by is None else np.asarray(scale_by))
    fits = []
    for i in range(resamples):
        chosen = balanced(group, draw)
        fits.append(_fit(scaler(x[chosen]), y[chosen], best))
        progress("last-layer retraining", len(c) + i + 1, total)
    mean = Linear(np.mean([f.weight for f in fits], 0), np.mean([f.bias for f in fits], 0))
    return RetrainedHead(scaler.undo(mean), best, tuning, smallest)


def retrain_last_layer(features: Any, split: Split, **settings: Any) -> nn.Linear:
    """The head of :func:`dfr`, to be put in the place of the network's own.

    Args:
        features: What the network's last Linear is given, for held-out examples (:func:`samphire.probes.features`).
        split: These examples.
        settings: Of :func:`dfr`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        >>> y, place = np.repeat([0, 1], 10), np.tile([0, 1], 10)
        >>> split = Split(np.zeros(20), y, {"y": y, "place": place})
        >>> phi = np.stack([y, place], 1)
        >>> model[-1] = retrain_last_layer(phi, split)
        >>> bool((model[-1](torch.tensor(phi).float()).argmax(1).numpy() == y).all())
        True
    """
    return dfr(features, split, **settings).head()


def _fit(x: Array, y: Codes, c: float) -> Linear:
    """L1 logistic regression; two classes share one set of weights, more have one each, against the rest."""
    x = np.column_stack([x, np.ones(len(x))])
    classes = int(y.max()) + 1
    if classes == 2:
        w = sparse_regression(x, y, c)
        weights = np.stack([-w / 2, w / 2])
    else:
        weights = np.stack([sparse_regression(x, (y == k).astype(np.int64), c) for k in range(classes)])
    return Linear(weights[:, :-1], weights[:, -1])
