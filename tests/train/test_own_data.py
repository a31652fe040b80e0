"""Training on data of one's own: the same run as by a built-in name, and never mistaken for another."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from short_runs import BIRDS, SHORT, without_seconds
from torch import nn
from typer.testing import CliRunner

import trees
from samphire import data, records
from samphire.cli import app
from samphire.sweep import trials
from samphire.train import Config, appendix_b, fit, load_network, parse
from samphire.train.examples import EXAMPLES, check_same_examples

COLUMNS = {"img_filename": "picture", "y": "kind", "split": "fold", "place": "background"}
WORDS = {"y": ("landbird", "waterbird"), "split": ("train", "val", "test"), "place": ("land", "water")}
ASKED = {"label": "kind", "split": "fold", "features": ["background"]}
OPTIONS = ("--label", "kind", "--split", "fold", "--features", "background")
SMALL = ("model=short_runs:small", "weights=none", "epochs=3", "batch=16", "resamples=0", "size=12", "lr=0.1")


def renamed(root, place):
    """The same images under another folder name, with other names of columns and words for numbers."""
    shutil.copytree(trees.waterbirds(root) / "waterbird_complete95_forest2water2", place)
    with (place / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update({name: words[int(row[name])] for name, words in WORDS.items()})
    with (place / "list.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerows([list(COLUMNS.values()), *([row[name] for name in COLUMNS] for row in rows)])
    (place / "metadata.csv").unlink()
    return place


@pytest.fixture
def birds(tmp_path):
    return renamed(tmp_path / "built-in", tmp_path / "my birds")


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def own(opened, **settings):
    return replace(appendix_b(opened.name, **{**SHORT, "batch": 16, "size": 12, "weights": None}), **settings)


def test_a_run_is_the_same_as_by_the_built_in_name(birds, tmp_path):
    opened = data.open(birds, **ASKED)
    theirs = fit(replace(BIRDS, resamples=1), tmp_path / "built-in", tmp_path / "runs", cache=tmp_path / "cache")
    ours = fit(own(opened, resamples=1), out=tmp_path / "runs", parts=opened, cache=tmp_path / "cache")
    a, b = (torch.load(run.folder / "model.pt") for run in (theirs, ours))
    assert all(torch.equal(a[name], b[name]) for name in a)
    rename = {"bird": "kind", "place": "background"}
    for old, new in zip(without_seconds(theirs.rows), without_seconds(ours.rows), strict=True):
        text = json.dumps(old)
        for word, other in rename.items():
            text = text.replace(f"{word}=", f"{other}=").replace(f'"{word}"', f'"{other}"')
        assert json.loads(text) == new
    assert json.loads((ours.folder / "input.json").read_text())["names"] == ["landbird", "waterbird"]
    assert load_network(ours.folder).normalize.mean == load_network(theirs.folder).normalize.mean


def test_what_open_takes_and_splits_are_taken_too(birds, tmp_path):
    opened = data.open(birds, **ASKED)
    config = own(opened, epochs=1)
    first = fit(config, out=tmp_path / "runs", parts=opened, cache=tmp_path / "cache")
    again = fit(config, out=tmp_path / "runs", parts=dict(opened.parts), cache=tmp_path / "cache")
    assert first == again
    with pytest.raises(ValueError, match="are data of your own; give them again"):
        fit(config, tmp_path, tmp_path / "runs")
    with pytest.raises(ValueError, match="a run needs its data: give root="):
        fit(BIRDS, out=tmp_path / "runs")


# Examples are part of a run


def test_other_images_under_the_same_name_are_refused_with_both_named(tmp_path):
    first, second = (trees.waterbirds(tmp_path / name) for name in ("a", "b"))
    path = next((second / "waterbird_complete95_forest2water2/000.Bird").glob("*.png"))
    config = replace(BIRDS, epochs=1)
    run = fit(config, first, tmp_path / "runs", cache=tmp_path / "cache")
    assert fit(config, second, tmp_path / "runs", cache=tmp_path / "cache") == run  # a copy is the same set
    for path in (second / "waterbird_complete95_forest2water2/000.Bird").glob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    here = data.open("waterbirds", root=first).fingerprint
    other = data.open("waterbirds", root=second).fingerprint
    both = (
        rf"trained on other examples: waterbirds \({here}: train 56, .* and here are waterbirds \({other}: train 56"
    )
    with pytest.raises(ValueError, match=both):
        fit(config, second, tmp_path / "runs", cache=tmp_path / "cache")
    for words in (
        ("train", "waterbirds", *SMALL[:2], "epochs=1", *SMALL[3:], "--out", tmp_path / "runs"),
        ("probe", run.folder, "--trust"),
        ("sharpness", run.folder, "--examples", 8, "--trust"),
        ("sweep", "waterbirds", *SMALL[:2], "epochs=1", *SMALL[3:6], "lr=0.1", "rho=0", "--out", tmp_path / "runs"),
    ):
        result = call(*words, "--root", second, "--cache", tmp_path / "cache")
        assert "trained on other examples" in str(result.exception), words


def test_another_folder_of_the_same_name_is_another_run(birds, tmp_path):
    opened = data.open(birds, **ASKED)
    other = data.open(birds, label="kind", split="fold", features=())
    assert opened.name.startswith("my birds@")
    assert records.key(own(opened)) != records.key(own(other))


def test_runs_on_different_examples_are_not_put_into_one_table(tmp_path):
    roots = [trees.waterbirds(tmp_path / "a"), trees.waterbirds(tmp_path / "b", train=(20, 4, 4, 24))]
    configs = [replace(BIRDS, epochs=1, seed=seed) for seed in (0, 1)]
    runs = [fit(c, root, tmp_path / "runs", cache=tmp_path / "c") for c, root in zip(configs, roots, strict=True)]
    with pytest.raises(ValueError, match=r"cannot be compared: they were trained on .*train 56.* and .*train 52"):
        trials(tmp_path / "runs", configs)
    (runs[1].folder / EXAMPLES).unlink()  # a run of an earlier version does not say
    check_same_examples((run.folder, run.config) for run in runs)
    (runs[0].folder / EXAMPLES).write_text("[1]")
    with pytest.raises(
        ValueError, match=r"examples.json is damaged: it has no fingerprint; move the run's folder away"
    ):
        fit(configs[0], roots[0], tmp_path / "runs", cache=tmp_path / "c")


# From the shell


def test_every_command_takes_a_folder(birds, tmp_path):
    where = ("--cache", tmp_path / "cache")
    trained = call("train", birds, *SMALL, *OPTIONS, "--out", tmp_path / "runs", *where)
    assert trained.exit_code == 0, trained.output
    assert "list.csv: column picture is taken for the image." in trained.stderr
    assert "worst-group" in trained.stdout
    (run,) = (path.parent for path in (tmp_path / "runs").glob("*/config.json"))
    probed = call("probe", run, "--trust", "--data", birds, *OPTIONS, "--resamples", 1, "--json", *where)
    assert probed.exit_code == 0, probed.output
    assert {"kind", "background"} <= {json.loads(line).get("feature") for line in probed.stdout.splitlines()}
    sharp = call("sharpness", run, "--trust", "--data", birds, *OPTIONS, "--examples", 8, "--json", *where)
    assert sharp.exit_code == 0, sharp.output
    swept = call("sweep", birds, *SMALL[:6], "lr=0.1", "rho=0", *OPTIONS, "--out", tmp_path / "runs", *where)
    assert swept.exit_code == 0, swept.output
    assert len(list((tmp_path / "runs").glob("*/config.json"))) == 1  # the sweep's only job was done
    without = call("probe", run, "--trust", *where)
    assert "are data of your own; give them again" in str(without.exception)


def test_columns_are_for_data_of_ones_own():
    result = call("train", "waterbirds", "--label", "y")
    assert "--label is for data of your own, got 'y'" in str(result.exception)
    assert "no data set is named 'waterbird'; did you mean 'waterbirds'?" in str(call("train", "waterbird").exception)


def test_own_data_have_settings():
    config = parse("birds@01234567", ["rule=sam", "rho=0.05"])
    assert (config.model, config.size, config.epochs, config.augment) == ("resnet18", 96, 20, True)
    with pytest.raises(ValueError, match="no data set is named 'birds'"):
        Config("birds")


# What fits, and what is missing


@pytest.mark.parametrize("model", ["mlp", "small_cnn"])
def test_a_network_that_does_not_fit_is_refused_before_training(birds, tmp_path, model):
    opened = data.open(birds, **ASKED)
    with pytest.raises(ValueError, match=rf"model={model} cannot take inputs of shape \(3, 12, 12\) \(.*\); choose"):
        fit(own(opened, model=model), out=tmp_path / "runs", parts=opened, cache=tmp_path / "cache")


def pair(num_classes=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 5))


def test_a_network_with_other_outputs_is_refused(birds, tmp_path):
    opened = data.open(birds, **ASKED)
    with pytest.raises(ValueError, match=r"must return an output for each of 2 classes, \(2, 2\), got \(2, 5\)"):
        fit(own(opened, model="test_own_data:pair"), out=tmp_path / "r", parts=opened, cache=tmp_path / "cache")


def rows_network(num_classes=2, generator=None):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, num_classes))


def test_rows_of_numbers_are_trained_on(tmp_path):
    draw = np.random.default_rng(0)
    y, a = draw.integers(0, 2, 400), draw.integers(0, 2, 400)
    x = draw.normal(size=(400, 6))
    x[:, 0] += 3 * y
    np.savez(tmp_path / "table.npz", x=x, outcome=np.array(["ill", "well"])[y], site=np.array(["A", "B"])[a])
    opened = data.open(tmp_path / "table.npz", label="outcome")
    config = appendix_b(opened.name, model="test_own_data:rows_network", weights=None, epochs=5, batch=16, lr=0.1)
    run = fit(config, out=tmp_path / "runs", parts=opened)
    assert run.rows[-1]["test_plain"] < 0.12
    assert run.rows[-1]["probe"]["outcome"] < 0.12
    assert run.rows[-1]["probe"]["site"] > 0.3


def test_groups_that_cannot_be_judged_are_refused_before_training(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(60, 6)), np.repeat([0, 1], 30)
    site = np.where(np.arange(60) < 57, "A", "B")  # none of class 0
    opened = data.open({"x": x, "label": y, "site": site})
    config = appendix_b(opened.name, model="test_own_data:rows_network", weights=None, epochs=1, batch=16)
    message = r"label=0, site=B has .*name fewer attributes \(--features\), or write resamples=0"
    with pytest.raises(ValueError, match=message):
        fit(config, out=tmp_path / "runs", parts=opened)
    assert not list(tmp_path.glob("runs/*/model.pt"))
    row = fit(replace(config, resamples=0), out=tmp_path / "runs", parts=opened).rows[-1]
    assert set(row["test_groups"]) == {"label=0, site=A", "label=1, site=A", "label=1, site=B"}


def test_examples_without_an_attribute_are_trained_on_and_judged_where_they_can(tmp_path):
    draw = np.random.default_rng(0)
    y = np.repeat([0, 1], 100)
    place = np.array(["land", "water"])[np.tile([0, 1], 100)].astype(object)
    place[::20] = None
    x = draw.normal(size=(200, 6))
    x[:, 0] += 9 * y
    opened = data.open({"x": x, "label": y, "place": place})
    config = appendix_b(opened.name, model="test_own_data:rows_network", weights=None, epochs=2, batch=16, lr=0.1)
    row = fit(config, out=tmp_path / "runs", parts=opened).rows[-1]
    assert row["test_groups"].keys() == {f"label={k}, place={p}" for k in (0, 1) for p in ("land", "water")}
    unknown = sum(int((~split.known).sum()) for split in opened.parts.values())
    assert unknown == 10
    with pytest.raises(
        ValueError, match=r"group_dro needs the group of every training example, but \d of 1\d\d lack"
    ):
        fit(replace(config, method="group_dro"), out=tmp_path / "runs", parts=opened)
