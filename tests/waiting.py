"""Waiting for other processes, with a bound and a message: a loaded machine makes a test slow, never wrong."""

import time

PATIENCE = 1800  # seconds; what is waited for takes a few on a quiet machine


def until(condition, what, process=None):
    """Wait until a condition holds; an error if it takes too long, or if the process it depends on has ended."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None and not condition():
            raise RuntimeError(f"the process ended with exit code {process.returncode} before {what}.")
        if time.monotonic() > limit:
            raise TimeoutError(f"after {PATIENCE} seconds still not: {what}.")
        time.sleep(0.01)
