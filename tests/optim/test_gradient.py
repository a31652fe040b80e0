"""What trainers do to optimizers: gradient() and then step(), closures they inject, parameters they replace."""

import copy
import math
import warnings

import pytest
import schedulefree
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import ALL, assert_weights, backward, closure_of, every_rule, problem, reference_run, sgd, weights
from samphire import optim
from samphire.optim import SharpnessAware, gsam, looksam, m_sharpness, msam, sam


def forward_and_backward(model, x, y, share=1.0):
    """A trainer's training step: no pass, no zeroing, a detached loss."""

    def training_step():
        loss = share * cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return training_step


PARTS = ("m_sharpness", "esam", "imb_sam")  # rules that choose or weigh examples, which takes the pass
PLAIN = {n: r for n, r in ALL.items() if not (any(part in n for part in PARTS) or optim.requests.needs_outputs(r))}
plain_rules = pytest.mark.parametrize("r", PLAIN.values(), ids=PLAIN)


@every_rule
def test_gradient_then_step_equals_the_reference(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=5)
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(5):
        with torch.no_grad():
            before = cross_entropy(model(x), y)
        w = weights(model)
        loss = opt.gradient(closure_of(opt, model, x, y), labels=y)
        assert_weights(model, w, 0)
        if r.passes > 1 and not isinstance(r, optim.imb_sam):
            torch.testing.assert_close(loss, before)
        opt.step()
    assert_weights(model, expected)


@plain_rules
def test_a_training_step_without_pass_or_zeroing_serves(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=5)
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(5):
        opt.gradient(forward_and_backward(model, x, y))
        opt.step()
    assert_weights(model, expected)


@pytest.mark.parametrize(
    "r", [sam(0.1), gsam(0.1), looksam(0.1, k=2), msam(0.1)], ids=["sam", "gsam", "looksam", "msam"]
)
def test_gradients_before_one_step_add_up_as_m_sharpness(r):
    model, x, y = problem()
    expected = reference_run(m_sharpness(4, r), model, x, y, steps=4)
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(4):
        for half in (slice(0, 4), slice(4, 8)):
            opt.gradient(forward_and_backward(model, x[half], y[half], 0.5))
        opt.step()
    assert_weights(model, expected)


@plain_rules
def test_gradient_of_several_closures_equals_one_big_batch(r):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=4)
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(4):
        opt.gradient([forward_and_backward(model, x[i : i + 4], y[i : i + 4], 0.5) for i in (0, 4)])
        opt.step()
    assert_weights(model, expected)


def test_the_caller_may_clip_between_gradient_and_step():
    model, x, y = problem()
    twin = copy.deepcopy(model)
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    clipping = SharpnessAware(twin, sgd(twin), sam(0.1), clip_norm=0.01)
    for _ in range(3):
        opt.gradient(forward_and_backward(model, x, y))
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        opt.step()
        clipping.step(closure_of(clipping, twin, x, y))
    assert_weights(model, weights(twin))


# -------------------------------------------------------------------------------- wrappers


class ReadOnly:
    """As LightningOptimizer: of our class too, forwarding reads and keeping what is written, with closures injected."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("ReadOnlySharpnessAware", (ReadOnly, SharpnessAware), {})

    def step(self, closure=None, **settings):
        return self._optimizer.step(closure=(lambda: None) if closure is None else closure, **settings)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


@every_rule
@pytest.mark.parametrize("door", ["passes", "gradient", "step"])
def test_a_wrapper_that_forwards_reads_alone(r, door):
    model, x, y = problem()
    expected = reference_run(r, model, x, y, steps=4)
    opt = SharpnessAware(model, sgd(model), r)
    wrapper = ReadOnly(opt)
    closure = closure_of(wrapper, model, x, y)
    for _ in range(4):
        wrapper.zero_grad()
        if door == "passes":
            for p in wrapper.passes(labels=y):
                closure(p)
            wrapper.step()
        elif door == "gradient":
            wrapper.gradient(closure, labels=y)
            wrapper.step()
        else:
            wrapper.step(closure, labels=y)
        wrapper.load_state_dict(wrapper.state_dict())
    assert_weights(model, expected)
    assert wrapper.last is opt.last
    assert set(vars(wrapper)) == {"_optimizer"}
    assert opt.param_groups is opt.base.param_groups
    assert opt.state is opt.base.state


def test_an_injected_closure_may_clip_and_return_the_loss_but_not_compute_again():
    model, x, y = problem()
    twin = copy.deepcopy(model)
    opt, other = SharpnessAware(model, sgd(model), sam(0.1)), SharpnessAware(twin, sgd(twin), sam(0.1), clip_norm=0.1)
    loss = opt.gradient(forward_and_backward(model, x, y))

    def injected():
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return loss

    assert opt.step(injected) == loss
    other.step(closure_of(other, twin, x, y))
    assert_weights(model, weights(twin))
    before = weights(model)
    for closure in (forward_and_backward(model, x, y), lambda: closure_of(opt, model, x, y)(optim.Pass(*[None] * 7))):
        opt.gradient(forward_and_backward(model, x, y))
        with pytest.raises(RuntimeError, match=r"computes one again; call step"):
            opt.step(closure)
        opt.zero_grad()
    assert_weights(model, before, 0)


# -------------------------------------------------------------------------------- gradients of somebody else


def accumulated(model, x, y, zeroes):
    def closure():
        zeroes()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


@plain_rules
@pytest.mark.parametrize("door", ["step", "gradient"])
def test_gradients_of_an_earlier_backward_are_refused_unless_the_closure_zeroes_them(r, door):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), r)
    do = {"step": opt.step, "gradient": lambda c: opt.gradient(c) and opt.step()}[door]
    opt.step(closure_of(opt, model, x, y))
    ways = {
        "None": opt.zero_grad,
        "zeros": lambda: model.zero_grad(set_to_none=False),
        "by hand": lambda: [setattr(p, "grad", None) for p in model.parameters()],
    }
    for zeroes in ways.values():
        expected = reference_step(opt, model, x, y)
        cross_entropy(model(x[:4]), y[:4]).backward()
        do(accumulated(model, x, y, zeroes))
        assert_weights(model, expected)
    before, memory = weights(model), opt.state_dict()["param_groups"]
    cross_entropy(model(x[:4]), y[:4]).backward()
    with pytest.raises(RuntimeError, match=r"gradients of an earlier backward that the closure does not zero"):
        do(accumulated(model, x, y, lambda: None))
    assert_weights(model, before, 0)
    assert opt.state_dict()["param_groups"] == memory
    do(accumulated(model, x, y, lambda: None))  # what the step left itself is no stranger
    do(accumulated(model, x, y, lambda: None))


def reference_step(opt, model, x, y):
    """The weights after one more step of a copy, which has no gradients."""
    twin, opt = copy.deepcopy((model, opt))
    opt.zero_grad()
    opt.step(closure_of(opt, twin, x, y))
    return weights(twin)


# -------------------------------------------------------------------------------- losses


def test_a_step_whose_passes_noted_no_loss_says_so_once():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), sam(0.1))

    def loop():
        for _ in opt.passes():
            cross_entropy(model(x), y).backward()
        return opt.step()

    with pytest.warns(UserWarning, match=r"no pass of this step noted its loss") as seen:
        assert loop() is None
    assert seen[0].filename == __file__
    assert math.isnan(opt.last.loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loop() is None
        for p in opt.passes():
            p.loss = forward_and_backward(model, x, y)()
        assert float(opt.step()) == float(opt.last.loss) > 0


def test_messages():
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), sam(0.1))
    with pytest.raises(TypeError, match=r"model must be the torch.nn.Module itself, got 'generator'"):
        SharpnessAware(model.parameters(), sgd(model), sam())
    with pytest.raises(RuntimeError, match=r"pass 0 of the step left no gradient: .* came after backward"):
        for p in opt.passes():
            p.backward(cross_entropy(model(x), y))
            opt.zero_grad()
    with pytest.raises(RuntimeError, match=r"its loss was not sent backward"):
        opt.gradient(lambda: cross_entropy(model(x), y))
    scaler = torch.amp.GradScaler("cpu")
    opt = SharpnessAware(model, sgd(model), sam(0.1), scaler=scaler)
    with pytest.raises(RuntimeError, match=r"no pass scaled its loss; write p.backward"):
        opt.step(forward_and_backward(model, x, y))
    with pytest.raises(TypeError, match=r"base has a rule of its own already, sam\(rho=0.1, .* base.base"):
        SharpnessAware(model, opt, sam(0.1))


def test_misspelt_keywords_come_with_a_guess():
    model, _, _ = problem()
    for name, rule in optim.RULES.items():
        with pytest.raises(TypeError, match=rf"^{name} takes no 'rohh'; (did you mean 'rho'|there are )"):
            rule(rohh=0.1)
        assert getattr(optim, name) is rule
    with pytest.raises(TypeError, match=r"^SharpnessAware takes no 'pertubation'; did you mean 'perturbation'"):
        SharpnessAware(model, sgd(model), sam(), pertubation="local")


# -------------------------------------------------------------------------------- bases with settings of their own


def test_the_modes_of_a_schedule_free_base_are_forwarded():
    model, x, y = problem()
    opt = SharpnessAware(model, schedulefree.SGDScheduleFree(model.parameters(), lr=0.1), sam(0.1))
    opt.train()
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y))
    training = weights(model)
    opt.eval()
    assert not torch.equal(model[0].weight, training["0.weight"])  # the average
    opt.train()
    assert_weights(model, training)
    plain = SharpnessAware(model, sgd(model), sam(0.1))
    plain.eval()
    plain.train()
    assert_weights(model, training)


@pytest.mark.parametrize("own", [{}, {"sam_rho": 0.02}])
def test_the_rho_of_adadelta_is_not_the_radius(own):
    model, x, y = problem()
    base = torch.optim.Adadelta([{"params": model.parameters(), **own}], rho=0.9)
    opt = SharpnessAware(model, base, sam(0.1))
    opt.step(closure_of(opt, model, x, y))
    assert float(opt.last.radius) == pytest.approx(own.get("sam_rho", 0.1))


def test_a_groups_own_radius_has_two_names():
    model, x, y = problem()
    for name in ("rho", "sam_rho"):
        base = torch.optim.SGD([{"params": model.parameters(), name: 0.03}], lr=0.1)
        opt = SharpnessAware(model, base, sam(0.1))
        opt.step(closure_of(opt, model, x, y))
        assert float(opt.last.radius) == pytest.approx(0.03)


# -------------------------------------------------------------------------------- other parameters


@every_rule
@pytest.mark.parametrize("door", ["opt", "base"])
def test_a_group_added_by_either_door_at_any_time_is_trained_with_its_memory(r, door):
    model, x, y = problem()
    opt = SharpnessAware(model, torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9), r)
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y), labels=y)
    group = {"params": [*model[0].parameters(), *model[1].parameters()], "lr": 0.05}
    before = weights(model)
    (opt if door == "opt" else opt.base).add_param_group(group)
    for _ in range(6):
        opt.step(closure_of(opt, model, x, y), labels=y)
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    twin, resumed = copy.deepcopy((model, opt))
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    for _ in range(3):
        opt.step(closure_of(opt, model, x, y), labels=y)
        resumed.step(closure_of(resumed, twin, x, y), labels=y)
    assert_weights(twin, weights(model), 0)


@every_rule
def test_a_replaced_layer_is_noticed_and_taken_over_by_rebind(r):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model), r)
    for _ in range(2):
        opt.step(closure_of(opt, model, x, y), labels=y)
    twin, expected = copy.deepcopy((model, opt))
    model[0] = copy.deepcopy(model[0])
    before = weights(model)
    with pytest.raises(ValueError, match=r"not in the model; .* opt.rebind"):
        opt.step(closure_of(opt, model, x, y), labels=y)
    assert_weights(model, before, 0)
    opt.rebind(model)
    for _ in range(4):
        opt.step(closure_of(opt, model, x, y), labels=y)
        expected.step(closure_of(expected, twin, x, y), labels=y)
    assert_weights(model, weights(twin), 0)


@every_rule
def test_parameters_that_a_trainer_swaps_in_model_and_base_are_noticed(r):
    model, x, y = problem()
    opt = SharpnessAware(model, sgd(model, momentum=0.0), r)
    opt.step(closure_of(opt, model, x, y), labels=y)
    twin, expected = copy.deepcopy((model, opt))
    for module in model:
        for name, p in list(module._parameters.items()):
            module._parameters[name] = nn.Parameter(p.detach().clone())
    opt.base.param_groups[0]["params"] = list(model.parameters())
    for _ in range(4):
        opt.step(closure_of(opt, model, x, y), labels=y)
        expected.step(closure_of(expected, twin, x, y), labels=y)
    assert_weights(model, weights(twin), 0)


@every_rule
def test_hooks_can_ask_whether_the_pass_is_a_repeat(r):
    model, x, y = problem()
    opt, seen = SharpnessAware(model, sgd(model), r), []
    model[0].register_forward_hook(lambda *_: seen.append(optim.in_perturbed_pass()))
    model[3].weight.register_post_accumulate_grad_hook(lambda _: seen.append(optim.in_perturbed_pass()))
    for _ in range(2):
        for p in opt.passes(labels=y):
            seen.clear()
            backward(p, model(x[p.examples]), y[p.examples])
            assert set(seen) == {p.perturbed}
        opt.step()
        assert not optim.in_perturbed_pass()
