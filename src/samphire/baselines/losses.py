"""Losses that sharpness-aware training is compared with: GroupDRO, spectral decoupling, SAF and MESA.

All work in any loop and under any rule of :mod:`samphire.optim`. What a loss remembers are the buffers of an
``nn.Module``, so it is saved with ``state_dict``, moved with ``to``, and changed in training mode only. It changes
once for each batch of examples, not once for each pass:

- in a perturbed pass (a repeat at displaced weights) it is used as the clean pass left it, and not changed;
- the only pass of a one-pass rule (``msam``, ``stale``) is no repeat, so it counts, with the losses found there;
- the parts of ``m_sharpness`` and accumulated micro-batches are batches by themselves, one change for each, since a
  loss cannot know which of its calls belong to one step;
- a step that raised after its clean pass has been counted; repeating it counts it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samphire.optim.passes import in_perturbed_pass


class GroupDRO(nn.Module):
    r"""Group distributionally robust optimization: the groups with the largest losses weigh most.

    With :math:`\ell_g` the mean loss of group g in the batch and :math:`n_g` its size in the training set,

    .. math:: q_g \leftarrow q_g \exp\bigl(\eta\,(\ell_g + C/\sqrt{n_g})\bigr) \text{ for the groups in the batch},
              \qquad q \leftarrow q / \textstyle\sum_g q_g, \qquad L = \sum_g q_g\, \ell_g.

    A group that is absent from the batch is multiplied by 1 and takes part in the normalisation only, so the ratios
    between absent groups stay; it adds nothing to L. So does a group whose loss is not finite. Groups without any
    training example have :math:`q_g = 0`. With ``eta=0`` L is the plain mean over groups.

    The published recipe samples groups evenly (:func:`samphire.baselines.reweighting.balanced_sampler`) and
    regularizes strongly (Waterbirds: learning rate 1e-5, weight decay 1; CelebA: 1e-5, 0.1) or stops early.

    Under ``torch.distributed`` sums and counts are added over all ranks in training mode (one all-reduce of two
    numbers per group in each pass): every rank has the same q, and the mean of the ranks' losses, which is what
    DistributedDataParallel descends along, is the loss of the whole batch.

    Two micro-batches with half of ``eta`` end at the q of one batch, if their groups have the same sizes.

    Args:
        sizes: Training examples of each group, as from ``torch.bincount(groups)``.
        eta: Step size of q (the paper's :math:`\eta_q`).
        adjustment: C, which favours small groups; 0 to 5 in the paper.
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
        _check_at_least_zero("group_dro", eta=eta, adjustment=adjustment)
        if not 0 < gamma <= 1:
            raise ValueError(f"group_dro: gamma must lie in (0, 1], got {gamma!r}.")
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
        _check_range("group_dro: groups", groups, n_groups)
        losses = losses.to(torch.promote_types(losses.dtype, self.log_q.dtype))
        sums, counts = _sums_and_counts(losses, groups, n_groups)
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


def spectral_decoupling(logits: Tensor, lam: float, penalty: Literal["mean", "norm"] = "mean") -> Tensor:
    r"""A penalty on large logits, to be added to the cross-entropy in place of weight decay.

    .. math:: L = \mathrm{CE} + \lambda\,\mathrm{mean}(f^2) \quad\text{or}\quad
              L = \mathrm{CE} + \tfrac{\lambda}{2n} \textstyle\sum_i \|f_i\|^2 .

    Features that are learned first cannot starve the gradient of the others, because the logits stop growing.

    Args:
        logits: One or several for each example, (n,) or (n, classes).
        lam: Strength. Published: 2e-5 for coloured MNIST (where it multiplies the cross-entropy too from step 450
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
        two classes penalises the first logit only: give it ``logits[:, 0]``.
    """
    _check_at_least_zero("spectral_decoupling", lam=lam)
    if penalty == "mean":
        return lam * logits.square().mean()
    if penalty == "norm":
        return lam / 2 * logits.square().sum() / len(logits)
    raise ValueError(f"spectral_decoupling: penalty must be 'mean' or 'norm', got {penalty!r}.")


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
        targets: :math:`t_c` for each class. The defaults are the published ones for CelebA's hair colour (Adam,
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
    _check_at_least_zero("spectral_decoupling_by_class", lam=lam)
    _check_range("spectral_decoupling_by_class: labels", labels, len(targets))
    f = logits.reshape(len(labels), -1)
    distances = (f - f.new_tensor(list(targets))[labels].unsqueeze(1)).square().mean(1)
    sums, counts = _sums_and_counts(distances, labels, len(targets))
    return lam * (sums / counts.clamp(min=1)).sum()


def softened_divergence(z: Tensor, teacher: Tensor, tau: float = 5.0) -> Tensor:
    r"""How far each example's prediction is from a teacher's, both softened: the part SAF and MESA share.

    .. math:: \tau^2\, \mathrm{KL}\bigl(\mathrm{softmax}(z'/\tau)\,\|\,\mathrm{softmax}(z/\tau)\bigr)

    Args:
        z: Logits (n, classes).
        teacher: The teacher's logits :math:`z'` of the same shape; no gradient flows into them.
        tau: Temperature; the factor :math:`\tau^2` keeps the gradient's size.

    Example:
        >>> softened_divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 1.0]]).log(), tau=1.0)
        tensor([0.1308])
    """
    if z.shape != teacher.shape or z.dim() != 2:
        raise ValueError(
            f"the loss needs logits (n, classes) of student and teacher alike, got shapes {tuple(z.shape)} and "
            f"{tuple(teacher.shape)}."
        )
    wide = torch.promote_types(z.dtype, torch.float32)
    log_p, log_q = ((t.to(wide) / tau).log_softmax(-1) for t in (teacher.detach(), z))
    return tau**2 * F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


class SAF(nn.Module):
    r"""Sharpness-aware training for free: stay near the model's own predictions of E epochs ago.

    .. math:: L = \mathrm{CE} + \frac{\lambda \tau^2}{n} \sum_i
              \mathrm{KL}\bigl(\mathrm{softmax}(z_i^{(e-E)}/\tau)\,\|\,\mathrm{softmax}(z_i/\tau)\bigr)

    The module is the second term, to be added to any loss. It keeps the logits of every training example, by id, for
    the last E + 1 epochs: :math:`N C (E+1)` numbers, 0.08 GB for CIFAR-100 and 20 GB for ImageNet in float32, half of
    that after ``saf.half()``. The bank lies where the module lies, on the CPU until it is moved, whatever the device
    of the logits. One slot more than E is what lets a perturbed pass read what the clean pass read.

    An example that was not seen E epochs ago (a new one, a dropped last batch, on another rank) adds 0.
    The ids must mean the same inputs in every epoch: no mixup or cutmix.

    Args:
        examples: N; ids are 0 to N - 1.
        classes: C.
        lam: Weight of the term; 0.3 in the paper, 0.16 by default in the released code.
        tau: Temperature.
        lag: E, how many epochs ago.
        start: First epoch with the term, counted from 0.
        end: First epoch without it again; ``None`` for never. The released code ends at 300.

    Example:
        >>> saf = SAF(examples=4, classes=2, lam=1.0, tau=1.0, lag=1, start=1)
        >>> ids = torch.tensor([2, 0])
        >>> saf(torch.tensor([[3.0, 1.0], [1.0, 1.0]]).log(), ids, epoch=0)
        tensor(0.)
        >>> saf(torch.zeros(2, 2), ids, epoch=1)  # 0.1308 for example 2, 0 for example 0
        tensor(0.0654)
        >>> saf(torch.zeros(2, 2), torch.tensor([1, 3]), epoch=1)  # never seen before
        tensor(0.)

    References:
        Du et al., Sharpness-Aware Training for Free, NeurIPS 2022, https://arxiv.org/abs/2205.14083

    Differences:
        The released code compares an example that it has not seen with logits 0, or with those of a much earlier
        epoch, has room for 1000 classes and E <= 3, and does not save the bank.
    """

    bank: Tensor
    epochs: Tensor

    def __init__(
        self,
        examples: int,
        classes: int,
        lam: float = 0.3,
        tau: float = 5.0,
        lag: int = 3,
        start: int = 6,
        end: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in {"examples": examples, "classes": classes, "lag": lag}.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"saf: {name} must be a whole number >= 1, got {value!r}.")
        _check_at_least_zero("saf", lam=lam)
        _check_tau("saf", tau)
        self.lam, self.tau, self.lag, self.start, self.end = lam, tau, lag, start, end
        self.register_buffer("bank", torch.zeros(lag + 1, examples, classes))
        self.register_buffer("epochs", torch.full((lag + 1, examples), -1, dtype=torch.int32))

    def forward(self, logits: Tensor, ids: Tensor, epoch: int) -> Tensor:
        """The term for a batch, whose logits are remembered.

        Args:
            logits: (n, classes).
            ids: Number of each example in the training set (n,), as the loader gives it.
            epoch: The epoch, counted from 0.
        """
        _, examples, classes = self.bank.shape
        if logits.shape != (len(ids), classes):
            raise ValueError(
                f"saf: logits must have the shape ({len(ids)}, {classes}), one row for each id and the classes "
                f"the bank was made for, got {tuple(logits.shape)}."
            )
        _check_range("saf: ids", ids, examples)
        ids = ids.to(self.bank.device)
        if self.training and not in_perturbed_pass() and _runs(epoch, 0, self.end):
            self._remember(logits.detach(), ids, epoch)
        then = epoch - self.lag
        if then < 0 or not _runs(epoch, self.start, self.end):
            return logits.new_zeros(())
        slot = then % (self.lag + 1)
        known = (self.epochs[slot, ids] == then).to(logits.device)
        past = self.bank[slot, ids].to(logits)
        divergence = softened_divergence(logits, torch.where(known.unsqueeze(1), past, 0), self.tau)
        return self.lam * torch.where(known, divergence, 0).mean()

    def _remember(self, logits: Tensor, ids: Tensor, epoch: int) -> None:
        slot, row = epoch % (self.lag + 1), logits.to(self.bank)
        usable = row.isfinite().all(1)
        self.bank[slot, ids] = row
        self.epochs[slot, ids] = torch.where(usable, epoch, -1).to(self.epochs.dtype)

    def extra_repr(self) -> str:
        return f"{self.bank.shape[1]} examples, lam={self.lam}, tau={self.tau}, lag={self.lag}"


class MESA(nn.Module):
    r"""Memory-efficient sharpness-aware training: stay near the predictions of a moving average of the model.

    .. math:: L = \mathrm{CE} + \frac{\lambda \tau^2}{n} \sum_i
              \mathrm{KL}\bigl(\mathrm{softmax}(z_i'/\tau)\,\|\,\mathrm{softmax}(z_i/\tau)\bigr), \qquad
              w' \leftarrow \delta w' + (1-\delta)\, w .

    The module is the second term, to be added to any loss; :meth:`update` moves the average after each step. It is
    SAF with one more forward pass (of the teacher, without gradient) in place of the bank: one more set of weights.
    The teacher stays in evaluation mode and averages BatchNorm's statistics too.

    Args:
        model: The model, not yet wrapped; it is copied.
        decay: :math:`\delta`; 0.9995 in the paper, 0.9998 by default in the released code.
        lam: Weight of the term; the released command uses 0.8.
        tau: Temperature.
        start: First epoch with the term, counted from 0; the teacher runs from there on.
        end: First epoch without it again; ``None`` for never. The released code ends at 360.

    Example:
        >>> model, x = nn.Linear(2, 3), torch.randn(4, 2)
        >>> mesa = MESA(model, decay=0.9)
        >>> mesa(model(x), x, epoch=6).item()  # the teacher is the model still
        0.0
        >>> with torch.no_grad():
        ...     _ = model.bias.add_(torch.tensor([1.0, 0.0, 0.0]))
        >>> mesa.update(model)  # after opt.step()
        >>> bool(mesa(model(x), x, epoch=6) > 0)
        True

    References:
        Du et al., Sharpness-Aware Training for Free, NeurIPS 2022, https://arxiv.org/abs/2205.14083
    """

    def __init__(
        self,
        model: nn.Module,
        decay: float = 0.9995,
        lam: float = 0.8,
        tau: float = 5.0,
        start: int = 6,
        end: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"mesa: decay must lie in [0, 1), got {decay!r}.")
        _check_at_least_zero("mesa", lam=lam)
        _check_tau("mesa", tau)
        self.lam, self.tau, self.start, self.end = lam, tau, start, end
        self.teacher = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)
        self.teacher.requires_grad_(False).eval()
        self.teacher.n_averaged.fill_(1)  # the weights it starts with

    def train(self, mode: bool = True) -> MESA:
        """Set the mode of the loss; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, logits: Tensor, x: Tensor, epoch: int) -> Tensor:
        """The term for a batch.

        Args:
            logits: What the model made of the batch (n, classes).
            x: The batch, as the model was given it.
            epoch: The epoch, counted from 0.
        """
        if not _runs(epoch, self.start, self.end):
            return logits.new_zeros(())
        with torch.no_grad():
            teacher = self.teacher(x)
        return self.lam * softened_divergence(logits, teacher, self.tau).mean()

    def update(self, model: nn.Module) -> None:
        """Move the teacher towards the model; call it after ``opt.step()``. It does nothing in a perturbed pass."""
        if not in_perturbed_pass():
            self.teacher.update_parameters(model)


def _sums_and_counts(values: Tensor, groups: Tensor, n_groups: int) -> tuple[Tensor, Tensor]:
    zeros = values.new_zeros(n_groups)
    return zeros.index_add(0, groups, values), zeros.index_add(0, groups, torch.ones_like(values))


def _runs(epoch: int, start: int, end: int | None) -> bool:
    return start <= epoch and (end is None or epoch < end)


def _check_range(name: str, values: Tensor, n: int) -> None:
    if not ((values >= 0) & (values < n)).all():
        raise ValueError(f"{name} must be 0 to {n - 1}, got {values.min().item()} to {values.max().item()}.")


def _check_at_least_zero(owner: str, **settings: float) -> None:
    for name, value in settings.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{owner}: {name} must be a finite number >= 0, got {value!r}.")


def _check_tau(owner: str, tau: float) -> None:
    if not 0 < tau < math.inf:
        raise ValueError(f"{owner}: tau must be a finite number > 0, got {tau!r}.")
