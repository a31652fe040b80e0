"""accelerate keeps its state in singletons: each test starts from none. Trainers ask for garbage collections."""

import gc

import pytest
import torch._dynamo  # noqa: F401, each optimizer's constructor does
from accelerate.state import AcceleratorState, GradientState


@pytest.fixture(autouse=True, scope="module")
def _cheap_collections():
    """What has been imported since the tests were collected stays out of them."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_state_left():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
