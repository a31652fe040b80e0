"""Interrupts, loops that are left in the middle, and models that are saved or copied meanwhile."""

import contextlib
import contextvars
import copy
import io
import itertools
import pickle
import random

import pytest
import torch
from torch.nn.functional import cross_entropy

import interrupts
from cases import ALL, assert_weights, backward, closure_of, every_rule, problem, sgd, weights
from samphire import optim
from samphire.optim import SharpnessAware, lsam, sam


@pytest.mark.slow
@pytest.mark.parametrize("signals", [False, True], ids=["bytecodes", "signals"])
def test_interrupts_at_random_moments_leave_nothing(signals):
    results, wrong = interrupts.run(len(ALL), seed=7, signals=signals)
    assert wrong == []
    assert results["at once"] > 0


@pytest.mark.parametrize("door", ["step", "passes"])
def test_torch_keeps_recording_gradients_after_an_interrupt_inside_its_no_grad(door):
    bench = interrupts.Bench(ALL["esam"])
    for moment in itertools.count(1):
        try:
            with interrupts.after_bytecodes(moment, ("grad_mode.py",)):
                bench.through(door)
            break
        except KeyboardInterrupt:
            left_on = torch.is_grad_enabled()
            torch.set_grad_enabled(True)
            assert left_on, f"off after an interrupt at bytecode {moment}"
    assert moment > 50


def test_the_trial_sees_what_an_optimizer_without_an_undo_log_leaves(monkeypatch):
    rehearsal = interrupts.Rehearsal(sam(0.1))
    monkeypatch.setattr(interrupts.Rehearsal, "gradients", lambda *_: [])
    monkeypatch.setattr("samphire.restore.Undo.back", lambda self, to=0: self._steps.__delitem__(slice(to, None)))
    draw = random.Random(7)
    trials = [contextvars.Context().run(interrupts.trial, rehearsal, draw) for _ in range(5)]
    assert any("weights" in fault for _, faults in trials for fault in faults)


def displaced_in_a_variable(r, model, x, y):
    """An optimizer in the middle of a perturbed pass; the loop was left, but a variable holds it."""
    opt = SharpnessAware(model, sgd(model), r)
    opt.step(closure_of(opt, model, x, y), labels=y)
    before = weights(model)
    loop = opt.passes(labels=y)
    for p in loop:
        if p.moved:
            break
        backward(p, model(x[p.examples]), y[p.examples])
    else:
        pytest.fail("no pass was displaced")
    assert any(not torch.equal(q, before[name]) for name, q in model.named_parameters())
    return opt, loop, before


DISPLACED = {n: r for n, r in ALL.items() if "looksam" not in n and "every" not in n}  # in their second step
displaced_rules = pytest.mark.parametrize("r", DISPLACED.values(), ids=DISPLACED)

TOUCHES = {
    "step": lambda opt, model, x, y: opt.step(closure_of(opt, model, x, y), labels=y),
    "gradient": lambda opt, model, x, y: opt.gradient(closure_of(opt, model, x, y), labels=y),
    "passes": lambda opt, model, x, y: opt.passes(labels=y),
    "model.state_dict": lambda opt, model, x, y: model.state_dict(),
    "torch.save": lambda opt, model, x, y: torch.save(model.state_dict(), io.BytesIO()),
    "rebind": lambda opt, model, x, y: opt.rebind(model),
}


@displaced_rules
@pytest.mark.parametrize("touch", TOUCHES)
def test_a_loop_left_in_a_variable_is_healed_by_the_next_touch(r, touch):
    model, x, y = problem()
    opt, loop, before = displaced_in_a_variable(r, model, x, y)
    for group in opt.param_groups:
        group["lr"] = 0.0
    TOUCHES[touch](opt, model, x, y)
    assert_weights(model, before, 0)
    assert not optim.in_perturbed_pass()
    assert all(p.requires_grad for p in model.parameters())
    assert list(loop) == []


@pytest.mark.parametrize("r", [sam(0.1), lsam(0.1)], ids=["sam", "lsam"])
def test_closing_the_loop_heals_at_once(r):
    model, x, y = problem()
    _, loop, before = displaced_in_a_variable(r, model, x, y)
    loop.close()
    assert_weights(model, before, 0)
    opt = SharpnessAware(model, sgd(model), r)
    with contextlib.closing(opt.passes()) as loop:
        for p in loop:
            backward(p, model(x), y)
            if p.perturbed:
                break
    assert_weights(model, before, 0)


@displaced_rules
def test_what_is_saved_or_loaded_in_a_perturbed_pass_are_the_weights_themselves(r):
    model, x, y = problem()
    _, _, before = displaced_in_a_variable(r, model, x, y)
    saved = model.state_dict()
    for name in before:
        assert torch.equal(saved[name], before[name])
    other = {name: t + 1 for name, t in before.items()}
    opt, _, _ = displaced_in_a_variable(r, model, x, y)
    model.load_state_dict(other)
    opt.zero_grad()
    opt.passes(labels=y)
    assert_weights(model, other, 0)


COPIES = {"deepcopy": copy.deepcopy, "pickle": pickle.dumps, "torch.save": lambda m: torch.save(m, io.BytesIO())}


@displaced_rules
@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
def test_copies_in_a_perturbed_pass_are_refused_and_work_afterwards(r, duplicate):
    model, x, y = problem()
    _, _, before = displaced_in_a_variable(r, model, x, y)
    with pytest.raises(RuntimeError, match="copied or pickled inside a perturbed pass"):
        duplicate(model)
    assert_weights(model, before, 0)
    duplicate(model)


def test_a_checkpoint_taken_inside_a_pass_ends_the_step_with_a_sentence():
    model, x, y = problem()
    before = weights(model)
    opt = SharpnessAware(model, sgd(model), sam(0.1))

    def saving(p):
        loss = cross_entropy(model(x), y)
        p.backward(loss)
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
        return loss

    with pytest.raises(RuntimeError, match=r"model.state_dict\(\) came inside a perturbed pass; .*in_perturbed_pass"):
        opt.step(saving)
    assert_weights(model, before, 0)
    for p in opt.passes():
        saving(p)
    with pytest.raises(RuntimeError, match=r"model.state_dict\(\) came inside a perturbed pass"):
        opt.step()
    opt.step(closure_of(opt, model, x, y))


@every_rule
def test_the_optimizers_own_state_may_be_saved_in_any_pass(r):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), r)
    opt.step(closure_of(opt, model, x, y), labels=y)
    twin, expected = copy.deepcopy((model, opt))
    for p in opt.passes(labels=y):
        opt.state_dict()
        pickle.dumps(opt.state_dict())
        backward(p, model(x[p.examples]), y[p.examples])
    opt.step()
    expected.step(closure_of(expected, twin, x, y), labels=y)
    assert_weights(model, weights(twin))
