"""Checkpoints, copies, compiled models."""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.functional import cross_entropy

from cases import assert_weights, closure_of, every_rule, problem, reference_run, sgd, weights
from samphire import optim
from samphire.optim import SharpnessAware, asam, looksam, lsam, sam

BASES = {"sgd": sgd, "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)}


@every_rule
@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_resumed_run_equals_the_uninterrupted_one_to_the_bit(r, base):
    model, x, y = problem()
    opt = SharpnessAware(model, base(model), r)
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y), labels=y)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    for _ in range(4):
        opt.step(closure_of(opt, model, x, y), labels=y)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, _, _ = problem(seed=1)
    other.load_state_dict(saved["model"])
    resumed = SharpnessAware(other, base(other), r)
    resumed.load_state_dict(saved["opt"])
    for _ in range(4):
        resumed.step(closure_of(resumed, other, x, y), labels=y)
    assert_weights(other, weights(model), 0)


def test_state_is_small_and_a_plain_one_loads_both_ways():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    opt.step(closure_of(opt, model, x, y))
    plain = sgd(model)
    plain.load_state_dict(opt.state_dict())
    torch.testing.assert_close(plain.state_dict()["state"], opt.base.state_dict()["state"])
    opt.load_state_dict(plain.state_dict())
    assert opt.param_groups is opt.base.param_groups
    size = len(pickle.dumps(opt.state_dict()))
    assert size < len(pickle.dumps(sgd(model).state_dict())) + len(pickle.dumps(plain.state_dict()["state"])) + 1500


@every_rule
def test_a_plain_state_starts_the_rule_afresh_and_says_so(r):
    model, x, y = problem()
    plain = sgd(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    plain.step()
    plain.zero_grad()
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(2):
        opt.step(closure_of(opt, model, x, y), labels=y)
    with pytest.warns(UserWarning, match="holds no memory of a rule, so .* starts afresh at step 0"):
        opt.load_state_dict(plain.state_dict())
    torch.testing.assert_close(opt.base.state_dict(), plain.state_dict())
    twin, fresh = copy.deepcopy((model, SharpnessAware(model, plain, r)))
    opt.step(closure_of(opt, model, x, y), labels=y)
    fresh.step(closure_of(fresh, twin, x, y), labels=y)
    assert_weights(model, weights(twin), 0)


@every_rule
def test_the_memory_of_another_rule_is_named_and_not_used(r):
    model, x, y = problem()
    other = SharpnessAware(model, sgd(model), optim.stable(0.1) if not isinstance(r, optim.stable) else sam(0.1))
    other.step(closure_of(other, model, x, y))
    opt = SharpnessAware(model, sgd(model), r)
    opt.step(closure_of(opt, model, x, y), labels=y)
    with pytest.warns(UserWarning, match="holds the memory of (stable|sam), so .* starts afresh at step 0"):
        opt.load_state_dict(other.state_dict())
    for _ in range(6):
        opt.step(closure_of(opt, model, x, y), labels=y)


def test_the_memory_of_another_rank_is_not_taken_for_ones_own():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), looksam(0.1, k=2))
    opt.step(closure_of(opt, model, x, y))
    state = opt.state_dict()
    state["param_groups"][0]["samphire of rank 1"] = state["param_groups"][0].pop("samphire")
    with pytest.warns(UserWarning, match="holds the memory of other ranks, so looksam starts afresh at step 0"):
        opt.load_state_dict(state)
    twin = copy.deepcopy(model)
    fresh = SharpnessAware(twin, sgd(twin), looksam(0.1, k=2))
    fresh.base.load_state_dict(copy.deepcopy(opt.base.state_dict()))
    opt.step(closure_of(opt, model, x, y))
    fresh.step(closure_of(fresh, twin, x, y))
    assert_weights(model, weights(twin), 0)


@every_rule
@pytest.mark.parametrize(("base", "full"), [(sgd, False), (BASES["adamw"], True)], ids=["sgd", "adamw, full"])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoint_without_ranks(r, base, full, tmp_path):
    options = StateDictOptions(full_state_dict=full)
    model, x, y = problem()
    opt = SharpnessAware(model, base(model), r)
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y), labels=y)
    state = {"model": get_model_state_dict(model), "opt": get_optimizer_state_dict(model, opt, options=options)}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    other, _, _ = problem(seed=1)
    resumed = SharpnessAware(other, base(other), r)
    before = weights(other)
    state = {"model": get_model_state_dict(other), "opt": get_optimizer_state_dict(other, resumed, options=options)}
    assert_weights(other, before, 0)
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_model_state_dict(other, state["model"])
    set_optimizer_state_dict(other, resumed, state["opt"], options=options)
    for _ in range(4):
        opt.step(closure_of(opt, model, x, y), labels=y)
        resumed.step(closure_of(resumed, other, x, y), labels=y)
    assert_weights(other, weights(model), 0)


def test_a_step_without_passes_is_still_refused_unless_it_sets_up_the_state():
    model, _, _ = problem()
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    for lr, grad in [(0.1, 0.0), (0.0, 1.0)]:
        opt.param_groups[0]["lr"] = lr
        for p in model.parameters():
            p.grad = torch.full_like(p, grad)
        with pytest.raises(TypeError, match="needs the loss more than once"):
            opt.step()


@every_rule
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_alike_and_apart(r, clone):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), r)
    torch.optim.lr_scheduler.StepLR(opt, 1)  # wraps opt.step, which must not get in the way
    opt.step(closure_of(opt, model, x, y), labels=y)
    model2, opt2 = clone((model, opt))
    assert opt2.param_groups is opt2.base.param_groups
    opt.step(closure_of(opt, model, x, y), labels=y)
    opt2.step(closure_of(opt2, model2, x, y), labels=y)
    assert_weights(model2, weights(model), 0)
    opt2.step(closure_of(opt2, model2, x, y), labels=y)
    assert not torch.equal(model2[0].weight, model[0].weight)


def test_added_group_is_perturbed_and_trained():
    model, x, y = problem()
    expected = reference_run(sam(0.1), model, x, y, steps=1)
    opt = SharpnessAware(model, torch.optim.SGD(model[0].parameters(), lr=0.1), sam(0.1))
    opt.add_param_group({"params": [*model[1].parameters(), *model[3].parameters()]})
    opt.step(closure_of(opt, model, x, y))
    assert_weights(model, expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("r", [sam(0.1), lsam(0.2), looksam(0.1, k=2)], ids=["sam", "lsam", "looksam"])
def test_compiled_model(r, backend):
    from torch._inductor import config as inductor

    torch._dynamo.reset()
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=3)
    compiled = torch.compile(model, backend=backend)
    opt = SharpnessAware(compiled, sgd(compiled), r)
    fewer_compilations = {
        "cpp.vec_isa_ok": True,
        "cpp_cache_precompile_headers": False,
    }  # no trials, nothing for later
    with inductor.patch(fewer_compilations):
        for _ in range(3):
            opt.step(closure_of(opt, compiled, x, y))
    assert_weights(model, expected, 1e-10)
    assert list(opt._engine.named) == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("foreach", [True, False])
def test_base_with_and_without_foreach(foreach):
    model, x, y = problem()
    expected = reference_run(asam(0.3), model, x, y, steps=3)
    opt = SharpnessAware(model, sgd(model, foreach=foreach), asam(0.3))
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y))
    assert_weights(model, expected)


def test_several_models_in_one_optimizer():
    a, x, y = problem()
    b, _, _ = problem(seed=1)
    both = nn.ModuleList([a, b])
    opt = SharpnessAware(both, sgd(both), sam(0.1))
    for p in opt.passes():
        p.backward(cross_entropy(a(x), y) + cross_entropy(b(x), y))
    opt.step()
    assert float(opt.last.radius) == pytest.approx(0.1)
