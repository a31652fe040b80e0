"""What one SAM step would do to a batch, without training: importance weights at real and phantom parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samphire import records
from samphire.audits.reading import inputs
from samphire.audits.seen import Seen
from samphire.data.split import Split
from samphire.mechanisms import batch_weights, effective_sample_size, gini, lorenz
from samphire.optim.rules import sam
from samphire.probes.groups import Codes
from samphire.probes.logistic import Linear
from samphire.restore import untouched

__all__ = ["RHOS", "Spread", "Upweighting", "propose", "spread_of", "upweighting", "upweighting_everywhere"]

RHOS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BATCH = 128
MOST = 2048  # training examples that are weighed


@dataclass(frozen=True)
class Spread:
    """How the importance weights of a batch are spread, at one radius.

    Args:
        rho: The radius; 0 for the real parameters.
        gini: 0 if all examples weigh the same, near 1 if one has everything.
        effective: Effective sample size as a share of the batch.
        mean: Mean weight, one minus the mean probability of the true class.
        share: By group: its share of all weight.
        lorenz: The curve at 0, 1/50, ..., 1: the share of weight that the lightest examples hold.
    """

    rho: float
    gini: float
    effective: float
    mean: float
    share: Mapping[str, float]
    lorenz: tuple[float, ...]


@dataclass(frozen=True)
class Upweighting:
    """What a SAM step would do to batches of the training part.

    Args:
        rule: What is perturbed, in words.
        spreads: The real parameters first, then the radii in rising order.
        frequency: Each group's share of the examples.
        proposed: A radius, and the reason.
        shares: By position of the example in the training part: its share of its batch's weight, real and at the
            proposed radius.
        n: Examples weighed, in batches of :data:`BATCH`.
    """

    rule: str
    spreads: tuple[Spread, ...]
    frequency: Mapping[str, float]
    proposed: tuple[float, str]
    shares: Mapping[int, tuple[float, float]]
    n: int


def upweighting(
    train: Seen, head: Linear, group: Codes, names: Sequence[str], rhos: Sequence[float] = RHOS
) -> Upweighting:
    """Weigh training examples before and after one perturbation of the head, as LSAM makes it, batch by batch.

    The body is frozen, so all radii cost no more than its features, which the audit has read already.

    Args:
        train: The training part, or the examples of it that were read.
        head: From features to logits.
        group: Of each example.
        names: Of the groups.
        rhos: Radii to try, in rising order.
    """
    order = _order(len(train), MOST)
    layer = nn.utils.skip_init(nn.Linear, head.weight.shape[1], head.weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.asarray(head.weight, np.float64)))
        layer.bias.copy_(torch.from_numpy(np.asarray(head.bias, np.float64)))
    batches = [
        (torch.from_numpy(np.asarray(train.features[rows], np.float64)), torch.from_numpy(train.split.label[rows]))
        for rows in np.array_split(order, max(len(order) // BATCH, 1))
    ]
    return _weighed("the last layer perturbed (LSAM)", layer, batches, order, group, names, rhos, len(head.bias))


def upweighting_everywhere(
    model: nn.Module, split: Split, group: Codes, names: Sequence[str], rhos: Sequence[float] = RHOS[:4]
) -> Upweighting:
    """The same for a perturbation of all layers, as SAM makes it, on one batch: every radius costs two passes.

    Args:
        model: The network.
        split: The training part.
        group: Of each example.
        names: Of the groups.
        rhos: Radii to try, in rising order.
    """
    order = np.sort(_order(len(split), BATCH))
    batch = inputs(model, split.images[order]), torch.from_numpy(split.label[order])
    with untouched(model), torch.no_grad():
        outputs = model(batch[0][:1]).shape[-1]
    network = model if outputs > 1 else _TwoLogits(model)
    return _weighed("all layers perturbed (SAM)", network, [batch], order, group, names, rhos, split.n_classes)


class _TwoLogits(nn.Module):
    """A binary model with one logit as one with two."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        z = self.model(x)
        return torch.cat([torch.zeros_like(z), z], -1)


def _order(n: int, most: int) -> Codes:
    """Some examples in random order, in whole batches where there are enough."""
    order = np.random.default_rng(records.seed(0, "batches")).permutation(n)[:most]
    return order[: max(len(order) // BATCH * BATCH, min(len(order), BATCH))]


def _weighed(
    what: str,
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    order: Codes,
    group: Codes,
    names: Sequence[str],
    rhos: Sequence[float],
    classes: int,
) -> Upweighting:
    weighed = {rho: batch_weights(model, sam(rho=rho), batches) for rho in rhos}
    mine, first = group[order], weighed[rhos[0]]
    spreads = [spread_of(0.0, first.real.numpy(), first.batch.numpy(), mine, names)]
    spreads += [spread_of(rho, w.phantom.numpy(), w.batch.numpy(), mine, names) for rho, w in weighed.items()]
    proposed = propose(spreads, classes)
    shares = (_share(w.numpy(), first.batch.numpy()).tolist() for w in (first.real, weighed[proposed[0]].phantom))
    return Upweighting(
        what,
        tuple(spreads),
        {name: float(np.mean(mine == g)) for g, name in enumerate(names) if (mine == g).any()},
        proposed,
        dict(zip(order.tolist(), zip(*shares, strict=True), strict=True)),
        len(order),
    )


def spread_of(rho: float, weights: NDArray[Any], batch: NDArray[Any], group: Codes, names: Sequence[str]) -> Spread:
    """The spread of importance weights: means over batches.

    Example:
        >>> even = spread_of(0.0, np.ones(4), np.zeros(4, int), np.array([0, 0, 0, 1]), ["a", "b"])
        >>> even.gini, even.effective, even.share
        (0.0, 1.0, {'a': 0.75, 'b': 0.25})
    """
    per_batch = [torch.from_numpy(weights[batch == b]) for b in np.unique(batch)]
    grid = np.linspace(0, 1, 51)
    curves = [np.interp(grid, np.linspace(0, 1, len(w) + 1), lorenz(w).numpy()) for w in per_batch]
    share = _share(weights, batch)
    total = share.sum()
    return Spread(
        rho,
        float(np.mean([gini(w).item() for w in per_batch])),
        float(np.mean([effective_sample_size(w).item() / len(w) for w in per_batch])),
        float(weights.mean()),
        {name: float(share[group == g].sum() / total) for g, name in enumerate(names) if (group == g).any()},
        tuple(np.mean(curves, 0).tolist()),
    )


def propose(spreads: Sequence[Spread], classes: int) -> tuple[float, str]:
    """A radius: the largest at which the perturbed network is at least halfway from guessing to certainty.

    That is, the mean weight is at most half of :math:`1 - 1/K`, or no larger than it is without a perturbation.
    Beyond it the gradient is read where the network hardly classifies. If no radius qualifies it is the smallest.

    Args:
        spreads: The real parameters first, then the radii in rising order.
        classes: K.
    """
    real, radii = spreads[0], spreads[1:]
    usable = [s for s in radii if s.mean <= max((1 - 1 / classes) / 2, real.mean)]
    best = usable[-1] if usable else radii[0]
    tried = ", ".join(f"{s.rho:g}" for s in radii)
    if not usable:
        return (
            best.rho,
            f"the smallest of {tried}: even there the true class has {1 - best.mean:.0%} of the probability",
        )
    return best.rho, (
        f"the largest of {tried} at which the perturbed network is halfway from guessing to certainty (the "
        f"true class has {1 - best.mean:.0%} of the probability on average); it takes the Gini coefficient of the "
        f"weights from {real.gini:.2f} to {best.gini:.2f}"
    )


def _share(weights: NDArray[Any], batch: NDArray[Any]) -> NDArray[Any]:
    """Each weight as a share of its batch's."""
    shares: NDArray[Any] = weights / np.bincount(batch, weights)[batch]
    return shares
