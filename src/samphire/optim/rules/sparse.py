"""Rules that perturb some of the entries: a mask in the rule's memory says which."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from samphire import tree
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.rules.policies import check_k
from samphire.optim.schedules import Rho, check_rho
from samphire.tree import Vector

Scores = Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True)
class SsamF:
    """SAM on the entries that matter most, by their Fisher information."""

    rho: Rho
    sparsity: float
    every: int
    fisher: Scores | None = None
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_k("ssam_f", self.every, "every")
        _check_sparsity("ssam_f", self.sparsity)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        if memory.step % self.every == 0:
            scores = tree.times(g, g.tensors) if self.fisher is None else Vector(self.fisher()).only(g.tensors)
            memory["mask"] = tree.largest(scores, _kept(scores, self.sparsity))
        return (yield At(_masked(self.climb(w, memory.radius(self.rho), g), memory["mask"])))


def ssam_f(rho: Rho = 0.1, sparsity: float = 0.5, every: int = 400, fisher: Scores | None = None) -> SsamF:
    r"""Sparse SAM, Fisher: climb with the entries of largest Fisher information.  Two passes.

    .. math:: \epsilon = m \odot \rho\, g/\|g\|, \qquad m = \text{top } (1-s)\, d \text{ entries of }
              \tfrac1n \textstyle\sum_i (\nabla \ell_i)^2.

    The length is not made up for the entries left out. ``opt.last.perturbed`` says how many moved. The mask is
    part of ``opt.state_dict()``.

    Args:
        rho: Length of the step before the mask.
        sparsity: Share of the entries left out; 0 is SAM.
        every: Steps from one mask to the next; one to five epochs in the paper.
        fisher: Gives the information of each entry by name, as in ``lambda: fisher(model, loss, batches)`` with
            :func:`samphire.optim.fisher` on data of your choice. Without it, the batch's squared gradient.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(ssam_f(rho=0.05), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0000, -3.1423])}

    References:
        Mi et al., Make Sharpness-Aware Minimization Stronger: A Sparsified Perturbation Approach, NeurIPS 2022,
        https://arxiv.org/abs/2210.05177

    Differences:
        The released code takes its first step without a climb and runs the Fisher pass in training mode with single
        examples, which spoils BatchNorm's statistics; here the mask is there from the first step and
        :func:`samphire.optim.fisher` leaves the model as it was.
    """
    return SsamF(rho, sparsity, every, fisher)


@dataclass(frozen=True)
class SsamD:
    """SAM on some entries, which change by drop and grow."""

    rho: Rho
    sparsity: float
    every: int
    steps: int
    drop: float
    seed: int = 0
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_k("ssam_d", self.every, "every")
        check_k("ssam_d", self.steps, "steps")
        _check_sparsity("ssam_d", self.sparsity)
        if not 0 <= self.drop <= 1:
            raise ValueError(f"ssam_d: drop must lie in [0, 1], got {self.drop!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        where = w if self.climb.wrt is None else w.only(self.climb.wrt)
        mask = memory.get("mask")
        if mask is None:
            mask = tree.largest(tree.randn_like(where, self.seed), _kept(where, self.sparsity))
        memory["mask"] = self._next(mask, g, where, memory.step) if memory.step % self.every == 0 else mask
        return (yield At(_masked(self.climb(w, memory.radius(self.rho), g), mask)))

    def _next(self, mask: Vector, g: Vector, where: Vector, step: int) -> Vector:
        """Without some active entries, those of least ``|g|``; with as many inactive ones, drawn at random."""
        share = self.drop / 2 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))
        kept = _kept(where, self.sparsity)
        count = min(int(share * kept), tree.size(where) - kept)
        noise = tree.randn_like(where, self.seed + 1 + step).tensors
        flat = {n: -(g.tensors[n].to_dense() if n in g else 0 * t).abs().where(mask.tensors[n], math.inf)
                for n, t in where.tensors.items()}  # fmt: skip
        luck = {n: t.where(~mask.tensors[n], -math.inf) for n, t in noise.items()}
        dropped, grown = tree.largest(Vector(flat), count), tree.largest(Vector(luck), count)
        return Vector({n: (m & ~dropped.tensors[n]) | grown.tensors[n] for n, m in mask.tensors.items()})


def ssam_d(
    rho: Rho = 0.1, sparsity: float = 0.5, every: int = 400, steps: int = 10_000, drop: float = 0.5, seed: int = 0
) -> SsamD:
    r"""Sparse SAM, dynamic: climb with some entries, of which the flattest are replaced now and then.  Two passes.

    .. math:: \epsilon = m \odot \rho\, g/\|g\|; \qquad \text{every so often } \tfrac a2 (1 + \cos \tfrac{\pi t}{T})
              (1-s)\, d \text{ active entries of least } |g| \text{ make room for as many at random.}

    The first mask is random. A new mask is used from the next step on. ``opt.last.perturbed`` says how many entries
    moved; the mask is part of ``opt.state_dict()``.

    Args:
        rho: Length of the step before the mask.
        sparsity: Share of the entries left out; 0 is SAM.
        every: Steps from one change of the mask to the next.
        steps: Length of the training (T), over which fewer and fewer are replaced.
        drop: Share of the active entries replaced at first (a).
        seed: Chooses the random entries: the same on every rank and after a resume.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(ssam_d(rho=0.05), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0158, -3.0000])}

    References:
        Mi et al., Make Sharpness-Aware Minimization Stronger: A Sparsified Perturbation Approach, NeurIPS 2022,
        https://arxiv.org/abs/2210.05177

    Differences:
        The released code drops more entries than it can grow where ``sparsity < a / (1 + a)``, so that its default
        of 0.2 begins with 0.6 of the entries instead of 0.8; here as many are dropped as there are to grow.
    """
    return SsamD(rho, sparsity, every, steps, drop, seed)


def _kept(v: Vector, sparsity: float) -> int:
    """How many entries climb."""
    return tree.size(v) - int(sparsity * tree.size(v))


def _masked(eps: Vector, mask: Vector) -> Vector:
    return tree.times(eps.only(mask.tensors), mask.tensors)


def _check_sparsity(rule: str, sparsity: float) -> None:
    if not 0 <= sparsity < 1:
        raise ValueError(f"{rule}: sparsity must lie in [0, 1), got {sparsity!r}; at 1 nothing would climb.")
