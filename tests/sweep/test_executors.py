"""The same rows from every executor, whatever befalls its nodes and processes."""

import json
import os
import pickle
import sys
import threading
from functools import partial

import pytest
import ray_cluster
import torch
from sweep_jobs import (
    JOBS,
    Job,
    expected,
    hang_but_first,
    hang_on,
    note_environment,
    rows_of,
    warned_before_the_second_epoch,
    work,
)

from samphire import pool, records, sweep
from samphire.train import fit
from waiting import until


@pytest.fixture(scope="module")
def cluster():
    """One node of one core."""
    with ray_cluster.cluster(head_cores=1) as made:
        yield made


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_executor_trains_the_same_rows(tree, cluster, tmp_path, one_thread):
    small = {"model": "samphire.experiments.paper.image_weights:smallest", "batch": 50, "examples": 100}
    jobs = sweep.grid("fmnist-mnist", lr=[0.05], rho=[0, 0.1], epochs=2, resamples=1, **small)
    assert [job.rule for job in jobs] == ["sgd", "sam", "lsam"]
    found = {}
    for on, address in (("here", None), ("processes", None), ("ray", cluster.address)):
        train = partial(fit, root=tree, out=tmp_path / on, cache=tmp_path)
        swept = sweep.run(jobs, train, tmp_path / on, on=on, address=address)
        assert [trial.state for trial in swept.trials] == ["done"] * 3
        assert all(
            {"val_error", "val_worst", "test_error", "probe_val"} <= trial.row.keys() for trial in swept.trials
        )
        found[on] = rows_of(tmp_path / on)
    assert len(found["here"]) == 3
    assert len({json.dumps(rows) for rows in found["here"].values()}) == 3
    assert found["here"] == found["processes"] == found["ray"]


def test_a_job_elsewhere_has_one_thread_whether_torch_is_loaded_or_not(monkeypatch, tmp_path, one_thread):
    for name in pool.ONE_THREAD:
        monkeypatch.setenv(name, "2")
    torch.set_num_threads(2)
    request = pickle.dumps((partial(work, out=tmp_path, fault=note_environment), JOBS[0]))
    assert sweep.executors._attempt_elsewhere(request, []) is None
    (run,) = records.read(tmp_path)
    assert (run.rows[0]["torch"], run.rows[0]["omp"]) == (1, "1")


def test_a_node_killed_in_a_sweep_loses_nothing(cluster, tmp_path):
    victim = ray_cluster.patiently(lambda: cluster.add_node(num_cpus=1))
    out, killed = tmp_path / "runs", tmp_path / "killed"
    out.mkdir()

    over = threading.Event()

    def kill_when_busy():
        while not any(run.rows and run.rows[-1]["node"] == victim.node_id for run in records.read(out)):
            if over.wait(0.02):
                break
        cluster.remove_node(victim, allow_graceful=False)
        killed.touch()

    killer = threading.Thread(target=kill_when_busy)
    killer.start()
    train = partial(work, out=out, fault=partial(hang_on, place=victim.node_id, killed=killed))
    swept = sweep.run(JOBS, train, out, on="ray", address=cluster.address)
    over.set()
    killer.join()
    assert not swept.failed
    assert rows_of(out) == expected()
    nodes = [[row["node"] for row in run.rows] for run in records.read(out)]
    assert sorted(places.index(places[-1]) for places in nodes) == [0, 0, 0, 1]  # one was moved after its first row


def test_an_interrupted_sweep_ends_its_tasks_on_ray(cluster, tmp_path):
    def interrupt(trial):
        raise KeyboardInterrupt

    train = partial(work, out=tmp_path, fault=hang_but_first)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(JOBS[:2], train, tmp_path, on="ray", address=cluster.address, done=interrupt)
    until(lambda: sweep.trials(tmp_path, JOBS)[1].state != "running", "the task has ended")
    sweep.run(JOBS[:2], partial(work, out=tmp_path), tmp_path)
    assert rows_of(tmp_path) == expected(JOBS[:2])


def test_without_ray_the_way_out_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs Ray; pip install 'samphire\[ray\]', or take on='processes'"):
        sweep.run(JOBS, work, tmp_path, on="ray")


TIMED_OUT = 10  # minutes of a limit that submitit keeps for itself: if there are no more, a signal means the end


def on_slurm(folder, monkeypatch, limit, limits, once=True):
    """A job that SLURM ends in the middle, because its time is over or to make room for another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(sweep.executors, "POLL", 0.05)
    monkeypatch.setattr(sweep.executors, "LIMIT", limit)
    monkeypatch.setattr(sweep.executors, "LIMITS", limits)
    fault = partial(warned_before_the_second_epoch, told=folder / "told" if once else None)
    return sweep.run(JOBS[:1], partial(work, out=folder, fault=fault), folder, on="slurm", address="local")


@pytest.mark.parametrize(("limit", "limits"), [(TIMED_OUT, 1), (24 * 60, 0)], ids=["time limit", "preempted"])
def test_slurm_jobs_are_queued_again_and_resume(limit, limits, monkeypatch, tmp_path):
    swept = on_slurm(tmp_path, monkeypatch, limit, limits)
    assert not swept.failed
    assert rows_of(tmp_path) == expected(JOBS[:1])
    (run,) = records.read(tmp_path)
    assert [session["rows"] for session in records.files.read_rows(run.folder / "sessions.jsonl")] == [1, 2]


def test_a_slurm_job_that_met_too_many_time_limits_says_so(monkeypatch, tmp_path):
    (failed,) = on_slurm(tmp_path, monkeypatch, TIMED_OUT, 0, once=False).failed
    assert "timed-out too many times" in failed.error


def test_without_slurm_the_way_out_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs sbatch, and there is none here; run it where SLURM is"):
        sweep.run(JOBS, work, tmp_path, on="slurm")
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"needs submitit; pip install 'samphire\[slurm\]', or take on='processes'"):
        sweep.run(JOBS, work, tmp_path, on="slurm")


def test_processes_have_one_thread_each_and_are_reused(tmp_path):
    jobs = [Job(i, epochs=1) for i in range(3)]
    sweep.run(jobs, partial(work, out=tmp_path, fault=note_environment), tmp_path, on="processes", workers=1)
    rows = [run.rows[0] for run in records.read(tmp_path)]
    assert {(row["torch"], row["omp"]) for row in rows} == {(1, "1")}
    assert len({row["pid"] for row in rows} | {os.getpid()}) == 2
