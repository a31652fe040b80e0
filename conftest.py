"""Names that the examples in docstrings may use without importing them."""

from typing import Any

import pytest
import torch

from samphire.optim import protocol


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(
        torch=torch,
        nn=torch.nn,
        Memory=protocol.Memory,
        bind=protocol.bind,
        sharpness_aware_gradient=protocol.sharpness_aware_gradient,
    )
