"""The picture of the rules: paths are what the rules do on the landscape."""

import pytest
import torch

from samphire import optim
from samphire.experiments import rules_gallery
from samphire.optim.requests import At, gradient_at
from samphire.tree import Vector


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


EPS = Vector({"head.weight": torch.tensor([[0.3]])})
ASKED = {
    "where we are": [At()],
    "displaced": [At(EPS)],
    "some examples": [At(examples=torch.tensor([1, 3]))],
    "weighted": [At(weights=torch.arange(4.0))],
    "with the losses": [At(EPS, losses=True)],
    "one tensor": [At(wrt=frozenset({"head.weight"}))],
    "the slope of before": [At(), At(EPS, output_gradient="before")],
}


@pytest.mark.parametrize("requests", ASKED.values(), ids=ASKED)
def test_the_gradient_by_hand_is_that_of_the_loss(requests):
    w, y = {"norm.weight": torch.tensor([1.5]), "head.weight": torch.tensor([[0.4]])}, torch.arange(4.0)
    loss = optim.LossOfOutputs(
        lambda w, examples=None: w["norm.weight"] * w["head.weight"][0],
        lambda out, examples=slice(None): 0.5 * (out - y[examples]) ** 2,
    )
    by_hand, by_torch = rules_gallery._gradient_at(w, y), gradient_at(loss, w)
    for request in requests:
        ours, theirs = by_hand(request), by_torch(request)
        if request.losses:
            torch.testing.assert_close(ours[1], theirs[1])
            ours, theirs = ours[0], theirs[0]
        torch.testing.assert_close(ours.dense(), theirs.dense())
