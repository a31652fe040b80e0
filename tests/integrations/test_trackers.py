"""Trackers for real: TensorBoard's event files, MLflow's store, wandb offline, CSV; killed and resumed, no point twice."""

import csv
import pickle
import struct
import sys

import pytest
from typer.testing import CliRunner

import trees
from samphire import records
from samphire.cli import app
from samphire.integrations.trackers import TRACKERS, Tracker, mlflow_name, numbers
from samphire.train import fit, parse

SETTINGS = ["epochs=3", "batch=50", "examples=100", "resamples=1", "lr=0.05", "rule=sam", "rho=0.1"]


class Killed(Exception):
    pass


def kill_after(epochs):
    """A progress that ends the run in the midst of an epoch."""

    def progress(what, done, total):
        if done > epochs * total / 3 and "epoch" in what:
            raise Killed

    return progress


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return trees.dominoes(tmp_path_factory.mktemp("tree"))


def resumed(kind, tree, folder):
    """A run that was killed in its second epoch and resumed."""
    config, arguments = parse("fmnist-mnist", SETTINGS), {"root": tree, "out": folder, "cache": folder / "cache"}
    with pytest.raises(Killed):
        fit(config, **arguments, log=Tracker(kind), progress=kill_after(1))
    trained = fit(config, **arguments, log=Tracker(kind))
    fit(config, **arguments, log=Tracker(kind))  # done already
    assert len(trained.rows) == 3
    return trained


def tensorboard(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained.folder / "tensorboard")).Reload()
    assert events.Tags()["images"] == ["curves"]
    assert "config/text_summary" in events.Tags()["tensors"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def mlflow(trained):
    import mlflow

    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("samphire").experiment_id])
    assert run.data.params["rho"] == "0.1"
    assert run.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["curves.png"]
    names = run.data.metrics
    return {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] for name in names}


def offline_records(path):
    """The records of wandb's own file, a LevelDB log: blocks of 32 KiB, each part of a record with a header."""
    data, at, block, header, record = path.read_bytes(), 7, 32768, struct.Struct("<IHB"), b""
    while at + header.size <= len(data):
        if block - at % block < header.size:
            at += block - at % block
            continue
        _, length, kind = header.unpack_from(data, at)
        record += data[at + header.size : at + header.size + length]
        at += header.size + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def wandb(trained):
    from wandb.proto.wandb_internal_pb2 import Record

    points, configured = {}, set()
    for path in sorted((trained.folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in offline_records(path):
            record = Record()
            record.ParseFromString(data)
            configured |= {item.key for item in record.run.config.update}
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            for name, value in items.items():
                if not name.startswith(("_", "curves")):
                    points.setdefault(name, []).append((int(items["_step"]), float(value)))
    assert "rho" in configured
    assert list((trained.folder / "wandb").glob("offline-run-*/files/media/images/curves*.png"))
    return points


def table(trained):
    with open(trained.folder / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [(int(r["epoch"]), float(r[name])) for r in rows if r[name]] for name in rows[0] if name != "epoch"}


READ = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb, "csv": table}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", TRACKERS)
def test_every_number_of_every_row_is_shown_once(kind, tree, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    trained = resumed(kind, tree, tmp_path)
    shown = READ[kind](trained)
    expected = {}
    for row in trained.rows:
        for name, value in numbers(row).items():
            expected.setdefault(mlflow_name(name) if kind == "mlflow" else name, []).append((row["epoch"], value))
    assert {"loss", "rho", "sharpness/gap", "val_error"} <= expected.keys()
    assert any(name.startswith("val_groups/") for name in expected)
    assert any(name.startswith("probe/") for name in expected)
    assert shown.keys() == expected.keys()
    for name, points in expected.items():
        assert [step for step, _ in shown[name]] == [step for step, _ in points], name
        assert [v for _, v in shown[name]] == pytest.approx([v for _, v in points], rel=1e-6), name


def test_a_sweep_fills_the_tracker_of_each_run(tree, tmp_path):
    settings = ["epochs=1", "batch=50", "examples=100", "resamples=0", "lr=0.05", "rho=0,0.1"]
    places = ["--root", str(tree), "--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    done = CliRunner().invoke(app, ["sweep", "fmnist-mnist", *settings, "--rules", "sam", *places, "--log", "csv"])
    assert done.exit_code == 0, done.output
    runs = records.read(tmp_path)
    assert len(runs) == 2
    for run in runs:
        assert table(run)["loss"] == [(1, run.rows[0]["loss"])]


def test_a_tracker_travels_to_other_processes_and_names_what_is_missing(monkeypatch):
    assert pickle.loads(pickle.dumps(Tracker("csv"))) == Tracker("csv")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"log='wandb' needs wandb; pip install 'samphire\[wandb\]'"):
        Tracker("wandb")
