"""What people do that nobody asked for: parts of a model saved inside a pass, odd parameters, odd losses."""

import copy
import pickle

import pytest
import torch
from torch import nn

from cases import ALL, closure_of, problem, sgd
from samphire.optim import SharpnessAware, sam


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


X = torch.linspace(-1, 1, 32).view(8, 4)


def optimizer(model, rule=None):
    return SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), rule or sam(0.05))


def inside_the_perturbed_pass(model, act):
    """What an act inside the perturbed pass of a step returns."""
    result = None
    for p in optimizer(model).passes():
        p.backward(model(X).square().mean())
        if p.perturbed:
            result = act()
    return result


def test_a_part_of_the_model_saved_inside_a_perturbed_pass_has_undisplaced_weights():
    model = net()
    before = copy.deepcopy(model[0].state_dict())
    saved = inside_the_perturbed_pass(model, lambda: copy.deepcopy(model[0].state_dict()))
    assert all(torch.equal(saved[name], before[name]) for name in before)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_part_of_the_model_copied_inside_a_perturbed_pass_is_refused_and_put_back(copied):
    model = net()
    before = copy.deepcopy(model[2].state_dict())
    with pytest.raises(RuntimeError, match="copied or pickled inside a perturbed pass"):
        inside_the_perturbed_pass(model, lambda: copied(model[2]))
    assert all(torch.equal(t, before[name]) for name, t in model[2].state_dict().items())
    assert copied(model[2])


def test_a_part_of_the_model_loaded_inside_a_perturbed_pass_keeps_what_was_loaded():
    model, other = net(), {name: t + 1 for name, t in net()[0].state_dict().items()}
    inside_the_perturbed_pass(model, lambda: model[0].load_state_dict(other))
    assert all(torch.equal(t, other[name]) for name, t in model[0].state_dict().items())


@pytest.mark.parametrize("name", ALL)
def test_a_layer_frozen_between_steps_stays(name):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), ALL[name])
    closure = closure_of(opt, model, x, y)
    for _ in range(2):
        opt.step(closure, n=len(x), labels=y)
    first, *others = model.parameters()
    first.requires_grad_(False)
    kept, moving = first.clone(), others[-1].clone()
    for _ in range(3):
        opt.step(closure, n=len(x), labels=y)
    assert torch.equal(first, kept)
    assert not torch.equal(others[-1], moving)


def test_a_closure_for_passes_after_passes_is_refused_in_a_sentence():
    model = net()
    opt = optimizer(model)
    for p in opt.passes():
        p.backward(model(X).square().mean())
    with pytest.raises(RuntimeError, match=r"call step\(\) without a closure"):
        opt.step(lambda p: p.backward(model(X).square().mean()))


def test_complex_parameters_are_refused():
    model = nn.Linear(4, 2, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"weight must be real, got torch.complex64; .*view_as_complex"):
        optimizer(model)


def test_a_closure_that_returns_more_than_the_loss_is_refused_and_nothing_has_moved():
    model = net()
    opt, before = optimizer(model), copy.deepcopy(model.state_dict())

    def closure():
        opt.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss, 3

    with pytest.raises(TypeError, match="must return the loss alone, got tuple"):
        opt.step(closure)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
