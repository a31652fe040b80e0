"""A run that was killed ends where an uninterrupted one does."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from short_runs import DOMINOES, Killed, assert_same, killed_at, left_by_kills, small, weights_of, without_seconds
from typer.testing import CliRunner

import trees
from samphire import cli, records
from samphire.records import runs as run_files
from samphire.train import fit, parse, training
from waiting import PATIENCE, until


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return trees.dominoes(tmp_path_factory.mktemp("data"), train=60, test=10)


SHORT = replace(DOMINOES, examples=60, batch=10)  # six batches: what is killed at each of its writes trains often


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
    {"method": "dfr", "method_settings": (("resamples", 1),), "resamples": 1, "model": "short_runs:even",
     "examples": 150, "batch": 25},  # some of each group for the probes
]  # fmt: skip


WRITES = (records, "write_atomic"), (run_files, "write_atomic"), (records.Run, "append")


@pytest.mark.parametrize("settings", MEMORIES, ids=lambda s: " ".join(v for v in s.values() if type(v) is str))
def test_a_run_killed_before_any_of_its_writes_ends_where_an_uninterrupted_one_does(
    root, tmp_path, monkeypatch, settings
):
    config = replace(SHORT, epochs=2, keep=(0, 1), **settings)
    with monkeypatch.context() as patch:
        left = left_by_kills(patch, tmp_path / "whole", WRITES)
        whole = fit(config, root, tmp_path / "whole")
    assert len(left) >= 8
    for out in left:
        assert_same(whole, fit(config, root, out))


@pytest.mark.parametrize(
    ("rows", "epochs"), [([0, 1, 0, 1], "1, 2, 1, 2"), ([1], "2"), ([None, 1], "None, 2")], ids=str
)
def test_rows_that_are_not_those_of_the_epochs_are_refused(root, tmp_path, monkeypatch, rows, epochs):
    config = replace(SHORT, epochs=3)
    with monkeypatch.context() as patch:
        left = left_by_kills(patch, tmp_path / "whole", [(records.Run, "append")])
        fit(config, root, tmp_path / "whole")
    last = left[-1]
    file = last / records.key(config) / "rows.jsonl"
    whole = file.read_bytes().splitlines()
    assert len(whole) == 2
    file.write_bytes(b"".join((b"{}" if i is None else whole[i]) + b"\n" for i in rows))
    with pytest.raises(ValueError, match=rf"rows.jsonl is damaged: its epochs are {epochs}; delete the run's folder"):
        fit(config, root, last)


@pytest.mark.parametrize("settings", MEMORIES, ids=lambda s: " ".join(v for v in s.values() if type(v) is str))
def test_a_run_killed_in_an_epoch_ends_where_an_uninterrupted_one_does(root, tmp_path, monkeypatch, settings):
    config = replace(SHORT, **settings)
    whole = fit(config, root, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, 8, [(training.Training, "_step")])
        fit(config, root, tmp_path / "killed")
    assert_same(whole, fit(config, root, tmp_path / "killed"))


def test_a_run_goes_on_with_as_many_processes(root, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, 8, [(training.Training, "_step")])
        fit(SHORT, root, tmp_path)
    (state,) = tmp_path.glob("*/state.pt")
    torch.save(torch.load(state) | {"ranks": 2}, state)
    with pytest.raises(
        ValueError, match="a run begun by 2 processes must be resumed by as many, got 1; start as many"
    ):
        fit(SHORT, root, tmp_path)


def hanging(num_classes=2, generator=None):
    """Hangs once a file has two lines, if the environment names one."""
    net = small(num_classes)
    rows = Path(os.environ.get("HANG_AFTER_TWO_ROWS", ""))
    net.register_forward_pre_hook(lambda *_: signal.pause() if rows.is_file() and count_lines(rows) == 2 else None)
    return net


def count_lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_real_kill(root, tmp_path):
    words = [
        "fmnist-mnist",
        "model=test_resuming:hanging",
        "rule=sam",
        "rho=0.1",
        "epochs=4",
        "batch=50",
        "resamples=0",
    ]
    command = ["train", *words, "--root", str(root), "--out", str(tmp_path / "killed"), "--json"]
    config = parse("fmnist-mnist", words[1:])
    rows = tmp_path / "killed" / records.key(config) / "rows.jsonl"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HANG_AFTER_TWO_ROWS": str(rows)}
    running = subprocess.Popen([sys.executable, "-m", "samphire", *command], env=env, stdout=subprocess.DEVNULL)
    until(lambda: count_lines(rows) == 2, "two rows are written", running)
    running.send_signal(signal.SIGKILL)
    assert running.wait(PATIENCE) == -signal.SIGKILL
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    resumed = [json.loads(line) for line in done.stdout.splitlines()]
    whole = fit(config, root, tmp_path / "whole")
    assert without_seconds(resumed) == without_seconds(whole.rows)
    killed = torch.load(rows.with_name("model.pt"))
    assert all(torch.equal(t, killed[name]) for name, t in weights_of(whole).items())
