r"""Probe error: how well a linear classifier reads a feature off frozen representations (equation 1).

.. math:: \mathrm{ProErr}_i = E_{D_{bal}}\big[\ell_{0-1}(u^\top \Phi(x), a_i(x))\big], \qquad
          u = \arg\min \hat E_{D_{bal}}\big[\ell(u^\top \Phi(x), a_i(x))\big],

where every combination of features, a group, is equally frequent in :math:`D_{bal}`, so that the probed feature is
independent of the rest. Features are arrays (n, d): of another layer, of a network with random weights or of a
pretrained one that was not trained on, they give the control probes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from samphire import records
from samphire.checks import check_whole
from samphire.data.split import Split
from samphire.probes.groups import Codes, joint_groups, values_of
from samphire.probes.logistic import Array, Linear, Scaler, softmax_regression
from samphire.probes.resampling import balanced, balanced_halves, halves
from samphire.probes.results import Probe, probe_of
from samphire.progress import Progress, silent, stretch

K = TypeVar("K")
L2 = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)

__all__ = ["L2", "checked", "domain_probe", "fitted_probe", "learning_curve", "probe", "probes"]


def probe(
    train_features: Any,
    train_split: Split,
    test_features: Any,
    test_split: Split,
    feature: str,
    *,
    resamples: int = 20,
    l2: Sequence[float] = L2,
    per_group: int | None = None,
    shuffle_labels: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> Probe:
    r"""Equation 1: the probe error of one feature.

    Each resample draws the same number of examples of every group, half of them to train on and half to choose
    :math:`\lambda`. The probe is multinomial logistic regression with an L2 penalty, solved to the optimum for
    every :math:`\lambda`, on features standardized by the training half. The :math:`\lambda` with the lowest error
    on the other half is taken (ties go to the largest), a probe is trained with it on both halves, and tested on all
    test examples: its error is the equal-weight mean of the groups' errors, which has the expectation of a balanced
    test set and less variance. Where all groups are of one size every resample has all examples, and resamples differ
    in the halves alone.

    Args:
        train_features: Frozen features (n, d) of examples the network was *not* trained on, such as the
            validation set.
        train_split: These examples; every combination of features must occur twice or more.
        test_features: Frozen features of the test examples, by the same network and layer.
        test_split: These examples; every combination must occur.
        feature: The name of the feature to predict.
        resamples: How many.
        l2: The grid of :math:`\lambda`, for the mean loss.
        per_group: Examples of each group in a resample, an even number; the smallest group's unless given.
        shuffle_labels: Train on the feature's values in random order: a control; its error must be that of
            guessing, whatever the features.
        seed: Of the draws, which depend on the groups alone: probes of other features, networks and layers
            see the same examples.
        progress: Counts resamples.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> phi = np.stack([a + 0.1 * draw.normal(size=80), draw.normal(size=80)], 1)
        >>> p, q = (probe(phi, split, phi, split, name, resamples=3) for name in ("a", "b"))
        >>> p.mean, q.mean > 0.3
        (0.0, True)

    References:
        Springer et al. 2024, section 3.1, which leaves open the loss, the penalty, the size and the repetitions;
        Kirichenko et al., Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations, ICLR 2023.
    """
    x, x_test = checked(train_features, train_split, "train"), checked(test_features, test_split, "test")
    (group, test_group), names = joint_groups(train_split, test_split)
    y, y_test = values_of(train_split, feature), values_of(test_split, feature)
    check_whole("resamples", resamples)
    per_group = _check_groups(group, test_group, names, per_group)
    draw = np.random.default_rng(records.seed(seed, "probe"))
    wrong, chosen = np.empty((resamples, len(y_test)), bool), []
    for i in range(resamples):
        train, held = balanced_halves(group, per_group // 2, draw)
        target = y
        if shuffle_labels:
            both = np.concatenate([train, held])
            target = y.copy()
            target[both] = draw.permutation(y[both])
        penalty, fit = _tuned(x, target, int(y.max()) + 1, train, held, l2)
        wrong[i] = fit.predict(x_test) != y_test
        chosen.append(penalty)
        progress(f"probes of {feature}", i + 1, resamples)
    return probe_of(feature, wrong, chosen, per_group, test_group, names)


def probes(
    train_features: Any,
    train_split: Split,
    test_features: Any,
    test_split: Split,
    *,
    progress: Progress = silent,
    **settings: Any,
) -> dict[str, Probe]:
    """The probe of every feature, by name; all arguments are those of :func:`probe`.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> {name: p.mean for name, p in probes(a[:, None], split, a[:, None], split, resamples=2).items()}
        {'a': 0.0, 'b': 0.5}
    """
    measure = partial(probe, train_features, train_split, test_features, test_split, **settings)
    return _each({name: partial(measure, name) for name in train_split.features}, progress)


def learning_curve(
    train_features: Any,
    train_split: Split,
    test_features: Any,
    test_split: Split,
    feature: str,
    *,
    sizes: Sequence[int] | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> dict[int, Probe]:
    """Probe error against training examples per group: would more labels help, or is the feature missing?

    ``sizes`` are the examples per group; by default the largest possible, halved again and again down to 8. The other
    arguments are those of :func:`probe`.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> list(learning_curve(a[:, None], split, a[:, None], split, "a", resamples=1))
        [10, 20]
    """
    if sizes is None:
        most = int(np.unique(joint_groups(train_split)[0][0], return_counts=True)[1].min()) // 2
        sizes = [2 * (most >> i) for i in range(most.bit_length()) if i == 0 or most >> i >= 4][::-1]
    measure = partial(probe, train_features, train_split, test_features, test_split, feature, **settings)
    return _each({size: partial(measure, per_group=size) for size in sizes}, progress)


def _each(measures: Mapping[K, Callable[..., Probe]], progress: Progress) -> dict[K, Probe]:
    """The result of each measure; the progress is that of all together."""
    n = len(measures)
    parts = (stretch(progress, i / n, (i + 1) / n) for i in range(n))
    return {key: measure(progress=part) for (key, measure), part in zip(measures.items(), parts, strict=True)}


def domain_probe(
    train_features: Any,
    train_split: Split,
    test_features: Any,
    test_split: Split,
    *,
    resamples: int = 5,
    l2: Sequence[float] = L2,
    seed: int = 0,
) -> Probe:
    r"""Domain transfer: the label read off the features on a domain the network was not trained on (equation 46).

    The probe is trained on all of the target's training part; :math:`\lambda` is the one with the lowest error on
    held-out halves of it, averaged over ``resamples`` splits within classes. The error is plain: a share of test
    examples. ``1 - error`` is the accuracy of the paper's table 2.

    Args:
        train_features: Frozen features of the target domain's training part.
        train_split: These examples.
        test_features: Those of its test part.
        test_split: These examples.
        resamples: Splits into halves that choose :math:`\lambda`.
        l2: As for :func:`probe`.
        seed: Of the halves.

    Example:
        >>> y = np.repeat([0, 1], 10)
        >>> split = Split(np.zeros(20), y, {"class": y})
        >>> domain_probe(y[:, None], split, y[:, None], split).mean
        0.0

    Differences:
        Equation 46 writes the training distribution of the sources; the text means the target's, as here.
    """
    x, x_test = checked(train_features, train_split, "train"), checked(test_features, test_split, "test")
    y, classes = train_split.label, int(train_split.label.max()) + 1
    draw = np.random.default_rng(records.seed(seed, "domain probe"))
    held_out = np.zeros(len(l2))
    for _ in range(resamples):
        train, held = halves(y, draw)
        held_out += [np.mean(fit.predict(x[held]) != y[held]) for fit in _path(x[train], y[train], classes, l2)]
    penalty = _best(held_out, l2)
    wrong = _path(x, y, classes, [penalty])[0].predict(x_test) != test_split.label
    everything = np.zeros(len(wrong), np.int64)
    result = probe_of("label", wrong[None], [penalty], len(y), everything, ["every example"])
    return replace(result, average="plain")


def fitted_probe(
    features: Any, split: Split, feature: str, *, l2: Sequence[float] = L2, resamples: int = 5, seed: int = 0
) -> Linear:
    r"""One probe of a feature, trained on as many examples of every group as the smallest one has.

    The penalty is the median of those that :func:`probe` chooses by held-out halves of the same examples. The
    classifier is for features as they are, not standardized.

    Args:
        features: Frozen features (n, d) of examples the network was not trained on.
        split: These examples; every combination of features must occur twice or more.
        feature: The name of the feature to predict.
        l2: The grid of penalties.
        resamples: Balanced halves that choose the penalty.
        seed: Of the draws.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> fit = fitted_probe(np.stack([a, b], 1), split, "b")
        >>> bool((fit.predict(np.stack([a, b], 1)) == b).all())
        True
    """
    x, y = checked(features, split, "probing"), values_of(split, feature)
    chosen = probe(x, split, x, split, feature, resamples=resamples, l2=l2, seed=seed).l2
    rows = balanced(split.group, np.random.default_rng(records.seed(seed, "fitted probe")))
    return _path(x[rows], y[rows], int(y.max()) + 1, [float(np.median(chosen))])[0]


def checked(x: Any, split: Split, what: str) -> Array:
    """Features in float64, one row for each example, without nan."""
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or len(x) != len(split) or not len(x):
        raise ValueError(
            f"{what} features must be of shape (n, d) with a row for each of {len(split)} examples, got {x.shape}."
        )
    if not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x).all(1))[0])
        raise ValueError(f"{what} features must be finite, but row {row} is not; did the training diverge?")
    return x


def _check_groups(group: Codes, test_group: Codes, names: list[str], per_group: int | None) -> int:
    counts = np.bincount(group, minlength=len(names))
    for name, n, m in zip(names, counts, np.bincount(test_group, minlength=len(names)), strict=True):
        if n < 2 or m < 1:
            raise ValueError(
                f"a probe needs two training examples and a test example of every group, but {name} has {n} and {m}; "
                "take splits in which all combinations of features occur."
            )
    most = int(counts.min()) // 2 * 2
    if per_group is None:
        return most
    if not 2 <= per_group <= most or per_group % 2:
        smallest = names[int(counts.argmin())]
        raise ValueError(
            f"per_group must be an even number from 2 to {most}, as the smallest group {smallest} has, "
            f"got {per_group!r}."
        )
    return per_group


# One probe


def _path(x: Array, y: Codes, classes: int, l2: Sequence[float]) -> list[Linear]:
    """The optimum for every penalty on standardized features, turned into a classifier of features as they are."""
    scaler = Scaler.of(x)
    return [scaler.undo(fit) for fit in softmax_regression(scaler(x), y, classes, l2)]


def _tuned(x: Array, y: Codes, classes: int, train: Codes, held: Codes, l2: Sequence[float]) -> tuple[float, Linear]:
    """The penalty with the lowest error on the held-out half, and the probe trained with it on both."""
    fits = _path(x[train], y[train], classes, l2)
    penalty = _best([np.mean(fit.predict(x[held]) != y[held]) for fit in fits], l2)
    both = np.concatenate([train, held])
    return penalty, _path(x[both], y[both], classes, [penalty])[0]


def _best(held_out: Any, l2: Sequence[float]) -> float:
    """The penalty with the lowest error; ties go to the largest."""
    return max(penalty for penalty, error in zip(l2, held_out, strict=True) if error == min(held_out))
