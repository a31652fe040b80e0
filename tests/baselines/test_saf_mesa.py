"""SAF and MESA: numbers by hand, a dictionary of all logits, one memory per batch under every rule."""

import copy
import math

import pytest
import torch
from by_hand import IDS, near, vec
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from cases import RULES, problem, sgd
from samphire.baselines import MESA, SAF
from samphire.baselines.saf_mesa import softened_divergence
from samphire.optim import SharpnessAware
from samphire.optim.passes import marked_as_perturbed

# SAF


def test_divergence_equals_scipy_and_its_gradient_the_difference_of_probabilities():
    torch.manual_seed(0)
    z, teacher = (torch.randn(4, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    p, q = (t / 5 for t in (teacher, z))
    p, q = p.softmax(1).detach(), q.softmax(1)
    divergence = softened_divergence(z, teacher, tau=5.0)
    near(divergence, 25 * torch.tensor(stats.entropy(p.numpy(), q.detach().numpy(), axis=1)), 1e-12)
    divergence.sum().backward()
    near(z.grad, 5 * (q - p), 1e-13)  # tau^2 / tau
    assert teacher.grad is None


def test_divergence_of_hopeless_logits_is_finite():
    near(softened_divergence(vec(1e4, 0).reshape(1, 2), vec(0, 1e4).reshape(1, 2), tau=1.0), [1e4])


def test_saf_by_hand():
    saf = SAF(5, 2, lam=0.5, tau=2.0, lag=1, start=0).double()
    past = 2 * vec(3, 1, 1, 1).reshape(2, 2).log()  # softened: (3/4, 1/4) and (1/2, 1/2)
    near(saf(past, torch.tensor([4, 2]), epoch=0), 0)
    loss = saf(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([2, 4]), epoch=1)
    near(loss, 0.5 * 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2)


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_saf_equals_a_dictionary_of_all_logits_by_epoch(lag):
    generator = torch.Generator().manual_seed(lag)
    saf, past = SAF(6, 3, lam=0.7, tau=2.0, lag=lag, start=2, end=12).double(), {}
    used = 0
    for epoch in range(14):
        for ids in torch.randperm(6, generator=generator)[:4].split(2):  # two of six are missed each time
            z = torch.randn(2, 3, generator=generator, dtype=torch.float64)
            loss, expected = saf(z, ids, epoch), 0.0
            for i, row in zip(ids.tolist(), z, strict=True):
                past[epoch, i] = row
                if 2 <= epoch < 12 and (epoch - lag, i) in past:
                    used += 1
                    p, q = ((t / 2).softmax(0).numpy() for t in (past[epoch - lag, i], row))
                    expected += 0.7 * 4 * stats.entropy(p, q) / 2
            near(loss, expected, 1e-12)
    assert used > 10


def test_logits_that_are_not_finite_are_not_remembered_and_give_no_nan():
    saf = SAF(2, 2, lag=1, start=0).double()
    saf(vec(math.nan, 1, 2, 3).reshape(2, 2), torch.tensor([0, 1]), epoch=0)
    z = vec(1, 2, 5, 1).reshape(2, 2).requires_grad_()
    loss = saf(z, torch.tensor([0, 1]), epoch=1)
    loss.backward()
    assert loss > 0
    near(z.grad[0], [0, 0])
    assert z.grad[1].abs().min() > 0


@pytest.mark.parametrize("name", ["sam", "gam", "m_sharpness"])
def test_saf_remembers_the_clean_logits_and_perturbed_passes_read_what_the_clean_one_read(name):
    model, x, y = problem()
    saf = SAF(10, 3, lag=1, start=1).double()
    opt = SharpnessAware(model, sgd(model), RULES[name])
    for epoch in range(3):
        clean, perturbed = model(x).detach(), []
        for p in opt.passes(n=8):
            z, part = model(x[p.examples]), p.examples
            term = saf(z, IDS[part], epoch)
            past = saf.bank[(epoch - 1) % 2, IDS[part]]
            near(term, 0.3 * softened_divergence(z, past).mean() if epoch else 0.0)
            perturbed.append(p.perturbed)
            p.backward(cross_entropy(z, y[part]) + term)
        opt.step()
        assert any(perturbed)
        if name == "m_sharpness":  # products of other batch sizes round differently on some CPUs
            near(saf.bank[epoch % 2, IDS], clean, 1e-12)
        else:
            assert torch.equal(saf.bank[epoch % 2, IDS], clean)
        assert saf.epochs[epoch % 2, IDS].eq(epoch).all()


def test_the_bank_is_as_large_as_stated_and_can_be_halved():
    saf = SAF(11, 7, lag=2, start=0).half()
    assert saf.bank.numel() == 11 * 7 * 3
    assert saf.bank.element_size() == 2
    z = torch.randn(2, 7)
    saf(z, torch.tensor([1, 2]), epoch=0)
    near(saf(z + 1, torch.tensor([1, 2]), epoch=2), 0.0, 1e-4)  # a constant changes no probability
    assert saf(2 * z, torch.tensor([1, 2]), epoch=2) > 1e-3


# MESA


def test_mesa_by_hand():
    model = nn.Linear(1, 2, bias=False).double()
    x = vec(1).reshape(1, 1)
    with torch.no_grad():
        model.weight.copy_(vec(0, 0).reshape(2, 1))
        mesa = MESA(model, decay=0.75, lam=0.5, tau=1.0, start=0)
        model.weight.copy_(vec(4 * math.log(3), 0).reshape(2, 1))
        mesa.update(model)  # a quarter of the way: logits (log 3, 0)
        near(mesa.teacher.module.weight, [[math.log(3)], [0]])
        loss = mesa(torch.zeros(1, 2, dtype=torch.float64), x, epoch=0)
    near(loss, 0.5 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)))


def test_the_teacher_evaluates_averages_batchnorm_and_never_learns():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    mesa = MESA(model, decay=0.9, start=0).train()
    x = torch.randn(6, 3, dtype=torch.float64)
    before = [b.clone() for b in mesa.teacher.module[1].buffers()]
    loss = mesa(model(x), x, epoch=0)
    loss.backward()
    assert mesa.training
    assert not any(m.training for m in mesa.teacher.modules())
    assert all(torch.equal(a, b) for a, b in zip(mesa.teacher.module[1].buffers(), before, strict=True))
    assert all(p.grad is None and not p.requires_grad for p in mesa.parameters())
    mesa.update(model)
    near(mesa.teacher.module[1].running_mean, 0.1 * model[1].running_mean, 1e-15)
    near(mesa.teacher.module[1].running_var, 0.9 + 0.1 * model[1].running_var, 1e-15)


def test_the_teacher_runs_only_in_the_epochs_of_the_term_and_stays_in_perturbed_passes():
    model, x, _ = problem()
    mesa, calls = MESA(model, decay=0.5, start=2, end=4), []
    mesa.teacher.register_forward_hook(lambda *_: calls.append(1))
    for epoch in range(6):
        mesa(model(x), x, epoch)
    assert len(calls) == 2
    before = copy.deepcopy(mesa.state_dict())
    with torch.no_grad(), marked_as_perturbed():
        model[0].weight.add_(1)
        mesa.update(model)
    assert all(torch.equal(before[k], v) for k, v in mesa.state_dict().items())
