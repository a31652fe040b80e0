"""Weights and samplers: numbers by hand, an independent library, and distributions."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from cases import assert_weights, problem, weights
from samphire.baselines import (
    balanced_sampler,
    deferred,
    effective_number,
    error_set,
    inverse_frequency,
    upsampled,
)
from samphire.optim import SharpnessAware, sam, sharpness_aware_gradient


@pytest.fixture(autouse=True)
def in_double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def near(actual, expected, tol=1e-14):
    assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tol, atol=tol)


COUNTS = {"list": [5000, 500, 50], "array": np.array([5000, 500, 50]), "tensor": torch.tensor([5000, 500, 50])}


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_inverse_frequency(counts):
    near(inverse_frequency(counts), [3 / 111, 30 / 111, 300 / 111])
    y = np.repeat([0, 1, 2], [5000, 500, 50])
    balanced = torch.from_numpy(compute_class_weight("balanced", classes=np.arange(3), y=y))
    near(inverse_frequency(counts), balanced / balanced.mean())


def test_effective_number_by_hand():
    near(effective_number([1, 2, 3], beta=0.5), torch.tensor([1, 2 / 3, 4 / 7]) * 3 / (1 + 2 / 3 + 4 / 7))
    n = torch.tensor([5000.0, 50.0])
    expected = (1 - 0.9999) / (1 - 0.9999**n)
    near(effective_number([5000, 50]), expected * 2 / expected.sum(), 1e-11)


def test_limits_of_the_effective_number():
    near(effective_number([5000, 3], beta=0.0), [1, 1])
    near(effective_number([5000, 50, 5], beta=1 - 1e-13), inverse_frequency([5000, 50, 5]), 1e-8)


@pytest.mark.parametrize("weigh", [inverse_frequency, effective_number, lambda n: effective_number(n, beta=0.0)])
def test_a_class_without_examples_weighs_nothing(weigh):
    w = weigh([4, 0, 4])
    near(w, [1, 0, 1])


def test_weights_fit_the_default_precision():
    torch.set_default_dtype(torch.float32)
    cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]), weight=effective_number([9, 1]))


def test_deferred():
    w = effective_number([100, 10])
    for epoch, expected in {0: [1, 1], 159: [1, 1], 160: w, 199: w}.items():
        near(deferred(w, epoch), expected)
    near(deferred(w, 3, start=3), w)


def test_sam_climbs_the_reweighted_loss():
    model, x, y = problem()
    w = inverse_frequency(torch.bincount(y, minlength=3))
    loss = lambda at: cross_entropy(torch.func.functional_call(model, at, (x,)), y, weight=w)
    before = weights(model)
    g = sharpness_aware_gradient(sam(0.8), loss, before)
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam(0.8))
    for p in opt.passes():
        p.backward(cross_entropy(model(x), y, weight=w))
    opt.step()
    assert_weights(model, {n: before[n] - 0.1 * g[n] for n in before})


def test_balanced_sampler_draws_groups_alike_and_their_examples_evenly():
    groups = np.array([2] * 5 + [0] * 85 + [2] * 5 + [4] * 5)  # groups 1 and 3 have no examples
    sampler = balanced_sampler(groups, 30_000, torch.Generator().manual_seed(0))
    drawn = np.bincount(list(sampler), minlength=100)
    by_group = [drawn[groups == g].sum() for g in (0, 2, 4)]
    assert stats.chisquare(by_group).pvalue > 0.01
    for g in (0, 2, 4):
        assert stats.chisquare(drawn[groups == g]).pvalue > 0.01
    assert list(balanced_sampler(groups, 9, torch.Generator().manual_seed(1))) == list(
        balanced_sampler(torch.from_numpy(groups), 9, torch.Generator().manual_seed(1))
    )
    assert len(balanced_sampler(groups)) == 100


OUTPUTS = {
    "class logits": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [3.0, 2.0]]),
    "one logit": torch.tensor([-0.1, 0.1, -3.0, -1.0]),
    "classes": torch.tensor([0, 1, 0, 0]),
}


@pytest.mark.parametrize("outputs", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("labels", [torch.tensor([0, 0, 0, 1]), np.array([0, 0, 0, 1])], ids=["tensor", "array"])
def test_error_set(outputs, labels):
    assert error_set(outputs, labels).tolist() == [1, 3]


def test_error_set_of_a_trained_model_makes_the_second_training_set():
    model, x, y = problem(n=40)
    wrong = error_set(model(x).detach(), y)
    assert wrong.tolist() == [i for i in range(40) if model(x[i]).argmax() != y[i]]
    positions = upsampled(wrong, 40, times=5)
    loader = DataLoader(
        TensorDataset(torch.arange(40)), batch_size=7, sampler=SubsetRandomSampler(positions.tolist())
    )
    seen = torch.cat([batch for (batch,) in loader]).bincount(minlength=40)
    expected = torch.ones(40, dtype=torch.long)
    expected[wrong] = 5
    assert torch.equal(seen, expected)


def test_once_is_plain_training():
    assert upsampled(torch.tensor([1, 2]), 4, times=1).tolist() == [0, 1, 2, 3]


BAD = [
    (lambda: inverse_frequency([]), r"inverse_frequency: counts must be one number >= 0 for each class, got \[\]"),
    (lambda: inverse_frequency([0, 0]), r"counts must be one number >= 0 for each class, got \[0, 0\]"),
    (lambda: effective_number([1, -1]), r"effective_number: counts must be one number >= 0 .*, got \[1, -1\]"),
    (lambda: effective_number([1], beta=1), r"effective_number: beta must be a finite number in \[0, 1\), got 1"),
    (lambda: effective_number([1], beta=math.nan), r"beta must be a finite number in \[0, 1\), got nan"),
    (lambda: balanced_sampler([]), r"balanced_sampler: groups must be a whole number >= 0 for each example, got tensor\(\[\]\)"),
    (lambda: balanced_sampler([0, -1]), "groups must be a whole number >= 0 for each example, got tensor"),
    (lambda: balanced_sampler(torch.tensor([0.5])), "groups must be a whole number >= 0 for each example, got tensor"),
    (lambda: error_set(torch.tensor([0, 1]), torch.tensor([0, 1])), "gets all 2 training examples right, .* stop the first training earlier"),
    (lambda: error_set(torch.ones(2, 3), torch.tensor([0])), r"outputs \(n, classes\) or \(n,\) and labels \(n,\), got shapes \(2, 3\) and \(1,\)"),
    (lambda: upsampled(torch.tensor([1]), 3, times=0), "upsampled: times must be a whole number >= 1, got 0"),
    (lambda: upsampled(torch.tensor([1, 3]), 3, times=2), "upsampled: errors must be whole numbers from 0 to 2, got 1 to 3"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), BAD, ids=[m[:40] for _, m in BAD])
def test_bad_settings_are_refused_in_one_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()
