"""Training on real data: against loops written out here, through kills, by every method, on two ranks."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

import trees
from samphire import baselines, data, models, probes, records
from samphire.cli import app
from samphire.data import augment
from samphire.data.parts import load_parts, some
from samphire.optim import RULES
from samphire.probes.resampling import halves, tenth
from samphire.records import runs as run_files
from samphire.train import Config, appendix_b, fit, load_network, methods, parse, training


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return trees.waterbirds(trees.dominoes(tmp_path_factory.mktemp("data")))


def small(num_classes=2, generator=None):
    """A few parameters, BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(54, num_classes),
    )  # fmt: skip


SHORT = {"model": "test_train:small", "epochs": 3, "batch": 50, "resamples": 0, "lr": 0.1}
DOMINOES = appendix_b("fmnist-mnist", **SHORT)
BIRDS = appendix_b("waterbirds", **{**SHORT, "batch": 16, "size": 12, "weights": None})


def without_seconds(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def weights_of(trained, name="model.pt"):
    return torch.load(trained.folder / name)


def assert_same(a, b):
    assert without_seconds(a.rows) == without_seconds(b.rows)
    files = [sorted(path.name for path in trained.folder.glob("*.pt")) for trained in (a, b)]
    assert files[0] == files[1]
    for file in files[0]:
        first, second = weights_of(a, file), weights_of(b, file)
        for name in first:
            assert torch.equal(first[name], second[name]), f"{name} in {file}"


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


@pytest.mark.parametrize(("rule", "climb"), [("sgd", None), ("sam", "all"), ("lsam", "head")])
def test_a_run_is_the_loop_written_out(root, tmp_path, rule, climb):
    config = replace(DOMINOES, epochs=2, rule=rule, rho=0.1 if climb else None)
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


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains(root, tmp_path, rule):
    config = replace(DOMINOES, rule=rule, rule_settings=SETTINGS.get(rule, ()), epochs=1)
    trained = fit(config, root, tmp_path)
    assert math.isfinite(trained.rows[-1]["val_loss"])
    assert trained.rows[-1]["rho"] == pytest.approx(RADII.get(rule, 0.05), nan_ok=True)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in DISPLACED])
def test_the_loss_is_that_of_every_example_as_first_seen(root, tmp_path, rule):
    still = replace(DOMINOES, model="test_train:even", epochs=1, lr=1e-9)
    climbing = replace(still, rule=rule, rule_settings=SETTINGS.get(rule, ()))
    ours, sgd = (fit(config, root, tmp_path).rows[-1] for config in (climbing, still))
    assert ours["loss"] == pytest.approx(sgd["loss"], rel=1e-5)
    assert ours["train_error"] == sgd["train_error"]


def test_some_examples_keep_the_groups_proportions(root):
    train = data.load("waterbirds", root)["train"]
    assert np.bincount(some(train, 28).group).tolist() == [12, 2, 2, 12]
    assert some(train, 28).ids.tolist() == some(train, 28).ids.tolist()
    with pytest.raises(ValueError, match="at most the 56 training examples, got 57"):
        some(train, 57)


# Kills


class Killed(BaseException):
    """Ends a training where a signal would: nothing catches it."""


MEMORIES = [
    {"rule": "sam", "rho": 0.1},
    {"rule": "looksam", "rho": 0.1},
    {"rule": "vasso", "rho": 0.1},
    {"rule": "sam", "rho": 0.1, "base": "adamw", "lr": 0.01},
    {"base": "muon", "lr": 0.01},
    {"method": "group_dro", "method_settings": (("eta", 0.5),)},
    {"method": "jtt", "method_settings": (("epochs", 1), ("times", 2))},
    {"method": "useful", "method_settings": (("epochs", 1), ("times", 2))},
    {"method": "swa", "method_settings": (("epochs", 2),)},
    {"method": "dfr", "method_settings": (("resamples", 1),), "resamples": 1},
]


def killed_at(monkeypatch, when, places):
    """Count the calls of some functions, and end the training instead of making one of them."""
    calls = []

    def watched(real):
        def call(*args, **kwargs):
            calls.append(real)
            if len(calls) == when:
                raise Killed
            return real(*args, **kwargs)

        return call

    for owner, name in places:
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    return calls


WRITES = (records, "write_atomic"), (run_files, "write_atomic"), (records.Run, "append")


@pytest.mark.parametrize("settings", MEMORIES, ids=lambda s: " ".join(v for v in s.values() if type(v) is str))
def test_a_run_killed_before_any_of_its_writes_ends_where_an_uninterrupted_one_does(
    root, tmp_path, monkeypatch, settings
):
    config = replace(DOMINOES, epochs=2, keep=(0, 1), **settings)
    with monkeypatch.context() as patch:
        writes = killed_at(patch, None, WRITES)
        whole = fit(config, root, tmp_path / "whole")
    assert len(writes) >= 8
    for when in range(1, len(writes) + 1):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed_at(patch, when, WRITES)
            fit(config, root, tmp_path / str(when))
        assert_same(whole, fit(config, root, tmp_path / str(when)))


@pytest.mark.parametrize("settings", MEMORIES, ids=lambda s: " ".join(v for v in s.values() if type(v) is str))
def test_a_run_killed_in_an_epoch_ends_where_an_uninterrupted_one_does(root, tmp_path, monkeypatch, settings):
    config = replace(DOMINOES, **settings)
    whole = fit(config, root, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, 8, [(training.Training, "_step")])
        fit(config, root, tmp_path / "killed")
    assert_same(whole, fit(config, root, tmp_path / "killed"))


def test_a_run_goes_on_with_as_many_processes(root, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, 30, [(training.Training, "_step")])
        fit(DOMINOES, root, tmp_path)
    (state,) = tmp_path.glob("*/state.pt")
    torch.save(torch.load(state) | {"ranks": 2}, state)
    with pytest.raises(
        ValueError, match="a run begun by 2 processes must be resumed by as many, got 1; start as many"
    ):
        fit(DOMINOES, root, tmp_path)


def test_a_real_kill(root, tmp_path):
    words = ["fmnist-mnist", "model=test_train:small", "rule=sam", "rho=0.1", "epochs=30", "batch=50", "resamples=0"]
    command = ["-m", "samphire", "train", *words, "--root", str(root), "--out", str(tmp_path / "killed"), "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    config = parse("fmnist-mnist", words[1:])
    rows = tmp_path / "killed" / records.key(config) / "rows.jsonl"
    running = subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.DEVNULL)
    while not (rows.exists() and len(rows.read_text().splitlines()) >= 2) and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert 2 <= len(rows.read_text().splitlines()) < 30
    done = subprocess.run([sys.executable, *command], env=env, check=True, capture_output=True, text=True)
    resumed = [json.loads(line) for line in done.stdout.splitlines()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = fit(config, root, tmp_path / "whole")
    torch.set_num_threads(threads)
    assert without_seconds(resumed) == without_seconds(whole.rows)
    killed = torch.load(rows.with_name("model.pt"))
    assert all(torch.equal(t, killed[name]) for name, t in weights_of(whole).items())


def test_a_loss_that_is_not_finite_ends_the_run_with_a_sentence(root, tmp_path):
    words = ["fmnist-mnist", "model=test_train:small", "epochs=1", "batch=50", "resamples=2", "lr=1e30"]
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


# Methods


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


# Two ranks


def test_two_ranks_train_what_one_does(root, tmp_path):
    words = ["fmnist-mnist", "model=test_train:even", "epochs=2", "batch=51", "resamples=0", "lr=0.1"]
    settings = {
        "sgd": ["rule=sgd"],
        "sam": ["rule=sam", "rho=0.2"],
        "dro": ["method=group_dro", "rule=lsam", "rho=0.2"],
        "local": ["rule=sam", "rho=0.2", "perturbation=local"],
        "one pass": ["rule=lsam", "rho=0.2", "perturbation=local"],
        "jtt": ["method=jtt", "method.times=2"],
    }
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    script = tmp_path / "all.py"
    script.write_text(
        "import json, sys\nimport torch.distributed as dist\nfrom samphire.train import fit, parse\n"
        "dist.init_process_group('gloo')\n"
        "for words in json.loads(sys.argv[3]):\n    fit(parse(words[0], words[1:]), sys.argv[1], sys.argv[2])\n"
        "dist.destroy_process_group()\n"
    )
    jobs = [[*words, *more] for more in settings.values()]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    args = [str(root), str(tmp_path / "two"), json.dumps(jobs)]
    subprocess.run([sys.executable, *launch, *args], env=env, check=True, capture_output=True)
    stored = {run.key: run.rows for run in records.read(tmp_path / "two")}
    ours = {name: parse(job[0], job[1:]) for name, job in zip(settings, jobs, strict=True)}
    for name in ("sgd", "sam", "dro", "jtt"):
        one = fit(ours[name], root, tmp_path / "one")
        two = stored[records.key(ours[name])]
        assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one.rows], rel=1e-4), name
        assert two[-1]["val_loss"] == pytest.approx(one.rows[-1]["val_loss"], rel=1e-4)
    local, whole = (stored[records.key(ours[name])][-1]["val_loss"] for name in ("local", "sam"))
    assert local != pytest.approx(whole, rel=1e-4)
    assert math.isfinite(stored[records.key(ours["one pass"])][-1]["val_loss"])


def even(num_classes=2, generator=None):
    """Without BatchNorm and dropout, whose statistics and masks differ from part to part of a batch."""
    head = nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, num_classes)
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(384, 8), *head)


def test_torchrun_runs_the_command_and_its_first_rank_alone_fills_the_tracker(root, tmp_path):
    words = ["fmnist-mnist", "model=test_train:even", "epochs=1", "resamples=0"]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "--", "samphire", "train"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    args = [*launch, *words, "--root", str(root), "--out", str(tmp_path), "--json", "--log", "tensorboard"]
    done = subprocess.run([sys.executable, *args], env=env, check=True, capture_output=True, text=True)
    (row,) = (json.loads(line) for line in done.stdout.splitlines())
    assert row["epoch"] == 1
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 1  # each writer has a file of its own


# BatchNorm


def slow(num_classes=2, generator=None):
    """A network whose statistics move by a hundredth a step."""
    net = small(num_classes)
    net[1].momentum = 0.01
    return net


def errors_by_mode(net, split, size=50):
    """Shares of wrong answers with the batches' statistics and with the running ones."""
    x, y = net.normalize(torch.from_numpy(np.array(split.images))), torch.from_numpy(split.label)
    net[5].eval()  # dropout
    wrong = []
    for train in (True, False):
        net[1].train(train)
        with torch.no_grad():
            wrong.append(
                torch.cat([net(a).argmax(1) != b for a, b in zip(x.split(size), y.split(size), strict=True)])
            )
    return [w.double().mean().item() for w in wrong]


def test_a_network_is_judged_and_kept_with_the_statistics_of_its_weights(root, tmp_path):
    first = fit(replace(DOMINOES, model="test_train:slow"), root, tmp_path)
    pretrained = weights_of(first) | {
        "1.running_mean": torch.full((6,), 40.0),
        "1.running_var": torch.full((6,), 900.0),
    }
    torch.save(pretrained, tmp_path / "pretrained.pt")  # as of images from 0 to 255
    config = replace(DOMINOES, model="test_train:slow", weights=str(tmp_path / "pretrained.pt"), keep=(1,), seed=1)
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
    fit(replace(DOMINOES, epochs=1, batch=70), root, tmp_path / "a")
    n = len(load_parts("fmnist-mnist", root).train)
    assert sizes == [70] * min(training.STATISTICS_FROM, n // 70)
    sizes.clear()
    fit(replace(DOMINOES, epochs=1, batch=n + 1), root, tmp_path / "b")
    assert sizes == [n]


# Input


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lr"], "settings are written key=value, got 'lr'"),
        (["lrr=1"], "no setting is named 'lrr'; did you mean 'lr'?"),
        (["rule=sma"], "no rule is named 'sma'; did you mean 'sam'?"),
        (["rule=sam", "rule.radius=1"], "sam has no setting rule.radius; its settings: none"),
        (["rule=looksam", "rho=0", "rule.kk=1"], "looksam has no setting rule.kk; its settings: k, alpha"),
        (["rule=sam", "rule.rho=1"], "sam has no setting rule.rho; write rho="),
        (["rule=ssam_d", "rule.every=often"], "every"),
        (["rule=entropy_sgd", "rho=0.1"], "entropy_sgd has no radius, got rho=0.1; leave it out"),
        (["rule=imb_sam"], "imb_sam perturbs for rare classes, got none; name them, as in rule.tail=1"),
        (["rho=0.1"], "sgd has no rho and no settings, got rho=0.1; name a rule, as in rule=sam"),
        (["rule=sam", "rho=-1"], "rho must be a finite number >= 0, got -1"),
        (["rule=sam", "rho=true"], "rho must be a finite number >= 0, got True"),
        (["augment=sometimes"], "augment must be true or false, got 'sometimes'"),
        (["seed=0.5"], "seed must be a whole number >= 0, got 0.5"),
        (["model=resnt18"], "no network is named 'resnt18'; did you mean 'resnet18'?"),
        (["model=3"], "no network is named 3"),
        (["probe_at=true"], r"probe_at: an epoch must be a whole number in \[1, 20\], got True"),
        (["method=jtt", "method.times=0.5"], "method.times must be a whole number >= 1, got 0.5"),
        (["method=dfr", "method.resamples=0"], "method.resamples must be a whole number >= 1, got 0"),
        (["method=group_dro", "method.eta=x"], "method.eta must be a finite number >= 0, got 'x'"),
        (["method=dro"], "no method is named 'dro'; did you mean"),
        (["method=jtt", "method.lambda=3"], "jtt has no setting 'lambda'; its settings: epochs, times"),
        (["base=adm"], "no base is named 'adm'; did you mean 'adam'?"),
        (["base=adam", "base.beta=1"], "adam has no setting base.beta; its settings: betas, eps"),
        (["base=adam", "base.betas=0.9"], r"base.betas must be two numbers in \[0, 1\), got 0.9; write for instance"),
        (["base=muon", "base.ns_steps=0"], "base.ns_steps must be a whole number >= 1, got 0"),
        (["base.nesterov=2"], "base.nesterov must be true or false, got 2"),
        (["base=adam", "momentum=0.5"], "momentum is SGD's, got 0.5 for adam; write base.betas="),
        (["method=swa", "method.epochs=30"], r"method.epochs of swa must be a whole number in \[1, 20\], got 30"),
        (["epochs=0"], "epochs must be a whole number >= 1, got 0"),
        (["lr=fast"], "lr must be a finite number > 0, got 'fast'"),
        (["momentum=1"], r"momentum must be a finite number in \[0, 1\), got 1"),
        (["schedule=step"], "schedule must be 'cosine' or 'constant', got 'step'"),
        (["probe_at=0"], r"probe_at: an epoch must be a whole number in \[1, 20\], got 0"),
        (["keep=30"], r"keep: an epoch must be a whole number in \[0, 20\], got 30"),
        (["target=photo"], "target must be a domain for sets with domains only, got 'photo'; leave it out"),
    ],
)
def test_bad_settings_are_one_sentence(words, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        parse("cifar-mnist", words)
    assert "\n" not in str(error.value)


def test_sets_with_domains_need_a_target():
    with pytest.raises(ValueError, match="got None; name one, as in target=photo"):
        parse("pacs", [])
    assert parse("pacs", ["target=photo", "model=efficientnet_lite0"]).target == "photo"
    with pytest.raises(ValueError, match="no domain is named 'scetch'; did you mean 'sketch'"):
        parse("pacs", ["target=scetch"])


def test_words_become_settings():
    assert parse("cifar-mnist", ["rule=imb_sam", "rule.tail=1"]).rule_settings == (("tail", (1,)),)
    assert parse("waterbirds", ["augment=no"]).augment is False
    assert parse("cifar-mnist", ["base=adam", "base.betas=0.8,0.9"]).base_settings == (("betas", (0.8, 0.9)),)
    assert parse("cifar-mnist", ["rule=m_sharpness"]).optimizer_rule(steps=1).m == 16
    assert parse("cifar-mnist", ["rule=ae_sam"]).optimizer_rule(steps=70).steps == 70


@pytest.mark.parametrize(
    ("device", "sentence"),
    [("gpu", "device must be one of torch's, such as cpu, cuda or cuda:1, got 'gpu'")]
    + ([] if torch.cuda.is_available() else [("cuda", "device 'cuda' needs a GPU, and torch finds none")]),
)
def test_bad_devices_are_one_sentence(root, tmp_path, device, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(DOMINOES, root, tmp_path, device=device)


def test_json_of_the_command_is_json(root, tmp_path):
    words = ["fmnist-mnist", "model=test_train:small", "rule=entropy_sgd", "epochs=1", "batch=50", "resamples=0"]
    result = CliRunner().invoke(app, ["train", *words, "--root", str(root), "--out", str(tmp_path), "--json"])
    (row,) = (json.loads(line, parse_constant=pytest.fail) for line in result.stdout.splitlines())
    assert row["rho"] is None


def test_the_command_prints_its_settings(root):
    result = CliRunner().invoke(app, ["train", "waterbirds", "method=jtt", "rule=looksam", "rule.k=3", "--settings"])
    assert result.exit_code == 0
    for words in ("batch 128", "epochs 100", "weight_decay 0.0001", "method.times 50", "rule.k 3"):
        name, value = words.split()
        assert any(name in line and value in line for line in result.stdout.splitlines()), words


def test_settings_added_later_leave_the_keys_of_stored_runs_alone():
    config = appendix_b("cifar-mnist", lr=0.01, resamples=0, seed=10)
    assert records.key(config) == "d34ca712118e7e2f"


def test_the_paper_s_settings():
    for name in ("cifar-mnist", "fmnist-mnist"):
        config = appendix_b(name)
        assert (config.epochs, config.batch, config.momentum, config.weight_decay) == (20, 100, 0.9, 0.0)
        assert (config.schedule, config.augment, config.model) == ("cosine", False, "small_cnn")
    birds, faces = appendix_b("waterbirds"), appendix_b("celeba")
    assert (birds.epochs, birds.batch, birds.size, birds.weight_decay, birds.augment) == (100, 128, 96, 1e-4, True)
    assert (faces.epochs, faces.batch, faces.size, faces.weight_decay, faces.augment) == (20, 128, 64, 1e-4, False)
    assert isinstance(birds, Config)
