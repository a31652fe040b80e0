"""A stand-in for training, and what can befall it; it imports little, so that processes start fast."""

import os
import signal
import sys
import time
from dataclasses import dataclass

from samphire import records
from waiting import until


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


def hang_on(job, run, epoch, place, killed):
    """After the first epoch, hang on one node; elsewhere wait for a file."""
    if epoch == 1:
        until(lambda: node() != place and killed.exists(), "the node is killed")


def hang_but_first(job, run, epoch):
    if job.number > 0 and epoch == 1:
        until(lambda: False, "the sweep is interrupted")


def warned_before_the_second_epoch(job, run, epoch, told):
    """What SLURM does shortly before it ends a job: a signal, here once, or always if it is not noted."""
    if epoch == 1 and not (told and told.exists()):
        if told:
            told.touch()
        os.kill(os.getpid(), signal.SIGUSR2)


def note_environment(job, run, epoch):
    import torch

    run.append({"torch": torch.get_num_threads(), "omp": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()})


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


def slow(job, run, epoch):
    time.sleep(0.1)


def hang(job, run, epoch):
    if epoch == 1:
        until(lambda: False, "the sweep is ended")
