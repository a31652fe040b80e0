"""Entropy-SGD."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from samphire import tree
from samphire.checks import AtLeastZero, BelowOne, Count, check_fields
from samphire.optim.requests import Asking, At, Climb, Memory
from samphire.optim.scopes import Scope
from samphire.tree import Vector

__all__ = ["entropy_sgd"]


@dataclass(frozen=True)
class entropy_sgd:
    r"""Entropy-SGD: walk around by Langevin dynamics, then descend toward the mean of the walk.  ``inner`` passes.

    .. math::
        w' &\leftarrow w' - \eta' \big(\nabla L(w') - \gamma (w - w')\big) + \sqrt{2\eta'}\, \varepsilon\, N(0, 1), \\
        \mu &\leftarrow \alpha \mu + (1-\alpha)\, w', \qquad \text{descend along } w - \mu.

    The result is a distance, not a gradient: the base optimizer's learning rate is the share of the way to
    :math:`\mu` that is taken (1 jumps there; published recipes go from 1 to 0.01).

    Args:
        inner: Langevin steps (L), a pass each; 20 in the paper.
        lr: Their learning rate :math:`\eta'`.
        gamma: How strongly they are pulled back.
        scoping: Growth of gamma with each step, ``gamma * (1 + scoping)**t``.
        noise: Of the Langevin steps, :math:`\varepsilon`.
        average: Weight of the old mean, :math:`\alpha`; the mean starts at the weights.
        seed: Chooses the noise: the same on every rank and after a resume.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(entropy_sgd(inner=2, noise=0.0), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 0.0662, -0.1837])}

    References:
        Chaudhari et al., Entropy-SGD: Biasing Gradient Descent Into Wide Valleys, ICLR 2017,
        https://arxiv.org/abs/1611.01838

    Differences:
        The released code computes one more gradient, which it throws away, has no scoping in Python (its counter is
        never raised), and gives every inner step a batch of its own: let the closure draw the next one for that.
    """

    inner: Count = 5
    lr: AtLeastZero | Tensor = 0.1
    gamma: AtLeastZero = 1e-2
    scoping: AtLeastZero = 0.0
    noise: AtLeastZero = 1e-4
    average: BelowOne = 0.75
    seed: int = 0
    _: KW_ONLY
    on: Scope = None

    def __post_init__(self) -> None:
        check_fields(self, "entropy_sgd")

    @property
    def passes(self) -> float:
        return float(self.inner)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        gamma = self.gamma * (1 + self.scoping) ** memory.step
        on = None if self.on is None else Climb(on=self.on).names
        away, mean = Vector(), Vector()  # w' - w and mu - w
        for i in range(self.inner):
            g = yield At(away, wrt=on)
            away = away - self.lr * (g + gamma * away)
            if self.noise:
                z = tree.randn_like(w.only(g.tensors), self.seed + memory.step * self.inner + i)
                away = away + self.noise * (2 * self.lr) ** 0.5 * z
            mean = self.average * mean + (1 - self.average) * away
        return -mean
