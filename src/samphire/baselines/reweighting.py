"""Balance by weights and samplers: rare classes, small groups, and the examples a first model got wrong.

Everything here is a plain tensor or a torch sampler, so it goes into any loss and loader, under any rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import WeightedRandomSampler

from samphire.checks import Range, check_indices, check_number, check_whole

Integers = Sequence[int] | NDArray[np.int64] | Tensor

__all__ = ["balanced_sampler", "deferred", "effective_number", "error_set", "inverse_frequency", "upsampled"]


def inverse_frequency(counts: Integers) -> Tensor:
    r"""Weights that make every class (or group) count the same: :math:`w_c \propto 1/n_c`, with mean 1.

    The mean is over the classes that have examples; one that has none gets weight 0.

    Args:
        counts: Training examples of each class, as from ``torch.bincount(labels)``.

    Example:
        >>> inverse_frequency([900, 100])
        tensor([0.2000, 1.8000])
        >>> y = torch.tensor([0, 1])
        >>> loss = nn.functional.cross_entropy(torch.zeros(2, 2), y, weight=inverse_frequency([900, 100]))
        >>> weight_of_each_example = inverse_frequency([900, 100])[y]
    """
    n = _counts("inverse_frequency", counts)
    return _with_mean_one(1 / n, n)


def effective_number(counts: Integers, beta: float = 0.9999) -> Tensor:
    r"""Class-balanced weights: one over the effective number of examples, with mean 1.

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}

    With ``beta=0`` all weights are 1; as beta goes to 1 they become :func:`inverse_frequency`. A class without
    examples gets weight 0.

    Args:
        counts: Training examples of each class.
        beta: How much of a new example is new, 0.9 to 0.9999.

    Example:
        >>> effective_number([2, 1], beta=0.5)  # (1/1.5, 1) with mean 1
        tensor([0.8000, 1.2000])

    References:
        Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019,
        https://arxiv.org/abs/1901.05555
    """
    check_number("effective_number: beta", beta, Range(least=0, below=1))
    n = _counts("effective_number", counts)
    log_beta = torch.tensor(beta, dtype=n.dtype).log()
    return _with_mean_one(-1 / torch.expm1(n * log_beta), n)


def deferred(weights: Tensor, epoch: int, start: int = 160) -> Tensor:
    r"""Deferred re-weighting (DRW): all weights 1 before the epoch ``start``, then the given ones.

    On long-tailed data, SAM escapes the saddle points that tail classes end in if it climbs the re-weighted loss with
    a large rho: 0.8 throughout on CIFAR-10-LT, linear from 0.05 to 0.8, or in steps, as below.

    Args:
        weights: Weights of the classes.
        epoch: The epoch, counted from 0.
        start: First epoch with the weights; 160 of 200 in the published runs.

    Example:
        >>> from samphire.optim import SharpnessAware
        >>> model, steps_per_epoch = nn.Linear(4, 3), 2
        >>> def rho(t, lr):  # the published steps
        ...     epoch = t // steps_per_epoch
        ...     return 0.05 if epoch <= 5 else 0.1 if epoch <= 160 else 0.5 if epoch <= 180 else 0.6
        >>> opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sam(rho))
        >>> weights = effective_number([5000, 500, 50])
        >>> for epoch in (0, 160):
        ...     for _ in range(steps_per_epoch):
        ...         x, y = torch.randn(8, 4), torch.randint(3, (8,))
        ...         for p in opt.passes():
        ...             p.backward(nn.functional.cross_entropy(model(x), y, weight=deferred(weights, epoch)))
        ...         _ = opt.step()
        >>> deferred(weights, epoch=0)
        tensor([1., 1., 1.])

    References:
        Cao et al., Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss, NeurIPS 2019,
        https://arxiv.org/abs/1906.07413; Rangwani et al., Escaping Saddle Points for Effective Generalization on
        Class-Imbalanced Data, NeurIPS 2022, https://arxiv.org/abs/2212.13827
    """
    return weights if epoch >= start else torch.ones_like(weights)


def balanced_sampler(
    groups: Integers, n: int | None = None, generator: torch.Generator | None = None
) -> WeightedRandomSampler:
    """Draw every group (or class) equally often, its examples evenly, with replacement.

    Args:
        groups: Group of each example of the training set.
        n: Draws per epoch; the number of examples unless given.
        generator: Source of randomness; torch's global one unless given.

    Example:
        >>> groups = torch.tensor([0] * 98 + [1] * 2)
        >>> drawn = torch.tensor(list(balanced_sampler(groups, 10_000, torch.Generator().manual_seed(0))))
        >>> round(groups[drawn].double().mean().item(), 1)
        0.5
    """
    groups = torch.as_tensor(groups)
    if groups.dim() != 1 or not len(groups) or groups.is_floating_point() or (groups < 0).any():
        raise ValueError(f"balanced_sampler: groups must be a whole number >= 0 for each example, got {groups}.")
    weights = 1 / torch.bincount(groups).double()
    return WeightedRandomSampler(weights[groups].tolist(), len(groups) if n is None else n, generator=generator)


def error_set(outputs: Tensor, labels: Integers) -> Tensor:
    """JTT's first half: the positions of the training examples a model gets wrong.

    Args:
        outputs: What the model makes of the training set without shuffling: class logits (n, classes), one logit
            each for labels 0 and 1 (n,), or predicted classes as integers (n,).
        labels: The labels (n,).

    Example:
        >>> error_set(torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]]), torch.tensor([0, 1, 1]))
        tensor([2])

    References:
        Liu et al., Just Train Twice, ICML 2021, https://arxiv.org/abs/2107.09044
    """
    labels = torch.as_tensor(labels, device=outputs.device)
    if outputs.dim() == 2:
        predicted = outputs.argmax(1)
    else:
        predicted = (outputs > 0).long() if outputs.is_floating_point() else outputs
    if predicted.shape != labels.shape or labels.dim() != 1:
        raise ValueError(
            "error_set: needs outputs (n, classes) or (n,) and labels (n,), got shapes "
            f"{tuple(outputs.shape)} and {tuple(labels.shape)}."
        )
    wrong = (predicted != labels).nonzero().squeeze(1)
    if not len(wrong):
        raise ValueError(
            f"error_set: the model gets all {len(labels)} training examples right, so nothing is left to upsample; "
            "stop the first training earlier or regularize it more (published: Waterbirds 60 epochs, learning rate "
            "1e-5, weight decay 1; CelebA 1 epoch, 1e-5, 0.1)."
        )
    return wrong


def upsampled(errors: Tensor, n: int, times: int) -> Tensor:
    """JTT's second half: the positions to train on, every example once and those of the error set ``times`` times.

    Published settings, the same learning rate and weight decay in both trainings, SGD with momentum 0.9:

    ==========  ===================  =====  =============  ============
    data        first training       times  learning rate  weight decay
    ==========  ===================  =====  =============  ============
    Waterbirds  60 of 300 epochs     100    1e-5           1
    CelebA      1 of 50 epochs       50     1e-5           0.1
    ==========  ===================  =====  =============  ============

    Args:
        errors: Positions of the error set, from :func:`error_set`.
        n: Training examples.
        times: How often each of the error set occurs (the paper's lambda_up).

    Example:
        >>> upsampled(torch.tensor([2]), n=3, times=3)
        tensor([0, 1, 2, 2, 2])
        >>> from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset
        >>> data = TensorDataset(torch.randn(3, 2), torch.tensor([0, 1, 1]))
        >>> outputs = torch.tensor([-1.0, 2.0, -3.0])  # of the first model, on the data in order
        >>> positions = upsampled(error_set(outputs, data.tensors[1]), len(data), times=100)
        >>> loader = DataLoader(data, batch_size=64, sampler=SubsetRandomSampler(positions.tolist()))
        >>> len(loader.sampler)
        102

    References:
        Liu et al., Just Train Twice, ICML 2021, https://arxiv.org/abs/2107.09044

    Differences:
        As the paper says; the released code appends the error set ``times`` times to the whole, which makes
        ``times + 1``.
    """
    check_whole("upsampled: times", times)
    check_indices("upsampled: errors", errors, n)
    return torch.cat([torch.arange(n), errors.cpu().repeat(times - 1)])


def _counts(owner: str, counts: Integers) -> Tensor:
    n = torch.as_tensor(counts)
    if n.dim() != 1 or (n < 0).any() or not (n > 0).any():
        raise ValueError(f"{owner}: counts must be one number >= 0 for each class, got {n.tolist()!r}.")
    return n.double()


def _with_mean_one(weights: Tensor, n: Tensor) -> Tensor:
    weights = torch.where(n > 0, weights, 0)
    return (weights * ((n > 0).sum() / weights.sum())).to(torch.get_default_dtype())
