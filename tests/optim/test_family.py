"""What is particular to esam, ssam, wsam, imb_sam and entropy_sgd, and passes that are not run or run once."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from cases import closure_of, loss_of, mean_loss_of, problem, sgd, weights
from samphire import optim
from samphire.models import small_cnn
from samphire.optim import (
    Memory,
    SharpnessAware,
    entropy_sgd,
    esam,
    imb_sam,
    m_sharpness,
    msam,
    random,
    sam,
    sam_on,
    sharpness_aware_gradient,
    ssam_d,
    ssam_f,
    wsam,
)
from samphire.optim.requests import drive, gradient_at
from samphire.tree import Vector, unit

DIAGONAL = torch.tensor([1.0, 3.0], dtype=torch.float64)


def quadratic_model():
    """``w`` with loss 0.5 w' diag(1, 3) w at (1, -1), as a module."""
    model = nn.Module()
    model.w = nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))
    return model, lambda: 0.5 * (DIAGONAL * model.w**2).sum()


def train(rule, base, steps):
    model, loss = quadratic_model()
    opt = SharpnessAware(model, base(model.parameters()), rule)
    trace = []
    for _ in range(steps):
        opt.step(lambda p: p.backward(loss()) or p.loss)
        trace.append(model.w.tolist())
    return trace


# -------------------------------------------------------------------------------- wsam: past the base optimizer


def test_wsam_past_momentum_and_adam_is_atorchs():  # RULES-CHECKED section D
    momentum = lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)
    assert train(wsam(0.05, 0.9), momentum, 2)[1] == pytest.approx((0.6865500865, -0.01039145855), abs=1e-9)
    adam = lambda params: torch.optim.Adam(params, lr=0.1)
    assert train(wsam(0.05, 0.9), adam, 1)[0] == pytest.approx((0.88576975, -0.77192776), abs=1e-8)
    assert train(wsam(0.05, 0.9, decouple=False), adam, 1)[0] == pytest.approx((0.9, -0.9), abs=1e-8)


def test_wsam_uses_each_groups_rate_and_adds_up_over_micro_batches():
    model, x, y = problem()
    base = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.2}, {"params": model[1:].parameters()}], lr=0.1)
    before, parts = weights(model), []
    for half in (slice(0, 4), slice(4, 8)):
        answer = gradient_at(loss_of(model, x[half], y[half]), before)
        parts.append(drive(wsam(0.1), before, Memory(), answer))
    opt = SharpnessAware(model, base, wsam(0.1))
    for half in (slice(0, 4), slice(4, 8)):
        for p in opt.passes():
            p.backward(cross_entropy(model(x[half]), y[half]) / 2)
    opt.step()
    for name, p in model.named_parameters():
        moved = sum((d.gradient + d.directly).dense()[name] for d in parts) / 2
        lr = 0.2 if name.startswith("0.") else 0.1
        torch.testing.assert_close(p.detach(), before[name] - lr * moved, rtol=0, atol=1e-13)


def test_wsam_refuses_a_base_that_steps_by_closure():
    model, x, y = problem()
    opt = SharpnessAware(model, torch.optim.LBFGS(model.parameters()), wsam(0.1))
    with pytest.raises(TypeError, match=r"wsam applies a part .* LBFGS .* wsam\(decouple=False\)"):
        opt.step(closure_of(opt, model, x, y))


# -------------------------------------------------------------------------------- esam: tensors and examples


def test_esam_takes_the_examples_whose_loss_rose_most():
    model, x, y = problem()
    w, losses = weights(model), loss_of(model, x, y)
    eps = 0.1 * unit(Vector(torch.func.grad(mean_loss_of(model, x, y))(w)))
    there = (Vector(w) + eps).dense()
    most = sorted((losses(there) - losses(w)).topk(3).indices.tolist())
    expected = torch.func.grad(lambda w: losses(w)[most].mean())(there)
    got = sharpness_aware_gradient(esam(0.1, beta=1.0, gamma=0.4), losses, w)  # 3.2 examples: 3
    for name in w:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("n", "gamma", "kept"), [(2, 0.5, 1), (4, 0.25, 1), (1, 0.5, 1), (8, 0.01, 1), (8, 0.5, 4)])
def test_esam_never_keeps_an_empty_batch(n, gamma, kept):
    model, x, y = problem(n=n)
    r, seen = optim.bind(esam(0.1, gamma=gamma), model), []
    answer = gradient_at(lambda w, examples=slice(None): 0 * loss_of(model, x, y)(w, examples), weights(model))
    drive(r, weights(model), Memory(), lambda request: seen.append(request) or answer(request))
    assert seen[-1].examples.tolist() == list(range(kept))  # no loss rises: all are equal, and the first are taken


def test_esam_chooses_tensors_with_probability_beta_and_never_none():
    w = Vector({str(i): torch.zeros(1) for i in range(40)})
    shares = [len(esam(beta=0.3)._tensors(w, t)) / 40 for t in range(200)]
    assert sum(shares) / 200 == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / 8000))  # four standard errors
    assert len({esam(beta=0.3)._tensors(w, t) for t in range(50)}) == 50
    few = Vector({"a": torch.zeros(1), "b": torch.zeros(1)})
    assert all(len(esam(beta=0.01)._tensors(few, t)) == 1 for t in range(50))


def test_rules_that_rank_say_what_they_need():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), esam(0.1))

    def scalar():
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.raises(TypeError, match=r"needs the loss of each example.*reduction='none'"):
        opt.step(scalar)
    with pytest.raises(TypeError, match="backward was given one number"):
        opt.step(lambda p: p.backward(cross_entropy(model(x), y)))
    with pytest.raises(TypeError, match="use micro='m'"):
        for p in opt.passes():
            for half in (slice(0, 4), slice(4, 8)):
                p.backward(cross_entropy(model(x[half]), y[half], reduction="none"))
    with pytest.raises(TypeError, match=r"opt.step\(closure, labels=y\)"):
        opt = SharpnessAware(model, sgd(model), imb_sam(0.1, tail=[1]))
        opt.step(closure_of(opt, model, x, y))


# -------------------------------------------------------------------------------- ssam: masks


def test_ssam_f_masks_by_the_information_handed_over_and_refreshes_it():
    model, x, y = problem()
    w, calls = weights(model), []

    def information():
        calls.append(1)
        return {n: torch.arange(t.numel(), dtype=t.dtype).view(t.shape) * len(calls) ** -1 for n, t in w.items()}

    r, memory = ssam_f(0.2, sparsity=0.75, every=3, fisher=information), Memory()
    for _ in range(7):
        sharpness_aware_gradient(r, loss_of(model, x, y), w, memory)
    assert len(calls) == 3  # steps 0, 3, 6
    flat = torch.cat([t.reshape(-1) for t in information().values()])
    mask = torch.cat([t.reshape(-1) for t in memory["mask"].tensors.values()])
    assert mask.sum() == len(flat) - int(0.75 * len(flat))
    assert flat[mask].min() >= flat[~mask].max()


@pytest.mark.parametrize(("sparsity", "drop"), [(0.2, 0.5), (0.5, 0.5), (0.9, 1.0)])
def test_ssam_d_drops_the_flattest_grows_as_many_and_slows_down(sparsity, drop):
    torch.manual_seed(0)
    w = {"a": torch.randn(40, 10), "b": torch.randn(100)}
    curvature = {n: torch.rand(t.shape) for n, t in w.items()}
    loss = lambda w: sum((curvature[n] * t**2).sum() / 2 for n, t in w.items())
    g = torch.cat([(curvature[n] * t).abs().reshape(-1) for n, t in w.items()])
    r, memory, masks = ssam_d(0.1, sparsity, every=2, steps=8, drop=drop), Memory(), []
    for _ in range(9):
        sharpness_aware_gradient(r, loss, w, memory)
        masks.append(torch.cat([t.reshape(-1) for t in memory["mask"].tensors.values()]))
    kept = 500 - int(sparsity * 500)
    assert all(mask.sum() == kept for mask in masks)
    assert torch.equal(masks[2], masks[3])  # a change every second step
    for t in (2, 4, 6, 8):
        old, new = masks[t - 1], masks[t]
        count = min(int(drop / 2 * (1 + math.cos(math.pi * t / 8)) * kept), 500 - kept)
        dropped, stayed = old & ~new, old & new
        assert dropped.sum() == count == (new & ~old).sum()
        assert not (count and stayed.any()) or g[dropped].max() <= g[stayed].min()
    assert count == 0


def test_sparsity_and_scope_are_reported():
    model, x, y = problem()
    size = sum(p.numel() for p in model.parameters())
    for r, share in [(sam(0.1), 1.0), (ssam_f(0.1, 0.8), (size - int(0.8 * size)) / size), (sam_on(0.1), 12 / size)]:
        opt = SharpnessAware(model, sgd(model), r)
        opt.step(closure_of(opt, model, x, y))
        assert opt.last.perturbed == pytest.approx(share)


# -------------------------------------------------------------------------------- imb_sam, entropy_sgd


def test_imb_sam_is_sam_on_the_rare_classes_and_sgd_on_the_others():
    model, x, y = problem()
    w, losses, rare = weights(model), loss_of(model, x, y), y == 1
    assert 0 < rare.sum() < 8
    tail = lambda w: 2 * losses(w)[rare].sum() / 8
    head = lambda w: losses(w)[~rare].sum() / 8
    there = (Vector(w) + 0.1 * unit(Vector(torch.func.grad(tail)(w)))).dense()
    got = sharpness_aware_gradient(imb_sam(0.1, tail=[1]), losses, w, Memory(labels=y))
    for name in w:
        expected = torch.func.grad(head)(w)[name] + torch.func.grad(tail)(there)[name]
        torch.testing.assert_close(got[name], expected, rtol=1e-12, atol=1e-14)


def test_entropy_sgd_noise_has_its_size_and_its_pull_grows():
    w = {"w": torch.zeros(20_000, dtype=torch.float64)}
    flat = lambda w: 0 * w["w"].sum()
    one = sharpness_aware_gradient(entropy_sgd(1, lr=0.5, noise=0.3, average=0.0), flat, w)["w"]
    assert one.std().item() == pytest.approx(0.3 * math.sqrt(2 * 0.5), rel=0.03)
    line = lambda w: w["w"].sum()
    r = entropy_sgd(2, lr=0.1, gamma=0.5, scoping=1.0, noise=0.0, average=0.0)
    memory = Memory(step=2)  # gamma = 0.5 * 2**2 = 2: away = -0.1, then -0.1 - 0.1 (1 + 2 * -0.1) = -0.18
    assert sharpness_aware_gradient(r, line, w, memory)["w"][0].item() == pytest.approx(0.18)


# -------------------------------------------------------------------------------- passes that are not run, or run once


def test_a_pass_over_a_scope_computes_its_gradient_alone_and_exactly():
    torch.manual_seed(0)
    model = small_cnn()
    x, y = torch.randn(4, 3, 64, 32), torch.randint(2, (4,))
    flops = []

    def counted(p):
        with FlopCounterMode(display=False) as counter:
            p.backward(cross_entropy(model(x), y))
        flops.append(counter.get_total_flops())
        return p.loss

    forward = FlopCounterMode(display=False)
    with forward:
        model(x)
    head = 2 * 4 * 4096 * 2  # the head's weight gradient: no gradient goes into the body
    opt = SharpnessAware(model, sgd(model), optim.lsam(0.1))
    opt.step(counted)
    assert flops[0] == forward.get_total_flops() + head
    assert flops[1] > 2 * flops[0]
    assert all(p.requires_grad for p in model.parameters())
    flops.clear()
    model.zero_grad()
    opt = SharpnessAware(model, sgd(model), random(0.1))
    opt.step(counted)
    assert flops[0] == forward.get_total_flops()


def test_frozen_parameters_stay_frozen_and_an_exception_thaws_the_others():
    model, x, y = problem()
    model[0].bias.requires_grad_(False)
    opt = SharpnessAware(model, sgd(model), optim.lsam(0.1))
    for p in opt.passes():
        assert model[0].weight.requires_grad is p.perturbed
        assert model[3].weight.requires_grad
        p.backward(cross_entropy(model(x), y))
    opt.step()
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: 1 / 0)
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]


def test_batchnorm_sees_each_part_once_also_under_a_displaced_first_pass():
    torch.manual_seed(0)
    x, y = torch.randn(8, 5), torch.randint(3, (8,))
    for r, batches in [(m_sharpness(4, msam(0.1)), 2), (m_sharpness(2, sam(0.1)), 4), (msam(0.1), 1), (esam(0.1), 1),
                       (imb_sam(0.1, tail=[1]), 1), (entropy_sgd(4), 1)]:  # fmt: skip
        model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        opt = SharpnessAware(model, sgd(model), r)
        marks = []
        for _ in range(2):
            for p in opt.passes(labels=y):
                marks.append(optim.in_perturbed_pass() == p.perturbed)
                p.backward(cross_entropy(model(x[p.examples]), y[p.examples], reduction="none"))
            opt.step()
        assert model[1].num_batches_tracked == 2 * batches
        assert all(marks)
        assert not optim.in_perturbed_pass()


def test_last_blocks():
    model = small_cnn()
    assert optim.last(1)(model) == {"7.weight", "7.bias"}
    assert optim.last(2)(model) == {"4.weight", "4.bias", "7.weight", "7.bias"}
    assert optim.last(1)(torch.compile(model)) == {"7.weight", "7.bias"}
    with pytest.raises(
        ValueError, match=r"last: n, counted in the model's blocks, must be a whole number in \[1, 4\], got 5"
    ):
        optim.last(5)(model)


def test_hybrid_of_metric_and_merge_is_both():
    """ASAM's climb under GSAM's merge, written out."""
    model, x, y = problem()
    w, loss = weights(model), mean_loss_of(model, x, y)
    hybrid = replace(optim.gsam(0.1, alpha=0.4), climb=optim.asam(0.3).climb)
    t = {n: v.abs() + 0.01 if n.endswith("weight") else torch.ones_like(v) for n, v in w.items()}
    g = torch.func.grad(loss)(w)
    length = math.sqrt(sum((t[n] * g[n]).square().sum().item() for n in w))
    g_p = torch.func.grad(loss)({n: w[n] + 0.1 * t[n] ** 2 * g[n] / length for n in w})
    along = sum((g[n] * g_p[n]).sum() for n in w) / sum(v.square().sum() for v in g_p.values())
    got = sharpness_aware_gradient(hybrid, loss, w)
    for n in w:
        torch.testing.assert_close(got[n], g_p[n] - 0.4 * (g[n] - along * g_p[n]), rtol=1e-11, atol=1e-13)
