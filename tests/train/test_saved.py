"""A saved network is read from its run folder, or from a file and what it does not say."""

import json
import math

import pytest
import torch

import trees
from samphire import models
from samphire.train.saved import SavedNetwork, saved_network


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return trees.dominoes(tmp_path_factory.mktemp("data"), train=50, test=20)


@pytest.fixture
def folder(tmp_path):
    net = models.load("small_cnn", 5, generator=torch.Generator().manual_seed(1))
    torch.save(net.state_dict(), tmp_path / "model.pt")
    config = {"data": "fmnist-mnist", "model": "small_cnn", "target": None, "size": 64, "weights": None, "lr": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "input.json").write_text(json.dumps({"mean": [0.5], "std": [0.25], "classes": 5}))
    return tmp_path


def test_a_folder_says_what_was_trained(folder):
    run = saved_network(folder)
    assert run == SavedNetwork(folder / "model.pt", "fmnist-mnist", "small_cnn", size=64, probe_on="train")


def test_settings_replace_what_it_says_unless_they_are_none(folder):
    run = saved_network(folder, data="cifar-mnist", model=None, layer="5", initial="weights.pt")
    assert (run.data, run.model, run.layer, run.initial) == ("cifar-mnist", "small_cnn", "5", "weights.pt")


def test_a_file_must_be_completed(folder):
    weights = folder / "model.pt"
    (folder / "config.json").unlink()
    for path, settings, missing in ((weights, {}, "data"), (folder, {"data": "mnist"}, "model")):
        with pytest.raises(ValueError, match=rf"does not say its {missing}; name it with --{missing} \(in Python"):
            saved_network(path, **settings)
    assert saved_network(weights, data="mnist", model="small_cnn").weights == weights


def test_networks_differ_in_their_weights_alone(folder, root):
    initial = models.load("small_cnn", 5, generator=torch.Generator().manual_seed(2))
    torch.save(initial.state_dict(), folder / "initial.pt")
    run = saved_network(folder, initial=str(folder / "initial.pt"))
    split = run.parts(root).train
    networks = run.networks(split)
    assert list(networks) == ["trained", "pretrained, untouched", "random weights"]
    seeds = dict(zip(networks, (1, 2, 0), strict=True))
    for name, network in networks.items():
        expected = models.load("small_cnn", 5, generator=torch.Generator().manual_seed(seeds[name])).state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in network.state_dict().items()), name


def test_examples_are_some_of_a_part_and_always_the_same(folder, root):
    run = saved_network(folder)
    some = run.examples("train", 10, root)
    assert len(some) == 10
    whole = run.examples("train", 10**6, root).ids.tolist()
    positions = [whole.index(i) for i in some.ids]
    assert positions == sorted(positions) != list(range(10))
    assert some.ids.tolist() == run.examples("train", 10, root).ids.tolist()
    with pytest.raises(ValueError, match=r"fmnist-mnist has no part 'trian'; did you mean 'train'\?"):
        run.examples("trian", 10, root)


@pytest.mark.parametrize(
    ("entry", "field", "option"),
    [
        ({"model": "http.server:test"}, "model", "--model http.server:test"),
        ({"model": "timm:hf-hub:someone/net"}, "model", "--model timm:hf-hub:someone/net"),
        ({"weights": "https://example.org/a.pth"}, "initial", "--pretrained https://example.org/a.pth"),
    ],
)
def test_code_and_addresses_of_a_folder_must_be_repeated(folder, entry, field, option):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | entry))
    (value,) = entry.values()
    with pytest.raises(ValueError, match=rf"wants to (run|fetch) '{value}'; if you know .* allow it by {option}, or"):
        saved_network(folder)
    assert getattr(saved_network(folder, **{field: value}), field) == value
    assert getattr(saved_network(folder, trust=True), field) == value


def test_networks_of_known_packages_need_no_trust(folder):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model": "timm:resnet18", "weights": "imagenet"}))
    assert saved_network(folder).model == "timm:resnet18"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"weights": 5}, r"config.json is damaged: its weights are 5; name them with --pretrained"),
        ({"weights": ["a"]}, r"its weights are \['a'\]"),
        ({"examples": "x"}, "trained_on must be a whole number >= 1, got 'x'"),
        ({"examples": -1}, "trained_on must be a whole number >= 1, got -1"),
        ({"size": "32"}, "size must be a whole number >= 1, got '32'"),
    ],
)
def test_a_configuration_of_wrong_types_is_refused(folder, entry, message):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | entry))
    with pytest.raises(ValueError, match=message):
        saved_network(folder)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (None, "has no input.json"),
        ({"std": [math.inf]}, "damaged: its std is"),
        ({"std": [-1]}, "damaged: its std is"),
        ({"mean": [True]}, "damaged: its mean is"),
    ],
)
def test_the_scale_of_a_runs_inputs_must_be_there_and_be_one(folder, root, scale, message):
    path = folder / "input.json"
    path.unlink() if scale is None else path.write_text(json.dumps(json.loads(path.read_text()) | scale))
    run = saved_network(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run.network(run.examples("test", 5, root))


def test_a_damaged_configuration_is_named(folder):
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config.json is damaged: it holds no configuration; name what it should"):
        saved_network(folder)
