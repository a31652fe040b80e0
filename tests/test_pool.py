"""The pool: results in order, messages, failures, and workers that do not outlive the process that started them."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from pool_tasks import HANGS, count_aloud, fail, fail_unpicklably, faults_of_freed_blocks, hang, identify, kill_self
from samphire.pool import Pool, WorkerDied, cores
from waiting import PATIENCE, until

pytestmark = pytest.mark.slow

HERE = os.path.dirname(__file__)


def test_results_come_in_order_from_processes_of_one_thread():
    with Pool(2) as pool:
        results = list(pool.map(identify, [(0, 0.5), (1, 0.0), (2, 0.0)]))
    numbers, processes, threads = zip(*results, strict=True)
    assert numbers == (0, 1, 2)
    assert os.getpid() not in processes
    assert len(set(processes)) == 2  # one was busy with the first task while the other did the rest
    assert set(threads) == {"1"}


def test_a_worker_keeps_the_memory_it_frees_unless_the_user_says_otherwise(monkeypatch):
    """By glibc's settings; other libraries ignore them."""
    faults = []
    for own in (None, "4096"):
        if own:
            monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", own)
        with Pool(1) as pool:
            faults += pool.map(faults_of_freed_blocks, [()])
    block = (20 << 20) // resource.getpagesize()
    kept, returned = faults
    assert kept < block
    assert returned > 5 * block


def test_few_results_wait_to_be_taken():
    begun = []

    def tasks():
        for i in range(9):
            begun.append(i)
            yield (i,)

    with Pool(1) as pool:
        results = pool.map(identify, tasks())
        assert next(results)[0] == 0
        assert len(begun) == 2


def test_messages_arrive_before_the_result_and_prints_do_not_disturb_them():
    messages = []
    with Pool(1) as pool:
        assert pool.submit(count_aloud, 3, listen=messages.append).result() == 3
        assert messages == [0, 1, 2]


@pytest.mark.parametrize(
    ("function", "args", "error", "message"),
    [
        (fail, (KeyError("broken"),), KeyError, "broken"),
        (fail, (SystemExit(3),), WorkerDied, "ended with exit code 3 before its task did; -9 often means too little"),
        (kill_self, (), WorkerDied, "ended with exit code -9"),
        (fail_unpicklably, ("broken",), RuntimeError, r"Unpicklable\('broken'"),
        (lambda: None, (), Exception, "lambda"),
    ],
    ids=["raises", "exits", "killed", "unpicklable error", "unpicklable task"],
)
def test_a_failure_is_raised_here_and_a_new_worker_does_the_next_task(function, args, error, message):
    with Pool(1) as pool:
        worker = pool.submit(identify, 0).result()[1]
        with pytest.raises(error, match=message):
            pool.submit(function, *args).result()
        after = pool.submit(identify, 1).result()
        assert after[0] == 1
        assert (after[1] == worker) == (message == "lambda")  # which never reached the worker


def test_leaving_the_block_ends_workers_in_the_midst_of_their_work():
    begun = threading.Event()
    with Pool(1) as pool:
        future = pool.submit(hang, listen=lambda process: begun.set())
        assert begun.wait(PATIENCE), "the worker has not begun"
        start = time.monotonic()
    assert time.monotonic() - start < HANGS
    assert isinstance(future.exception(), WorkerDied)


SCRIPT = """
import sys
from samphire.pool import Pool
import pool_tasks
with Pool(1) as pool:
    if sys.argv[1] in ("hang", "keep_the_lock"):
        work = getattr(pool_tasks, sys.argv[1])
        pool.submit(work, listen=lambda process: print(process, flush=True)).result()
    else:
        future = pool.submit(pool_tasks.identify, pool_tasks.SlowToImport())
        while not pool._started:
            pass
        print(pool._started[0].process.pid, flush=True)
        future.result()
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("when", ["importing", "hang", "keep_the_lock"])
def test_workers_end_with_their_parent_however_it_ends(when, end):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)])}
    command = [sys.executable, "-c", SCRIPT, when]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        time.sleep(0.5)  # into the import, or the work
        parent.send_signal(end)
    assert parent.returncode == -end
    until(lambda: not alive(worker), "the worker has ended")  # 2 seconds on a quiet machine


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True).stdout
    return not state.startswith("Z")


def test_cores_are_those_this_process_may_use():
    assert 1 <= cores() <= (os.cpu_count() or 1)
