"""Names that the examples in docstrings may use without importing them."""

from typing import Any

import pytest
import torch

from samphire.optim import requests, rules

pytest_plugins = ["browser"]  # tests/browser.py


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
