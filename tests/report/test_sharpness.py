"""Measures of the landscape as rows for other programs."""

import torch

from samphire import landscape
from samphire.landscape import Landscape
from samphire.report.sharpness import row


def test_results_become_json_without_what_json_has_not():
    f = lambda w: (torch.tensor([1.0, 2.0]) * w["x"] ** 2).sum()
    of = Landscape.of_function(f, {"x": torch.ones(2)})
    assert set(row(landscape.eigenvalues(of, 1))) == {"values", "residuals", "products", "end"}
    assert row(landscape.trace(of, samples=1)) == {"trace": {"mean": 6.0, "error": None, "n": 1}, "dimension": 2}
    assert "point" not in row(landscape.sharpness(of))
    assert row(landscape.lemma_1(1.0, 100))["vacuous"] is False
