"""Two gloo ranks against one process, in float64: DistributedDataParallel (global and local) and FSDP2."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from cases import ALL, loss_of, problem, weights
from samphire import optim
from samphire.optim import Memory, SharpnessAware, gsam, last_layer, lsam, m_sharpness, sam
from two_ranks import on_two_ranks

pytestmark = pytest.mark.slow

STEPS = 4
HALVES = [slice(0, 4), slice(4, 8)]
CASES = [(kind, name) for kind in ("global", "local", "sharded") for name in ALL]
CASES += [("bucket views", name) for name in ("sam", "gsam", "gam")]
RESUMED = [("sharded", name) for name in ALL] + [
    (kind, name) for kind in ("global", "local") for name in ("sam", "looksam", "vasso", "m_sharpness of looksam")
]


def per_rank(rule):
    """The rule with micro-batches that fit into half a batch."""
    return m_sharpness(2, rule.rule) if isinstance(rule, m_sharpness) else rule


def train(model, opt, x, y, steps=STEPS):
    radii = []
    for _ in range(steps):
        for p in opt.passes(labels=y):
            p.backward(cross_entropy(out := model(x[p.examples]), y[p.examples], reduction="none"), out)
        opt.step()
        radii.append(float(opt.last.radius))
    return radii


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


WRAPPERS = {
    "global": lambda inner: DistributedDataParallel(inner),
    "local": lambda inner: DistributedDataParallel(inner),
    "bucket views": lambda inner: DistributedDataParallel(inner, gradient_as_bucket_view=True),
    "sharded": lambda inner: fully_shard(inner),
}


def wrapped(rule, kind, seed=0):
    model = WRAPPERS[kind](problem(seed)[0])
    return model, SharpnessAware(
        model, sgd(model), per_rank(rule), perturbation="local" if kind == "local" else "global"
    )


def whole(model):
    inner = getattr(model, "module", model)
    return {name: getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for name, p in inner.named_parameters()}


def states(runs):
    return {
        str(case): {"model": get_model_state_dict(model), "opt": get_optimizer_state_dict(model, opt)}
        for case, (model, opt) in runs.items()
    }


def trained(rank, folder):
    """The weights and radii of each case, and whether a run loaded by torch.distributed.checkpoint ends with the same.

    It is saved after one step, when whatever is kept for a second or third one is needed next.
    """
    _, x, y = problem()
    x, y = x[HALVES[rank]], y[HALVES[rank]]
    runs = {(kind, name): wrapped(ALL[name], kind) for kind, name in CASES}
    radii = {case: train(*run, x, y, steps=1) for case, run in runs.items()}
    dcp.save(states({case: runs[case] for case in RESUMED}), checkpoint_id=folder)
    for case, run in runs.items():
        run[1].load_state_dict(run[1].state_dict())  # changes nothing
        radii[case] += train(*run, x, y, steps=STEPS - 1)
    weights = {case: whole(model) for case, (model, _) in runs.items()}
    others = {(kind, name): wrapped(ALL[name], kind, seed=1) for kind, name in RESUMED}
    saved, same = states(others), {}
    dcp.load(saved, checkpoint_id=folder)
    for case, (model, opt) in others.items():
        set_model_state_dict(model, saved[str(case)]["model"])
        set_optimizer_state_dict(model, opt, saved[str(case)]["opt"])
        train(model, opt, x, y, steps=STEPS - 1)
        same[case] = all(torch.equal(t, weights[case][name]) for name, t in whole(model).items())
    return weights, radii, same


def reductions(rank):
    """How many all-reduces a step makes."""
    counts = {}
    for name, settings in {"global": {}, "local": {"perturbation": "local"}}.items():
        inner, x, y = problem()
        model = DistributedDataParallel(inner)
        opt = SharpnessAware(model, sgd(model), gsam(0.1), **settings)
        train(model, opt, x, y, steps=2)
        with torch.profiler.profile() as profile:
            train(model, opt, x, y, steps=1)
        counts[name] = sum(e.count for e in profile.key_averages() if e.key == "c10d::allreduce_")
    return counts


def overflow_on_one_rank(rank):
    inner, x, y = problem()
    model = DistributedDataParallel(inner)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    opt = SharpnessAware(model, sgd(model), sam(0.1), perturbation="local", scaler=scaler)
    before = weights(inner)
    factor = float("inf") if rank == 0 else 1.0
    opt.step(lambda p: p.backward(cross_entropy(model(x), y) * factor) or p.loss)
    scaler.update()
    same = all(torch.equal(p, before[name]) for name, p in inner.named_parameters())
    return same, opt.last.skipped, scaler.get_scale()


def one_pass(rank):
    runs = []
    for once in (True, False):
        inner, x, y = problem()
        model = DistributedDataParallel(inner)
        opt = SharpnessAware(model, sgd(model), lsam(0.2), perturbation="local")
        x, y = x[HALVES[rank]], y[HALVES[rank]]
        for _ in range(2):
            loss = lambda out: cross_entropy(out, y)
            opt.step(
                last_layer(model).one_pass(lambda: model(x), loss)
                if once
                else lambda p: p.backward(loss(model(x))) or p.loss
            )
        runs.append(weights(inner))
    inner, x, y = problem()
    model = DistributedDataParallel(inner)
    try:
        opt = SharpnessAware(model, sgd(model), lsam(0.2))
        opt.step(last_layer(model).one_pass(lambda: model(x), lambda out: cross_entropy(out, y)))
    except ValueError as error:
        return all(torch.equal(runs[0][n], runs[1][n]) for n in runs[0]), str(error)


def refusal(rank):
    model, _, _ = problem()
    fully_shard(model)
    try:
        SharpnessAware(model, sgd(model), sam(0.1), perturbation="local")
    except ValueError as error:
        return str(error)


def wrapped_later(rule, rank, rebind):
    """Local perturbation, with the optimizer built before the model is wrapped."""
    inner, x, y = problem()
    opt = SharpnessAware(inner, sgd(inner), per_rank(rule), perturbation="local")
    model = DistributedDataParallel(inner)
    if rebind:
        opt.rebind(model)
    train(model, opt, x[HALVES[rank]], y[HALVES[rank]])
    return weights(inner)


def never_wrapped(rank):
    inner, x, y = problem()
    try:
        train(inner, SharpnessAware(inner, sgd(inner), sam(0.1), perturbation="local"), x, y)
    except ValueError as error:
        return str(error)


def sharded_later(rule, rank):
    """FSDP2 put on after two steps: noticed at the next one, and taken over by rebind with momentum and memory."""
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), rule)
    train(model, opt, x, y, steps=2)
    fully_shard(model)
    try:
        train(model, opt, x, y, steps=1)
        message = ""
    except ValueError as error:
        message = str(error)
    opt.rebind(model)
    train(model, opt, x, y, steps=STEPS - 2)
    return whole(model), message


def work(rank, folder):
    weights, radii, resumed = trained(rank, f"{folder}/checkpoint")
    results = {
        "weights": weights,
        "radii": radii,
        "resumed": resumed,
        "reductions": reductions(rank),
        "overflow": overflow_on_one_rank(rank),
        "one pass": one_pass(rank),
        "refusal": refusal(rank),
        "wrapped later": {n: wrapped_later(ALL[n], rank, n == "gsam") for n in ("sam", "gsam", "looksam")},
        "never wrapped": never_wrapped(rank),
        "sharded later": {n: sharded_later(ALL[n], rank) for n in ("sam", "looksam", "vasso", "ssam_d")},
    }
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(work, str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def alone(rule, order=slice(None)):
    """One process on the whole batch: SGD with momentum on the reference gradient."""
    model, x, y = problem()
    loss, w, v = loss_of(model, x[order], y[order]), weights(model), {}
    memory = Memory(labels=y[order], groups=(optim.requests.Group(tuple(w), lr=0.1),))
    rule = optim.bind(rule, model)
    for _ in range(STEPS):
        descent = optim.requests.drive(rule, w, memory, optim.requests.gradient_at(loss, w))
        g, directly = descent.gradient.dense(), descent.directly.dense()
        v = {n: 0.9 * v.get(n, 0) + g.get(n, 0) for n in w}
        w = {n: w[n] - 0.1 * (v[n] + directly.get(n, 0)) for n in w}
    return w


# The two ranks' first micro-batches of two together, then their second ones.
INTERLEAVED = [0, 1, 4, 5, 2, 3, 6, 7]


class EachRanksOwn(optim.esam):
    """esam on the whole batch, each rank's half of it ranked by itself."""

    def _rising(self, rise):
        first, second = (super(EachRanksOwn, self)._rising(rise[half]) for half in HALVES)
        return torch.cat([first, second + 4])


@cache
def together(name):
    """One process that does what ranks with a common perturbation do."""
    return alone(*whole_batch(ALL[name]))


def whole_batch(rule):
    """The rule for all examples, and their order."""
    if isinstance(rule, optim.esam):
        return EachRanksOwn(rule.rho, rule.beta, rule.gamma, rule.seed, climb=rule.climb), slice(None)
    if isinstance(getattr(rule, "rule", None), optim.esam):
        return replace(rule, rule=whole_batch(rule.rule)[0]), slice(None)
    return rule, INTERLEAVED


def same(a, b, tolerance=1e-13):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=tolerance)


@pytest.mark.parametrize("rule", ALL)
def test_global_perturbation_equals_one_process_on_the_whole_batch(ranks, rule):
    for rank in ranks:
        same(rank["weights"]["global", rule], together(rule))


@pytest.mark.parametrize("rule", ["sam", "gsam", "gam"])
def test_gradients_that_are_views_of_buckets(ranks, rule):
    same(ranks[0]["weights"]["bucket views", rule], alone(ALL[rule]))


@pytest.mark.parametrize("rule", ALL)
def test_local_perturbation_is_m_sharpness(ranks, rule):
    expected = alone(m_sharpness(4, per_rank(ALL[rule])))
    for rank in ranks:
        same(rank["weights"]["local", rule], expected)


@pytest.mark.parametrize("rule", ALL)
def test_sharded_parameters_equal_one_process(ranks, rule):
    for rank in ranks:
        same(rank["weights"]["sharded", rule], together(rule))


def test_radius_over_shards_is_rho(ranks):
    for rank in ranks:
        assert rank["radii"]["sharded", "sam"] == pytest.approx([0.1] * STEPS)


def test_local_perturbation_talks_once_a_step(ranks):
    assert ranks[0]["reductions"]["local"] == 1
    assert ranks[0]["reductions"]["global"] == 2


def test_overflow_on_one_rank_skips_the_step_on_both(ranks):
    for rank in ranks:
        assert rank["overflow"] == (True, True, 128.0)


def test_one_pass_equals_two_passes_locally_and_is_refused_globally(ranks):
    for rank in ranks:
        identical, message = rank["one pass"]
        assert identical
        assert "needs perturbation='local'" in message


def test_local_perturbation_of_shards_is_refused(ranks):
    assert "needs whole parameters on each rank" in ranks[0]["refusal"]


@pytest.mark.parametrize(("kind", "rule"), RESUMED)
def test_distributed_checkpoints_resume_exactly(ranks, kind, rule):
    assert all(rank["resumed"][kind, rule] for rank in ranks)


@pytest.mark.parametrize("rule", ["sam", "gsam", "looksam"])
def test_local_perturbation_finds_the_wrapper_that_came_later(ranks, rule):
    expected = alone(m_sharpness(4, ALL[rule]))
    for rank in ranks:
        same(rank["wrapped later"][rule], expected)


def test_local_perturbation_without_a_wrapper_is_refused(ranks):
    for rank in ranks:
        assert "needs the model inside DistributedDataParallel" in rank["never wrapped"]


@pytest.mark.parametrize("rule", ["sam", "looksam", "vasso", "ssam_d"])
def test_parameters_sharded_later_are_noticed_and_taken_over(ranks, rule):
    expected = alone(ALL[rule])
    for rank in ranks:
        after, message = rank["sharded later"][rule]
        assert "opt.rebind(model)" in message
        same(after, expected)
