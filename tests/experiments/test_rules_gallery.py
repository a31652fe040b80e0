"""The picture of the rules: paths are what the rules do on the landscape."""

import pytest
import torch

from samphire import optim
from samphire.experiments import rules_gallery


def test_a_path_is_gradient_descent_on_the_landscape(monkeypatch):
    monkeypatch.setattr(rules_gallery, "STEPS", 1)
    y = 1 + 0.3 * torch.randn(rules_gallery.BATCH, generator=torch.Generator().manual_seed(0))
    residual = 2.0 * 1.5 - y.mean().item()
    (u, v) = rules_gallery.path(None, (2.0, 1.5))[1]
    assert u == pytest.approx(2.0 - rules_gallery.RATE * residual * 1.5, rel=1e-6)
    assert v == pytest.approx(1.5 - rules_gallery.RATE * residual * 2.0, rel=1e-6)


def test_sam_slides_to_where_the_valley_is_flat_and_sgd_stays():
    def sharpness(rule):
        u, v = rules_gallery.path(rule, rules_gallery.STARTS[0])[-1]
        assert abs(u * v - 1) < 0.2
        return u * u + v * v

    assert sharpness(optim.sam(rules_gallery.RADIUS)) < 3 < 8 < sharpness(None)
