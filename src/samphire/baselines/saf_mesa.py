"""SAF and MESA: stay near earlier predictions of the same model, at the cost of a plain step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samphire.checks import Range, check_indices, check_number, check_whole
from samphire.optim.passes import in_perturbed_pass

__all__ = ["MESA", "SAF", "softened_divergence"]


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
            check_whole(f"saf: {name}", value)
        check_number("saf: lam", lam, Range(least=0))
        check_number("saf: tau", tau, Range(above=0))
        self.lam, self.tau, self.lag, self.start, self.end = lam, tau, lag, start, end
        self.register_buffer("bank", torch.zeros(lag + 1, examples, classes))
        self.register_buffer("epochs", torch.full((lag + 1, examples), -1, dtype=torch.int32))

    def forward(self, logits: Tensor, ids: Tensor, epoch: int) -> Tensor:
        """The term for a batch; its logits are remembered.

        Args:
            logits: (n, classes).
            ids: Number of each example in the training set (n,), as the loader gives it.
            epoch: The epoch, counted from 0.
        """
        _, examples, classes = self.bank.shape
        if logits.shape != (len(ids), classes):
            raise ValueError(
                f"saf: logits must have the shape ({len(ids)}, {classes}), one row for each id and the classes "
                f"of the bank, got {tuple(logits.shape)}."
            )
        check_indices("saf: ids", ids, examples)
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
        check_number("mesa: decay", decay, Range(least=0, below=1))
        check_number("mesa: lam", lam, Range(least=0))
        check_number("mesa: tau", tau, Range(above=0))
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
            logits: Of the model for the batch (n, classes).
            x: The batch, as the model was given it.
            epoch: The epoch, counted from 0.
        """
        if not _runs(epoch, self.start, self.end):
            return logits.new_zeros(())
        with torch.no_grad():
            teacher = self.teacher(x)
        return self.lam * softened_divergence(logits, teacher, self.tau).mean()

    def update(self, model: nn.Module) -> None:
        """Move the teacher towards the model; call it after ``opt.step()``. It has no effect in a perturbed pass."""
        if not in_perturbed_pass():
            self.teacher.update_parameters(model)


def _runs(epoch: int, start: int, end: int | None) -> bool:
    """Whether the term counts in this epoch."""
    return start <= epoch and (end is None or epoch < end)
