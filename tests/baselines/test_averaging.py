"""Averages against all the weights kept: SWA's parts, BatchNorm refreshed, and SWAD's algorithm word for word."""

import copy
import io
import math
import random as python_random
from dataclasses import astuple
from statistics import fmean

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.testing import assert_close

from cases import RULES, assert_weights, problem, sgd, weights
from samphire.baselines import SWAD, Valley, refresh_batchnorm, valley
from samphire.optim import SharpnessAware, sam
from samphire.optim.passes import marked_as_perturbed


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3)).double()


def batches(n=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 5, generator=generator, dtype=torch.float64), torch.arange(8) % 3) for _ in range(n)]


def step(opt, model, x, y):
    for p in opt.passes(n=len(x)):
        p.backward(cross_entropy(model(x[p.examples]), y[p.examples]))
    opt.step()


def mean_of(kept):
    return {name: torch.stack([w[name] for w in kept]).mean(0) for name in kept[0]}


# SWA


@pytest.mark.parametrize("name", ["sam", "gam", "m_sharpness", "msam"])
def test_swa_is_the_mean_of_the_weights_between_steps_under_any_rule(name):
    model, data, kept = network(), batches(), []
    opt = SharpnessAware(model, sgd(model), RULES[name])
    average, schedule = AveragedModel(model), SWALR(opt, swa_lr=0.05, anneal_epochs=1)
    for epoch in range(5):
        for x, y in data:
            step(opt, model, x, y)
        if epoch >= 2:
            average.update_parameters(model)
            schedule.step()
            kept.append(weights(model))
    assert_weights(average.module, mean_of(kept), 1e-14)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.05)


def test_refreshed_statistics_are_the_mean_of_the_batches_statistics():
    model, data = network(), batches()
    refresh_batchnorm(model, data)
    inputs = [model[0](x) for x, _ in data]
    assert_close(model[1].running_mean, torch.stack([h.mean(0) for h in inputs]).mean(0).detach())
    assert_close(model[1].running_var, torch.stack([h.var(0) for h in inputs]).mean(0).detach())
    refresh_batchnorm(model, [x for x, _ in data[:1]])  # inputs alone; the earlier statistics are gone
    assert_close(model[1].running_mean, inputs[0].mean(0).detach())


def test_refreshing_disturbs_nothing_else():
    model = network().eval()
    model[3].train()
    model[1].momentum = 0.3
    before = weights(model)
    generator = torch.get_rng_state()
    loader = torch.utils.data.DataLoader([x[0] for x, _ in batches(4)], batch_size=2, shuffle=True)
    refresh_batchnorm(model, loader)
    assert [m.training for m in model] == [False, False, False, True, False]
    assert model[1].momentum == 0.3
    assert model[1].num_batches_tracked == 2
    assert torch.equal(torch.get_rng_state(), generator)
    assert_weights(model, before, 0)


def failing():
    yield batches(1)[0]
    raise OSError("disk")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [(failing(), OSError, "disk"), (iter([]), ValueError, "data gave no batch; hand over a loader or a list")],
    ids=["an exception", "no data"],
)
def test_a_failed_refresh_puts_the_statistics_back(data, error, message):
    model = network().eval()
    model[1].momentum = 0.3
    model[1].running_mean.fill_(7.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        refresh_batchnorm(model, data)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(m.training for m in model.modules())
    assert model[1].momentum == 0.3


def test_a_model_without_batchnorm_stays_and_needs_no_data():
    model, _, _ = problem()
    refresh_batchnorm(model, iter([]))
    assert model.training


# Where SWAD starts and ends


def word_for_word(losses, n_s, n_e, r):
    """Algorithm 1 with its own indices; evaluations are counted from 1 there."""
    e_val = dict(enumerate(losses, start=1))
    t_s, t_e, l = None, None, None
    for i in e_val:
        if l is None:
            if i - n_s + 1 >= 1 and e_val[i - n_s + 1] == min(e_val[i - k] for k in range(n_s)):
                t_s = i - n_s + 1
                l = r * fmean(e_val[i - k] for k in range(n_s))
        elif i - n_e + 1 >= 1 and l < min(e_val[i - k] for k in range(n_e)):
            t_e = i - n_e
            break
    return None if t_s is None else t_s - 1, None if t_e is None else t_e - 1


def curves(count, seed):
    generator = python_random.Random(seed)
    for _ in range(count):
        n_s = generator.randint(1, 4)
        n_e = generator.randint(n_s, 6)
        fall, rise = generator.randint(0, 6), generator.randint(0, 12)
        noise = generator.choice([0.0, 0.1, 0.5])
        path = [1 + 0.3 * (fall - i) for i in range(fall)] + [1 + 0.15 * i for i in range(rise)]
        yield (
            [round(max(0.0, v + noise * generator.gauss(0, 1)), 1) for v in path],
            n_s,
            n_e,
            generator.choice([1.0, 1.3]),
        )


def test_the_valley_is_the_algorithm_word_for_word():
    kinds = set()
    for losses, n_s, n_e, r in curves(2000, seed=0):
        span = valley(losses, n_s, n_e, r)
        assert (span.start, span.end) == word_for_word(losses, n_s, n_e, r)
        kinds.add((span.start is None, span.end is None))
    assert kinds == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], Valley()),
        ([3.0, 2.0, 1.0], Valley()),  # still falling
        ([3.0, 1.0, 2.0], Valley()),  # two of the three evaluations that are needed
        ([3.0, 1.0, 2.0, 3.0], Valley(1, None, 2.6)),
        ([2.0] * 9, Valley(0, None, 2.6)),  # ties count as lowest
        ([3.0, 1.0, 1.0, 1.0] + [1.25] + [1.5] * 6, Valley(1, 4, 1.3)),
        ([3.0, 1.0, 1.0, 1.0] + [1.5] * 5 + [1.2] + [1.5] * 5, Valley(1, None, 1.3)),
    ],
)  # fmt: skip
def test_valleys_by_hand(losses, expected):
    assert astuple(valley(losses)) == pytest.approx(astuple(expected), nan_ok=True)


# SWAD


def settable():
    model = nn.Linear(3, 2).double()
    generator = torch.Generator().manual_seed(3)

    def move():
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
        return weights(model)

    return model, move


def test_swad_is_the_mean_of_every_step_of_the_valley_and_keeps_few_weights():
    lengths = python_random.Random(1)
    largest = 0
    for losses, n_s, n_e, r in curves(300, seed=1):
        model, move = settable()
        swad, segments = SWAD(model, n_s, n_e, r), []
        for loss in [*losses, None]:
            segments.append([])
            for _ in range(lengths.randint(1, 3)):
                segments[-1].append(move())
                swad.update()
                state = swad.state_dict()
                sets = sum(bool(part["weights"]) for part in [state["average"], state["open"], *state["held"]])
                assert sets <= max(3, n_s)
                largest = max(largest, sets)
            if loss is not None:
                swad.observe(loss)
                swad.model(None)  # looking on the way changes nothing
        start, end = word_for_word(losses, n_s, n_e, r)
        if start is None and losses:
            start = losses.index(min(losses))
        kept = [w for segment in segments[start or 0 : None if end is None else end + 1] for w in segment]
        assert swad.done == (end is not None)
        assert_weights(swad.model(None), mean_of(kept), 1e-13)
    assert largest == 4


def test_with_constant_loss_every_step_counts():
    model, move = settable()
    swad, kept = SWAD(model), []
    for _ in range(20):
        kept.append(move())
        swad.update()
        swad.observe(torch.tensor(0.5))
    assert_weights(swad.model(None), mean_of(kept), 1e-14)


@pytest.mark.parametrize("name", ["sam", "gam", "msam"])
def test_swad_under_a_rule_averages_the_weights_between_steps_with_batchnorm_refreshed(name):
    model, data, kept = network(), batches(), []
    opt, swad = SharpnessAware(model, sgd(model), RULES[name]), SWAD(model, n_s=1, n_e=2)
    for x, y in data * 2:
        step(opt, model, x, y)
        swad.update()
        kept.append(weights(model))
    live = copy.deepcopy(model.state_dict())
    averaged = swad.model(data)
    assert_weights(averaged, mean_of(kept), 1e-14)
    inputs = [averaged[0](x) for x, _ in data]
    assert_close(averaged[1].running_mean, torch.stack([h.mean(0) for h in inputs]).mean(0).detach())
    assert all(p.grad is None for p in averaged.parameters())
    assert all(torch.equal(live[k], v) for k, v in model.state_dict().items())
    assert torch.equal(swad.model(None)[1].running_mean, model[1].running_mean)


def test_perturbed_passes_do_not_count():
    model, x, y = problem()
    opt, swad, kept = SharpnessAware(model, sgd(model), sam(0.5)), SWAD(model), []
    for _ in range(3):
        for p in opt.passes():
            p.backward(cross_entropy(model(x), y))
            if p.perturbed:
                swad.update()
        opt.step()
        swad.update()
        kept.append(weights(model))
    assert_weights(swad.model(None), mean_of(kept), 1e-14)
    with marked_as_perturbed(), pytest.raises(ValueError, match="no weights have been averaged"):
        SWAD(model).update()
        SWAD(model).model(None)


@pytest.mark.parametrize("saved_at", [0, 1, 4, 6, 9, 14])
def test_a_resumed_average_equals_the_uninterrupted_one_to_the_bit(saved_at):
    losses = [3, 1, 1, 1, 1.2, 2, 1.25, 2, 2, 2, 2, 2, 2, 2, 1]
    model, move = settable()
    swad, path = SWAD(model), []
    resumed, file = None, io.BytesIO()
    for i, loss in enumerate(losses):
        for _ in range(2):
            path.append(move())
            swad.update()
            if resumed is not None:
                resumed.update()
            if i == saved_at and resumed is None:  # in the middle of a segment
                torch.save(swad.state_dict(), file)
                file.seek(0)
                resumed = SWAD(model)
                resumed.load_state_dict(torch.load(file, weights_only=True))
        for s in filter(None, [swad, resumed]):
            s.observe(loss)
    assert resumed.valley == swad.valley
    assert (swad.valley.start, swad.valley.end) == (1, 6)
    assert_weights(resumed.model(None), weights(swad.model(None)), 0)
    assert_weights(swad.model(None), mean_of(path[2:14]), 1e-14)


def test_a_loaded_state_is_no_longer_shared():
    model, move = settable()
    swad, other = SWAD(model), SWAD(model)
    move()
    swad.update()
    other.load_state_dict(swad.state_dict())
    before = weights(swad.model(None))
    move()
    other.update()
    assert_weights(swad.model(None), before, 0)


def test_half_precision_weights_are_averaged_in_single():
    model = nn.Linear(1, 1, bias=False).bfloat16()
    swad = SWAD(model)
    for t in range(1000):
        with torch.no_grad():
            model.weight.fill_(1.0 if t < 500 else 2.0)
        swad.update()
    assert swad.model(None).weight.item() == 1.5  # a running mean in bfloat16 stops moving after some 200 steps
    assert swad.model(None).weight.dtype == torch.bfloat16


LINEAR = nn.Linear(2, 1)
BAD = [
    (lambda: SWAD(LINEAR, n_s=0), "swad: n_s must be a whole number >= 1, got 0"),
    (lambda: SWAD(LINEAR, n_s=3, n_e=2), "swad: n_e must be a whole number >= 3, got 2"),
    (lambda: SWAD(LINEAR, r=0.9), "swad: r must be a finite number >= 1, got 0.9"),
    (lambda: SWAD(LINEAR, r=math.nan), "swad: r must be a finite number >= 1, got nan"),
    (lambda: SWAD(LINEAR).observe(math.nan), "swad: the validation loss must be a finite number >= 0, got nan"),
    (lambda: SWAD(LINEAR).observe(-1), "swad: the validation loss must be a finite number >= 0, got -1"),
    (lambda: SWAD(LINEAR).model(None), r"swad: no weights have been averaged; call update\(\) after every step"),
    (lambda: SWAD(LINEAR).load_state_dict(of(nn.Linear(3, 1, bias=False))), "the saved state is of another model; it differs in bias, weight"),
]  # fmt: skip


def of(model):
    swad = SWAD(model)
    swad.update()
    return swad.state_dict()


@pytest.mark.parametrize(("build", "message"), BAD, ids=[m[:40] for _, m in BAD])
def test_bad_settings_are_refused_in_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()
