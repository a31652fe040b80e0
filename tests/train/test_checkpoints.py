"""A state is used only if every bit of it is what was stored; a run heals from what it cannot use."""

import json
import random

import pytest
import torch
from torch import nn

import trees
from samphire import models, records
from samphire.train import appendix_b, checkpoints, fit, load_network, training
from samphire.train.trained import load_weights

STATE = {"done": 2, "model": {"w": torch.arange(6.0), "n": torch.tensor(3)}, "rows": [{"epoch": 1, "loss": 0.5}]}


def tiny(num_classes=2, generator=None):
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_classes))


CONFIG = appendix_b("fmnist-mnist", model="test_checkpoints:tiny", epochs=3, batch=300, resamples=0, lr=0.1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return trees.dominoes(tmp_path_factory.mktemp("data"), train=40, test=10)


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    return fit(CONFIG, root, tmp_path_factory.mktemp("whole"))


class Killed(BaseException):
    pass


@pytest.fixture
def killed(root, tmp_path, monkeypatch):
    """The folder of a run that was killed in its third epoch."""
    real, calls = training.Training.epoch, []

    def epoch(self, progress):
        calls.append(1)
        if len(calls) > 2:
            raise Killed
        return real(self, progress)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(training.Training, "epoch", epoch)
        fit(CONFIG, root, tmp_path)
    return tmp_path / records.key(CONFIG)


def test_any_flipped_bit_is_noticed_or_changes_nothing(tmp_path, logged):
    path = tmp_path / "state.pt"
    checkpoints.store(path, STATE)
    stored = path.read_bytes()
    draw, noticed = random.Random(0), 0
    for at in draw.sample(range(8 * len(stored)), 400):
        damaged = bytearray(stored)
        damaged[at // 8] ^= 1 << at % 8
        path.write_bytes(damaged)
        state = checkpoints.read(path)
        noticed += state is None
        if state is not None:
            torch.testing.assert_close(state, STATE, rtol=0, atol=0)
    assert noticed > 50  # the rest is padding
    assert len(logged) == noticed


def other_network(state):
    return state | {"model": {"w": torch.zeros(3)}}


DAMAGES = {
    "flipped": lambda path: path.write_bytes(path.read_bytes().replace(b"val_loss", b"val_lors", 1)),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-500]),
    "a list": lambda path: torch.save([1, 2], path),
    "of another network": lambda path: torch.save(other_network(torch.load(path)), path),
    "no optimizer": lambda path: torch.save({k: v for k, v in torch.load(path).items() if k != "optimizers"}, path),
    "a word for a number": lambda path: torch.save(torch.load(path) | {"done": "2"}, path),
    "rows of other epochs": lambda path: torch.save(torch.load(path) | {"rows": [{"epoch": 2}, {"epoch": 2}]}, path),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_state_cannot_be_used_trains_again_and_has_every_row_once(root, killed, whole, damage, logged):
    DAMAGES[damage](killed / "state.pt")
    again = fit(CONFIG, root, killed.parent)
    assert [row["epoch"] for row in again.rows] == [1, 2, 3]
    for ours, theirs in zip(again.rows, whole.rows, strict=True):
        assert {k: v for k, v in ours.items() if k != "seconds"} == {
            k: v for k, v in theirs.items() if k != "seconds"
        }
    expected = torch.load(whole.folder / "model.pt")
    assert all(torch.equal(t, expected[name]) for name, t in torch.load(again.folder / "model.pt").items())
    said = [message for message in logged if "state.pt cannot be used" in message]
    assert len(said) == (damage != "deleted")
    assert all(message.endswith("training begins again from the start.") for message in said)


def test_a_finished_run_is_read_from_a_disk_that_cannot_be_written_to(root, whole, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    for module, name in ((records.files.os, "open"), (records.runs, "write_atomic"), (records.runs.Path, "mkdir")):
        monkeypatch.setattr(module, name, refuse)
    assert fit(CONFIG, root, whole.folder.parent).rows == whole.rows


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("input.json", "[]", "input.json is damaged: its mean is None"),
        ("input.json", '{"mean": [0], "std": ["1"], "classes": 5}', r"its std is \['1'\]; train again"),
        ("input.json", '{"mean": [0], "std": [1], "classes": "5"}', "its classes is '5'"),
        ("config.json", '{"model": 3}', "config.json is damaged: its model is 3"),
        ("config.json", "{", "config.json is damaged: its model is None"),
    ],
)
def test_damaged_files_of_a_run_are_named(whole, tmp_path, file, content, message):
    for name in ("config.json", "input.json", "model.pt"):
        (tmp_path / name).write_bytes((whole.folder / name).read_bytes())
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_network(tmp_path)


def test_a_session_without_seconds_is_named(whole, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "rows.jsonl"):
        (folder / name).write_bytes((whole.folder / name).read_bytes())
    (folder / "sessions.jsonl").write_text(json.dumps({"seconds": 1}) + "\n" + json.dumps({"commit": "a"}) + "\n")
    with pytest.raises(ValueError, match=r"sessions.jsonl is damaged: line 2 has no seconds; delete that line"):
        records.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:1], r"of another shape are 2.weight \(1, 12\) for \(2, 12\)"),
        (lambda t: t.to(torch.int8), r"of another type are 2.weight whole \(torch.int8\) for torch.float32"),
        (lambda t: t > 0, r"of another type are 2.weight bool \(torch.bool\) for torch.float32"),
        (
            lambda t: t.to(torch.complex64),
            r"of another type are 2.weight complex \(torch.complex64\) for torch.float32",
        ),
        (lambda t: t.to_sparse(), r"of another type are 2.weight sparse \(torch.float32\) for torch.float32"),
        (lambda t: t.to("meta"), r"of another type are 2.weight empty \(torch.float32\) for torch.float32"),
        (lambda t: t.new_zeros(1).expand(10**5, 10**5), r"of another shape are 2.weight \(100000, 100000\) for"),
        (lambda t: t.clone().fill_(float("nan")), "not finite are 2.weight"),
    ],
)
def test_weights_to_be_measured_must_be_those_of_the_network(tmp_path, change, message):
    state = models.load("test_checkpoints:tiny", 2).state_dict()
    path = tmp_path / "weights.pt"
    torch.save(state | {"2.weight": change(state["2.weight"])}, path)
    with pytest.raises(ValueError, match=message):
        load_weights("test_checkpoints:tiny", 2, path)
