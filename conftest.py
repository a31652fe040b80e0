"""One thread for each worker of the tests, cheap garbage collections, what is logged, names of examples."""

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

pytest_plugins = ["browser"]  # tests/browser.py


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What the imports of all tests make stays out of garbage collections; trainers ask for many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


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
