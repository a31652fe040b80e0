"""Problems that the tests of probes share."""

import numpy as np
from scipy.special import logsumexp

from samphire.data.split import Split
from samphire.probes.logistic import Scaler


def two_features(n, *, share=0.5, seed=0, **values):
    """A split whose features a and b agree in a share of the examples."""
    draw = np.random.default_rng(seed)
    a = np.arange(n) % 2
    b = np.where(draw.random(n) < share, a, 1 - a)
    return Split(np.zeros(n), a, {"a": a, "b": b}, values=values)


def cells(per_cell, sizes=(2, 2)):
    """A split with the same number of every combination."""
    a, b = (v.ravel().repeat(per_cell) for v in np.mgrid[: sizes[0], : sizes[1]])
    return Split(np.zeros(len(a)), a, {"a": a, "b": b})


def problem(n, d, classes, seed=0, rank=None):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, rank or d)) @ draw.normal(size=(rank or d, d)) / np.sqrt(np.arange(1, d + 1))
    y = np.argmax(x @ draw.normal(size=(d, classes)) + draw.normal(size=(n, classes)), 1)
    y[:classes] = np.arange(classes)
    return Scaler.of(x)(x), y


def objective(fit, x, y, l2):
    z = x @ fit.weight.T + fit.bias
    return (logsumexp(z, 1) - z[np.arange(len(y)), y]).mean() + l2 / 2 * (fit.weight**2).sum()
