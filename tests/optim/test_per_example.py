"""Fisher information against a dense loop over examples, and the model left as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import loss_of, problem, weights
from samphire.optim import fisher


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_fisher_equals_a_dense_loop_over_examples(chunk):
    model, x, y = problem()
    w = weights(model)
    one = lambda w, i: loss_of(model, x[i : i + 1], y[i : i + 1])(w).mean()
    information = fisher(model, cross_entropy, [(x[:5], y[:5]), (x[5:], y[5:])], chunk=chunk)
    for name in w:
        squares = sum(torch.func.grad(one)(w, i)[name] ** 2 for i in range(8)) / 8
        torch.testing.assert_close(information[name], squares, rtol=1e-10, atol=1e-14)


def test_fisher_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3))
    model[2].eval()
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    fisher(model, cross_entropy, [(torch.randn(4, 5, generator=torch.Generator()), torch.tensor([0, 1, 2, 0]))])
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert [m.training for m in model] == [True, True, False, True]
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(rng, torch.get_rng_state())


REFUSED = [
    (lambda: fisher(nn.Linear(1, 1), cross_entropy, [], chunk=1), "at least one example, got none"),
    (lambda: fisher(nn.Linear(1, 1), cross_entropy, [], chunk=0), "fisher: chunk must be a whole number >= 1, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message[:45] for _, message in REFUSED])
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()
