"""How often an audit's verdict is right, on features whose shortcut is known.

    python benchmarks/audits.py [audits]

Written down before the first run. Each audit draws its own size and strength: 10 to 60 dimensions, classes 1 to 3
standard deviations apart, the attribute's values 2 to 4, 1000 to 4000 test examples. Counted are: reliance alarms at
correlation 0.5 (bar: at most 5 %), shortcuts found at 0.9 (bar: at least 95 %), "never learned" for an attribute
that the features do not show, and, of all groups of all audits at 0.9, those whose error measured after the remedy
lies in its predicted interval (bar: at least 90 %).
"""

import sys
from collections import Counter

import numpy as np
from scipy.stats import binomtest

from samphire.audits.association import alignment
from samphire.audits.decodability import corner, decodability, probed_rows
from samphire.audits.example import example
from samphire.audits.reliance import reliance
from samphire.audits.remedy import remedy
from samphire.audits.seen import crossing


def case(seed, correlation, **given):
    draw = np.random.default_rng(seed)
    settings = {
        "dimensions": int(draw.integers(10, 61)),
        "bird": draw.uniform(1, 3),
        "place": draw.uniform(2, 4),
        "test": int(draw.integers(1000, 4001)),
    }
    return example(correlation, seed=seed, **settings | given)


def judgment(seen):
    train, val, test = (crossing(seen[part].split, "bird", "place") for part in ("train", "val", "test"))
    aligned = alignment(train, val, seen["val"].predicted)
    return reliance(test, seen["test"].wrong, aligned).judgment


def never_learned(seed):
    """The corner of an attribute that neither the network nor another one shows."""
    seen, other = (case(s, 0.9, place=0.0, test=2000) for s in (seed, seed + 10_000))
    rows = {part: probed_rows(seen[part], "bird", "place").rows for part in ("val", "test")}
    controls = {"random weights": {part: other[part].features[chosen] for part, chosen in rows.items()}}
    found = decodability(seen["val"], seen["test"], "bird", "place", controls, resamples=3)
    return corner(found["place"], "undecided")


def show(what, count, n):
    low, high = binomtest(count, n).proportion_ci(method="wilson")
    print(f"{what}: {count} of {n} ({count / n:.1%}; 95 %: {low:.1%} to {high:.1%})", flush=True)


def main(audits=200):
    for correlation in (0.5, 0.9):
        judged = Counter(judgment(case(seed, correlation)) for seed in range(audits))
        show(f"correlation {correlation}: relied on", judged["relied on"], audits)
        print("  ", dict(judged), flush=True)
    corners = Counter(never_learned(seed) for seed in range(audits // 2))
    show("absent attribute: never learned", corners["never learned"], audits // 2)
    inside = []
    for seed in range(audits // 2):
        seen = case(seed, 0.9)
        inside += [
            c.interval[0] <= c.after <= c.interval[1]
            for c in remedy(seen["val"], seen["test"], "bird", "place").cells
        ]
    show("remedy: measured within the interval", sum(inside), len(inside))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
