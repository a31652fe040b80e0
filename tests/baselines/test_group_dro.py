"""GroupDRO: numbers by hand, the published update written out, one change per batch under every rule, two ranks."""

import copy
import itertools
import math

import pytest
import torch
from by_hand import GROUPS, SIZES, each, log2, near, vec
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from cases import RULES, assert_weights, problem, sgd, weights
from samphire import optim
from samphire.baselines import GroupDRO
from samphire.optim import SharpnessAware, sam
from samphire.optim.passes import in_perturbed_pass
from samphire.tree import Vector
from two_ranks import on_two_ranks

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


# Two ranks

UNEVEN = [slice(0, 3), slice(3, 8)]  # group 2 is on the second rank only


def work(rank, folder):
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


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(work, str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
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
