"""Last-layer retraining frees a head from its shortcut, as published."""

import warnings

import numpy as np
import pytest
import torch
from probe_problems import cells, two_features
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from samphire import probes
from samphire.probes.resampling import balanced, halves


def shortcut(n, seed, share):
    split = two_features(n, share=share, seed=seed)
    draw = np.random.default_rng(seed + 100)
    x = np.stack([split.features["a"] * 2.0, split.features["b"] * 6.0], 1) + draw.normal(size=(n, 2))
    return np.concatenate([x, draw.normal(size=(n, 8))], 1), split


def test_dfr_frees_a_head_from_its_shortcut():
    (x, train), (v, val), (t, test) = shortcut(2000, 0, 0.95), shortcut(800, 1, 0.8), shortcut(2000, 2, 0.5)
    shortcut_head = LogisticRegression().fit(x, train.label)
    before = probes.errors(shortcut_head.predict(t), test, train)
    found = probes.dfr(v, val, scale_by=x, resamples=5)
    after = probes.errors(found.predict(t), test, train)
    assert before.worst.error > 0.3
    assert after.worst.error < 0.22
    assert found.per_group == np.bincount(val.group).min()
    assert found.tuning.keys() == {1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01}
    assert found.tuning[found.c] == max(found.tuning.values())
    head = probes.retrain_last_layer(v, val, scale_by=x, resamples=5)
    with torch.no_grad():
        assert (head(torch.from_numpy(t).float()).argmax(1).numpy() == found.predict(t)).all()
    place = probes.dfr(v, val, "b", resamples=2)
    assert probes.errors(place.predict(t), test, train, "b").equal_group < 0.02


def test_dfr_refits_as_published():
    """Coefficients averaged over balanced resamples of all examples, scaled by the training set, by liblinear."""
    from samphire import records

    (x, _), (v, val) = shortcut(500, 0, 0.9), shortcut(160, 1, 0.7)
    found = probes.dfr(v, val, scale_by=x, resamples=4, c=[0.3])
    draw = np.random.default_rng(records.seed(0, "dfr"))
    _, second = halves(val.group, draw)
    balanced(val.group[second], draw)
    scaler, coefs = StandardScaler().fit(x), []
    for _ in range(4):
        i = balanced(val.group, draw)
        assert len(set(np.bincount(val.group[i]))) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=0.3, l1_ratio=1, solver="liblinear", tol=1e-8, max_iter=2000)
            model.fit(scaler.transform(v[i]), val.label[i])
        coefs.append(np.append(model.coef_[0], model.intercept_))
    w = np.mean(coefs, 0)
    theirs = scaler.transform(v) @ w[:-1] + w[-1]
    z = v @ found.linear.weight.T + found.linear.bias
    assert z[:, 1] - z[:, 0] == pytest.approx(theirs, abs=2e-3)


def test_dfr_takes_more_than_two_classes():
    split = cells(40, (3, 2))
    x = np.eye(3)[split.label] * 3 + np.random.default_rng(0).normal(size=(len(split), 3))
    found = probes.dfr(x, split, resamples=3)
    assert found.head().out_features == 3
    assert np.mean(found.predict(x) != split.label) < 0.1
