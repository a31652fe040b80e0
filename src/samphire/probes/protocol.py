r"""Probe error: how well a linear classifier reads a feature off frozen representations (equation 1).

.. math:: \mathrm{ProErr}_i = E_{D_{bal}}\big[\ell_{0-1}(u^\top \Phi(x), a_i(x))\big], \qquad
          u = \arg\min \hat E_{D_{bal}}\big[\ell(u^\top \Phi(x), a_i(x))\big],

where every combination of features, a group, is equally frequent in :math:`D_{bal}`, so that the probed feature is
independent of the rest. Features are arrays (n, d): of another layer, of a network with random weights or of a
pretrained one that was not trained on, they give the control probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samphire import records
from samphire.data.split import Split
from samphire.probes.groups import Codes, GroupError, joint_groups, values_of
from samphire.probes.logistic import Array, Linear, Scaler, softmax_regression

L2 = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Probe:
    """The probe error of one feature.

    Args:
        feature: Its name.
        errors: The error of each resample's probe: the equal-weight mean over groups of their test errors.
        l2: The penalty each resample chose.
        per_group: Examples of each group it was trained on.
        groups: Test error of each group, averaged over resamples.
        interval: 95 % of bootstrap means, over resamples and over test examples within groups, lie in it.
        average: Which average the errors are; ``"plain"`` for a domain's.

    Example:
        >>> probe = Probe("place", (0.1, 0.2), (1.0, 1.0), 50, (GroupError("place=0", 20, 0.15),), (0.05, 0.3))
        >>> round(probe.mean, 3), round(probe.std, 3)
        (0.15, 0.071)
    """

    feature: str
    errors: tuple[float, ...]
    l2: tuple[float, ...]
    per_group: int
    groups: tuple[GroupError, ...]
    interval: tuple[float, float]
    average: str = "equal-group"

    @property
    def mean(self) -> float:
        """Of the errors of the resamples."""
        return float(np.mean(self.errors))

    @property
    def std(self) -> float:
        """Of the errors of the resamples (n - 1 below); nan for a single one."""
        return float(np.std(self.errors, ddof=1)) if len(self.errors) > 1 else float("nan")

    def row(self) -> dict[str, Any]:
        """The probe as cells of a table."""
        worst = max(self.groups, key=lambda g: (g.error, g.n))
        return {
            "feature": self.feature,
            f"{self.average} probe error": self.mean,
            "std over resamples": self.std if len(self.errors) > 1 else None,
            "low": self.interval[0],
            "high": self.interval[1],
            "worst-group probe error": worst.error,
            "worst group": worst.name,
            "worst group's n": worst.n,
            "n per group": self.per_group,
            "median l2": float(np.median(self.l2)),
            "resamples": len(self.errors),
        }


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
    progress: Progress | None = None,
) -> Probe:
    r"""Equation 1: the probe error of one feature.

    Each resample draws as many examples of every group, half of them to train on and half to choose
    :math:`\lambda` by. The probe is multinomial logistic regression with an L2 penalty, solved to the optimum for
    every :math:`\lambda`, on features standardised by the training half. The :math:`\lambda` with the lowest error
    on the other half is taken (of equals the largest), a probe is trained with it on both halves, and tested on all
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
        shuffle_labels: Train on the feature's values in random order: the control whose error must be that of
            guessing, whatever the features.
        seed: Of the draws, which depend on the groups alone: probes of other features, networks and layers
            see the same examples.
        progress: Called with the resamples done and their number.

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
    if resamples < 1:
        raise ValueError(f"resamples must be >= 1, got {resamples!r}.")
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
        if progress is not None:
            progress(i + 1, resamples)
    return _result(feature, wrong, chosen, per_group, test_group, names)


def probes(
    train_features: Any,
    train_split: Split,
    test_features: Any,
    test_split: Split,
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[str, Probe]:
    """The probe of every feature, by name.

    Args:
        train_features: As for :func:`probe`.
        train_split: As there.
        test_features: As there.
        test_split: As there.
        progress: Called with the resamples done over all features and their number.
        settings: Of :func:`probe`.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> found = probes(a[:, None], split, a[:, None], split, resamples=2)
        >>> {name: p.mean for name, p in found.items()}
        {'a': 0.0, 'b': 0.5}
    """
    names = tuple(train_split.features)
    return {
        name: probe(
            *(train_features, train_split, test_features, test_split, name),
            progress=_part(progress, i, len(names)),
            **settings,
        )
        for i, name in enumerate(names)
    }


def by_difficulty(sgd: Mapping[str, Probe]) -> tuple[str, ...]:
    """Features from easy to hard: by the probe error after training with SGD, which is the paper's definition.

    Args:
        sgd: Probes of a network trained with SGD.

    Example:
        >>> easy, hard = (Probe(n, (e,), (1.0,), 9, (), (e, e)) for n, e in (("digit", 0.02), ("cloth", 0.15)))
        >>> by_difficulty({"cloth": hard, "digit": easy})
        ('digit', 'cloth')
    """
    return tuple(sorted(sgd, key=lambda name: sgd[name].mean))


def rows(networks: Mapping[str, Mapping[str, Probe]], baseline: str = "sgd") -> list[dict[str, Any]]:
    """Probes of several networks as rows of a table, easy and hard as the baseline's probe errors say.

    Args:
        networks: The probes of each network, by its name.
        baseline: Whose errors define easy and hard; the network trained with SGD.

    Example:
        >>> group = (GroupError("g", 5, 0.5),)
        >>> easy, hard = (Probe(n, (e,), (1.0,), 9, group, (e, e)) for n, e in (("a", 0), ("b", 1)))
        >>> [(row["network"], row["feature"], row["difficulty"]) for row in rows({"sgd": {"b": hard, "a": easy}})]
        [('sgd', 'a', 'easy'), ('sgd', 'b', 'hard')]
    """
    if baseline not in networks:
        raise ValueError(f"easy and hard come from the probes of {baseline!r}, but there are {', '.join(networks)}.")
    order = by_difficulty(networks[baseline])
    words = ["easy", *("middle" for _ in order[1:-1]), "hard"] if len(order) > 1 else ["only"]
    return [
        {"network": name, "difficulty": word} | found[feature].row()
        for name, found in networks.items()
        for feature, word in zip(order, words, strict=True)
    ]


def learning_curve(
    train_features: Any,
    train_split: Split,
    test_features: Any,
    test_split: Split,
    feature: str,
    *,
    sizes: Sequence[int] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> dict[int, Probe]:
    """Probe error against training examples per group: would more labels help, or is the feature not there?

    Args:
        train_features: As for :func:`probe`.
        train_split: As there.
        test_features: As there.
        test_split: As there.
        feature: As there.
        sizes: Examples per group; by default halved from the most there are down to 8.
        progress: Called with the resamples done over all sizes and their number.
        settings: Of :func:`probe`.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> list(learning_curve(a[:, None], split, a[:, None], split, "a", resamples=1))
        [10, 20]
    """
    if sizes is None:
        most = int(np.unique(joint_groups(train_split)[0][0], return_counts=True)[1].min()) // 2
        sizes = [2 * (most >> i) for i in range(most.bit_length()) if i == 0 or most >> i >= 4][::-1]
    return {
        size: probe(
            *(train_features, train_split, test_features, test_split, feature),
            per_group=size,
            progress=_part(progress, i, len(sizes)),
            **settings,
        )
        for i, size in enumerate(sizes)
    }


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
    found = _result("label", wrong[None], [penalty], len(y), everything, ["every example"])
    return replace(found, average="plain")


def bootstrap(
    wrong: NDArray[Any], group: Codes, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    r"""An interval for the equal-group error by drawing resamples, and test examples within groups, again.

    Args:
        wrong: Of each resample (rows) and test example (columns), whether it was wrong.
        group: Of each test example.
        draws: How many.
        level: Share of the draws' means inside the interval.
        seed: Of the draws.

    Example:
        >>> bootstrap(np.zeros((3, 4)), np.array([0, 0, 1, 1]))
        (0.0, 0.0)
    """
    draw = np.random.default_rng(records.seed(seed, "bootstrap"))
    order = np.argsort(group, kind="stable")
    _, first, inverse, count = np.unique(group[order], return_index=True, return_inverse=True, return_counts=True)
    first, size = first[inverse], count[inverse]  # of each test example's group
    share = 1 / (len(count) * size)
    wrong = wrong[:, order].astype(np.float64)
    weights = draw.multinomial(len(wrong), np.full(len(wrong), 1 / len(wrong)), size=draws) / len(wrong)
    means = [share @ (w @ wrong)[first + (size * draw.random(len(size))).astype(np.int64)] for w in weights]
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


# Draws


def balanced_halves(group: Codes, per_group: int, draw: np.random.Generator) -> tuple[Codes, Codes]:
    """Positions of ``per_group`` examples of every group, and of as many others, without repetition.

    Example:
        >>> train, held = balanced_halves(np.array([0, 0, 0, 1, 1]), 1, np.random.default_rng(0))
        >>> len(train), len(held), len(np.intersect1d(train, held))
        (2, 2, 0)
    """
    drawn = [draw.permutation(members)[: 2 * per_group] for members in members_of(group)]
    return np.concatenate([d[:per_group] for d in drawn]), np.concatenate([d[per_group:] for d in drawn])


def halves(group: Codes, draw: np.random.Generator) -> tuple[Codes, Codes]:
    """Positions of all examples in two parts, each group split evenly (the first part has the odd one).

    Example:
        >>> first, second = halves(np.array([0, 0, 0, 1, 1]), np.random.default_rng(0))
        >>> len(first), len(second)
        (3, 2)
    """
    drawn = [np.array_split(draw.permutation(members), 2) for members in members_of(group)]
    return np.concatenate([a for a, _ in drawn]), np.concatenate([b for _, b in drawn])


def members_of(group: Codes) -> Iterator[Codes]:
    """The positions of each group's examples."""
    return (np.flatnonzero(group == g) for g in np.unique(group))


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


def _part(progress: Progress | None, i: int, parts: int) -> Progress | None:
    """The progress of part i of several of the same length, within the whole."""
    return None if progress is None else lambda done, total: progress(i * total + done, parts * total)


# One probe


def _path(x: Array, y: Codes, classes: int, l2: Sequence[float]) -> list[Linear]:
    """The optimum for every penalty on features standardised by ``x`` itself, for features as they are."""
    scaler = Scaler.of(x)
    return [scaler.undo(fit) for fit in softmax_regression(scaler(x), y, classes, l2)]


def _tuned(x: Array, y: Codes, classes: int, train: Codes, held: Codes, l2: Sequence[float]) -> tuple[float, Linear]:
    """The penalty with the lowest error on the held-out half, and the probe trained with it on both."""
    fits = _path(x[train], y[train], classes, l2)
    penalty = _best([np.mean(fit.predict(x[held]) != y[held]) for fit in fits], l2)
    both = np.concatenate([train, held])
    return penalty, _path(x[both], y[both], classes, [penalty])[0]


def _best(held_out: Any, l2: Sequence[float]) -> float:
    """Of the penalties with the lowest error the largest."""
    return max(penalty for penalty, error in zip(l2, held_out, strict=True) if error == min(held_out))


def _result(
    feature: str, wrong: NDArray[np.bool_], l2: list[float], per_group: int, group: Codes, names: list[str]
) -> Probe:
    by_group = np.stack([wrong[:, members].mean(1) for members in members_of(group)], 1)
    found, n = np.unique(group, return_counts=True)
    return Probe(
        feature,
        errors=tuple(by_group.mean(1).tolist()),
        l2=tuple(l2),
        per_group=per_group,
        groups=tuple(
            GroupError(names[g], int(k), float(e)) for g, k, e in zip(found, n, by_group.mean(0), strict=True)
        ),
        interval=bootstrap(wrong, group),
    )
