"""Sparse SAM with a dynamic mask."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

from samphire import tree
from samphire.checks import BelowOne, Count, Fraction, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.rules.ssam_f import entries_kept, masked
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["ssam_d"]


@dataclass(frozen=True)
class ssam_d:
    r"""Sparse SAM, dynamic: climb with some entries; now and then the flattest of them are replaced.  Two passes.

    .. math:: \epsilon = m \odot \rho\, g/\|g\|; \qquad \text{now and then } \tfrac a2 (1 + \cos \tfrac{\pi t}{T})
              (1-s)\, d \text{ active entries of least } |g| \text{ make room for as many at random.}

    The first mask is random. A new mask is used from the next step on. ``opt.last.perturbed`` is the share of entries
    that moved; the mask is part of ``opt.state_dict()``.

    Args:
        rho: Length of the step before the mask.
        sparsity: Share of the entries left out; 0 is SAM.
        every: Steps from one change of the mask to the next.
        steps: Length of the training (T); the later, the fewer entries are replaced.
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
        of 0.2 begins with 0.6 of the entries instead of 0.8; here no more are dropped than can grow.
    """

    rho: Rho = 0.1
    sparsity: BelowOne = 0.5
    every: Count = 400
    steps: Count = 10_000
    drop: Fraction = 0.5
    seed: int = 0
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "ssam_d")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        where = self.climb.within(w)
        mask = memory.get("mask", Vector())
        new = where.only(where.tensors.keys() - mask.tensors.keys())  # all, or a group added since
        mask = mask + tree.largest(tree.randn_like(new, self.seed), entries_kept(new, self.sparsity))
        memory["mask"] = self._next(mask, g, where, memory.step) if memory.step % self.every == 0 else mask
        return (yield At(masked(self.climb(w, memory.radius(self.rho), g), mask)))

    def _next(self, mask: Vector, g: Vector, where: Vector, step: int) -> Vector:
        """Without some active entries, those of least ``|g|``; with as many inactive ones, drawn at random."""
        share = self.drop / 2 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))
        kept = entries_kept(where, self.sparsity)
        count = min(int(share * kept), tree.size(where) - kept)
        noise = tree.randn_like(where, self.seed + 1 + step).tensors
        flat = {n: -(g.tensors[n].to_dense() if n in g else 0 * t).abs().where(mask.tensors[n], math.inf)
                for n, t in where.tensors.items()}  # fmt: skip
        luck = {n: t.where(~mask.tensors[n], -math.inf) for n, t in noise.items()}
        dropped, grown = tree.largest(Vector(flat), count), tree.largest(Vector(luck), count)
        return Vector({n: (m & ~dropped.tensors[n]) | grown.tensors[n] for n, m in mask.tensors.items()})
