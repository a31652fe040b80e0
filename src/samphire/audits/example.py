"""Features with a known shortcut, to try an audit on and to check its verdicts with."""

from __future__ import annotations

import numpy as np

from samphire import records
from samphire.audits.seen import Seen
from samphire.data.split import Split
from samphire.probes.logistic import Scaler
from samphire.probes.softmax import softmax_regression

__all__ = ["example"]


def example(
    correlation: float = 0.9,
    *,
    bird: float = 1.5,
    place: float = 2.5,
    dimensions: int = 20,
    train: int = 2000,
    val: int = 600,
    test: int = 1000,
    seed: int = 0,
) -> dict[str, Seen]:
    r"""A linear model on Gaussian features in which label and attribute each have a direction.

    :math:`\phi = M(z + b\,(y - \tfrac12)\,e_1 + p\,(a - \tfrac12)\,e_2)` with z white and M a random matrix. In the
    training part the attribute agrees with the label in a share ``correlation`` of the examples, elsewhere in half.

    Args:
        correlation: The share; 0.5 for no shortcut.
        bird: How far the classes lie apart, b, in standard deviations.
        place: How far the attribute's values lie apart, p; 0 for an attribute that the features do not show.
        dimensions: Of the features.
        train: Examples.
        val: Examples.
        test: Examples.
        seed: Of everything.

    Example:
        >>> {name: len(part) for name, part in example(train=200, val=50, test=50).items()}
        {'train': 200, 'val': 50, 'test': 50}
    """
    draw = np.random.default_rng(records.seed(seed, "example of an audit"))
    mixing = draw.normal(size=(dimensions, dimensions)) / np.sqrt(dimensions)
    values = {"bird": ("land", "water"), "place": ("forest", "sea")}
    features, splits = {}, {}
    for part, n in {"train": train, "val": val, "test": test}.items():
        y = draw.integers(0, 2, n)
        a = np.where(draw.random(n) < (correlation if part == "train" else 0.5), y, 1 - y)
        z = draw.normal(size=(n, dimensions))
        z[:, 0] += bird * (y - 0.5)
        z[:, 1] += place * (a - 0.5)
        features[part] = z @ mixing
        splits[part] = Split(np.arange(n), y, {"bird": y, "place": a}, classes=values["bird"], values=values)
    scaler = Scaler.of(features["train"])
    head = scaler.undo(softmax_regression(scaler(features["train"]), splits["train"].label, 2, [1e-3])[0])
    return {part: Seen(splits[part], x, x @ head.weight.T + head.bias) for part, x in features.items()}
