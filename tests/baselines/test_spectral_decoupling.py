"""Spectral decoupling by hand."""

import pytest
import torch
from by_hand import near, vec
from torch.nn.functional import cross_entropy

from cases import problem
from samphire.baselines import spectral_decoupling, spectral_decoupling_by_class


def test_spectral_decoupling_by_hand():
    z = vec(1, -2, 3, 0, 1, 3).reshape(2, 3)  # squares 14 and 10
    near(spectral_decoupling(z, 0.6), 0.6 * 24 / 6)
    near(spectral_decoupling(z, 0.6, penalty="norm"), 0.3 * 24 / 2)
    near(spectral_decoupling(z[:, 0], 0.6), 2 * spectral_decoupling(z[:, 0], 0.6, penalty="norm"))


@pytest.mark.parametrize("penalty", ["mean", "norm"])
def test_without_strength_what_remains_is_cross_entropy(penalty):
    model, x, y = problem()
    z, ce = model(x), cross_entropy(model(x), y)
    assert torch.equal(ce + spectral_decoupling(z, 0.0, penalty), ce)
    assert torch.equal(ce + spectral_decoupling_by_class(z, y, 0.0, targets=(1, 2, 3)), ce)


def test_spectral_decoupling_by_class_by_hand():
    z, y = vec(1.44, 0.44, 2.5, 4.5, 0.5, 2.5).reshape(3, 2), torch.tensor([0, 1, 1])
    near(spectral_decoupling_by_class(z, y), 0.1 * (1 / 2 + (4 + 4) / 4))
    near(spectral_decoupling_by_class(z[:1], y[:1]), 0.1 / 2)  # no example of class 1
    near(spectral_decoupling_by_class(z[:, 1], y), 0.1 * (0 + (4 + 0) / 2))  # one logit each
