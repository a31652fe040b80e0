"""Sweeps: grids, the same rows from every executor, failures, two sweeps on one folder, selection, the command."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import trees
from samphire import records, sweep
from samphire.cli.sweep import sweep as command
from samphire.statistics import Estimate
from samphire.sweep import Trial
from samphire.sweep.plans import plan
from samphire.train import appendix_b, fit

# Grids


@pytest.mark.parametrize(
    ("data", "lr", "rho", "targets"),
    [
        ("cifar-mnist", {0.01, 0.05, 0.1}, {0, 0.01, 0.03, 0.05, 0.07, 0.1, 0.2}, 1),
        ("fmnist-mnist", {0.01, 0.05, 0.1}, {0, 0.01, 0.03, 0.05, 0.07, 0.1, 0.2}, 1),
        ("celeba", {0.0005, 0.001, 0.005, 0.01}, {0, 0.01, 0.02, 0.05, 0.07}, 1),
        ("waterbirds", {0.0005, 0.001, 0.005, 0.01}, {0, 0.01, 0.02, 0.05, 0.07}, 1),
        ("pacs", {0.005, 0.01, 0.02}, {0, 0.03, 0.05, 0.1}, 4),
        ("vlcs", {0.005, 0.01, 0.02}, {0, 0.03, 0.05, 0.1}, 4),
        ("officehome", {0.005, 0.01, 0.02}, {0, 0.03, 0.05, 0.1}, 4),
    ],
)
def test_the_grids_are_the_papers(data, lr, rho, targets):
    jobs = sweep.grid(data, rules=("sam", "lsam"), seeds=(0, 1))
    assert len({records.key(job) for job in jobs}) == len(jobs) == 2 * targets * len(lr) * (1 + 2 * (len(rho) - 1))
    for rule in ("sam", "lsam"):
        assert {job.radius for job in jobs if job.rule == rule} == rho - {0}
    assert {job.radius for job in jobs if job.rule == "sgd"} == {0}
    assert {job.lr for job in jobs} == lr
    assert len({job.target for job in jobs}) == targets
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)
    assert all(replace(job, rule="sgd", rho=None) == appendix_b(data, lr=job.lr, seed=job.seed, target=job.target) for job in jobs)  # fmt: skip


def test_every_set_with_settings_has_a_grid():
    from samphire.train.configs import DEFAULTS

    assert sweep.GRIDS.keys() == DEFAULTS.keys()


def test_lists_of_a_grid_can_be_replaced():
    jobs = sweep.grid("pacs", ["looksam"], lr=[0.1], rho=[0, 0.2], targets=["photo"], epochs=2, rule_settings=(("k", 3),))  # fmt: skip
    assert [(j.rule, j.rho, j.rule_settings) for j in jobs] == [("sgd", None, ()), ("looksam", 0.2, (("k", 3),))]
    assert all((j.lr, j.target, j.epochs) == (0.1, "photo", 2) for j in jobs)
    assert [j.rule for j in sweep.grid("cifar-mnist", ["sam"], rho=[0.1], lr=[0.1])] == ["sam"]
    assert len(sweep.grid("cifar-mnist", ["sam", "sam"], [0, 0], rho=[0.1, 0.1], lr=[0.1])) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sweep.grid("mnist"), "no grid is named 'mnist'; did you mean 'cifar-mnist'"),
        (lambda: sweep.grid("cifar-mnist", ["sma"]), "no rule is named 'sma'; did you mean 'sam'"),
        (lambda: sweep.grid("cifar-mnist", seeds=()), "a grid must have a job"),
        (lambda: sweep.select([], by="test_error"), "no criterion is named 'test_error'; did you mean 'val_error'"),
        (
            lambda: sweep.run([], print, ".", on="cloud"),
            "no executor is named 'cloud'; there are here, processes, ray, slurm",
        ),
        (lambda: sweep.run([], print, ".", on="processes", workers=0), "workers must be a whole number >= 1, got 0"),
        (lambda: sweep.run([], print, ".", workers=2), "one job at a time, got workers=2; take on='processes'"),
        (lambda: sweep.run([], print, ".", address="auto"), "got 'auto' and on='here'; take on='ray'"),
    ],
)
def test_bad_input_is_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# A stand-in for training


@dataclass(frozen=True)
class Job:
    number: int
    epochs: int = 3


JOBS = [Job(i) for i in range(4)]


def node():
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().get_node_id() if ray and ray.is_initialized() else None


def work(job, out, fault=None):
    """A row for each epoch; goes on where it was. A fault is a function of the job, its run and the next epoch."""
    with records.open_run(out, job) as run:
        for epoch in range(len(run.rows), job.epochs):
            if fault is not None:
                fault(job, run, epoch)
            run.append({"epoch": epoch, "value": job.number * 10 + epoch, "node": node()})


def rows_of(out):
    """Rows by key, without what may differ: times and places."""
    strip = lambda row: {name: value for name, value in row.items() if name not in ("seconds", "node")}
    return {run.key: [strip(row) for row in run.rows] for run in records.read(out) if run.done}


def expected(jobs=JOBS):
    return {records.key(j): [{"epoch": e, "value": j.number * 10 + e} for e in range(j.epochs)] for j in jobs}


# Executors


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(sweep.running, "POLL", 0.05)


@pytest.fixture(scope="module")
def cluster():
    """One node of one core."""
    from ray.cluster_utils import Cluster

    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": soon}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return trees.dominoes(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_executor_trains_the_same_rows(tree, cluster, tmp_path, one_thread):
    jobs = sweep.grid("fmnist-mnist", lr=[0.05], rho=[0, 0.1], epochs=2, batch=50, examples=100, resamples=1)
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


def hang_on(job, run, epoch, place, until):
    """After the first epoch, hang on one node; elsewhere wait for a file."""
    while epoch == 1 and (node() == place or not until.exists()):
        time.sleep(0.02)


def test_a_node_killed_in_a_sweep_loses_nothing(cluster, tmp_path):
    victim = cluster.add_node(num_cpus=1)
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
    train = partial(work, out=out, fault=partial(hang_on, place=victim.node_id, until=killed))
    swept = sweep.run(JOBS, train, out, on="ray", address=cluster.address)
    over.set()
    killer.join()
    assert not swept.failed
    assert rows_of(out) == expected()
    nodes = [[row["node"] for row in run.rows] for run in records.read(out)]
    assert sorted(places.index(places[-1]) for places in nodes) == [0, 0, 0, 1]  # one was moved after its first row


def hang_but_first(job, run, epoch):
    while job.number > 0 and epoch == 1:
        time.sleep(0.02)


def test_an_interrupted_sweep_ends_its_tasks_on_ray(cluster, tmp_path):
    def interrupt(trial):
        raise KeyboardInterrupt

    train = partial(work, out=tmp_path, fault=hang_but_first)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(JOBS[:2], train, tmp_path, on="ray", address=cluster.address, done=interrupt)
    while sweep.trials(tmp_path, JOBS)[1].state == "running":
        time.sleep(0.02)
    sweep.run(JOBS[:2], partial(work, out=tmp_path), tmp_path)
    assert rows_of(tmp_path) == expected(JOBS[:2])


def test_without_ray_the_way_out_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs Ray; pip install 'samphire\[ray\]', or take on='processes'"):
        sweep.run(JOBS, work, tmp_path, on="ray")


def warned_before_the_second_epoch(job, run, epoch, told):
    """What SLURM does shortly before it ends a job: a signal, here once, or always if it is not noted."""
    if epoch == 1 and not (told and told.exists()):
        if told:
            told.touch()
        os.kill(os.getpid(), signal.SIGUSR2)


TIMED_OUT = (
    10  # minutes of a job's limit that submitit keeps for itself: with no more than these, a signal means the end
)


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


def note_environment(job, run, epoch):
    run.append({"torch": torch.get_num_threads(), "omp": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()})


def test_processes_have_one_thread_each_and_are_reused(tmp_path):
    jobs = [Job(i, epochs=1) for i in range(3)]
    sweep.run(jobs, partial(work, out=tmp_path, fault=note_environment), tmp_path, on="processes", workers=1)
    rows = [run.rows[0] for run in records.read(tmp_path)]
    assert {(row["torch"], row["omp"]) for row in rows} == {(1, "1")}
    assert len({row["pid"] for row in rows} | {os.getpid()}) == 2


# Failures


def raise_error():
    raise ArithmeticError("broken on purpose")


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def break_some(job, run, epoch, marks, how):
    """The first attempts of some jobs break in their second epoch."""
    if epoch == 1 and job.number in how:
        mark = marks / f"{job.number}-{len(list(marks.glob(f'{job.number}-*')))}"
        mark.touch()
        for action in how[job.number][int(mark.name[2:]) :][:1]:
            action()


@pytest.fixture
def marks(tmp_path):
    place = tmp_path / "marks"
    place.mkdir()
    return place


def test_a_job_that_fails_is_tried_once_more_and_then_reported(tmp_path, marks):
    out, ended = tmp_path / "runs", []
    broken = partial(break_some, marks=marks, how={0: [raise_error], 1: [raise_error] * 3})
    swept = sweep.run(JOBS, partial(work, out=out, fault=broken), out, done=ended.append)
    assert [t.state for t in swept.trials] == ["done", "failed", "done", "done"]
    assert [(t.config.number, t.state) for t in ended] == [(2, "done"), (3, "done"), (0, "done"), (1, "failed")]
    (failed,) = swept.failed
    assert "ArithmeticError: broken on purpose" in failed.error
    assert failed.report == out / "failed" / f"{records.key(Job(1))}.txt"
    assert failed.report.read_text() == failed.error
    assert failed.error.startswith(repr(Job(1)))
    assert failed.row["epoch"] == 0
    assert rows_of(out) == expected([Job(0), Job(2), Job(3)])

    swept = sweep.run(JOBS, partial(work, out=out, fault=broken), out)  # breaks once more, then works
    assert not swept.failed
    assert not list((out / "failed").iterdir())
    assert rows_of(out) == expected()


def test_a_process_that_is_killed_is_replaced_and_its_job_tried_again(tmp_path, marks):
    broken = partial(break_some, marks=marks, how={1: [raise_error, kill_self], 2: [kill_self]})
    swept = sweep.run(JOBS, partial(work, out=tmp_path, fault=broken), tmp_path, on="processes", workers=1)
    assert [t.state for t in swept.trials] == ["done", "failed", "done", "done"]
    assert "a worker process ended with exit code -9 before its task did" in swept.failed[0].error
    assert rows_of(tmp_path) == expected([Job(0), Job(2), Job(3)])


def test_work_that_writes_nothing_is_a_failure(tmp_path):
    swept = sweep.run(JOBS[:1], repr, tmp_path)
    assert "the work ended without a finished run" in swept.failed[0].error


def test_work_that_cannot_be_sent_is_a_failure(tmp_path):
    swept = sweep.run(JOBS[:2], lambda job: None, tmp_path, on="processes", workers=1)
    assert all("lambda" in trial.error for trial in swept.failed)
    assert len(swept.failed) == 2


def test_what_is_done_is_not_begun(tmp_path):
    sweep.run(JOBS, partial(work, out=tmp_path), tmp_path)
    calls = []
    swept = sweep.run([*JOBS, *JOBS], calls.append, tmp_path)
    assert calls == []
    assert [t.state for t in swept.trials] == ["done"] * 4


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have had ignored for us
from functools import partial
from pathlib import Path
import test_sweep
from samphire import sweep
out, on, starters, fault = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), getattr(test_sweep, sys.argv[4])
(out.parent / f"ready-{time.time_ns()}").touch()
while len(list(out.parent.glob("ready-*"))) < starters:
    time.sleep(0.01)
sweep.running.POLL = 0.05
train = partial(test_sweep.work, out=out, fault=fault)
sweep.run(test_sweep.JOBS, train, out, on=on, workers=None if on == "here" else 1)
"""


def slow(job, run, epoch):
    time.sleep(0.1)


def hang(job, run, epoch):
    while epoch == 1:
        time.sleep(0.02)


def start(out, on, fault, starters=1):
    """A sweep of its own, which begins when all are ready."""
    args = [sys.executable, "-c", SCRIPT, str(out), on, str(starters), fault]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(args, env=env, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("on", ["here", "processes"])
def test_a_sweep_that_was_ended_leaves_nobody_at_work_and_can_be_resumed(tmp_path, on, end):
    out = tmp_path / "runs"
    out.mkdir()
    process = start(out, on, "hang")
    while not any(run.rows for run in records.read(out)):
        time.sleep(0.01)
    process.send_signal(end)
    said = process.communicate(timeout=100)[1]  # when its last worker, too, has closed standard error
    assert ("KeyboardInterrupt" in said) == (end is signal.SIGINT)
    first, *others = sweep.trials(out, JOBS)
    assert (first.state, first.row["epoch"]) == ("missing", 0)  # nobody writes it any more
    assert {(trial.state, trial.row) for trial in others} == {("missing", None)}
    sweep.run(JOBS, partial(work, out=out), out)
    assert rows_of(out) == expected()


# Several sweeps on one folder


def test_two_sweeps_on_one_folder_share_the_work(tmp_path):
    out = tmp_path / "runs"
    both = [start(out, "here", "slow", starters=2) for _ in range(2)]
    assert [process.communicate()[1] for process in both] == ["", ""]
    assert [process.returncode for process in both] == [0, 0]
    assert rows_of(out) == expected()
    assert not (out / "failed").exists()
    assert {len(run.sessions) for run in records.read(out)} == {1}


@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_that_another_process_writes_is_left_to_it(tmp_path, finishes):
    """However often it is looked at; its result is taken, or it is computed here if its writer gives up."""
    begun, computed, theirs = [], [], ExitStack()
    run = theirs.enter_context(records.open_run(tmp_path, JOBS[0]))
    run.append({"epoch": 0, "value": 0})

    def let_go():
        assert [t.state for t in sweep.trials(tmp_path, JOBS)] == ["running", "done", "done", "done"]
        if finishes:
            run.append({"epoch": 1, "value": 1})
            run.append({"epoch": 2, "value": 2})
            theirs.close()
        else:
            theirs.__exit__(InterruptedError, InterruptedError(), None)

    def note(job):
        begun.append(job.number)
        if begun.count(0) == 4 and job.number == 0:
            let_go()
        work(job, tmp_path, fault=lambda job, run, epoch: computed.append((job.number, epoch)))

    swept = sweep.run(JOBS, note, tmp_path)
    assert not swept.failed
    assert begun == [0, 1, 2, 3, 0, 0, 0]
    assert [c for c in computed if c[0] == 0] == ([] if finishes else [(0, 1), (0, 2)])
    assert rows_of(tmp_path) == expected()


# Reading


def test_states_and_last_rows(tmp_path):
    done, stopped, running, failed, _, begun = jobs = [Job(i, epochs=1) for i in range(6)]
    work(done, tmp_path)
    with records.open_run(tmp_path, stopped) as run:
        run.append({"epoch": 1, "stopped": "the loss is not finite."})
    with pytest.raises(ArithmeticError), records.open_run(tmp_path, begun) as run:
        run.append({"epoch": 1})
        raise_error()
    sweep.run([failed, running], raise_error_of, tmp_path)
    with records.open_run(tmp_path, running):  # once more, after it failed
        found = sweep.trials(tmp_path, jobs)
    assert [t.state for t in found] == ["done", "stopped", "running", "failed", "missing", "missing"]
    assert [t.row and t.row["epoch"] for t in found] == [0, 1, None, None, None, 1]
    assert "ArithmeticError: broken on purpose" in found[3].error
    assert [bool(t.error) for t in found] == [False, False, False, True, False, False]


def raise_error_of(job):
    raise_error()


def test_progress_counts_epochs_of_all_jobs(tmp_path):
    work(JOBS[0], tmp_path)
    calls = []
    sweep.run(JOBS, partial(work, out=tmp_path, fault=slow), tmp_path, progress=lambda *c: calls.append(c))  # fmt: skip
    assert calls[0][:2] == ("1 of 4 runs", 3)
    assert calls[-1] == ("4 of 4 runs", 12, 12)
    assert [c[1] for c in calls] == sorted(c[1] for c in calls)
    assert len({c[1] for c in calls}) > 4  # within jobs, too


# Selection


def trial(rho, lr, seed=0, state="done", rule="sam", **row):
    config = appendix_b("cifar-mnist", rule=rule if rho else "sgd", rho=rho or None, lr=lr, seed=seed)
    return Trial(config, Path(), state, row or None)


def test_selection_by_hand():
    found = [
        trial(0, 0.1, 0, val_error=0.30, val_worst=0.5, test_error=0.31, probe_val={"a": 0.1, "b": 0.5}),
        trial(0, 0.1, 1, val_error=0.20, val_worst=0.7, test_error=0.21, probe_val={"a": 0.1, "b": 0.5}),
        trial(0, 0.2, 0, val_error=0.26, val_worst=0.4, test_error=0.36, probe_val={"a": 0.3, "b": 0.2}),
        trial(0, 0.2, 1, val_error=0.28, val_worst=0.4, test_error=0.38, probe_val={"a": 0.3, "b": 0.2}),
        trial(0.1, 0.1, val_error=0.1, val_worst=0.9, test_error=0.5, probe_val={"a": 0.9, "b": 0.9}),
    ]
    sgd, sam = sweep.select(found)
    assert (sgd.side, sgd.lr, sgd.rho, sgd.settings, sgd.count) == ("sgd", 0.1, 0.0, 2, "4 of 4")
    assert (sgd.score.mean, sgd.score.n) == (pytest.approx(0.25), 2)
    assert sgd.score.deviation == pytest.approx(0.05 * 2**0.5)
    assert [row["test_error"] for row in sgd.rows] == [0.31, 0.21]
    assert (sam.side, sam.lr, sam.rho, sam.settings, sam.count) == ("sam", 0.1, 0.1, 1, "1 of 1")
    assert [c.lr for c in sweep.select(found, "worst_group")] == [0.2, 0.1]
    probe = sweep.select(found, "probe")[0]
    assert (probe.lr, probe.score.mean) == (0.2, pytest.approx(0.3))  # of the hardest feature


@pytest.mark.parametrize(
    ("found", "chosen"),
    {
        "the smallest": ([trial(0.1, 0.1, val_error=0.2), trial(0.1, 0.2, val_error=0.1)], (0.1, 0.2)),
        "ties: smaller loss": (
            [trial(0.1, 0.1, val_error=0.2, val_loss=0.4), trial(0.2, 0.2, val_error=0.2, val_loss=0.3)],
            (0.2, 0.2),
        ),
        "ties: smaller rho": ([trial(0.2, 0.1, val_error=0.2), trial(0.1, 0.2, val_error=0.2)], (0.1, 0.2)),
        "ties: then smaller lr": ([trial(0.1, 0.2, val_error=0.2), trial(0.1, 0.1, val_error=0.2)], (0.1, 0.1)),
        "stopped": ([trial(0.1, 0.1, state="stopped", val_error=0.0), trial(0.1, 0.2, val_error=0.2)], (0.1, 0.2)),
        "one seed stopped": (
            [trial(0.1, 0.1, 0, val_error=0.0), trial(0.1, 0.1, 1, state="stopped", loss=9.0)]
            + [trial(0.1, 0.2, seed, val_error=0.2) for seed in range(2)],
            (0.1, 0.2),
        ),
        "one seed stopped, of as many that are done": (
            [
                *(trial(0.1, 0.1, 0, val_error=0.0), trial(0.1, 0.1, 1, state="stopped", loss=9.0)),
                *(trial(0.1, 0.2, 0, val_error=0.2), trial(0.1, 0.2, 1, state="running")),
            ],
            (0.1, 0.2),
        ),
        "fewer seeds": (
            [trial(0.1, 0.1, 0, val_error=0.0), trial(0.1, 0.1, 1, state="running", val_error=0.0)]
            + [trial(0.1, 0.2, seed, val_error=0.2) for seed in range(2)],
            (0.1, 0.2),
        ),
        "a row of a run that is not done": (
            [trial(0.1, 0.1, state="missing", val_error=0.0), trial(0.1, 0.2, val_error=0.2)],
            (0.1, 0.2),
        ),
        "nan": ([trial(0.1, 0.1, val_error=float("nan")), trial(0.1, 0.2, val_error=0.2)], (0.1, 0.2)),
        "nothing": ([trial(0.1, 0.1, state="failed"), trial(0.1, 0.2, state="stopped", val_error=0.1)], (None, None)),
    }.values(),
)  # fmt: skip
@pytest.mark.parametrize("turn", [1, -1])
def test_which_setting_is_taken(found, chosen, turn):
    (choice,) = sweep.select(found[::turn])
    assert (choice.rho, choice.lr) == chosen
    assert (choice.rows == ()) == (chosen == (None, None))


def test_sides_are_told_apart_by_what_differs():
    configs = [
        *sweep.grid("pacs", ["sam"], lr=[0.1], rho=[0, 0.1], targets=["photo", "sketch"]),
        appendix_b("pacs", rule="looksam", rho=0.1, rule_settings=(("k", 3),), target="photo"),
        appendix_b("pacs", rule="sam", rho=0, target="photo", lr=0.3),
    ]
    choices = sweep.select([Trial(c, Path(), "done", {"val_error": 0.1}) for c in configs])
    assert {c.side: c.settings for c in choices} == {
        "sgd, target photo": 2,
        "sam, target photo": 1,
        "sgd, target sketch": 1,
        "sam, target sketch": 1,
        "looksam, k=3, target photo": 1,
    }


def text(cell):
    return cell.spread() if isinstance(cell, Estimate) else str(cell)


def test_the_table_has_no_silent_hole():
    errors = {"val_error": 0.2, "val_worst": 0.4, "test_error": 0.25, "test_worst": 0.5, "probe": {"hard": 0.3}}
    found = [
        trial(0, 0.1, 0, **errors),
        trial(0, 0.1, 1, **errors | {"test_error": 0.35}),
        trial(0.1, 0.1, 0, state="running"),
        trial(0.1, 0.1, 1, state="failed"),
        trial(0.1, 0.2, 0, state="stopped", loss=9.0),
        trial(0.1, 0.2, 1, state="missing"),
    ]
    rows = sweep.table(found, by="worst_group")
    assert [(row["chosen by"], row["side"]) for row in rows] == [
        (by, side) for by in ("worst_group", "val_error", "val_loss", "probe") for side in ("sgd", "sam")
    ]
    sgd, sam = rows[:2]
    assert {name: text(cell) for name, cell in sgd.items()} == {
        "chosen by": "worst_group",
        "side": "sgd",
        "lr": "0.1",
        "rho": "0.0",
        "score": "0.4000 ± 0.0000",
        "test error": "0.3000 ± 0.0707",
        "worst group": "0.5000 ± 0.0000",
        "probe hard": "0.3000 ± 0.0000",
        "seeds": "2",
        "settings": "1",
        "runs": "2 of 2",
    }
    assert sam["runs"] == "0 of 4 (1 stopped, 1 running, 1 failed, 1 missing)"
    assert (sam["settings"], sam["seeds"], sam["lr"], text(sam["test error"])) == (2, 0, None, "–")
    assert rows[4]["lr"] is None  # nothing was probed on held-out examples
    assert rows[4]["runs"] == "2 of 2"


# The command

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command)


def call(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def test_the_command_trains_selects_and_resumes(tree, tmp_path):
    out = tmp_path / "runs"
    args = ["fmnist-mnist", "epochs=1", "examples=100", "resamples=1", "lr=0.05", "rho=0,0.1", "--rules", "sam", "--root", tree, "--out", out]  # fmt: skip
    table = call(*args, "--table")
    assert isinstance(table.exception, FileNotFoundError)
    out.mkdir()
    assert "0 of 1 (1 missing)" in " ".join(call(*args, "--table").stdout.split())

    first = call(*args, "--json")
    assert first.exit_code == 0, first.output
    rows = [json.loads(line) for line in first.stdout.splitlines() if line.startswith("{")]
    assert [(row["chosen by"], row["side"]) for row in rows][:2] == [("val_error", "sgd"), ("val_error", "sam")]
    assert all(row["runs"] == "1 of 1" and row["settings"] == 1 for row in rows)
    assert rows[0]["test error"].keys() == {"mean", "std", "n"}
    assert rows[0]["test error"]["std"] is None
    assert first.stderr.count("done: ") == 2
    assert "done: sam, rho=0.1, lr=0.05, seed=0: val_error 0." in first.stderr

    again = call(*args, "--json", "--on", "processes", "--workers", "1")
    assert again.stdout == first.stdout
    assert "done: " not in again.stderr
    assert all(len(run.sessions) == 1 for run in records.read(out))
    assert call(*args, "--json", "--table").stdout == first.stdout


def test_the_command_trains_in_processes(tree, tmp_path):
    words = ["fmnist-mnist", "epochs=1", "examples=100", "resamples=0", "lr=0.05", "rho=0,0.1", "--rules", "sam"]
    assert call(*words, "--on", "processes", "--workers", "2", "--root", tree, "--out", tmp_path).exit_code == 0
    assert [session["threads"] for run in records.read(tmp_path) for session in run.sessions] == [1, 1]


def test_the_command_reports_what_failed(tree, tmp_path):
    (job,) = plan("fmnist-mnist", ["epochs=1", "lr=0.05", "rho=0"], ["sam"], [0])
    (tmp_path / records.key(job)).touch()  # no folder can be made here
    result = call("fmnist-mnist", "epochs=1", "lr=0.05", "rho=0", "--root", tree, "--out", tmp_path)
    assert result.exit_code == 1
    assert "sgd, lr=0.05, seed=0 failed" in result.stderr
    assert "Traceback" in result.stderr
    assert f"{records.key(job)}.txt" in result.stderr
    assert "0 of 1 (1 failed)" in " ".join(result.stdout.split())


def test_words_become_jobs():
    jobs = plan("pacs", ["epochs=3", "lr=0.1", "rho=0,0.2", "target=photo,sketch", "rule.k=4"], ["looksam"], [0, 1])
    assert jobs == sweep.grid(
        *("pacs", ["looksam"], [0, 1]), lr=[0.1], rho=[0, 0.2], targets=["photo", "sketch"], epochs=3, rule_settings=(("k", 4),)
    )  # fmt: skip
    assert len(jobs) == 8
    assert plan("waterbirds", [], ["sam", "lsam"], [0]) == sweep.grid("waterbirds")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["cifar-mnst"], "no data set is named 'cifar-mnst'; did you mean 'cifar-mnist'"),
        (["cifar-mnist", "rule=sam"], "a sweep has several rules, got 'rule=sam'; write --rules sam"),
        (["cifar-mnist", "seed=1"], "a sweep has several seeds, got 'seed=1'; write --seeds 1"),
        (["cifar-mnist", "lr=a"], "lr must be numbers with commas between, got 'a'"),
        (["cifar-mnist", "--seeds", "0,x"], "seeds must be whole numbers with commas between, got 'x'"),
        (["cifar-mnist", "epochs"], "settings are written key=value, got 'epochs'"),
        (["cifar-mnist", "epoch=3"], "no setting is named 'epoch'; did you mean 'epochs'"),
        (["cifar-mnist", "--by", "test"], "no criterion is named 'test'"),
        (["cifar-mnist", "target=photo"], "target must be a domain for sets with domains only"),
        (["cifar-mnist", "--root", "nowhere"], "nowhere"),
    ],
)
def test_bad_words_are_a_sentence(args, message):
    error = call(*args, "--out", "nothing-is-written-here").exception
    assert isinstance(error, ValueError | OSError)
    assert message in str(error)
    assert not Path("nothing-is-written-here").exists()
