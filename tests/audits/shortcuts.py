"""Tiny pictures with a shortcut: the class is the brightness of the lower half, the attribute that of the upper one."""

import numpy as np
import torch
from torch import nn

from samphire.models import Normalize

NAMES = {"kind": ("duck", "wren"), "scene": ("land", "water")}


def pictures(n, correlation, seed, faint=30.0):
    """Images (n, 3, 8, 8), label and attribute; the class is fainter than the attribute."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, n)
    a = np.where(draw.random(n) < correlation, y, 1 - y)
    x = draw.normal(128, 40, size=(n, 3, 8, 8))
    x[:, :, :4] += 60.0 * (2 * a - 1)[:, None, None, None]
    x[:, :, 4:] += faint * (2 * y - 1)[:, None, None, None] * (draw.random((n, 1, 1, 1)) < 0.8)
    return x.clip(0, 255).astype(np.uint8), y, a


def table(correlation=0.9, names=NAMES, train=400, val=200, test=400):
    """Columns of pictures in three parts, attributes as words."""
    parts = {}
    for seed, (part, n, c) in enumerate((("train", train, correlation), ("val", val, 0.5), ("test", test, 0.5))):
        x, y, a = pictures(n, c, seed)
        parts[part] = {
            "image": x,
            "kind": np.array(names["kind"], object)[y],
            "scene": np.array(names["scene"], object)[a],
        }
    return parts


def trained(data, epochs=12, seed=0):
    """A small network that follows the training part."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 16),
        nn.ReLU(),
        nn.Linear(16, 2),
    )
    x = torch.from_numpy(data["train"]["image"]).float() / 255
    classes = sorted(set(data["train"]["kind"]))
    y = torch.tensor([classes.index(word) for word in data["train"]["kind"]])
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            opt.step()
    model.normalize = Normalize()
    return model.eval()
