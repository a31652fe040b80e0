"""accelerate keeps its state in singletons: each test starts from none."""

import pytest
from accelerate.state import AcceleratorState, GradientState


@pytest.fixture(autouse=True)
def _no_state_left():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
