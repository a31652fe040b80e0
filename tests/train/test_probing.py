"""Stored networks are probed without being trained again, each way a row of its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import trees
from samphire import records, restore
from samphire.data.paired import components
from samphire.data.parts import load_parts
from samphire.train import ProbeSettings, Probing, appendix_b, fit, probe_stored
from samphire.train.cost import expected_seconds, steps_in_turns
from samphire.train.training import Training

SMALLEST = "samphire.experiments.paper.image_weights:smallest"
CONFIG = appendix_b("fmnist-mnist", model=SMALLEST, epochs=1, examples=500, resamples=0)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return trees.dominoes(tmp_path_factory.mktemp("data"), train=250)


@pytest.fixture(scope="module")
def runs(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    fit(CONFIG, root, out)
    return out


def test_a_stored_network_gives_the_row_that_training_with_probes_gives(root, runs, tmp_path):
    probed = fit(replace(CONFIG, resamples=2), root, tmp_path / "with").rows[-1]
    row = probe_stored(Probing(CONFIG, "train", ProbeSettings(2)), root, runs, tmp_path / "after")
    assert row["run"] == records.key(CONFIG)
    assert {name: row[name] for name in row if name in probed and name != "seconds"} == {
        name: cell for name, cell in probed.items() if name.startswith("prob")
    }


def test_every_way_is_a_row_and_none_is_computed_twice(root, runs, tmp_path, monkeypatch):
    ways = [Probing(CONFIG, "train", ProbeSettings(1)), Probing(CONFIG, "val", ProbeSettings(1, "each", l2=0.1))]
    first, second = (probe_stored(way, root, runs, tmp_path) for way in ways)
    assert (first["probing"]["on"], second["probing"]["on"]) == ("train", "val")
    assert second["probing"]["scaling"] == "each"
    assert set(second["probe_l2"].values()) == {0.1}
    monkeypatch.setattr("samphire.train.probing.probe_features", None)
    assert [probe_stored(way, root, runs, tmp_path) for way in ways] == [first, second]
    assert len(records.read(tmp_path)) == 2


def test_fewer_examples_of_each_group(root, runs, tmp_path):
    row = probe_stored(Probing(CONFIG, "train", ProbeSettings(1, per_group=4)), root, runs, tmp_path)
    assert row["probing"]["n"] == 25 * 4


def test_a_training_that_is_not_there_or_stopped(root, runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="no finished training"):
        probe_stored(Probing(replace(CONFIG, seed=1), "train"), root, runs, tmp_path)
    other = replace(CONFIG, seed=2)
    with records.open_run(tmp_path / "runs", other) as run:
        run.append({"stopped": "the training loss is not finite"})
    row = probe_stored(Probing(other, "train"), root, tmp_path / "runs", tmp_path / "out")
    assert row == {"run": records.key(other), "stopped": "the training loss is not finite"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Probing(CONFIG, "test"), "no probing set is named 'test'; there are train, val"),
        (lambda: ProbeSettings(0), "resamples must be a whole number >= 1, got 0"),
        (lambda: ProbeSettings(scaling="all"), "scaling"),
        (lambda: appendix_b("cifar-mnist", probe_on="test"), "probe_on"),
    ],
)
def test_bad_input_is_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_dominoes_are_probed_on_training_images_and_others_on_validation_images():
    assert appendix_b("cifar-mnist").probe_on == appendix_b("fmnist-mnist").probe_on == "train"
    assert {appendix_b(name).probe_on for name in ("waterbirds", "celeba")} == {"val"}


@pytest.mark.parametrize("examples", [None, 300])
def test_no_component_is_in_both_probing_parts_and_only_images_that_were_trained_on(root, examples):
    parts = load_parts("fmnist-mnist", root, examples=examples, probe_on="train")
    images = {name: components(getattr(parts, name)) for name in ("train", "probe_train", "val")}
    test = load_parts("fmnist-mnist", root, examples=examples, probe_on="val")
    for side in (0, 1):
        assert set(images["probe_train"][side]) <= set(images["train"][side])
        assert len(set(images["probe_train"][side])) == len(parts.probe_train)
        assert set(components(test.probe_train)[side]) <= set(images["val"][side])
        assert not set(images["train"][side]) & set(images["val"][side])
    pixels = {image.tobytes() for image in parts.probe_train.images[:, :, :32]}
    assert not pixels & {image.tobytes() for image in parts.probe_test.images[:, :, :32]}
    assert len(set(np.bincount(parts.probe_train.group))) == 1


def test_the_cost_of_a_training_is_its_steps_times_what_one_takes(root):
    """Twice the epochs cost about twice as much; nothing is left behind."""
    short, long = (expected_seconds(replace(CONFIG, epochs=epochs), root) for epochs in (1, 40))
    assert 0 < short < long


def test_costs_are_those_of_one_thread(root, monkeypatch):
    epoch, seen = Training.epoch, []
    monkeypatch.setattr(Training, "epoch", lambda *a: seen.append(torch.get_num_threads()) or epoch(*a))
    with restore.threads(2):
        expected_seconds(CONFIG, root)
        assert torch.get_num_threads() == 2
    assert set(seen) == {1}


def test_a_step_of_gam_costs_more_than_one_of_sgd(root):
    one, gam = steps_in_turns([CONFIG, replace(CONFIG, rule="gam", rho=0.1)], root)
    assert one == 1
    assert 1.5 < gam < 15
