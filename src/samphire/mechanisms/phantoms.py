r"""Whom a sharpness-aware step hears, in a real network: weights at the phantom of each batch, features by probes.

In the toy of :mod:`samphire.mechanisms` the head is two numbers and the features are known. Here the model is any
classifier, the phantom parameter is that of any rule, and what a feature contributes is read off by a linear probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from samphire import mechanisms, records
from samphire.data.split import Split
from samphire.optim.requests import At, Memory, Rule, bind, drive
from samphire.probes import Linear, Scaler, probe, softmax_regression
from samphire.probes.groups import values_of
from samphire.probes.protocol import L2, checked, members_of
from samphire.restore import untouched
from samphire.tree import Vector

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Logits = Callable[[dict[str, Tensor]], Tensor]
Statistics = Literal["train", "eval"]


class BatchWeights(NamedTuple):
    """Importance weights of examples, in the order of the batches.

    Attributes:
        real: At the model's own weights (n,), float64.
        phantom: At the phantom weights of the example's batch (n,), float64.
        batch: Which batch that was, counted from 0 (n,).
    """

    real: Tensor
    phantom: Tensor
    batch: Tensor


def batch_weights(
    model: nn.Module,
    rule: Rule,
    batches: Iterable[Batch],
    *,
    loss: Loss = F.cross_entropy,
    batch_norm: Statistics = "train",
) -> BatchWeights:
    r"""Each example's importance weight at the real and at the phantom parameter, batch by batch as in training.

    For a batch B with :math:`\tilde w_B = w + \epsilon(\nabla L_B(w))`, where the rule reads its last gradient,

    .. math:: \lambda_i = 1 - p_w(y_i \mid x_i), \qquad \tilde\lambda_i = 1 - p_{\tilde w_B}(y_i \mid x_i),
              \qquad i \in B

    (:func:`samphire.mechanisms.importance_weights`). A batch costs one pass forth and back for each that the rule
    asks for, and less where the rule moves the last Linear alone, as ``lsam`` does: the body then runs once, without
    gradients. Afterwards weights, buffers, gradients and modes of the model and the state of the random number
    generators are what they were, also when a pass fails.

    Args:
        model: Any classifier that is called with ``x`` and returns logits.
        rule: A rule of :mod:`samphire.optim.rules` that takes the batch as a whole. What it remembers from step to
            step it starts without, in each batch.
        batches: Pairs of inputs, as the network takes them, and labels; each example in one batch.
        loss: The mean loss of a batch, from logits and labels: what the rule climbs.
        batch_norm: ``"train"``: BatchNorm normalises by the batch, at the real and at the phantom parameter, as in a
            step of training. ``"eval"``: by its running statistics. Other layers are in evaluation mode: no dropout.

    Example:
        >>> model = nn.Linear(1, 2, bias=False)
        >>> _ = nn.init.zeros_(model.weight)  # p = 1/2, the gradient is (1, -1), the phantom weight too
        >>> batch = torch.tensor([[2.0]]), torch.tensor([1])
        >>> found = batch_weights(model, sam(rho=2**0.5), [batch])
        >>> found.real, found.phantom  # phantom: sigmoid(2 + 2)
        (tensor([0.5000], dtype=torch.float64), tensor([0.9820], dtype=torch.float64))

    References:
        Springer, Nagarajan, Raghunathan, ICLR 2024, section 6.2 ("in a real-world setup"), which does not say how
        BatchNorm was treated.
    """
    if batch_norm not in ("train", "eval"):
        raise ValueError(f"batch_norm must be 'train' or 'eval', got {batch_norm!r}.")
    w = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    bound = bind(rule, model)
    asked = next(bound.gradient(Vector(w), Memory(n=1))).wrt
    moved = {name: t for name, t in w.items() if not asked or name in asked}
    found = []
    with _normalising(model, batch_norm):
        for k, (x, y) in enumerate(batches):
            x, y = (t.to(next(iter(w.values())).device) for t in (x, y))
            logits = _visited(bound, moved, _logits_of(model, x, moved), loss, y)
            real, phantom = (mechanisms.importance_weights(z.double(), y).cpu() for z in (logits[0], logits[-1]))
            found.append((real, phantom, torch.full((len(y),), k)))
    if not found:
        raise ValueError("there are no batches to weigh the examples of; give at least one.")
    return BatchWeights(*map(torch.cat, zip(*found, strict=True)))


@contextmanager
def _normalising(model: nn.Module, batch_norm: Statistics) -> Iterator[None]:
    """Evaluation mode but for BatchNorm, which is in the mode asked for; everything is put back."""
    with untouched(model):
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train(batch_norm == "train")
        yield


def _visited(rule: Rule, w: dict[str, Tensor], logits: Logits, loss: Loss, y: Tensor) -> list[Tensor]:
    """The batch's logits at every point where the rule asks for a gradient: the first is real, the last phantom."""
    visited: list[Tensor] = []

    def answer(request: At) -> Vector:
        if request.examples is not None or request.weights is not None or request.losses:
            raise TypeError("batch_weights needs a rule that takes the batch as a whole, such as sam or lsam.")
        there = {name: t.detach().requires_grad_() for name, t in (Vector(w) + request.eps).dense().items()}
        with torch.enable_grad():
            z = logits(there)
            g = torch.autograd.grad(loss(z, y), list(there.values()), materialize_grads=True)
        visited.append(z.detach())
        return Vector(dict(zip(there, g, strict=True)))

    drive(rule, w, Memory(n=len(y)), answer)
    return visited


def _logits_of(model: nn.Module, x: Tensor, moved: Iterable[str]) -> Logits:
    """A batch's logits as a function of the weights that move; what a head is given is computed once."""
    layers = {name.rpartition(".")[0] for name in moved}
    if len(layers) == 1:
        (name,) = layers
        layer, calls = model.get_submodule(name), []
        hook = layer.register_forward_hook(lambda _, inputs, output: calls.append((inputs, output)))
        try:
            z = model(x)
        finally:
            hook.remove()
        if len(calls) == 1 and calls[0][1] is z:  # nothing follows the layer: it is the head
            return lambda w: functional_call(layer, {n.rpartition(".")[2]: t for n, t in w.items()}, calls[0][0])
    return lambda w: functional_call(model, w, (x,))


# What features contribute


def fitted_probe(
    features: Any, split: Split, feature: str, *, l2: Sequence[float] = L2, resamples: int = 5, seed: int = 0
) -> Linear:
    r"""One probe of a feature, trained on as many examples of every group as the smallest one has.

    The penalty is the median of those that :func:`samphire.probes.probe` chooses by held-out halves of the same
    examples. The classifier is for features as they are, not standardised.

    Args:
        features: Frozen features (n, d) of examples the network was not trained on.
        split: These examples; every combination of features must occur twice or more.
        feature: The name of the feature to predict.
        l2: The grid of penalties.
        resamples: Balanced halves that choose the penalty.
        seed: Of the draws.

    Example:
        >>> a, b = np.repeat([0, 1], 40), np.tile([0, 1], 40)
        >>> split = Split(np.zeros(80), a, {"a": a, "b": b})
        >>> fit = fitted_probe(np.stack([a, b], 1), split, "b")
        >>> bool((fit.predict(np.stack([a, b], 1)) == b).all())
        True
    """
    x, y = checked(features, split, "probing"), values_of(split, feature)
    chosen = probe(x, split, x, split, feature, resamples=resamples, l2=l2, seed=seed).l2
    draw = np.random.default_rng(records.seed(seed, "fitted probe"))
    groups = list(members_of(split.group))
    rows = np.concatenate([draw.permutation(members)[: min(map(len, groups))] for members in groups])
    scaler = Scaler.of(x[rows])
    penalty = float(np.median(chosen))
    return scaler.undo(softmax_regression(scaler(x[rows]), y[rows], int(y.max()) + 1, [penalty])[0])


def probed_contribution(features: Any, split: Split, feature: str, fit: Linear) -> Tensor:
    r"""Signed contribution of a feature to training examples, as its probe sees it (section 6.2).

    .. math:: c_i = y_i\, s\, (u^\top \Phi(x_i) + b), \qquad y_i = \pm 1 \text{ the label},

    with the probe's log-odds :math:`u^\top \Phi + b` and :math:`s = \pm 1` the sign of the covariance of feature and
    label over ``split``. It is positive where the feature, as the network represents it, speaks for the label, and
    large where it does so clearly: what :math:`y v_{easy} \Phi_{easy}(x)` is in the toy. There the contributions of
    two features add up to the margin; here they do not, since probes are fitted one by one and are not the head.

    Args:
        features: Frozen features (n, d) of the training examples, by the network and layer of the probe.
        split: These examples; label and feature have two values each.
        feature: Its name.
        fit: Its probe, from :func:`fitted_probe`.

    Example:
        >>> y, place = np.array([0, 0, 0, 1]), np.array([1, 1, 0, 0])  # goes with the *other* value of the label
        >>> split = Split(np.zeros(4), y, {"y": y, "place": place})
        >>> fit = Linear(np.array([[0.0], [2.0]]), np.array([0.0, 1.0]))  # log-odds 2 x + 1
        >>> probed_contribution(np.array([[1.0], [1.0], [-2.0], [-2.0]]), split, "place", fit)
        tensor([ 3.,  3., -3.,  3.], dtype=torch.float64)

    Differences:
        The paper writes :math:`y v^\top \Phi(x)`, without a bias; on CelebA, where the men are those who are not
        blond, it must have turned the sign too.
    """
    x, value = checked(features, split, "training"), values_of(split, feature)
    for name, codes in (("label", split.label), (feature, value)):
        if set(np.unique(codes)) != {0, 1}:
            found = ", ".join(map(str, np.unique(codes)))
            raise ValueError(f"signed contributions need two values of {name}, 0 and 1, got {found}.")
    y = 2.0 * split.label - 1
    s = np.sign(np.cov(value, split.label)[0, 1])
    if s == 0:
        raise ValueError(f"{feature} does not go with the label in this split, so its contribution has no sign.")
    log_odds = x @ (fit.weight[1] - fit.weight[0]) + fit.bias[1] - fit.bias[0]
    return torch.from_numpy(y * s * log_odds)
