"""GroupDRO: the groups with the largest losses weigh most."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist

from samphire.checks import Range, check_indices, check_number
from samphire.optim.passes import in_perturbed_pass

__all__ = ["GroupDRO", "sums_and_counts"]


class GroupDRO(nn.Module):
    r"""Group distributionally robust optimization: the groups with the largest losses weigh most.

    With :math:`\ell_g` the mean loss of group g in the batch and :math:`n_g` its size in the training set,

    .. math:: q_g \leftarrow q_g \exp\bigl(\eta\,(\ell_g + C/\sqrt{n_g})\bigr) \text{ for the groups in the batch},
              \qquad q \leftarrow q / \textstyle\sum_g q_g, \qquad L = \sum_g q_g\, \ell_g.

    A group that is absent from the batch is multiplied by 1 and takes part in the normalization only, so the ratios
    between absent groups stay; it adds nothing to L. The same holds for a group with a loss that is not finite.
    Groups without any training example have :math:`q_g = 0`. With ``eta=0`` L is the plain mean over groups.

    The published recipe samples groups evenly (:func:`samphire.baselines.balanced_sampler`) and
    regularizes strongly (Waterbirds: learning rate 1e-5, weight decay 1; CelebA: 1e-5, 0.1) or stops early.

    Under ``torch.distributed`` sums and counts are added over all ranks in training mode (one all-reduce of two
    numbers per group in each pass): every rank has the same q, and the mean of the ranks' losses, which is what
    DistributedDataParallel descends along, is the loss of the whole batch.

    Two micro-batches with half of ``eta`` end at the q of one batch, if their groups have the same sizes.

    Args:
        sizes: Training examples of each group, as from ``torch.bincount(groups)``.
        eta: Step size of q (the paper's :math:`\eta_q`).
        adjustment: C, which favors small groups; 0 to 5 in the paper.
        gamma: Weight of the newest batch in ``running_losses``.

    Attributes:
        running_losses: Moving average of each group's loss; NaN for a group that has not been seen.

    Example:
        >>> dro = GroupDRO(sizes=[900, 100], eta=1.0)
        >>> losses = torch.tensor([0.0, 0.0, 3.0]).log1p()  # from cross_entropy(..., reduction="none")
        >>> dro(losses, groups=torch.tensor([0, 0, 1]))  # q = (1, 4) / 5
        tensor(1.1090)
        >>> dro.q, dro.running_losses
        (tensor([0.2000, 0.8000]), tensor([0.0000, 1.3863]))

    References:
        Sagawa et al., Distributionally Robust Neural Networks for Group Shifts, ICLR 2020,
        https://arxiv.org/abs/1911.08731

    Differences:
        q is kept as logarithms, so a group cannot underflow to zero for good. The released code adds the adjustment
        to absent groups too, ignores it altogether unless it is positive for every group, and adds it to the
        loss it reports; its ``--use_normalized_loss`` is not in the paper and not here.
    """

    log_q: Tensor
    running_losses: Tensor
    sizes: Tensor

    def __init__(
        self,
        sizes: Sequence[int] | NDArray[np.int64] | Tensor,
        eta: float = 0.01,
        adjustment: float = 0.0,
        gamma: float = 0.1,
    ) -> None:
        super().__init__()
        sizes = torch.as_tensor(sizes)
        if sizes.dim() != 1 or not sizes.sum() > 0 or (sizes < 0).any() or sizes.is_floating_point():
            raise ValueError(f"group_dro: sizes must be one count >= 0 for each group, got {sizes.tolist()!r}.")
        check_number("group_dro: eta", eta, Range(least=0))
        check_number("group_dro: adjustment", adjustment, Range(least=0))
        check_number("group_dro: gamma", gamma, Range(above=0, most=1))
        self.eta, self.adjustment, self.gamma = eta, adjustment, gamma
        self.register_buffer("log_q", (sizes > 0).to(torch.get_default_dtype()).log())
        self.register_buffer("running_losses", torch.full_like(self.log_q, math.nan))
        self.register_buffer("sizes", sizes.clone(), persistent=False)

    @property
    def q(self) -> Tensor:
        """The weights of the groups."""
        return self.log_q.softmax(0)

    def forward(self, losses: Tensor, groups: Tensor) -> Tensor:
        """The loss of a batch.

        Args:
            losses: Loss of each example (n,).
            groups: Group of each example (n,), counted from 0.
        """
        n_groups = len(self.log_q)
        if losses.dim() != 1 or losses.shape != groups.shape:
            raise ValueError(
                "group_dro: needs a loss and a group for each example, got shapes "
                f"{tuple(losses.shape)} and {tuple(groups.shape)}; compute the loss with reduction='none'."
            )
        check_indices("group_dro: groups", groups, n_groups)
        losses = losses.to(torch.promote_types(losses.dtype, self.log_q.dtype))
        sums, counts = sums_and_counts(losses, groups, n_groups)
        totals, counts, ranks = self._over_ranks(sums.detach(), counts)
        sizes = counts.clamp(min=1)
        if self.training and not in_perturbed_pass():
            self._update(totals / sizes, counts > 0)
        return ranks * (self.q.to(losses.dtype) * sums / sizes).sum()

    def _over_ranks(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, int]:
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return sums, counts, 1
        both = torch.stack([sums, counts])
        dist.all_reduce(both)
        return both[0], both[1], dist.get_world_size()

    @torch.no_grad()
    def _update(self, losses: Tensor, present: Tensor) -> None:
        losses = losses.to(self.log_q.dtype)
        present = present & losses.isfinite()
        bonus = self.adjustment * self.sizes.clamp(min=1).to(losses.dtype).rsqrt()
        step = torch.where(present, self.eta * (losses + bonus), 0)
        before = torch.where(self.running_losses.isnan(), losses, self.running_losses)
        self.log_q.copy_((self.log_q + step).log_softmax(0))
        self.running_losses.copy_(torch.where(present, before.lerp(losses, self.gamma), self.running_losses))

    def extra_repr(self) -> str:
        return f"{len(self.log_q)} groups, eta={self.eta}, adjustment={self.adjustment}"


def sums_and_counts(values: Tensor, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
    """The sum of each group's values, and how many they are."""
    zeros = values.new_zeros(n_groups)
    return zeros.index_add(0, groups, values), zeros.index_add(0, groups, torch.ones_like(values))
