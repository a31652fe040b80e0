"""CC-SAM: the printed formula, differentiated by itself."""

import pytest
import torch
from torch import nn

from cases import loss_of, problem, weights
from samphire.baselines import CcSam
from samphire.optim import last_layer
from samphire.tree import Vector, norm


def test_cc_sam_by_the_formula():
    model, x, y = problem()
    counts, k, flat = [100, 10, 3], 0.05, 0.3
    assert set(y.tolist()) == {0, 1, 2}
    w, losses = weights(model), loss_of(model, x, y)
    names = ["3.weight", "3.bias"]
    size = sum(w[n].numel() for n in names)
    length = norm(Vector({n: w[n] for n in names}))

    def objective(w):
        total = (1 - flat) * losses(w).mean()
        for c in (0, 1, 2):
            g = torch.func.grad(lambda v: losses({**before, **v})[y == c].mean())({n: before[n] for n in names})
            radius = {
                n: k * (length / g[n].norm()).sqrt() / (2**0.5 * (counts[c] - 1) ** 0.25 * size**0.25) for n in names
            }
            perturbed = {n: w[n] + size**0.5 * radius[n] * g[n] / g[n].norm() for n in names}
            total = total + flat * losses({**w, **perturbed})[y == c].sum() / len(y)
        return total

    before = weights(model)
    expected = torch.func.grad(objective)(w)
    loss = CcSam(last_layer(model), counts, k, flat)(lambda: model(x), y)
    loss.backward()
    assert loss.item() == pytest.approx(objective(w).item(), rel=1e-12)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-10, atol=1e-13)


ONE = last_layer(nn.Sequential(nn.Linear(1, 1)))
BAD = [
    (lambda: CcSam(ONE, []), "cc_sam: counts must have the training examples of each class"),
    (lambda: CcSam(ONE, [1], k=-1.0), "cc_sam: k must be a finite number >= 0, got -1"),
    (lambda: CcSam(ONE, [1], flat=2), r"cc_sam: flat must be a finite number in \[0, 1\], got 2"),
    (lambda: CcSam(ONE, [1])(lambda: torch.ones(1, 1), torch.tensor([1])), "labels must be whole numbers from 0 to 0, got 1"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), BAD, ids=[m[:40] for _, m in BAD])
def test_bad_settings_are_refused_in_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()
