"""Two ranks train what one process does."""

import gc
import json
import math
import os
import subprocess
import sys
import weakref

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samphire import records
from samphire.train import fit, parse
from samphire.train.distributed import joined
from two_ranks import on_two_ranks
from waiting import PATIENCE


def fit_each(_, jobs, root, out):
    for job in jobs:
        fit(parse(job[0], job[1:]), root, out)


def test_two_ranks_train_what_one_does(root, tmp_path):
    words = ["fmnist-mnist", "model=short_runs:even", "epochs=2", "examples=200", "batch=51", "resamples=0", "lr=0.1"]
    settings = {
        "sgd": ["rule=sgd"],
        "sam": ["rule=sam", "rho=0.2"],
        "dro": ["method=group_dro", "rule=lsam", "rho=0.2"],
        "local": ["rule=sam", "rho=0.2", "perturbation=local"],
        "one pass": ["rule=lsam", "rho=0.2", "perturbation=local"],
        "jtt": ["method=jtt", "method.times=2"],
    }
    jobs = [[*words, *more] for more in settings.values()]
    on_two_ranks(fit_each, jobs, root, tmp_path / "two")
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


def test_a_wrapped_network_is_freed_before_its_group(monkeypatch):
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in {"TORCHELASTIC_RUN_ID": "tests", **alone}.items():
        monkeypatch.setenv(name, value)
    group_lived = []
    gc.disable()
    with joined("cpu"):
        model = DistributedDataParallel(nn.Linear(1, 1))
        model.part_of_a_cycle = [model]
        weakref.finalize(model, lambda: group_lived.append(dist.is_initialized()))
        del model
    gc.enable()
    gc.collect()
    assert group_lived == [True]


def test_torchrun_runs_the_command_and_its_first_rank_alone_fills_the_tracker(root, tmp_path):
    words = ["fmnist-mnist", "model=short_runs:even", "epochs=1", "examples=60", "resamples=0"]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "--", "samphire", "train"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    args = [*launch, *words, "--root", str(root), "--out", str(tmp_path), "--json", "--log", "tensorboard"]
    done = subprocess.run(
        [sys.executable, *args], env=env, check=True, capture_output=True, text=True, timeout=PATIENCE
    )
    (row,) = (json.loads(line) for line in done.stdout.splitlines())
    assert row["epoch"] == 1
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 1  # each writer has a file of its own
