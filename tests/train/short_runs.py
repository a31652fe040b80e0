"""What the tests of training share: small networks, short configurations, comparisons and kills."""

import shutil

import numpy as np
import torch
from torch import nn

from samphire.train import appendix_b


def small(num_classes=2, generator=None):
    """A few parameters, BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(54, num_classes),
    )  # fmt: skip


SHORT = {"model": "short_runs:small", "epochs": 3, "batch": 50, "resamples": 0, "lr": 0.1}
DOMINOES = appendix_b("fmnist-mnist", **SHORT)
BIRDS = appendix_b("waterbirds", **{**SHORT, "batch": 16, "size": 12, "weights": None})


def without_seconds(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def weights_of(trained, name="model.pt"):
    return torch.load(trained.folder / name)


def assert_same(a, b):
    assert without_seconds(a.rows) == without_seconds(b.rows)
    files = [sorted(path.name for path in trained.folder.glob("*.pt")) for trained in (a, b)]
    assert files[0] == files[1]
    for file in files[0]:
        first, second = weights_of(a, file), weights_of(b, file)
        for name in first:
            assert torch.equal(first[name], second[name]), f"{name} in {file}"


# Kills


class Killed(BaseException):
    """Ends a training where a signal would: nothing catches it."""


def killed_at(monkeypatch, when, places):
    """Count the calls of some functions, and end the training instead of making one of them."""
    calls = []

    def kill():
        calls.append(None)
        if len(calls) == when:
            raise Killed

    before_calls(monkeypatch, kill, places)
    return calls


def left_by_kills(monkeypatch, out, places):
    """Copies of a folder as kills before each call of some functions would leave it."""
    copies = []

    def copy():
        copies.append(out.with_name(f"{out.name} {len(copies)}"))
        shutil.copytree(out, copies[-1])

    before_calls(monkeypatch, copy, places)
    return copies


def before_calls(monkeypatch, act, places):
    def watched(real):
        def call(*args, **kwargs):
            act()
            return real(*args, **kwargs)

        return call

    for owner, name in places:
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))


def even(num_classes=2, generator=None):
    """Without BatchNorm and dropout, whose statistics and masks differ from part to part of a batch."""
    head = nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, num_classes)
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(384, 8), *head)


def errors_by_mode(net, split, size=50):
    """Shares of wrong answers with the batches' statistics and with the running ones."""
    x, y = net.normalize(torch.from_numpy(np.array(split.images))), torch.from_numpy(split.label)
    net[5].eval()  # dropout
    wrong = []
    for train in (True, False):
        net[1].train(train)
        with torch.no_grad():
            wrong.append(
                torch.cat([net(a).argmax(1) != b for a, b in zip(x.split(size), y.split(size), strict=True)])
            )
    return [w.double().mean().item() for w in wrong]
