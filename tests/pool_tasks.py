"""What the tests of the pool ask of workers; it imports little, so that they start fast."""

import os
import resource
import signal
import threading
import time

from waiting import PATIENCE

HANGS = 2 * PATIENCE  # seconds


def identify(number, seconds=0.0):
    time.sleep(seconds)
    return number, os.getpid(), os.environ["OMP_NUM_THREADS"]


def faults_of_freed_blocks():
    """Pages that the kernel had to give to blocks of 20 MB, each freed before the next; the first are not counted."""
    for _ in range(3):
        bytearray(20 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(20 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def count_aloud(n, tell):
    for i in range(n):
        print("not a message")
        tell(i)
    return n


def fail(error):
    raise error


class Unpicklable(Exception):
    def __init__(self, message):
        super().__init__(message, threading.Lock())


def fail_unpicklably(message):
    raise Unpicklable(message)


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def hang(tell):
    tell(os.getpid())
    time.sleep(HANGS)


def keep_the_lock(tell):
    """As a long import does: no other thread of this process runs until it ends."""
    tell(os.getpid())
    max(range(10**11))


class SlowToImport:
    """To read its pickle takes long, as an import does."""

    def __reduce__(self):
        return time.sleep, (HANGS,)
