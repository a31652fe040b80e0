"""Base optimizers: Muon and AdamW against torch's own on plain matrices, and the settings that are refused."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from samphire.optim import SharpnessAware, sam
from samphire.train.bases import BASES, base_optimizer, check_base

SIZES = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01}


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 2))
    return net.to(memory_format=torch.channels_last)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(6, 3, 5, 5, generator=g), torch.randint(2, (6,), generator=g)


def trained(net, opt, steps=4, first=0):
    for step in range(first, first + steps):
        x, y = batch(step)
        opt.zero_grad()
        cross_entropy(net(x), y).backward()
        for group in opt.param_groups:
            group["lr"] = 0.02 / (step + 1)
        opt.step()
    return net


def test_muon_is_torch_s_on_matrices_and_adamw_on_the_rest():
    net = network()
    twin = copy.deepcopy(net)
    trained(net, base_optimizer("muon", net, **SIZES, settings={"ns_steps": 4, "betas": (0.8, 0.9)}))
    kernel = nn.Parameter(twin[0].weight.detach().reshape(4, 27).clone())
    muon = torch.optim.Muon(
        [kernel, twin[3].weight], 0.02, weight_decay=0.01, ns_steps=4, adjust_lr_fn="match_rms_adamw"
    )
    rest = [twin[0].bias, twin[3].bias, *twin[5].parameters()]
    adamw = torch.optim.AdamW(rest, 0.02, betas=(0.8, 0.9), weight_decay=0.01)
    for step in range(4):
        x, y = batch(step)
        twin.zero_grad()
        loss = cross_entropy(torch.func.functional_call(twin, {"0.weight": kernel.view(4, 3, 3, 3)}, x), y)
        kernel.grad = None
        loss.backward()
        for opt in (muon, adamw):
            opt.param_groups[0]["lr"] = 0.02 / (step + 1)
            opt.step()
    torch.testing.assert_close(net[0].weight.flatten(1), kernel, rtol=0, atol=1e-4)  # bfloat16 inside
    for name in ("0.bias", "3.weight", "3.bias", "5.weight", "5.bias"):
        torch.testing.assert_close(net.get_parameter(name), twin.get_parameter(name), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", BASES)
def test_a_base_goes_on_from_its_state_bit_for_bit(name):
    whole, part = network(), network()
    trained(whole, base_optimizer(name, whole, **SIZES, settings={}), 6)
    opt = base_optimizer(name, part, **SIZES, settings={})
    trained(part, opt, 3)
    again = base_optimizer(name, part, **SIZES, settings={})
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    trained(part, again, 3, first=3)
    for p, q in zip(whole.parameters(), part.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", BASES)
def test_a_rule_of_radius_zero_around_a_base_is_the_base(name):
    plain, under = network(), network()
    trained(plain, base_optimizer(name, plain, **SIZES, settings={}), 1)
    opt = SharpnessAware(under, base_optimizer(name, under, **SIZES, settings={}), sam(rho=0.0))
    x, y = batch(0)
    opt.step(lambda p: p.backward(cross_entropy(under(x), y)) or p.loss)
    for p, q in zip(plain.parameters(), under.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_muon_where_torch_has_none_is_one_sentence(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"base=muon needs torch 2.9 or newer, got .*; take adamw"):
        check_base("muon", {})
