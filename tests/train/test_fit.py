"""Training on real data: against loops written out here, by every rule, and what ends it early."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from short_runs import BIRDS, DOMINOES, assert_same, errors_by_mode, killed_at, small, weights_of
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import trees
from samphire import data, models, probes, records
from samphire.cli import app
from samphire.data import augment
from samphire.data.parts import load_parts, some
from samphire.optim import RULES
from samphire.probes.resampling import tenth
from samphire.train import fit, load_network, training


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A few of everything: what is trained often."""
    return trees.waterbirds(trees.dominoes(tmp_path_factory.mktemp("data"), train=80))


# The loop


def plain_loop(config, root, climb):
    """SGD with momentum, SAM and LSAM, written out."""
    parts = load_parts(config.data, root)
    train = parts.train
    net = models.load(config.model, 5, generator=torch.Generator().manual_seed(records.seed(config.seed, "init")))
    net = net.to(memory_format=torch.channels_last)  # rounds otherwise, and rounding grows
    params, step, steps = list(net.parameters()), 0, config.epochs * math.ceil(len(train) / config.batch)
    kinds = {"sgd": partial(torch.optim.SGD, momentum=0.9), "adam": partial(torch.optim.Adam, betas=(0.8, 0.9)),
             "adamw": partial(torch.optim.AdamW, weight_decay=0.1)}  # fmt: skip
    opt = kinds[config.base](params, lr=config.lr)
    mean = augment.moments(train.images)[0]
    losses = []
    for epoch in range(config.epochs):
        draw = torch.Generator().manual_seed(records.seed(config.seed, f"epoch {epoch}"))
        torch.manual_seed(records.seed(config.seed, f"step {epoch}"))
        total = 0.0
        for x, y, _ in augment.batches(train, config.batch, augment.Transform(models.Normalize(mean)), draw):
            x = x.contiguous(memory_format=torch.channels_last)
            opt.param_groups[0]["lr"] = config.lr / 2 * (1 + math.cos(math.pi * step / steps))
            opt.zero_grad()
            rng, buffers = torch.get_rng_state(), {n: b.clone() for n, b in net.named_buffers()}
            loss = cross_entropy(net(x), y)
            loss.backward()
            total += loss.item() * len(y)
            if climb:
                moved = params[-2:] if climb == "head" else params
                length = sum(p.grad.double().square().sum() for p in moved).sqrt()
                before = [p.detach().clone() for p in moved]
                with torch.no_grad():
                    for p in moved:
                        p += config.rho * p.grad / length
                kept = {n: b.clone() for n, b in net.named_buffers()}
                net.load_state_dict(buffers, strict=False)
                torch.set_rng_state(rng)
                opt.zero_grad()
                cross_entropy(net(x), y).backward()
                net.load_state_dict(kept, strict=False)
                with torch.no_grad():
                    for p, b in zip(moved, before, strict=True):
                        p.copy_(b)
            opt.step()
            step += 1
        losses.append(total / len(train))
    return net, losses


@pytest.mark.parametrize(
    ("rule", "climb", "settings"),
    [
        ("sgd", None, {}),
        ("sam", "all", {}),
        ("lsam", "head", {}),
        ("lsam", "head", {"m": DOMINOES.batch}),
        ("lsam", "all", {"head": (0, 1, 6)}),  # every layer that has parameters
    ],
)
def test_a_run_is_the_loop_written_out(root, tmp_path, rule, climb, settings):
    config = replace(DOMINOES, epochs=2, rule=rule, rho=0.1 if climb else None, rule_settings=(*settings.items(),))
    trained = fit(config, root, tmp_path)
    with torch.random.fork_rng():
        net, losses = plain_loop(config, root, climb)
    assert [row["loss"] for row in trained.rows] == pytest.approx(losses, rel=1e-5)
    stored = weights_of(trained)
    for name, p in net.named_parameters():
        torch.testing.assert_close(stored[name], p.detach(), rtol=0, atol=2e-4)  # rounding grows with the steps


@pytest.mark.parametrize(
    "settings", [{"base": "adam", "base_settings": (("betas", (0.8, 0.9)),)}, {"base": "adamw", "weight_decay": 0.1}]
)
def test_a_run_with_another_base_is_the_loop_written_out(root, tmp_path, settings):
    config = replace(DOMINOES, epochs=2, lr=1e-3, rule="sam", rho=0.1, **settings)
    trained = fit(config, root, tmp_path)
    with torch.random.fork_rng():
        losses = plain_loop(config, root, "all")[1]
    assert [row["loss"] for row in trained.rows] == pytest.approx(losses, rel=1e-4)


def test_the_last_row_is_what_the_stored_network_does(root, tmp_path):
    trained = fit(replace(DOMINOES, resamples=2, probe_at=(1,)), root, tmp_path)
    parts = load_parts("fmnist-mnist", root, examples=DOMINOES.examples, probe_on=DOMINOES.probe_on)
    net, last = load_network(trained.folder), trained.rows[-1]
    guess = probes.features(net, parts.test.images, "").argmax(1)
    assert last["test_plain"] == np.mean(guess != parts.test.label)
    train, phi = parts.probe_train, probes.features(net, parts.probe_train.images)
    rest, held = tenth(train.group, np.random.default_rng(records.seed(0, "tenth")))
    fitted = probes.fitted_probes(phi[rest], train.subset(rest), resamples=2)
    phi_test = probes.features(net, parts.probe_test.images)
    assert last["probe"] == {name: p.test(phi_test, parts.probe_test).mean for name, p in fitted.items()}
    assert last["probe_val"] == {name: p.test(phi[held], train.subset(held)).mean for name, p in fitted.items()}
    assert last["probe_l2"] == {name: p.tuned.l2 for name, p in fitted.items()}
    assert last["probing"] == {
        "on": DOMINOES.probe_on, "n": 25 * fitted["mnist"].per_group, "held_out": len(held), "scaling": "global",
    }  # fmt: skip
    assert ["probe" in row for row in trained.rows] == [True, False, True]
    assert [row["lr"] for row in trained.rows] == sorted((row["lr"] for row in trained.rows), reverse=True)


def test_images_in_files_are_cropped_for_training_and_resized_for_judging(root, tmp_path):
    config = replace(BIRDS, rule="sam", rho=0.05, keep=(0, 2))
    trained = fit(config, root, tmp_path / "runs", cache=tmp_path / "cache")
    parts = load_parts("waterbirds", root, size=12, augment=True, cache=tmp_path / "cache")
    assert parts.train.images.shape[2:] == (16, 16)
    assert parts.whole.images.shape[2:] == (12, 12)
    mean = augment.moments(parts.whole.images)[0]
    assert load_network(trained.folder).normalize.mean == pytest.approx(mean)
    groups = trained.rows[-1]["test_groups"]
    weighted = np.dot([24, 4, 4, 24], list(groups.values())) / 56
    assert trained.rows[-1]["test_error"] == pytest.approx(weighted)
    assert trained.rows[-1]["test_worst"] == max(groups.values())
    first = weights_of(trained, "epoch-0.pt")
    again = fit(replace(config, rule="sgd", rho=None), root, tmp_path / "runs", cache=tmp_path / "cache")
    assert all(torch.equal(t, first[name]) for name, t in weights_of(again, "epoch-0.pt").items())
    assert not torch.equal(weights_of(trained)["6.weight"], weights_of(again)["6.weight"])


def test_nothing_of_the_callers_random_numbers_is_used_or_changed(root, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a = fit(DOMINOES, root, tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert_same(a, fit(DOMINOES, root, tmp_path / "b"))
    assert not torch.equal(
        weights_of(a)["6.weight"], weights_of(fit(replace(DOMINOES, seed=1), root, tmp_path))["6.weight"]
    )


RADII = {"asam": 0.5, "sam_on": 0.5, "gam": 0.2, "msam": 0.3, "entropy_sgd": math.nan} | dict.fromkeys(
    ("gnp", "cr_sam", "ssam_f", "ssam_d", "friendly", "vasso"), 0.1
)  # as published, where it is not 0.05


SETTINGS = {"imb_sam": (("tail", (0,)),)}  # what a rule cannot do without
DISPLACED = {"msam", "stale", "entropy_sgd"}  # see the examples first at other weights


SIX_STEPS = replace(DOMINOES, epochs=1, examples=60, batch=10)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains(root, tmp_path, rule):
    config = replace(SIX_STEPS, rule=rule, rule_settings=SETTINGS.get(rule, ()))
    trained = fit(config, root, tmp_path)
    assert math.isfinite(trained.rows[-1]["val_loss"])
    assert trained.rows[-1]["rho"] == pytest.approx(RADII.get(rule, 0.05), nan_ok=True)


STILL = replace(SIX_STEPS, model="short_runs:even", lr=1e-9)


@pytest.fixture(scope="module")
def still(root, tmp_path_factory):
    return fit(STILL, root, tmp_path_factory.mktemp("still")).rows[-1]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in DISPLACED])
def test_the_loss_is_that_of_every_example_as_first_seen(root, tmp_path, still, rule):
    ours = fit(replace(STILL, rule=rule, rule_settings=SETTINGS.get(rule, ())), root, tmp_path).rows[-1]
    assert ours["loss"] == pytest.approx(still["loss"], rel=1e-5)
    assert ours["train_error"] == still["train_error"]


def test_some_examples_keep_the_groups_proportions(root):
    train = data.load("waterbirds", root)["train"]
    assert np.bincount(some(train, 28).group).tolist() == [12, 2, 2, 12]
    assert some(train, 28).ids.tolist() == some(train, 28).ids.tolist()
    with pytest.raises(ValueError, match="at most the 56 training examples, got 57"):
        some(train, 57)


def test_a_loss_that_is_not_finite_ends_the_run_with_a_sentence(root, tmp_path):
    words = ["fmnist-mnist", "model=short_runs:small", "epochs=1", "batch=50", "resamples=2", "lr=1e30"]
    for _ in range(2):
        result = CliRunner().invoke(app, ["train", *words, "--root", str(root), "--out", str(tmp_path)])
        assert result.exit_code == 1
        assert "the training loss is not finite in epoch 1 of 1, with lr = 1e+30; lower the" in result.stderr
    (folder,) = (path.parent for path in tmp_path.glob("*/done"))
    assert not (folder / "model.pt").exists()
    with pytest.raises(FileNotFoundError, match=r"has no model.pt; it is not finished, or its training stopped"):
        load_network(folder)


def test_a_loss_that_is_not_finite_ends_the_epoch_too(root, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        steps = killed_at(patch, None, [(training.Training, "_step")])
        fit(replace(DOMINOES, batch=4, lr=1e30), root, tmp_path)
    assert len(steps) <= 2 * training.CHECK_EVERY


def test_weights_that_overflow_in_the_last_step_end_the_run(root, tmp_path):
    config = replace(DOMINOES, epochs=2, batch=10_000, lr=1e30, resamples=1)  # one step an epoch, its loss finite
    stopped = fit(config, root, tmp_path).stopped
    assert stopped.startswith("the validation loss is not finite in epoch 1 of 2, with lr = 1e+30; lower the")
    for method in ("jtt", "dfr"):
        built = fit(replace(config, method=method), root, tmp_path)
        assert built.stopped == f"the training that {method} builds on ended early: " + stopped.replace(
            "of 2", "of 1" if method == "jtt" else "of 2"
        )
        assert (built.folder / "done").exists()


# BatchNorm


def slow(num_classes=2, generator=None):
    """A network whose statistics move by a hundredth a step."""
    net = small(num_classes)
    net[1].momentum = 0.01
    return net


def test_a_network_is_judged_and_kept_with_the_statistics_of_its_weights(root, tmp_path):
    first = fit(replace(DOMINOES, model="test_fit:slow"), root, tmp_path)
    pretrained = weights_of(first) | {
        "1.running_mean": torch.full((6,), 40.0),
        "1.running_var": torch.full((6,), 900.0),
    }
    torch.save(pretrained, tmp_path / "pretrained.pt")  # as of images from 0 to 255
    config = replace(DOMINOES, model="test_fit:slow", weights=str(tmp_path / "pretrained.pt"), keep=(1,), seed=1)
    trained = fit(config, root, tmp_path)
    train = load_parts("fmnist-mnist", root).train
    for weights in ("epoch-1.pt", "model.pt"):
        by_batch, by_running = errors_by_mode(load_network(trained.folder, weights), train)
        assert by_batch < 0.7  # of five classes
        assert abs(by_batch - by_running) < 0.1
    assert trained.rows[-1]["val_error"] < 0.7


def test_statistics_come_from_whole_batches_and_leave_the_weights_alone(root, tmp_path, monkeypatch):
    sizes = []
    real = training.refresh_batchnorm

    def watched(net, data):
        before = {name: p.clone() for name, p in net.named_parameters()}
        real(net, (sizes.append(len(x)) or x for x in data))
        assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())

    monkeypatch.setattr(training, "refresh_batchnorm", watched)
    fit(replace(DOMINOES, epochs=1, batch=30), root, tmp_path / "a")
    n = len(load_parts("fmnist-mnist", root).train)
    assert n >= 30 * (training.STATISTICS_FROM + 1)
    assert sizes == [30] * training.STATISTICS_FROM
    sizes.clear()
    fit(replace(DOMINOES, epochs=1, batch=n + 1), root, tmp_path / "b")
    assert sizes == [n]
