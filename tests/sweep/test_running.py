"""Failures, ends, several sweeps on one folder, and what is there."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import pytest
from sweep_jobs import JOBS, Job, break_some, expected, kill_self, raise_error, rows_of, slow, work

from samphire import records, sweep
from waiting import PATIENCE, until


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
import sweep_jobs
from samphire import sweep
out, on, starters, fault = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), getattr(sweep_jobs, sys.argv[4])
(out.parent / f"ready-{time.time_ns()}").touch()
while len(list(out.parent.glob("ready-*"))) < starters:
    time.sleep(0.01)
sweep.running.POLL = 0.05
train = partial(sweep_jobs.work, out=out, fault=fault)
sweep.run(sweep_jobs.JOBS, train, out, on=on, workers=None if on == "here" else 1)
"""


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
    until(lambda: any(run.rows for run in records.read(out)), "a row is written", process)
    process.send_signal(end)
    said = process.communicate(timeout=PATIENCE)[1]  # when its last worker, too, has closed standard error
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
    assert [process.communicate(timeout=PATIENCE)[1] for process in both] == ["", ""]
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
