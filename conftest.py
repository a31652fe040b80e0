"""Names that the examples in docstrings may use without importing them."""

from typing import Any

import pytest
import torch

from samphire.optim import protocol, rules


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    """Add them."""
    doctest_namespace.update(
        torch=torch,
        nn=torch.nn,
        Memory=protocol.Memory,
        bind=protocol.bind,
        sam=rules.sam,
        sharpness_aware_gradient=protocol.sharpness_aware_gradient,
    )
