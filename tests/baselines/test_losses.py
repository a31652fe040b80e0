"""Losses with memory: numbers by hand, the published updates written out, and one change per batch under every rule."""

import copy
import io
import itertools
import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from scipy import stats
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from cases import RULES, assert_weights, problem, sgd, weights
from samphire import optim
from samphire.baselines import MESA, SAF, GroupDRO, spectral_decoupling, spectral_decoupling_by_class
from samphire.baselines.saf_mesa import softened_divergence
from samphire.optim import SharpnessAware, sam
from samphire.optim.passes import in_perturbed_pass, marked_as_perturbed
from samphire.tree import Vector

GROUPS = torch.tensor([0, 1, 1, 2, 0, 1, 1, 2])
SIZES = [50, 40, 10]
log2 = math.log(2)


def vec(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def near(actual, expected, tol=1e-14):
    assert_close(actual.detach(), torch.as_tensor(expected, dtype=actual.dtype), rtol=tol, atol=tol)


def each(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


# GroupDRO by hand


def test_group_dro_by_hand():
    dro = GroupDRO([7, 3], eta=log2).double()
    loss = dro(vec(1, 3, 4), torch.tensor([0, 0, 1]))  # group losses 2, 4: q goes as 2^2 to 2^4
    near(dro.q, [0.2, 0.8])
    near(loss, 0.2 * 2 + 0.8 * 4)
    near(dro.running_losses, [2, 4])
    loss = dro(vec(1, 3), torch.tensor([0, 1]))  # 0.2 * 2^1 to 0.8 * 2^3
    near(dro.q, [1 / 17, 16 / 17])
    near(loss, (1 + 48) / 17)
    near(dro.running_losses, [1.9, 3.9])


def test_adjustment_by_hand():
    dro = GroupDRO([4, 16], eta=log2, adjustment=2.0).double()
    loss = dro(vec(1, 2), torch.tensor([0, 1]))  # 1 + 2/2 and 2 + 2/4
    share = 2**2.5 / (2**2 + 2**2.5)
    near(dro.q, [1 - share, share])
    near(loss, (1 - share) + 2 * share)  # the bonus is not in the loss


def test_absent_groups_are_only_normalized():
    dro = GroupDRO([1, 1, 1], eta=log2, adjustment=1.0).double()
    dro(vec(0), torch.tensor([0]))  # bonus 1 for the group that is present
    near(dro.q, [0.5, 0.25, 0.25])
    loss = dro(vec(1, 3), torch.tensor([1, 1]))  # 0.25 * 2^(2 + 1) = 2
    near(dro.q, [0.5 / 2.75, 2 / 2.75, 0.25 / 2.75])
    near(loss, 2 * 2 / 2.75)
    near(dro.running_losses[:2], [0, 2])
    assert dro.running_losses[2].isnan()


def test_without_eta_the_loss_is_the_mean_over_groups():
    dro = GroupDRO(SIZES, eta=0.0).double()
    losses = torch.rand(8, dtype=torch.float64)
    for _ in range(5):
        near(dro(losses, GROUPS), torch.stack([losses[g == GROUPS].mean() for g in range(3)]).mean())


def test_groups_without_training_examples_weigh_nothing():
    dro = GroupDRO([5, 0, 5], adjustment=1.0).double()
    near(dro.q, [0.5, 0, 0.5])
    dro(vec(1, 1), torch.tensor([0, 2]))
    near(dro.q, [0.5, 0, 0.5])


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_leaves_its_group_alone(bad):
    dro = GroupDRO([1, 1], eta=log2).double()
    dro(vec(bad, 1), torch.tensor([0, 1]))
    near(dro.q, [1 / 3, 2 / 3])
    assert dro.running_losses[0].isnan()


def test_a_group_comes_back_however_small_its_weight_was():
    dro = GroupDRO([1, 1], eta=1.0)
    for _ in range(30):
        dro(torch.tensor([0.0, 100.0]), torch.tensor([0, 1]))
    assert dro.q[0] == 0  # exp(-3000)
    for _ in range(31):
        dro(torch.tensor([100.0, 0.0]), torch.tensor([0, 1]))
    assert dro.q[0] == 1


def test_gradient_and_q_equal_the_published_update_written_out():
    generator = torch.Generator().manual_seed(0)
    dro, q = GroupDRO(SIZES, eta=0.5).double(), torch.full((3,), 1 / 3, dtype=torch.float64)
    average = torch.zeros(3, dtype=torch.float64)
    for t in range(30):
        losses = torch.rand(8, generator=generator, dtype=torch.float64).requires_grad_()
        loss = dro(losses, GROUPS)
        means = torch.stack([losses[g == GROUPS].mean() for g in range(3)])
        q = q * torch.exp(0.5 * means.detach())
        q = q / q.sum()
        average = means.detach() if t == 0 else 0.9 * average + 0.1 * means.detach()
        near(loss, means @ q, 1e-13)
        near(dro.q, q, 1e-13)
        near(dro.running_losses, average, 1e-13)
        near(torch.autograd.grad(loss, losses)[0], torch.autograd.grad(means @ q, losses)[0], 1e-13)


def test_half_precision_losses_are_added_up_in_single():
    losses = torch.ones(1001, dtype=torch.bfloat16)
    loss = GroupDRO([1001])(losses, torch.zeros(1001, dtype=torch.long))
    assert loss.dtype == torch.float32
    assert loss == 1


# One change per batch, under any rule


class Written:
    """GroupDRO written out, told by the examples of a call whether it is a repeat within the step."""

    def __init__(self, eta):
        self.eta, self.q, self.seen = eta, torch.full((3,), 1 / 3, dtype=torch.float64), set()

    def __call__(self, losses, examples):
        groups = GROUPS[examples]
        means = torch.stack([losses[groups == g].mean() if (groups == g).any() else 0 * losses[0] for g in range(3)])
        if str(examples) not in self.seen:
            self.seen.add(str(examples))
            self.q = self.q * torch.exp(self.eta * means.detach())
            self.q = self.q / self.q.sum()
        return means @ self.q


def written_out_run(rule, model, x, y, dro, steps):
    """SGD with momentum on the rule's gradient, its requests answered one by one."""
    rule, w, v = optim.bind(rule, model), weights(model), {}
    memory = optim.Memory(n=len(x), groups=(optim.requests.Group(tuple(w), lr=0.1),))

    def answer(request):
        there = {n: t.detach().requires_grad_() for n, t in (Vector(w) + request.eps).dense().items()}
        part = slice(None) if request.examples is None else request.examples
        losses = cross_entropy(functional_call(model, there, (x[part],)), y[part], reduction="none")
        grads = torch.autograd.grad(dro(losses, part), list(there.values()))
        return Vector(dict(zip(there, grads, strict=True)))

    for _ in range(steps):
        dro.seen = set()
        g = optim.requests.drive(rule, w, memory, answer).gradient.dense()
        v = {n: 0.9 * v.get(n, 0) + g[n] for n in w}
        w = {n: w[n] - 0.1 * v[n] for n in w}
    return w


UNDER = [
    "sam",
    "gam",
    "m_sharpness",
    "msam",
    "gsam",
    "looksam",
    "stale",
    "every",
    "ae_sam",
    "lsam",
    "cr_sam",
    "random",
]


@pytest.mark.parametrize("name", UNDER)
def test_group_dro_changes_once_per_batch_under_every_kind_of_rule(name):
    model, x, y = problem()
    expected = Written(eta=0.7)
    w = written_out_run(RULES[name], model, x, y, expected, steps=4)
    dro = GroupDRO(SIZES, eta=0.7).double()
    opt = SharpnessAware(model, sgd(model), RULES[name])
    for _ in range(4):
        for p in opt.passes(n=8):
            p.backward(dro(each(model, x[p.examples], y[p.examples]), GROUPS[p.examples]))
        opt.step()
    assert_weights(model, w)
    near(dro.q, expected.q, 1e-13)


def test_a_one_pass_rule_changes_the_state_by_the_losses_where_it_stands():
    model, x, y = problem()
    dro = GroupDRO(SIZES, eta=0.7, gamma=1.0).double()
    opt = SharpnessAware(model, sgd(model), optim.msam(0.5))
    for _ in range(2):
        clean, displaced = each(model, x, y).detach(), []
        for p in opt.passes():
            losses = each(model, x, y)
            displaced.append(losses.detach())
            p.backward(dro(losses, GROUPS))
        opt.step()
    assert len(displaced) == 1
    assert (clean - displaced[0]).abs().max() > 1e-3
    near(dro.running_losses, [displaced[0][g == GROUPS].mean() for g in range(3)])


@pytest.mark.parametrize("micro", ["full", "m"])
def test_micro_batches_with_half_the_step_size_end_at_the_q_of_one_batch(micro):
    model, x, y = problem()
    halves = [slice(0, 4), slice(4, 8)]  # the same number of each group in both
    whole = GroupDRO(SIZES, eta=0.8, gamma=1.0).double()
    whole(each(model, x, y).detach(), GROUPS)
    dro = GroupDRO(SIZES, eta=0.4).double()
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    seen = []

    def closure_for(half):
        def closure(p):
            loss = dro(each(model, x[half], y[half]), GROUPS[half]) / 2
            seen.append((p.perturbed, dro.q.clone()))
            loss.backward()
            return loss

        return closure

    opt.step([closure_for(half) for half in halves], micro=micro)
    near(dro.q, whole.q)
    changed = [not torch.equal(a, b) for (_, a), (_, b) in itertools.pairwise(seen)]
    assert [repeat for repeat, _ in seen] == ([0, 0, 1, 1] if micro == "full" else [0, 1, 0, 1])
    assert changed == ([True, False, False] if micro == "full" else [False, True, False])


class Boom(Exception):
    pass


@pytest.mark.parametrize("fatal", [0, 1, 2, 3])
def test_an_exception_in_any_pass_leaves_the_state_of_the_clean_pass_and_the_next_step_counts(fatal):
    model, x, y = problem()
    dro = GroupDRO(SIZES, eta=0.7).double()
    opt = SharpnessAware(model, sgd(model), RULES["gam"])
    once = copy.deepcopy(dro)
    once(each(model, x, y).detach(), GROUPS)

    def closure(p):
        opt.zero_grad()
        loss = dro(each(model, x, y), GROUPS)
        if p.index == fatal:
            raise Boom
        loss.backward()
        return loss

    with pytest.raises(Boom):
        opt.step(closure)
    assert not in_perturbed_pass()
    assert torch.equal(dro.log_q, once.log_q)
    with pytest.raises(Boom):
        opt.step(closure)
    once(each(model, x, y).detach(), GROUPS)
    near(dro.q, once.q)


def test_evaluation_mode_uses_the_state_and_leaves_it():
    model, x, y = problem()
    dro = GroupDRO(SIZES, eta=0.7).double()
    dro(each(model, x, y), GROUPS)
    before = copy.deepcopy(dro.state_dict())
    losses = each(model, 2 * x, y)
    means = torch.stack([losses[g == GROUPS].mean() for g in range(3)])
    near(dro.eval()(losses, GROUPS), means @ before["log_q"].exp())
    assert all(torch.equal(dro.state_dict()[k], before[k]) for k in before)


# Resuming

IDS = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6])
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


# Two ranks

UNEVEN = [slice(0, 3), slice(3, 8)]  # group 2 is on the second rank only


def work(rank, folder):
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=timedelta(minutes=5))
    part, results = UNEVEN[rank], {}
    for name in ("sam", "gam", "msam"):
        inner, x, y = problem()
        model = DistributedDataParallel(inner)
        dro = GroupDRO(SIZES, eta=0.7, adjustment=1.0).double()
        opt = SharpnessAware(model, sgd(model), RULES[name])
        for _ in range(3):
            for p in opt.passes():
                p.backward(dro(each(model, x[part], y[part]), GROUPS[part]))
            opt.step()
        if rank == 0:  # alone: evaluation must not wait for the other
            dro.eval()(each(inner, x, y), GROUPS)
        results[name] = {"w": weights(inner), **dro.state_dict()}
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", ["sam", "gam", "msam"])
def test_two_ranks_equal_one_process_on_the_whole_batch(ranks, name):
    model, x, y = problem()
    dro = GroupDRO(SIZES, eta=0.7, adjustment=1.0).double()
    opt = SharpnessAware(model, sgd(model), RULES[name])
    for _ in range(3):
        for p in opt.passes():
            p.backward(dro(each(model, x, y), GROUPS))
        opt.step()
    for rank in ranks:
        assert_weights(model, rank[name]["w"], 1e-13)
        near(rank[name]["log_q"], dro.log_q, 1e-13)
        near(rank[name]["running_losses"], dro.running_losses, 1e-13)
    assert torch.equal(ranks[0][name]["log_q"], ranks[1][name]["log_q"])


# Spectral decoupling


def test_spectral_decoupling_by_hand():
    z = vec(1, -2, 3, 0, 1, 3).reshape(2, 3)  # squares 14 and 10
    near(spectral_decoupling(z, 0.6), 0.6 * 24 / 6)
    near(spectral_decoupling(z, 0.6, penalty="norm"), 0.3 * 24 / 2)
    near(spectral_decoupling(z[:, 0], 0.6), 2 * spectral_decoupling(z[:, 0], 0.6, penalty="norm"))


@pytest.mark.parametrize("penalty", ["mean", "norm"])
def test_without_strength_what_remains_is_cross_entropy(penalty):
    model, x, y = problem()
    z, ce = model(x), cross_entropy(model(x), y)
    assert torch.equal(ce + spectral_decoupling(z, 0.0, penalty), ce)
    assert torch.equal(ce + spectral_decoupling_by_class(z, y, 0.0, targets=(1, 2, 3)), ce)


def test_spectral_decoupling_by_class_by_hand():
    z, y = vec(1.44, 0.44, 2.5, 4.5, 0.5, 2.5).reshape(3, 2), torch.tensor([0, 1, 1])
    near(spectral_decoupling_by_class(z, y), 0.1 * (1 / 2 + (4 + 4) / 4))
    near(spectral_decoupling_by_class(z[:1], y[:1]), 0.1 / 2)  # no example of class 1
    near(spectral_decoupling_by_class(z[:, 1], y), 0.1 * (0 + (4 + 0) / 2))  # one logit each


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
