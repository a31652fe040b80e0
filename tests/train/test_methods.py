"""Every method trains as its paper says."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import BIRDS, DOMINOES, errors_by_mode, weights_of, without_seconds
from torch.nn.functional import cross_entropy

from samphire import baselines, probes, records
from samphire.data import augment
from samphire.data.parts import load_parts
from samphire.probes.resampling import halves
from samphire.train import fit, load_network, methods, training


def epochs_visited(monkeypatch):
    """The positions that each epoch will visit; those for BatchNorm's statistics come without a rank."""
    visited, real = [], augment.batches

    def batches(*args, **settings):
        if "rank" in settings:
            visited.append(settings["positions"])
        return real(*args, **settings)

    monkeypatch.setattr(augment, "batches", batches)
    return visited


def test_reweighting_visits_groups_equally_often(root, tmp_path, monkeypatch):
    visited = epochs_visited(monkeypatch)
    fit(replace(BIRDS, method="reweight", epochs=30), root, tmp_path / "runs", cache=tmp_path)
    group = np.repeat(np.arange(4), (24, 4, 4, 24))
    share = np.bincount(group[np.concatenate(visited)]) / (30 * 56)
    assert share == pytest.approx([0.25] * 4, abs=0.05)


def test_group_dro_weighs_groups_by_their_losses_once_a_step(root, tmp_path, monkeypatch):
    made, calls = [], []

    class Watched(methods.GroupDRO):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

        def forward(self, losses, groups):
            calls.append((losses.detach().double(), groups))
            return super().forward(losses, groups)

    monkeypatch.setattr(methods, "GroupDRO", Watched)
    config = replace(BIRDS, method="group_dro", method_settings=(("eta", 0.2),), rule="sam", rho=0.05)
    fit(config, root, tmp_path / "runs", cache=tmp_path)
    clean = calls[::2]  # every other pass is SAM's second
    assert len(clean) == 3 * 4
    log_q = torch.zeros(4, dtype=torch.float64)
    for losses, groups in clean:
        log_q += torch.tensor([0.2 * losses[groups == g].mean() if (groups == g).any() else 0.0 for g in range(4)])
    (dro,) = made
    torch.testing.assert_close(dro.q.double(), log_q.softmax(0), rtol=1e-4, atol=1e-5)


def test_jtt_repeats_what_the_first_training_got_wrong(root, tmp_path, monkeypatch):
    visited = epochs_visited(monkeypatch)
    config = replace(BIRDS, method="jtt", method_settings=(("epochs", 1), ("times", 5)))
    fit(config, root, tmp_path / "runs", cache=tmp_path / "cache")
    first, *second = visited
    assert first is None
    parts = load_parts("waterbirds", root, size=12, cache=tmp_path / "cache")
    identified = replace(config, method="erm", method_settings=(), epochs=1)
    net = load_network(tmp_path / "runs" / records.key(identified))
    wrong = probes.features(net, parts.whole.images, "").argmax(1) != parts.whole.label
    assert 0 < wrong.sum() < 56
    assert np.bincount(second[0]).tolist() == np.where(wrong, 5, 1).tolist()


def test_useful_repeats_the_slow_part_of_each_class(root, tmp_path, monkeypatch):
    visits, real = [], augment.batches
    monkeypatch.setattr(
        training.augment, "batches", lambda *a, **k: visits.append(k.get("positions")) or real(*a, **k)
    )
    config = replace(DOMINOES, epochs=2, method="useful", method_settings=(("epochs", 1), ("times", 3)))
    fit(config, root, tmp_path)
    train = load_parts("fmnist-mnist", root).train
    first = fit(methods.first_training(config), root, tmp_path)
    logits = torch.from_numpy(probes.features(load_network(first.folder), train.images, ""))
    slow = baselines.slow_part(logits, train.label)
    again = np.bincount(visits[-2], minlength=len(train))
    assert set(again[slow]) == {3}
    assert again.sum() == len(train) + 2 * len(slow)


def test_swa_ends_at_the_mean_of_the_last_epochs_weights(root, tmp_path):
    config = replace(DOMINOES, schedule="constant", keep=(1, 2))
    plain = fit(replace(config, keep=(1, 2, 3)), root, tmp_path)
    mean = fit(replace(config, method="swa", method_settings=(("epochs", 2),)), root, tmp_path)
    (second, third), end = (weights_of(plain, f"epoch-{n}.pt") for n in (2, 3)), weights_of(mean)
    for name in ("0.weight", "1.bias", "6.weight"):
        torch.testing.assert_close(end[name], (second[name] + third[name]) / 2)
    assert torch.equal(weights_of(mean, "epoch-2.pt")["0.weight"], second["0.weight"])
    by_batch, by_running = errors_by_mode(load_network(mean.folder), load_parts("fmnist-mnist", root).train)
    assert abs(by_batch - by_running) < 0.1


def test_spectral_decoupling_keeps_the_logits_small(root, tmp_path):
    config = replace(DOMINOES, epochs=2)
    images = load_parts("fmnist-mnist", root).train.images
    size = lambda c: np.square(probes.features(load_network(fit(c, root, tmp_path).folder), images, "")).sum(1).mean()
    decoupled = replace(config, method="spectral_decoupling", method_settings=(("lam", 0.5),))
    assert size(decoupled) < size(config) / 4
    none = fit(replace(config, method="spectral_decoupling", method_settings=(("lam", 0.0),)), root, tmp_path)
    assert without_seconds(none.rows) == without_seconds(fit(config, root, tmp_path).rows)


def test_dfr_is_another_head_on_the_same_features(root, tmp_path):
    config = replace(BIRDS, resamples=1)
    plain = fit(config, root, tmp_path / "runs", cache=tmp_path / "cache")
    there = replace(config, method="dfr", method_settings=(("resamples", 3),))
    retrained = fit(there, root, tmp_path / "runs", cache=tmp_path / "cache")
    assert fit(there, root, tmp_path / "runs", cache=tmp_path / "cache") == retrained
    parts, net = load_parts("waterbirds", root, size=12, cache=tmp_path / "cache"), load_network(plain.folder)
    phi, phi_test = (probes.features(net, part.images) for part in (parts.val, parts.test))
    guess = probes.dfr(phi, parts.val, resamples=3).predict(phi_test)
    assert retrained.rows[-1]["test_plain"] == np.mean(guess != parts.test.label)
    assert retrained.rows[-1]["probe"] == plain.rows[-1]["probe"]
    half, other = halves(parts.val.group, np.random.default_rng(records.seed(config.seed, "halves")))
    head = probes.retrain_last_layer(phi[half], parts.val.subset(half), resamples=3)
    held = cross_entropy(head(torch.from_numpy(phi[other])), torch.from_numpy(parts.val.label[other]))
    assert retrained.rows[-1]["val_loss"] == pytest.approx(held.item(), rel=1e-4)
    assert "loss" not in retrained.rows[-1]
    after = probes.features(load_network(retrained.folder), parts.test.images, "").argmax(1)
    assert np.array_equal(after, guess)
