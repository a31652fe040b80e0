"""Efficient SAM."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from samphire.checks import PositiveFraction, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["esam"]


@dataclass(frozen=True)
class esam:
    r"""Efficient SAM: climb with some tensors, descend on the examples with the largest rise.  4/3 + gamma passes.

    .. math::
        \epsilon &= \frac{\rho}{\beta}\, g_S / \|g_S\|, \quad S: \text{each tensor with probability } \beta
            \text{ (stochastic weight perturbation)}, \\
        \text{descend along } & \nabla L_{B^+}(w + \epsilon), \quad B^+: \text{the } \gamma |B| \text{ examples
            with the largest rise of the loss (sharpness-sensitive data selection)}.

    Give :meth:`Pass.backward` the loss of each example, as for every rule that ranks them::

        def closure(p):
            losses = F.cross_entropy(model(x[p.examples]), y[p.examples], reduction="none")
            p.backward(losses)
            return losses.mean()

    Args:
        rho: Length of the step uphill before it is divided by beta, so the true length is ``rho / beta``.
        beta: Probability of each tensor; 1 takes all.
        gamma: Share of the examples in the second gradient (one at least); 1 takes all and saves their ranking.
        seed: Chooses the sequence of tensors.

    Example:
        >>> x = torch.tensor([0.0, 3.0])
        >>> losses = lambda w, examples=slice(None): (w["w"] - x[examples]) ** 2 / 2
        >>> sharpness_aware_gradient(esam(rho=0.1, beta=1.0, gamma=0.5), losses, {"w": torch.tensor(1.0)})
        {'w': tensor(-2.1000)}

    References:
        Du et al., Efficient Sharpness-aware Minimization for Improved Training of Neural Networks, ICLR 2022,
        https://arxiv.org/abs/2110.03141

    Differences:
        The released code keeps the examples strictly above the k-th rise, one too few, and none at all in a batch of
        two; here it is k, and never none. Its defaults are ``beta=1, gamma=1``; ours are those of its scripts.
        Under DistributedDataParallel each rank ranks its own examples.
    """

    rho: Rho = 0.05
    beta: PositiveFraction = 0.6
    gamma: PositiveFraction = 0.5
    seed: int = 0
    _: KW_ONLY
    climb: Climb = EVERYWHERE

    def __post_init__(self) -> None:
        check_fields(self, "esam")

    @property
    def passes(self) -> float:
        """The clean one, a forward to rank the examples (a third of a pass), and one on some of them."""
        return 1 + (0 if self.gamma == 1 else 1 / 3) + self.gamma

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        chosen = self._tensors(w, memory.step)
        g, before = yield At(wrt=chosen, losses=True)
        eps = self.climb(w, memory.radius(self.rho), g.only(chosen)) / self.beta
        del g
        if self.gamma == 1:
            return (yield At(eps))
        _, after = yield At(eps, wrt=frozenset(), losses=True)
        return (yield At(eps, examples=self._rising(after - before)))

    def _tensors(self, w: Vector, step: int) -> frozenset[str]:
        """Each tensor with probability beta, one at least: the same on every rank and after a resume."""
        names = [name for name in w if self.climb.wrt is None or name in self.climb.wrt]
        draws = torch.rand(len(names), generator=torch.Generator().manual_seed(self.seed + step)).tolist()
        return frozenset(n for n, u in zip(names, draws, strict=True) if u < self.beta or u == min(draws))

    def _rising(self, rise: Tensor) -> Tensor:
        """The examples with the largest rise, in the order of the batch; ties go to the first."""
        count = max(1, int(self.gamma * len(rise)))
        return rise.argsort(descending=True, stable=True)[:count].sort().values
