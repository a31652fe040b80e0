"""One thread for each worker of the tests, cheap collections and pictures, what is logged, names of examples."""

import faulthandler
import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many workers as cores: more threads, theirs or those of processes
# that they start, would wait for each other; NumPy and torch read it when they are imported

import pytest
import torch

from samphire.optim import requests, rules
from samphire.pool import cores
from samphire.report import pictures

pytest_plugins = ["browser"]  # tests/browser.py

HANGS = 3600  # seconds: fifty times what any file takes on a quiet machine
STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """What is written to this copy is not captured."""
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What the imports of all tests make stays out of garbage collections; trainers ask for many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def ends_if_it_hangs(pytestconfig: pytest.Config) -> Iterator[None]:
    """A file that hangs ends with the place where it does. pytest's own timer starts a thread for every test."""
    faulthandler.dump_traceback_later(HANGS, exit=True, file=pytestconfig.stash[STDERR])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="session")
def small_pictures() -> Iterator[None]:
    """Pictures are arranged as users see them, of a quarter of the pixels; tests/report has them whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "PIXELS", 1)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: where a test waits for a browser, a disk or a process, another one computes."""
    return cores() + 1


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    """Add them."""
    doctest_namespace.update(
        torch=torch,
        nn=torch.nn,
        LossOfOutputs=requests.LossOfOutputs,
        Memory=requests.Memory,
        bind=requests.bind,
        sam=rules.sam,
        sharpness_aware_gradient=requests.sharpness_aware_gradient,
    )


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What samphire logs in a test. pytest's own plugin for it visits every library's loggers six times a test."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("samphire").addHandler(handler)
    yield messages
    logging.getLogger("samphire").removeHandler(handler)
