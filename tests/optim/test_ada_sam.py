"""AdaSAM's base optimizer against its formula and numbers worked out by hand."""

import copy

import pytest
import torch
from torch import nn

from samphire.optim import AdaSam, SharpnessAware, sam


def one_step(base):
    """From (1, -1) along SAM's gradient of 0.5 w' diag(1, 3) w."""
    model = nn.Module()
    model.w = nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))
    opt = SharpnessAware(model, base(model.parameters()), sam(0.05))
    opt.step(lambda p: p.backward(0.5 * (torch.tensor([1.0, 3.0]) * model.w**2).sum()) or p.loss)
    return model.w.tolist()


def test_adasam_has_no_bias_correction():
    base = lambda params: AdaSam(params, lr=0.1)
    assert one_step(base) == pytest.approx((0.683772234, -0.683772234), abs=1e-9)
    torchs = lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True)
    assert one_step(torchs) == pytest.approx((0.9, -0.9), abs=1e-6)


def test_adasam_by_the_formula_and_across_a_checkpoint():
    gradients = torch.tensor([[1.0, -2.0], [0.1, 3.0], [-5.0, 0.0], [0.2, 0.2]], dtype=torch.float64)
    p, w = nn.Parameter(torch.zeros(2, dtype=torch.float64)), torch.zeros(2, dtype=torch.float64)
    m, v, top = torch.zeros(2), torch.zeros(2), torch.full((2,), 1e-4)
    opt = AdaSam([p], lr=0.3, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.1)
    for g in gradients:
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        top = torch.maximum(top, v)
        w = w * (1 - 0.3 * 0.1) - 0.3 * m / top.sqrt()
        p.grad = g.clone()
        opt.step()
        state = copy.deepcopy(opt.state_dict())
        opt = AdaSam([p], lr=9.0)
        opt.load_state_dict(state)
        torch.testing.assert_close(p.detach(), w, rtol=1e-6, atol=1e-9)


REFUSED = [
    (lambda: AdaSam([nn.Parameter(torch.zeros(1))], betas=(0.9, 1.0)), r"AdaSam: a beta must be a finite number in \[0, 1\), got 1.0"),
    (lambda: AdaSam([nn.Parameter(torch.zeros(1))], lr=-1), "AdaSam: lr must be a finite number >= 0, got -1"),
    (lambda: AdaSam([nn.Parameter(torch.zeros(1))], eps=0), "AdaSam: eps must be a finite number > 0, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[message[:45] for _, message in REFUSED])
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()
