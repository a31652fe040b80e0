"""Spectral decoupling: a penalty on large logits, so that no feature starves the gradient of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from samphire.baselines.group_dro import sums_and_counts
from samphire.checks import Range, check_indices, check_number, check_one_of

__all__ = ["spectral_decoupling", "spectral_decoupling_by_class"]


def spectral_decoupling(logits: Tensor, lam: float, penalty: Literal["mean", "norm"] = "mean") -> Tensor:
    r"""A penalty on large logits, to be added to the cross-entropy in place of weight decay.

    .. math:: L = \mathrm{CE} + \lambda\,\mathrm{mean}(f^2) \quad\text{or}\quad
              L = \mathrm{CE} + \tfrac{\lambda}{2n} \textstyle\sum_i \|f_i\|^2 .

    Features that are learned first cannot starve the gradient of the others, because the logits stop growing.

    Args:
        logits: One or several for each example, (n,) or (n, classes).
        lam: Strength. Published: 2e-5 for colored MNIST (where it multiplies the cross-entropy too from step 450
            on), 0.1 for CelebA (:func:`spectral_decoupling_by_class`). Set weight decay to 0.
        penalty: ``"mean"`` over examples and logits, as the released code; ``"norm"``, half the squared norm of
            each example's logits, as the paper; it divides by n as the mean cross-entropy does.

    Example:
        >>> z, y = torch.tensor([[3.0, 1.0]]), torch.tensor([0])
        >>> spectral_decoupling(z, lam=0.1), spectral_decoupling(z, lam=0.1, penalty="norm")
        (tensor(0.5000), tensor(0.5000))
        >>> loss = nn.functional.cross_entropy(z, y) + spectral_decoupling(z, lam=0.1)

    References:
        Pezeshki et al., Gradient Starvation: A Learning Proclivity in Neural Networks, NeurIPS 2021,
        https://arxiv.org/abs/2011.09468

    Differences:
        The two penalties agree for two classes; for one logit ``"mean"`` is twice ``"norm"``. The released code for
        two classes penalizes the first logit only: give it ``logits[:, 0]``.
    """
    check_number("spectral_decoupling: lam", lam, Range(least=0))
    check_one_of("penalty of spectral_decoupling", penalty, ("mean", "norm"))
    if penalty == "mean":
        return lam * logits.square().mean()
    return lam / 2 * logits.square().sum() / len(logits)


def spectral_decoupling_by_class(
    logits: Tensor, labels: Tensor, lam: float = 0.1, targets: Sequence[float] = (0.44, 2.5)
) -> Tensor:
    r"""Spectral decoupling towards a target for each class, which suits classes of unequal size.

    .. math:: \lambda \sum_c \mathrm{mean}_{i:\, y_i = c}\, (f_i - t_c)^2 ,

    the mean being over the examples of the class and their logits. A class without examples in the batch adds 0.

    Args:
        logits: One or several for each example, (n,) or (n, k).
        labels: Class of each example (n,).
        lam: Strength.
        targets: :math:`t_c` for each class. The defaults are the published ones for CelebA's hair color (Adam,
            learning rate 1e-5, weight decay 0).

    Example:
        >>> z, y = torch.tensor([[2.44, 0.44], [2.5, 2.5]]), torch.tensor([0, 1])
        >>> spectral_decoupling_by_class(z, y)  # 0.1 * (4 + 0) / 2
        tensor(0.2000)

    References:
        Pezeshki et al. 2021, table 2; ``spw3`` in the released code.

    Differences:
        The released code gives NaN for a batch without one of the classes.
    """
    check_number("spectral_decoupling_by_class: lam", lam, Range(least=0))
    check_indices("spectral_decoupling_by_class: labels", labels, len(targets))
    f = logits.reshape(len(labels), -1)
    distances = (f - f.new_tensor(list(targets))[labels].unsqueeze(1)).square().mean(1)
    sums, counts = sums_and_counts(distances, labels, len(targets))
    return lam * (sums / counts.clamp(min=1)).sum()
