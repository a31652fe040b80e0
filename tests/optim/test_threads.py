"""Threads, each with its model: right without random numbers or with a lock, and a warning otherwise."""

import threading
import warnings
from contextlib import nullcontext

import torch
from torch import nn

from samphire.optim import SharpnessAware, sam

STEPS, BOUND = 20, 600  # seconds, after which a thread counts as lost


class Masks(nn.Dropout):
    """Dropout that remembers which entries it dropped."""

    def __init__(self, p):
        super().__init__(p)
        self.seen = []

    def forward(self, x):
        out = super().forward(torch.ones_like(x))
        self.seen.append(out == 0)
        return x * out


def network(p):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), Masks(p), nn.Linear(64, 2))


def train(model, around, meet):
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), sam(0.05))
    x = torch.linspace(-1, 1, 32).view(8, 4)

    def closure():
        meet()
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        with around:
            opt.step(closure)


def in_threads(p, around, meet=lambda: None):
    """Two trainings at once, of networks made before, since initial weights are random too: they, and the warnings."""
    models = [network(p), network(p)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=train, args=(model, around, meet)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
            assert not thread.is_alive(), f"a thread was not done after {BOUND} s"
    return models, [str(warning.message) for warning in caught]


def in_step():
    """Where both threads meet, so that their steps overlap for certain."""
    return threading.Barrier(2, timeout=BOUND).wait


def test_without_random_numbers_threads_train_as_one_does():
    models, said = in_threads(0.0, nullcontext(), in_step())
    train(alone := network(0.0), nullcontext(), lambda: None)
    assert not said
    for model in models:
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))


def test_with_a_lock_every_perturbed_pass_repeats_its_masks():
    models, said = in_threads(0.5, threading.Lock())
    assert not said
    for masks in (model[1].seen for model in models):
        clean, perturbed = masks[::2], masks[1::2]
        assert len(clean) == len(perturbed) == STEPS
        assert all(torch.equal(a, b) for a, b in zip(clean, perturbed, strict=True))
        assert not all(torch.equal(a, clean[0]) for a in clean)


def test_steps_at_once_with_dropout_warn_in_each_thread():
    _, said = in_threads(0.5, nullcontext(), in_step())
    assert len([message for message in said if "hold a lock around each step" in message]) == 2
