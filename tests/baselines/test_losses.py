"""Losses with memory: resumed to the bit, and bad settings refused."""

import io
import math

import pytest
import torch
from by_hand import GROUPS, IDS, SIZES
from torch import nn
from torch.nn.functional import cross_entropy

from cases import RULES, assert_weights, problem, sgd, weights
from samphire.baselines import MESA, SAF, GroupDRO, spectral_decoupling, spectral_decoupling_by_class
from samphire.baselines.saf_mesa import softened_divergence
from samphire.optim import SharpnessAware

MAKE = {
    "group_dro": lambda model: GroupDRO(SIZES, eta=0.7, adjustment=1.0).double(),
    "saf": lambda model: SAF(10, 3, lag=2, start=1).double(),
    "mesa": lambda model: MESA(model, decay=0.7, start=0),
}


def run(kind, state, model, opt, x, y, epochs):
    for epoch in epochs:
        for p in opt.passes(n=8):
            z, part = model(x[p.examples]), p.examples
            loss = cross_entropy(z, y[part])
            if kind == "group_dro":
                loss = state(cross_entropy(z, y[part], reduction="none"), GROUPS[part])
            elif kind == "saf":
                loss = loss + state(z, IDS[part], epoch)
            else:
                loss = loss + state(z, x[part], epoch)
            p.backward(loss)
        opt.step()
        if kind == "mesa":
            state.update(model)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", ["sam", "gam", "m_sharpness", "msam"])
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(kind, name):
    model, x, y = problem()
    state, opt = MAKE[kind](model), SharpnessAware(model, sgd(model), RULES[name])
    run(kind, state, model, opt, x, y, range(4))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "loss": state.state_dict()}, file)
    run(kind, state, model, opt, x, y, range(4, 8))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, _, _ = problem(seed=1)
    resumed, again = MAKE[kind](other), SharpnessAware(other, sgd(other), RULES[name])
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    resumed.load_state_dict(saved["loss"])
    run(kind, resumed, other, again, x, y, range(4, 8))
    assert_weights(other, weights(model), 0)
    for (key, value), other_value in zip(state.named_buffers(), resumed.buffers(), strict=True):
        assert torch.equal(value, other_value), key

    forgetful, fresh = MAKE[kind](other), SharpnessAware(other, sgd(other), RULES[name])
    other.load_state_dict(saved["model"])
    fresh.load_state_dict(saved["opt"])
    run(kind, forgetful, other, fresh, x, y, range(4, 8))
    assert max((p - weights(model)[n]).abs().max() for n, p in other.named_parameters()) > 1e-9


BAD = [
    (lambda: GroupDRO([1, 2], eta=-1), "group_dro: eta must be a finite number >= 0, got -1"),
    (lambda: GroupDRO([1, 2], eta=math.nan), "group_dro: eta must be a finite number >= 0, got nan"),
    (lambda: GroupDRO([1, 2], adjustment=-1), "group_dro: adjustment must be a finite number >= 0, got -1"),
    (lambda: GroupDRO([1, 2], gamma=0), r"group_dro: gamma must be a finite number in \(0, 1\], got 0"),
    (lambda: GroupDRO([]), r"group_dro: sizes must be one count >= 0 for each group, got \[\]"),
    (lambda: GroupDRO([0, 0]), r"group_dro: sizes must be one count >= 0 for each group, got \[0, 0\]"),
    (lambda: GroupDRO([3, -1]), r"group_dro: sizes must be one count >= 0 for each group, got \[3, -1\]"),
    (lambda: GroupDRO([0.5, 0.5]), r"group_dro: sizes must be one count >= 0 for each group, got \[0.5, 0.5\]"),
    (lambda: GroupDRO([1, 2])(torch.tensor(1.0), torch.tensor([1])), r"group_dro: needs a loss and a group .* reduction='none'"),
    (lambda: GroupDRO([1, 2])(torch.ones(2), torch.tensor([0, 2])), "group_dro: groups must be whole numbers from 0 to 1, got 0 to 2"),
    (lambda: spectral_decoupling(torch.ones(2), -1), "spectral_decoupling: lam must be a finite number >= 0, got -1"),
    (lambda: spectral_decoupling(torch.ones(2), 1, "sum"), "no penalty of spectral_decoupling is named 'sum'; there are mean, norm"),
    (lambda: spectral_decoupling_by_class(torch.ones(2), torch.tensor([0, 2])), "by_class: labels must be whole numbers from 0 to 1, got 0 to 2"),
    (lambda: spectral_decoupling_by_class(torch.ones(2), torch.tensor([0, 1]), -1), "by_class: lam must be a finite number >= 0, got -1"),
    (lambda: softened_divergence(torch.ones(2, 3), torch.ones(2, 2)), r"alike, got shapes \(2, 3\) and \(2, 2\)"),
    (lambda: SAF(0, 2), "saf: examples must be a whole number >= 1, got 0"),
    (lambda: SAF(2, 0), "saf: classes must be a whole number >= 1, got 0"),
    (lambda: SAF(2, 2, lag=0), "saf: lag must be a whole number >= 1, got 0"),
    (lambda: SAF(2, 2, tau=0), "saf: tau must be a finite number > 0, got 0"),
    (lambda: SAF(2, 2, lam=-1), "saf: lam must be a finite number >= 0, got -1"),
    (lambda: SAF(2, 2)(torch.ones(2, 3), torch.tensor([0, 1]), 0), r"saf: logits must have the shape \(2, 2\).* got \(2, 3\)"),
    (lambda: SAF(2, 2)(torch.ones(1, 2), torch.tensor([2]), 0), "saf: ids must be whole numbers from 0 to 1, got 2 to 2"),
    (lambda: MESA(nn.Linear(1, 2), decay=1.0), r"mesa: decay must be a finite number in \[0, 1\), got 1.0"),
    (lambda: MESA(nn.Linear(1, 2), tau=-1), "mesa: tau must be a finite number > 0, got -1"),
    (lambda: MESA(nn.Linear(1, 2), lam=math.inf), "mesa: lam must be a finite number >= 0, got inf"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), BAD, ids=[m[:40] for _, m in BAD])
def test_bad_settings_are_refused_in_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()
