"""A sweep whose workers and whose parent are killed at random moments, until it ends.

python tests/sweep/kills.py 200        # jobs, kills, rows lost, time over the undisturbed sweep; `make kills`
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from samphire import records, sweep

ROWS, PAUSE = 5, 0.05  # of a job: its rows, and the seconds before each
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


def sweep_all(jobs, out, workers):
    result = sweep.run(map(Job, range(jobs)), partial(work, out=out), out, on="processes", workers=workers)
    return len(result.failed)


def start(jobs, out, workers):
    code = f"import kills, sys; sys.exit(kills.sweep_all({jobs}, {str(out)!r}, {workers}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    return subprocess.Popen([sys.executable, "-c", code], env=env, cwd=HERE)


def children(process):
    """The workers of a process, by what the system knows of them."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout
    return [int(pid) for pid in listed.split()]


def rehearse(jobs, out, workers=4, seed=0, rows=(5, 40)):
    """Kill a worker, or one time in four the parent, after some more rows; start the sweep again until it succeeds.

    Moments are counted in rows, not in seconds, so that a slow machine sees as many kills as a fast one.

    Returns:
        How many workers and parents were killed.
    """
    draw, killed = random.Random(seed), Counter()
    parent, next_kill = start(jobs, out, workers), draw.randint(*rows)
    while parent.poll() != 0:
        if parent.poll() is not None:
            parent = start(jobs, out, workers)
        if sum(records.count_rows(folder) for folder in Path(out).iterdir()) < next_kill:
            time.sleep(0.02)
            continue
        next_kill += draw.randint(*rows)
        busy = children(parent.pid)
        whom = parent.pid if draw.random() < 0.25 or not busy else draw.choice(busy)
        try:
            os.kill(whom, signal.SIGKILL)
        except ProcessLookupError:
            continue
        parent.wait() if whom == parent.pid else None
        killed["parents" if whom == parent.pid else "workers"] += 1
    return killed


def stored(out):
    """The numbers of the rows of each run, by its key."""
    return {run.key: [row["row"] for row in run.rows] for run in records.read(out) if run.done}


def main(jobs):
    with tempfile.TemporaryDirectory() as calm, tempfile.TemporaryDirectory() as rough:
        started = time.monotonic()
        start(jobs, calm, workers=4).wait()
        undisturbed = time.monotonic() - started
        killed = rehearse(jobs, rough)
        disturbed = time.monotonic() - started - undisturbed
        rows = Counter(len(rows) for rows in stored(rough).values())
        lost = jobs * ROWS - sum(len(set(r)) for r in stored(rough).values())
        twice = sum(len(r) - len(set(r)) for r in stored(rough).values())
    result = {"jobs": jobs, "killed": killed, "rows lost": lost, "rows twice": twice, "rows of a run": rows}
    print(json.dumps(result | {"time over undisturbed": round(disturbed / undisturbed, 2)}))
    return lost + twice


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
