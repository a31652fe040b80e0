r"""Probe error: how well a linear classifier reads a feature off frozen representations (equation 1).

.. math:: \mathrm{ProErr}_i = E_{D_{bal}}\big[\ell_{0-1}(u^\top \Phi(x), a_i(x))\big], \qquad
          u = \arg\min \hat E_{D_{bal}}\big[\ell(u^\top \Phi(x), a_i(x))\big],

where every combination of features, a group, is equally frequent in :math:`D_{bal}`, so that the probed feature is
independent of the rest. Features are arrays (n, d): of another layer, of a network with random weights or of a
pretrained one that was not trained on, they give the control probes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samphire import records
from samphire.checks import check_one_of, check_whole
from samphire.data.split import Split
from samphire.probes.groups import Codes, joint_groups, values_of
from samphire.probes.logistic import SCALINGS, Array, Linear, Scaling, predictions
from samphire.probes.resampling import balanced_halves, halves
from samphire.probes.results import Probe, probe_of
from samphire.probes.tuning import L2, Resample, Tuned, fits_of, tuned
from samphire.progress import Progress, silent, stretch

__all__ = [
    "L2", "FittedProbe", "checked", "domain_probe", "fitted_probe", "fitted_probes", "learning_curve", "probe",
    "probes",
]  # fmt: skip


@dataclass(frozen=True)
class FittedProbe:
    """A probe of one feature before it is tested; see :func:`fitted_probes`.

    Attributes:
        feature: Its name.
        fits: One classifier of features as they are for each balanced resample; one alone if every resample has all
            examples.
        per_group: Examples of each group that each was trained on.
        tuned: The penalty and what it was chosen from.
        scaling: How features were scaled before they were penalized.
        groups: The split it was trained on, to name groups by.
    """

    feature: str
    fits: tuple[Linear, ...]
    per_group: int
    tuned: Tuned
    scaling: Scaling
    groups: Split

    def test(self, features: Any, split: Split) -> Probe:
        """The probe error on other examples, which must have all combinations of features."""
        x, y = checked(features, split, "test"), values_of(split, self.feature)
        (trained, group), names = joint_groups(self.groups, split)
        _check_tested(trained, group, names)
        wrong = predictions(self.fits, x) != y
        return probe_of(self.feature, wrong, self.tuned, self.scaling, self.per_group, group, names)


def fitted_probes(
    features: Any,
    split: Split,
    *,
    only: Sequence[str] | None = None,
    resamples: int = 20,
    l2: Sequence[float] = L2,
    scaling: Scaling = "global",
    per_group: int | None = None,
    shuffle_labels: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, FittedProbe]:
    r"""The probe of every feature, to be tested on any examples; equation 1's :math:`u`.

    Each resample draws the same number of examples of every group, half of them to train on and half to choose
    :math:`\lambda`. A probe is multinomial logistic regression with an L2 penalty, solved to the optimum for every
    :math:`\lambda`, on features scaled by the training half. The :math:`\lambda` with the lowest error on the other
    halves, averaged over resamples, is taken (:func:`samphire.probes.tuning.tuned`), and a probe is trained with it
    on both halves of each resample. Where all groups are of one size every resample has all examples: they differ in
    the halves alone, and one probe is trained.

    Args:
        features: Frozen features (n, d) of the probing set.
        split: These examples; every combination of features must occur twice or more.
        only: Names of features; all unless given.
        resamples: How many.
        l2: Penalties :math:`\lambda` for the mean loss; the grid grows where the best lies at its edge. A single one
            is taken as it is.
        scaling: ``"global"``: all features are divided by one number, the root mean square deviation of all.
            ``"each"``: each by its own deviation, so that faint features count as much as strong ones. ``"none"``.
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
        >>> fitted = fitted_probes(phi, split, resamples=3)
        >>> fitted["a"].test(phi, split).mean, fitted["b"].test(phi, split).mean > 0.3
        (0.0, True)

    References:
        Springer et al. 2024, section 3.1, which leaves open the loss, the penalty, the scaling, the size and the
        repetitions (``samphire reproduce probe-study`` measures what they change); Kirichenko et al., Last Layer
        Re-Training is Sufficient for Robustness to Spurious Correlations, ICLR 2023, which scales each feature.
    """
    x = checked(features, split, "train")
    (group,), names = joint_groups(split)
    check_whole("resamples", resamples)
    check_one_of("scaling", scaling, SCALINGS)
    per_group = _check_groups(group, names, per_group)
    targets = {name: values_of(split, name) for name in (split.features if only is None else only)}
    draw = np.random.default_rng(records.seed(seed, "probe"))
    drawn = [_resample(group, per_group, targets, shuffle_labels, draw) for _ in range(resamples)]
    everything = np.bincount(group).max() <= per_group + 1  # halves leave out the odd one
    final = drawn[:1] if everything and not shuffle_labels else drawn
    share = len(drawn) / (len(drawn) + len(final))
    penalties = tuned(x, drawn, l2, scaling, stretch(progress, 0.0, share))
    fits: dict[str, list[Linear]] = {name: [] for name in targets}
    for i, resample in enumerate(final):
        for name, fit in _both(x, resample, penalties, scaling).items():
            fits[name].append(fit)
        stretch(progress, share, 1.0)("probes", i + 1, len(final))
    return {
        name: FittedProbe(name, tuple(fits[name]), per_group, penalties[name], scaling, split) for name in targets
    }


def probe(
    train_features: Any, train_split: Split, test_features: Any, test_split: Split, feature: str, **settings: Any
) -> Probe:
    """Equation 1: the probe error of one feature.

    The error is the equal-weight mean of the groups' errors on all test examples, which has the expectation of a
    balanced test set and less variance.

    Args:
        train_features: Frozen features (n, d) of the probing set.
        train_split: These examples.
        test_features: Frozen features of the test examples, by the same network and layer.
        test_split: These examples; every combination of features must occur.
        feature: The name of the feature to predict.
        **settings: Those of :func:`fitted_probes`.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> probe(a[:, None], split, a[:, None], split, "a", resamples=3).mean
        0.0
    """
    return probes(train_features, train_split, test_features, test_split, only=[feature], **settings)[feature]


def probes(
    train_features: Any, train_split: Split, test_features: Any, test_split: Split, **settings: Any
) -> dict[str, Probe]:
    """The probe error of every feature, by name; the arguments are those of :func:`probe`.

    All features are fitted at once, which is faster than one after the other.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> {name: p.mean for name, p in probes(a[:, None], split, a[:, None], split, resamples=2).items()}
        {'a': 0.0, 'b': 0.5}
    """
    (train, test), names = joint_groups(train_split, test_split)
    _check_tested(train, test, names)  # before minutes of work, not after them
    checked(test_features, test_split, "test")
    fitted = fitted_probes(train_features, train_split, **settings)
    return {name: probe.test(test_features, test_split) for name, probe in fitted.items()}


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
    curve, n = {}, len(sizes)
    for i, size in enumerate(sizes):
        part = stretch(progress, i / n, (i + 1) / n)
        inputs = (train_features, train_split, test_features, test_split, feature)
        curve[size] = probe(*inputs, per_group=size, progress=part, **settings)
    return curve


def domain_probe(
    train_features: Any,
    train_split: Split,
    test_features: Any,
    test_split: Split,
    *,
    resamples: int = 5,
    l2: Sequence[float] = L2,
    scaling: Scaling = "global",
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
        l2: As for :func:`fitted_probes`.
        scaling: As there.
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
    targets = {"label": train_split.label}
    draw = np.random.default_rng(records.seed(seed, "domain probe"))
    drawn = [Resample(*halves(train_split.label, draw), targets) for _ in range(resamples)]
    penalty = tuned(x, drawn, l2, scaling)["label"]
    (fit,) = fits_of(x, np.arange(len(x)), targets, [penalty.l2], scaling)["label"]
    wrong = (fit.predict(x_test) != test_split.label)[None]
    everything = np.zeros(len(x_test), np.int64)
    return probe_of("label", wrong, penalty, scaling, len(x), everything, ["every example"], average="plain")


def fitted_probe(features: Any, split: Split, feature: str, *, resamples: int = 5, **settings: Any) -> Linear:
    r"""One probe of a feature, trained on as many examples of every group as the smallest one has.

    The classifier is for features as they are, not scaled.

    Args:
        features: Frozen features (n, d) of the probing set.
        split: These examples; every combination of features must occur twice or more.
        feature: The name of the feature to predict.
        resamples: Balanced halves that choose the penalty.
        **settings: Others of :func:`fitted_probes`.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> fit = fitted_probe(np.stack([a, b], 1), split, "b")
        >>> bool((fit.predict(np.stack([a, b], 1)) == b).all())
        True
    """
    return fitted_probes(features, split, only=[feature], resamples=resamples, **settings)[feature].fits[0]


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


def _resample(
    group: Codes, per_group: int, targets: Mapping[str, Codes], shuffle: bool, draw: np.random.Generator
) -> Resample:
    train, held = balanced_halves(group, per_group // 2, draw)
    if not shuffle:
        return Resample(train, held, targets)
    both = np.concatenate([train, held])
    shuffled = {name: y.copy() for name, y in targets.items()}
    for y in shuffled.values():
        y[both] = draw.permutation(y[both])
    return Resample(train, held, shuffled)


def _both(x: Array, resample: Resample, penalties: Mapping[str, Tuned], scaling: Scaling) -> dict[str, Linear]:
    """The classifier of each target, trained on both halves with its penalty."""
    l2 = sorted({tuned.l2 for tuned in penalties.values()})
    paths = fits_of(x, resample.both, resample.targets, l2, scaling)
    return {name: path[l2.index(penalties[name].l2)] for name, path in paths.items()}


def _check_tested(train: Codes, test: Codes, names: list[str]) -> None:
    for name, n, m in zip(names, *(np.bincount(g, minlength=len(names)) for g in (train, test)), strict=True):
        if n < 2 or m < 1:
            raise ValueError(
                f"a probe needs two training examples and a test example of every group, but {name} has {n} and {m}; "
                "take splits in which all combinations of features occur."
            )


def _check_groups(group: Codes, names: list[str], per_group: int | None) -> int:
    counts = np.bincount(group, minlength=len(names))
    if counts.min() < 2:
        raise ValueError(
            f"a probe needs two training examples of every group, but {names[int(counts.argmin())]} has "
            f"{counts.min()}; take a split in which all combinations of features occur."
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
