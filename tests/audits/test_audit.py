"""A network with a shortcut, from its pictures to the verdict; what it leaves behind; what it refuses."""

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import samphire
from audits.shortcuts import NAMES, table, trained
from samphire.audits import reading
from samphire.audits.example import example
from samphire.audits.inference import inferred
from samphire.audits.measuring import audit_seen
from samphire.audits.remedy import fixed_weights
from samphire.models import Normalize


@pytest.fixture(scope="module")
def data():
    return table()


@pytest.fixture(scope="module")
def model(data):
    return trained(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the audit of the report keeps what it has read."""
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def report(model, data, folder):
    return samphire.audit(model, data, label="kind", features=["scene"], size=8, folder=folder)


def arrays(correlation=0.9, **settings):
    seen = example(correlation, **settings)
    return {part: {"x": s.features, "logits": s.logits, **s.split.features} for part, s in seen.items()}


def test_the_shortcut_is_found(report):
    assert report.judged.level == "alarm"
    assert report.verdict.startswith("The model leans on scene.")
    assert [a.corner for a in report.attributes] == ["used"]


def test_every_section_has_its_numbers(report, data):
    (scene,) = report.attributes
    assert scene.association.v > 0.7
    assert {g.name for g in scene.errors.groups} == {
        f"kind={k}, scene={s}" for k in NAMES["kind"] for s in NAMES["scene"]
    }
    assert set(scene.decodability.controls) == {"the input itself", "random weights", "labels shuffled"}
    assert scene.decodability.controls["labels shuffled"].mean == pytest.approx(0.5, abs=0.1)
    assert [e.what for e in scene.erased] == ["nothing", "scene", "random direction", "kind"]
    assert scene.erased[1].gap < scene.erased[0].gap / 2
    assert [weighed.rule.partition(" perturbed")[0] for weighed in report.upweighting] == [
        "the last layer",
        "all layers",
    ]
    assert report.remedy.worst_expected.expected < report.remedy.worst_before.error
    assert len(report.sheets) == 2
    assert report.n == {"val": 200, "test": 400, "train": 400}


def test_the_errors_are_those_of_the_model(report, model, data):
    x = torch.from_numpy(data["test"]["image"]).float() / 255
    with torch.no_grad():
        predicted = np.array(NAMES["kind"])[model(x).argmax(1)]
    test = data["test"]
    for group in report.attributes[0].errors.groups:
        kind, scene = (word.split("=")[1] for word in group.name.split(", "))
        here = (test["kind"] == kind) & (test["scene"] == scene)
        assert group.n == here.sum()
        assert group.error == pytest.approx(np.mean(predicted[here] != kind))


def test_the_model_is_left_as_it_was_and_without_images_nothing_is_shown(data):
    model = trained(data, epochs=1).train()
    before = copy.deepcopy(model.state_dict())
    report = samphire.audit(model, data, label="kind", features=["scene"], size=8, images=False)
    assert report.sheets == ()
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_input_itself_is_a_control_at_any_depth(data):
    """Random weights lose the scene on the way through twelve layers; the means of the pictures show it."""
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(192, 192), nn.Sigmoid())]
    deep = nn.Sequential(nn.Flatten(), *layers, nn.Linear(192, 2))
    deep.normalize = Normalize()
    (scene,) = samphire.audit(deep, data, label="kind", features=["scene"], images=False).attributes
    controls = scene.decodability.controls
    assert controls["the input itself"].mean < 0.05 < 0.15 < controls["random weights"].mean
    assert scene.corner == "lost"


def test_the_cells_of_the_input_are_means():
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 24), dtype=np.uint8)
    rows = np.array([2, 0])
    means = images[rows].reshape(2, 3, 8, 2, 8, 3).mean((3, 5))
    np.testing.assert_allclose(reading.plain_inputs(images, rows), means.reshape(2, -1), rtol=1e-6)


def test_tokens_are_no_plain_input():
    assert reading.plain_inputs(np.ones((4, 7), np.int64), np.arange(4)) is None


class Scaled(nn.Module):
    """A layer that cannot draw its parameters anew."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.arange(192.0))

    def forward(self, x):
        return x.flatten(1) * self.scale


def test_the_random_control_keeps_nothing_of_the_trained_weights(data):
    model = nn.Sequential(Scaled(), nn.Linear(192, 2))
    control = reading.untrained(model, data["val"]["image"])
    assert not torch.equal(control[0].scale, model[0].scale)
    assert torch.equal(control[0].scale.sort().values, model[0].scale)
    assert not torch.equal(control[1].weight, model[1].weight)


def test_the_fixed_weights_have_the_predicted_errors(report, model, data):
    fixed = copy.deepcopy(model)
    fixed.load_state_dict(fixed_weights(model, report.remedy.head))
    again = samphire.audit(fixed, data, label="kind", features=["scene"], images=False)
    after = {g.name: g.error for g in again.attributes[0].errors.groups}
    for cell in report.remedy.cells:
        assert after[cell.before.name] == pytest.approx(cell.after, abs=0.02)
    assert again.attributes[0].reliance.gap < report.attributes[0].reliance.gap


def test_a_stopped_audit_goes_on_and_ends_alike(model, data, report, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 64)
    real, calls = reading.features, []

    def failing(*args, **kwargs):
        calls.append(len(args[1]))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(reading, "features", failing)
    with pytest.raises(KeyboardInterrupt):
        samphire.audit(model, data, label="kind", features=["scene"], folder=tmp_path)
    before = sum(calls[:-1])
    again = samphire.audit(model, data, label="kind", features=["scene"], folder=tmp_path)
    assert again.verdict == report.verdict
    calls.clear()
    samphire.audit(model, data, label="kind", features=["scene"], folder=tmp_path)
    assert sum(calls) <= 16 < before  # a look at the head, and nothing read again


def test_another_model_does_not_take_the_features_of_the_first(report, folder, data, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    other = trained(data, epochs=1, seed=5)
    kept = samphire.audit(other, data, label="kind", features=["scene"], size=8, folder=tmp_path, images=False)
    fresh = samphire.audit(other, data, label="kind", features=["scene"], size=8, images=False)
    assert kept.verdict == fresh.verdict


def test_a_single_logit_is_audited_like_two(model, data, report):
    single = copy.deepcopy(model)
    last = nn.Linear(16, 1)
    with torch.no_grad():
        last.weight.copy_(model[-1].weight[1:] - model[-1].weight[:1])
        last.bias.copy_(model[-1].bias[1:] - model[-1].bias[:1])
    single[-1] = last
    again = samphire.audit(single, data, label="kind", features=["scene"], images=False)
    assert again.attributes[0].reliance == report.attributes[0].reliance
    assert again.attributes[0].erased[1].gap == pytest.approx(report.attributes[0].erased[1].gap, abs=0.02)
    fixed_weights(single, again.remedy.head)


def test_features_and_logits_of_any_framework():
    report = samphire.audit(None, arrays(), label="bird", features=["place"])
    assert report.judged.level == "alarm"
    assert report.upweighting[0].n == 1920


def test_a_missing_attribute_costs_its_rows_alone():
    data = arrays()
    place = data["test"]["place"].astype(object)
    place[::4] = None
    data["test"]["place"] = place
    report = samphire.audit(None, data, label="bird", features=["place"])
    assert report.attributes[0].missing == 250
    assert report.judged.level == "alarm"


def test_several_attributes_are_judged_together():
    data = arrays()
    for part in data.values():
        part["coin"] = np.random.default_rng(len(part["bird"])).integers(0, 2, len(part["bird"]))
    report = samphire.audit(None, data, label="bird", features=["coin", "place"])
    assert report.main.name == "place"
    assert {a.name: a.corner for a in report.attributes}["coin"] == "never learned"
    assert report.judged.headline == "The model leans on place."


def test_three_examples_of_a_group_are_a_verdict_too():
    data = arrays(test=400)
    test = data["test"]
    conflicting = np.flatnonzero(test["bird"] != test["place"])
    keep = np.setdiff1d(np.arange(400), conflicting[3:])
    data["test"] = {name: column[keep] for name, column in test.items()}
    report = samphire.audit(None, data, label="bird", features=["place"])
    assert report.judged.level == "open"
    assert "cannot be judged" in report.judged.headline


def test_no_shortcut_found_is_a_verdict_too():
    report = samphire.audit(None, arrays(0.5, test=20_000), label="bird", features=["place"])
    assert report.judged.level == "clear"
    assert report.judged.headline.startswith("No shortcut found")


def test_a_lost_feature_cannot_be_fixed_by_the_head():
    data = arrays(bird=0.0, place=4.0)
    report = samphire.audit(None, data, label="bird", features=["place"])
    assert report.label.corner == "never learned"
    assert "cannot bring it back" in report.verdict


def test_groups_are_inferred_where_nobody_names_any(model, data):
    plain = {part: {k: v for k, v in columns.items() if k != "scene"} for part, columns in data.items()}
    report = samphire.audit(model, plain, label="kind", features="none", names={"cluster1": "beach"})
    assert report.inferred
    assert "beach" in report.attributes[0].values[1]
    assert "(groups inferred, not given)" in report.verdict
    assert len(report.groups) >= 4


BAD = [
    (lambda d: {"label": "colour"}, "colour"),
    (lambda d: {"features": ["sene"]}, "did you mean 'scene'"),
    (lambda d: {"features": ["kind"]}, "is the label itself"),
    (lambda d: d["test"].update(kind=np.array(["duck"] * 400)), "one class only in the test part"),
    (lambda d: [part.update(scene=part["kind"]) for part in d.values()], "is equal to the label"),
    (
        lambda d: [part.update(scene=np.array(["land"] * len(part["kind"]))) for part in d.values()],
        "fewer than two values",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), BAD)
def test_bad_data_get_one_sentence(change, sentence, model):
    data = table(train=60, val=60, test=400)
    given = {"label": "kind", "features": ["scene"]}
    changed = change(data)
    given |= changed if isinstance(changed, dict) else {}
    with pytest.raises(ValueError, match=sentence) as error:
        samphire.audit(model, data, **given)
    assert "\n" not in str(error.value)


def test_outputs_of_another_number_of_classes(data, model):
    wide = copy.deepcopy(model)
    wide[-1] = nn.Linear(16, 5)
    with pytest.raises(ValueError, match="the model has 5 outputs but the label 'kind' has 2 classes"):
        samphire.audit(wide, data, label="kind", features=["scene"])


def test_a_model_that_diverged(data, model):
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken[-1].bias[0] = float("nan")
    with pytest.raises(ValueError, match="the logits of part 'train' must be finite, but row 0 is not"):
        samphire.audit(broken, data, label="kind", features=["scene"])


def test_features_without_logits():
    data = arrays()
    for part in data.values():
        del part["logits"]
    with pytest.raises(ValueError, match="must have features"):
        samphire.audit(None, data, label="bird", features=["place"])


def test_a_group_that_nobody_has_found(model, data):
    with pytest.raises(ValueError, match="there is no group 'cluster9'"):
        samphire.audit(model, data, label="kind", features="none", names={"cluster9": "beach"})


class Watched:
    """Features that remember how many rows were asked for at once."""

    def __init__(self, array):
        self.array, self.shape, self.most = array, array.shape, 0

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        part = self.array[rows]
        self.most = max(self.most, len(part))
        return part


def test_features_are_read_piece_by_piece():
    seen = example(test=30_000, val=9000, train=9000)
    watched = {part: replace(s, features=Watched(s.features)) for part, s in seen.items()}
    audit_seen(watched, "bird", ["place"])
    assert max(s.features.most for s in watched.values()) <= 8192
    inferred(watched, {})
    assert max(s.features.most for s in watched.values()) <= 8192


def test_groups_of_arrays_are_inferred_too():
    data = {part: {k: v for k, v in columns.items() if k != "place"} for part, columns in arrays(place=6.0).items()}
    report = samphire.audit(None, data, label="bird", features="none")
    assert report.judged.level == "alarm"
    assert report.groups == ()  # there is nothing to look at
