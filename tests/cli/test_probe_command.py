"""``samphire probe`` on a small tree of idx files and a network that was never trained."""

import json

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import trees
from samphire import data, models
from samphire.cli.probe import probe

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(probe)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Two sources whose classes are bright rows, and a run: config.json, input.json and model.pt."""
    root = trees.dominoes(tmp_path_factory.mktemp("tree"), train=150, test=20)
    run = root / "run"
    run.mkdir()
    net = models.load("small_cnn", 5, generator=torch.Generator().manual_seed(1))
    torch.save(net.state_dict(), run / "model.pt")
    (run / "config.json").write_text(json.dumps({"data": "fmnist-mnist", "model": "small_cnn"}))
    (run / "input.json").write_text(json.dumps({"mean": [0.0], "std": [1.0]}))
    return root


def call(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def test_rows_name_their_average_and_the_picture_is_written(tree, tmp_path):
    picture = tmp_path / "probe.png"
    args = ("--root", tree, "--resamples", 2, "--feature", "mnist")
    result = call(tree / "run", *args, "--json", "--out", picture)
    assert result.exit_code == 0, result.output
    errors, *found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert {
        "train-weighted error",
        "plain error",
        "equal-group error",
        "worst-group error",
        "worst group",
    } < errors.keys()
    assert [(r["network"], r["feature"]) for r in found] == [
        ("trained", "mnist"),
        ("trained, labels shuffled", "mnist"),
        ("random weights", "mnist"),
    ]
    parts = data.load("fmnist-mnist", tree)
    assert found[0]["n per group"] == np.bincount(parts["probe_train"].group).min() // 2 * 2
    assert (found[0]["probing set"], found[0]["n"]) == ("train", len(parts["probe_train"]))
    assert found[0]["scaling"] == "global"
    assert found[0]["l2 tried"].startswith("0.001 to 1")
    assert found[0]["equal-group probe error"] < 0.3
    assert found[1]["equal-group probe error"] > 0.5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_state_dict_alone_needs_names_and_prints_tables(tree):
    args = ("--root", tree, "--resamples", 1, "--layer", "5", "--feature", "fmnist")
    names = ("--data", "fmnist-mnist", "--model", "small_cnn")
    result = call(tree / "run" / "model.pt", *names, *args, "--probe-on", "val", "--scaling", "each")
    assert result.exit_code == 0, result.output
    val = len(data.load("fmnist-mnist", tree)["probe_val"])
    words = " ".join(result.stdout.split())
    assert f"images the network never saw, groups balanced, n = {val}; features scaled: one number for each" in words
    assert "four averages" in result.stdout
    assert "equal-weight mean over groups" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("run", "args", "words"),
    [
        ("nowhere", (), "there is no run"),
        ("run/model.pt", (), "does not say its data"),
        ("run/model.pt", ("--data", "fmnist-mnist"), "does not say its model"),
        ("run", ("--data", "mnist"), "mnist has one feature only; take a set with two"),
        ("run", ("--out", "no/such/folder/a.png"), "there is no folder"),
        ("run", ("--scaling", "all"), "no scaling is named 'all'"),
        ("run", ("--probe-on", "test"), "probe_on must be 'train' or 'val', got 'test'"),
    ],
)
def test_bad_input_is_a_sentence(tree, run, args, words):
    result = call(tree / run, "--root", tree, *args)
    assert result.exit_code != 0
    assert words in str(result.exception)


def test_sets_with_domains_are_probed_on_the_target(tmp_path):
    from PIL import Image

    from samphire.data.catalog import SETS

    assert "pacs" in SETS
    draw = np.random.default_rng(0)
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for k, name in enumerate(classes):
            folder = tmp_path / "PACS" / domain / name
            folder.mkdir(parents=True)
            for i in range(10):
                pixels = draw.integers(0, 40, (32, 32, 3), np.uint8)
                pixels[4 * k : 4 * k + 4] = 255
                Image.fromarray(pixels).save(folder / f"pic_{i:03d}.jpg")
    torch.save(models.load("resnet18", 7).state_dict(), tmp_path / "model.pt")
    names = ("--data", "pacs", "--target", "sketch", "--model", "resnet18", "--size", 32)
    args = ("--root", tmp_path, "--cache", tmp_path / "cache", "--resamples", 2)
    result = call(tmp_path / "model.pt", *names, *args, "--json", "--out", tmp_path / "probe.png")
    assert result.exit_code == 0, (result.output, result.exception)
    errors, *found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert errors["worst group's n"] == 2
    assert [r["network"] for r in found] == ["trained", "random weights"]
    assert all(
        r["n per group"] == 56 and r["plain probe error"] < 0.3 and "equal-group probe error" not in r for r in found
    )
    assert "plain share" in " ".join(call(tmp_path / "model.pt", *names, *args).stdout.split())
