"""PEGR against numbers worked out by hand and a dense loop over examples, alone and under a rule."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import loss_of, problem, sgd, weights
from samphire.baselines.pegr import pegr
from samphire.optim import SharpnessAware, sam, sharpness_aware_gradient

DIAGONAL = torch.tensor([1.0, 3.0], dtype=torch.float64)


class Pair(nn.Module):
    """Example 0 has loss w' diag(1, 3) w / 2, example 1 has |w - (1, 0)|² / 2."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))

    def forward(self, x):
        at_1_0 = (self.w - torch.tensor([1.0, 0.0])) ** 2
        return torch.where(x[:, None] == 0, DIAGONAL * self.w**2, at_1_0) / 2


def test_pegr_is_the_golden_number_and_not_the_batchs_norm():
    model = Pair()
    pegr(model, lambda out, y: out.sum(), torch.tensor([0, 1]), torch.zeros(2), lam=0.01).backward()
    assert model.w.grad.tolist() == pytest.approx((0.505, -2.05), abs=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_pegr_equals_a_dense_loop_over_examples(chunk):
    model, x, y = problem()
    w = weights(model)
    one = lambda w, i: loss_of(model, x[i : i + 1], y[i : i + 1])(w).mean()
    square = lambda w, i: sum(g.square().sum() for g in torch.func.grad(one)(w, i).values())
    regularized = lambda w: sum(one(w, i) + 0.2 / 2 * square(w, i) for i in range(8)) / 8
    expected = torch.func.grad(regularized)(w)
    loss = pegr(model, cross_entropy, x, y, lam=0.2, chunk=chunk)
    loss.backward()
    assert loss.item() == pytest.approx(regularized(w).item(), rel=1e-12)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-10, atol=1e-13)


def test_pegr_under_a_rule_is_the_rules_gradient_of_the_regularized_loss():
    model, x, y = problem()
    before = weights(model)
    one = lambda w, i: loss_of(model, x[i : i + 1], y[i : i + 1])(w).mean()
    square = lambda w, i: sum(g.square().sum() for g in torch.func.grad(one)(w, i).values())
    expected = sharpness_aware_gradient(
        sam(0.1), lambda w: sum(one(w, i) + 0.1 * square(w, i) for i in range(8)) / 8, before
    )
    opt = SharpnessAware(model, sgd(model, lr=1.0, momentum=0.0), sam(0.1))
    opt.step(lambda p: p.backward(pegr(model, cross_entropy, x, y, lam=0.2)) or p.loss)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - expected[name], rtol=0, atol=1e-12)


REFUSED = [
    (lambda: pegr(nn.BatchNorm1d(1), cross_entropy, torch.zeros(2, 1), torch.zeros(2)), "BatchNorm layer in training"),
    (lambda: pegr(nn.Linear(1, 1), cross_entropy, torch.zeros(2, 1), torch.zeros(2), lam=-1), "pegr: lam must be a finite number >= 0, got -1"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message[:45] for _, message in REFUSED])
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()
