"""`samphire audit` and `samphire compare` from the shell's side: files in, page and weights out, one sentence for bad input."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from audits.shortcuts import table, trained
from samphire import cli, models
from samphire.train.trained import load_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of pictures with a table in unusual column names, and a model's weights beside it."""
    place = tmp_path_factory.mktemp("own") / "my birds"
    place.mkdir()
    data = table(train=120, val=120, test=200)
    with (place / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["picture", "species", "where", "fold"])
        for part, columns in data.items():
            for i, pixels in enumerate(columns["image"]):
                name = f"{part}{i}.png"
                Image.fromarray(pixels.transpose(1, 2, 0)).save(place / name)
                writer.writerow([name, columns["kind"][i], columns["scene"][i], part])
    return place


COLUMNS = ["--image", "picture", "--label", "species", "--features", "where", "--split", "fold", "--size", "8"]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["samphire", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


@pytest.fixture
def network(monkeypatch, tmp_path):
    """A network by module and function, and its file of weights."""
    module = tmp_path / "nets.py"
    module.write_text(
        "from torch import nn\n"
        "def small(num_classes):\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),\n"
        "                         nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, num_classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = trained(table(train=120, val=120, test=200))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    return ["--model", "nets:small", "--weights", tmp_path / "model.pt"]


def test_from_a_folder_to_page_and_weights(run, folder, network, tmp_path):
    fixed = tmp_path / "elsewhere" / "fixed.pt"
    fixed.parent.mkdir()
    (tmp_path / "input.json").write_text('{"mean": [0.1], "std": [0.9]}')  # as beside the weights of a run
    code, out, err = run("audit", folder, *network, *COLUMNS, "--out", tmp_path / "audit", "--fix", fixed, "--json")
    assert code == 0, err
    verdict, *rows = map(json.loads, out.splitlines())
    assert verdict["page"] == str(tmp_path / "audit" / "index.html")
    page = (tmp_path / "audit" / "index.html").read_text()
    assert verdict["verdict"].startswith(page.partition("<h1>")[2].partition("</h1>")[0])
    assert [row["feature"] for row in rows] == ["species", "where"]
    state = models.weights.read(fixed)
    assert state["6.weight"].shape == (2, 16)
    assert load_weights("nets:small", 2, fixed).normalize == models.Normalize((0.1,), (0.9,))
    assert not torch.equal(state["6.weight"], models.weights.read(tmp_path / "model.pt")["6.weight"])


def test_checkpoints_side_by_side(run, folder, network, tmp_path):
    files = [tmp_path / "model.pt", tmp_path / "other.pt"]
    files[1].write_bytes(files[0].read_bytes())
    words = ["--model", "nets:small", *COLUMNS, "--out", tmp_path / "both", "--checkpoints", *files]
    code, out, err = run("compare", folder, *words, "--json")
    assert code == 0, err
    verdict, a, b = map(json.loads, out.splitlines())
    assert "no decidedly other" in verdict["verdict"]
    assert np.isclose(a["worst-group error"], b["worst-group error"])
    page = (tmp_path / "both" / "index.html").read_text()
    assert "nothing is decided" in page


BAD = [
    (["--label", "colour"], "colour"),
    (["--features", "wher"], "did you mean 'where'?"),
    (["--weights", "nowhere.pt"], "there is no file nowhere.pt"),
    (["--name", "cluster1"], "--name takes a group and its name"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_bad_input_gets_one_sentence(run, folder, network, tmp_path, words, sentence):
    code, _, err = run("audit", folder, *network, *COLUMNS, "--out", tmp_path / "audit", *words)
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert last.startswith("samphire: ")
    assert sentence in last


def test_seeds_to_compare_must_be_whole_numbers(run, folder, tmp_path):
    code, _, err = run("compare", folder, "--model", "nets:small", *COLUMNS, "--out", tmp_path, "--seeds", "0,a")
    assert code == 2
    assert "seeds must be whole numbers with commas between, got 'a'; write --seeds 0,1." in err


def test_a_model_without_weights(run, folder, tmp_path):
    code, _, err = run("audit", folder, "--model", "resnet18", *COLUMNS)
    assert code == 2
    assert "resnet18 has no trained weights" in err


def test_weights_are_not_fixed_without_a_model(run, tmp_path):
    code, _, err = run("audit", tmp_path / "nothing.npz", "--fix", "fixed.pt")
    assert code == 2
    assert err == (
        "samphire: --fix cannot write fixed.pt: features and logits have no weights; name the model with --model.\n"
    )


def test_an_image_folder_without_images(run, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = run("audit", tmp_path / "empty", "--model", "resnet18")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
