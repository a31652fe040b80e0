"""A sweep whose workers and whose parent, or whose Ray nodes, are killed at random moments, until it ends.

python tests/sweep/kills.py 200          # jobs, kills, rows lost, time over the undisturbed sweep; `make kills`
python tests/sweep/kills.py 200 ray      # the same on a Ray cluster of three nodes that die and are replaced
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ray_cluster

from samphire import records, sweep

ROWS, PAUSE = 5, 0.05  # of a job: its rows, and the seconds before each
NODES = 2  # of Ray, beside the head
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Job:
    number: int


def work(job, out):
    """Rows one after the other; a run that was killed goes on where its file ends."""
    with records.open_run(out, job) as run:
        for i in range(len(run.rows), ROWS):
            time.sleep(PAUSE)
            run.append({"row": i, "job": job.number})


def sweep_all(jobs, out, **where):
    return len(sweep.run(map(Job, range(jobs)), partial(work, out=out), out, **where).failed)


def start(jobs, out, **where):
    """The sweep in a process of its own."""
    code = f"import kills, sys; sys.exit(kills.sweep_all({jobs}, {str(out)!r}, **{where!r}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    return subprocess.Popen([sys.executable, "-c", code], env=env, cwd=HERE)


def moments(jobs, out, draw, rows, **where):
    """Run the sweep until it succeeds, again if it fails; its process, whenever some more rows are written.

    Moments are counted in rows, not in seconds, so that a slow machine sees as many kills as a fast one.
    """
    parent, next_kill = start(jobs, out, **where), draw.randint(*rows)
    while parent.poll() != 0:
        if parent.poll() is not None:
            parent = start(jobs, out, **where)
        if rows_in(out) < next_kill:
            time.sleep(0.02)
            continue
        next_kill += draw.randint(*rows)
        yield parent


def rows_in(out):
    return sum(records.count_rows(folder) for folder in Path(out).iterdir())


# Processes


def children(process):
    """The workers of a process, by what the system knows of them."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout
    return [int(pid) for pid in listed.split()]


def rehearse(jobs, out, workers=4, seed=0, rows=(5, 40)):
    """Kill a worker, or one time in four the parent, after some more rows; start the sweep again until it succeeds.

    Returns:
        How many workers and parents were killed.
    """
    draw, killed = random.Random(seed), Counter()
    for parent in moments(jobs, out, draw, rows, on="processes", workers=workers):
        busy = children(parent.pid)
        whom = parent.pid if draw.random() < 0.25 or not busy else draw.choice(busy)
        try:
            os.kill(whom, signal.SIGKILL)
        except ProcessLookupError:
            continue
        parent.wait() if whom == parent.pid else None
        killed["parents" if whom == parent.pid else "workers"] += 1
    return killed


# Ray


@contextlib.contextmanager
def nodes() -> Iterator:
    """A head without cores, and nodes of one core each."""
    with ray_cluster.cluster(head_cores=0) as made:
        for _ in range(NODES):
            join(made)
        yield made


def join(cluster):
    ray_cluster.patiently(lambda: cluster.add_node(num_cpus=1))


def rehearse_on_ray(jobs, out, cluster, seed=0, rows=(20, 60)):
    """Kill a node after some more rows and let another join, until the sweep ends; how many were killed."""
    draw, killed = random.Random(seed), Counter()
    for _ in moments(jobs, out, draw, rows, on="ray", address=cluster.address):
        cluster.remove_node(draw.choice(sorted(cluster.worker_nodes, key=id)), allow_graceful=False)
        join(cluster)
        killed["nodes"] += 1
    return killed


# Both


def stored(out):
    """The numbers of the rows of each run, by its key."""
    return {run.key: [row["row"] for row in run.rows] for run in records.read(out) if run.done}


def timed(call, *args):
    started = time.monotonic()
    result = call(*args)
    return result, time.monotonic() - started


def main(jobs, on="processes"):
    with (
        tempfile.TemporaryDirectory() as calm,
        tempfile.TemporaryDirectory() as rough,
        contextlib.ExitStack() as stack,
    ):
        if on == "ray":
            cluster = stack.enter_context(nodes())
            _, undisturbed = timed(start(jobs, calm, on="ray", address=cluster.address).wait)
            killed, disturbed = timed(rehearse_on_ray, jobs, rough, cluster)
        else:
            _, undisturbed = timed(start(jobs, calm, on="processes", workers=4).wait)
            killed, disturbed = timed(rehearse, jobs, rough)
        runs = stored(rough).values()
        rows = Counter(map(len, runs))
        lost = jobs * ROWS - sum(len(set(r)) for r in runs)
        twice = sum(len(r) - len(set(r)) for r in runs)
    result = {"jobs": jobs, "killed": killed, "rows lost": lost, "rows twice": twice, "rows of a run": rows}
    print(json.dumps(result | {"seconds undisturbed": round(undisturbed), "disturbed": round(disturbed)}))
    return lost + twice


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
