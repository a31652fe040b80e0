"""A small number of trials of fuzz.py in every run of the tests; `make fuzz` makes 2,000."""

import sys

import pytest

import fuzz

pytestmark = pytest.mark.slow

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pipes and alarms")


@pytest.mark.slow
def test_damaged_input_is_taken_or_refused_in_a_sentence():
    faults = [(kind, what, fault) for kind, what, fault in fuzz.trials(150) if fault]
    assert not faults
