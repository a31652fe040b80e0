"""Checkpoints, copies, compiled models."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import assert_weights, closure_of, every_rule, problem, reference_run, sgd, weights
from samphire.optim import SharpnessAware, asam, looksam, lsam, sam


@every_rule
@pytest.mark.parametrize("base", [sgd, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)], ids=["sgd", "adamw"])
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
    assert size < 1.1 * len(pickle.dumps(plain.state_dict())) + 500


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


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("r", [sam(0.1), lsam(0.2), looksam(0.1, k=2)], ids=["sam", "lsam", "looksam"])
def test_compiled_model(r, backend):
    torch._dynamo.reset()
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=3)
    compiled = torch.compile(model, backend=backend)
    opt = SharpnessAware(compiled, sgd(compiled), r)
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
