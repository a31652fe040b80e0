"""How often an audit's verdict is right, where the shortcut is known.

    python benchmarks/audits.py [--audits 200]               features drawn from a formula
    python benchmarks/audits.py [--audits 200] --root DIR    small networks, trained on MNIST-CIFAR dominoes

Written down before the first run. Each audit draws its own size and strength. Of the formula: 10 to 60 dimensions,
classes 1 to 3 standard deviations apart, the attribute's values 2 to 4, 1000 to 4000 test examples. Of the dominoes:
two digits, 1000 to 4000 training examples, 16 to 128 hidden units, 5 to 20 epochs; the label is the CIFAR class, the
attribute the digit. (The first 30 networks were trained with a constant step, which ends wherever its noise is: two
of them truly leaned on the digit at correlation 0.5, by 9 and 14 points. So the step became a cosine, and the seeds
are others, from 1000 on.)

Counted are: reliance alarms at correlation 0.5 (bar: at most 5 %), shortcuts found at 0.9 (bar: at least 95 %),
"never learned" for an attribute that the inputs do not show, and, of all groups of all audits at 0.9, those whose
error measured after the remedy lies in its predicted interval (bar: at least 90 %).
"""

import argparse
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from scipy.stats import binomtest
from torch import nn

from samphire.audits.association import alignment
from samphire.audits.decodability import RANDOM_WEIGHTS, corner, decodability, probed_rows
from samphire.audits.example import example
from samphire.audits.reliance import reliance
from samphire.audits.remedy import remedy
from samphire.audits.seen import Seen, crossing
from samphire.data.arrays import cifar10, mnist
from samphire.data.paired import dominoes
from samphire.data.parts import some


def formula(seed, correlation, **given):
    """What a linear model sees of features drawn from a formula."""
    draw = np.random.default_rng(seed)
    settings = {
        "dimensions": int(draw.integers(10, 61)),
        "bird": draw.uniform(1, 3),
        "place": draw.uniform(2, 4),
        "test": int(draw.integers(1000, 4001)),
    }
    return example(correlation, seed=seed, **settings | given)


def formula_without_place(seed):
    """An attribute that neither the network nor another one shows."""
    seen, other = (formula(s, 0.9, place=0.0, test=2000) for s in (seed, seed + 10_000))
    return seen, {part: other[part].features for part in ("val", "test")}, ("bird", "place")


def trained(sources, seed, correlation):
    """What a small network sees of dominoes, and what it saw before it was trained."""
    seed += 1000
    draw = np.random.default_rng(seed)
    digits = draw.choice(10, 2, replace=False)
    parts = dominoes(*sources, list(zip(digits, (0, 1), strict=True)), correlation, seed, names=("mnist", "cifar"))
    parts = {
        "train": some(parts["train"], int(draw.integers(1000, 4001))),
        "val": parts["probe_val"],
        "test": parts["probe_test"],
    }
    parts = {part: replace(split, label=split.features["cifar"]) for part, split in parts.items()}
    x = {part: small(split.images) for part, split in parts.items()}
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Flatten(), nn.Linear(512, int(draw.integers(16, 129))), nn.ReLU())
    head = nn.Linear(body[1].out_features, 2)
    with torch.no_grad():
        before = {part: body(pixels).numpy() for part, pixels in x.items()}
    fit(
        nn.Sequential(body, head),
        x["train"],
        torch.from_numpy(parts["train"].label),
        epochs=int(draw.integers(5, 21)),
    )
    with torch.no_grad():
        phi = {part: body(pixels) for part, pixels in x.items()}
        return {part: Seen(parts[part], phi[part].numpy(), head(phi[part]).numpy()) for part in parts}, before


def small(images):
    """Gray, at half the size, from -1 to 1: one pair has 32 x 16 numbers."""
    return nn.functional.avg_pool2d(torch.from_numpy(images).float().mean(1) / 127.5 - 1, 2)


def fit(model, x, y, epochs):
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = epochs * -(-len(x) // 50)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(50):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            opt.step()
            schedule.step()


def trained_with_coin(sources, seed):
    """A coin thrown for every example, more often the label's side in training."""
    seen, before = trained(sources, seed, 0.9)
    draw = np.random.default_rng(seed)
    for part, s in seen.items():
        agrees = draw.random(len(s)) < (0.9 if part == "train" else 0.5)
        coin = np.where(agrees, s.split.label, 1 - s.split.label)
        seen[part] = replace(s, split=replace(s.split, features={**s.split.features, "coin": coin}))
    return seen, before, ("cifar", "coin")


def judgment(seen):
    label, attribute = names_of(seen)
    train, val, test = (crossing(seen[part].split, label, attribute) for part in ("train", "val", "test"))
    aligned = alignment(train, val, seen["val"].predicted)
    return reliance(test, seen["test"].wrong, aligned).judgment


def names_of(seen):
    features = seen["test"].split.features
    return ("cifar", "mnist") if "cifar" in features else ("bird", "place")


def never_learned(seen, control, names):
    rows = {part: probed_rows(seen[part], *names).rows for part in ("val", "test")}
    controls = {RANDOM_WEIGHTS: {part: control[part][chosen] for part, chosen in rows.items()}}
    found = decodability(seen["val"], seen["test"], *names, controls, resamples=3)
    return corner(found[names[1]], "undecided")


def show(what, count, n):
    low, high = binomtest(count, n).proportion_ci(method="wilson")
    print(f"{what}: {count} of {n} ({count / n:.1%}; 95 %: {low:.1%} to {high:.1%})", flush=True)


def main(audits, case, without_attribute):
    for correlation in (0.5, 0.9):
        judged = Counter(judgment(case(seed, correlation)) for seed in range(audits))
        show(f"correlation {correlation}: relied on", judged["relied on"], audits)
        print("  ", dict(judged), flush=True)
    corners = Counter(never_learned(*without_attribute(seed)) for seed in range(audits // 2))
    show("absent attribute: never learned", corners["never learned"], audits // 2)
    inside = []
    for seed in range(audits // 2):
        seen = case(seed, 0.9)
        cells = remedy(seen["val"], seen["test"], *names_of(seen)).cells
        inside += [c.interval[0] <= c.after <= c.interval[1] for c in cells]
    show("remedy: measured within the interval", sum(inside), len(inside))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--audits", type=int, default=200, help="at each correlation")
    parser.add_argument("--root", help="folder with MNIST and CIFAR-10")
    given = parser.parse_args()
    if given.root is None:
        main(given.audits, formula, formula_without_place)
    else:
        sources = mnist(given.root), cifar10(given.root)
        main(given.audits, lambda *args: trained(sources, *args)[0], partial(trained_with_coin, sources))
