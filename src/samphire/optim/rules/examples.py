"""Rules that look at single examples: rank them by their losses, or weigh them by their class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho, check_rho
from samphire.tree import Vector


@dataclass(frozen=True)
class Esam:
    """SAM with some of the tensors and some of the examples."""

    rho: Rho
    beta: float
    gamma: float
    seed: int = 0
    climb: Climb = EVERYWHERE

    def __post_init__(self) -> None:
        check_rho(self.rho)
        for name in ("beta", "gamma"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"esam: {name} must lie in (0, 1], got {getattr(self, name)!r}.")

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
        """The examples whose loss rose most, in the order of the batch; of equals, the first."""
        count = max(1, int(self.gamma * len(rise)))
        return rise.argsort(descending=True, stable=True)[:count].sort().values


def esam(rho: Rho = 0.05, beta: float = 0.6, gamma: float = 0.5, seed: int = 0) -> Esam:
    r"""Efficient SAM: climb with some tensors, descend on the examples that suffer most.  4/3 + gamma passes.

    .. math::
        \epsilon &= \frac{\rho}{\beta}\, g_S / \|g_S\|, \quad S: \text{each tensor with probability } \beta
            \text{ (stochastic weight perturbation)}, \\
        \text{descend along } & \nabla L_{B^+}(w + \epsilon), \quad B^+: \text{the } \gamma |B| \text{ examples
            whose loss rose most (sharpness-sensitive data selection)}.

    Give :meth:`Pass.backward` the loss of each example, as for every rule that ranks them::

        def closure(p):
            losses = F.cross_entropy(model(x[p.examples]), y[p.examples], reduction="none")
            p.backward(losses)
            return losses.mean()

    Args:
        rho: Length of the step uphill before it is divided by beta, so the real length is ``rho / beta``.
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
    return Esam(rho, beta, gamma, seed)


@dataclass(frozen=True)
class ImbSam:
    """SAM for the rare classes, SGD for the others."""

    rho: Rho
    tail: frozenset[int]
    weight: float
    climb: Climb = EVERYWHERE
    passes = 3.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        if not self.weight >= 0:
            raise ValueError(f"imb_sam: weight must be >= 0, got {self.weight!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        if memory.labels is None:
            raise TypeError("imb_sam tells classes apart; give the batch's labels: opt.step(closure, labels=y).")
        classes = torch.tensor(sorted(self.tail), device=memory.labels.device)
        rare = (memory.labels[:, None] == classes).any(1)
        tail, head = self.weight * rare.float(), (~rare).float()
        eps = self.climb(w, memory.radius(self.rho), (yield At(wrt=self.climb.wrt, weights=tail)))
        g_head = yield At(weights=head)
        return g_head + (yield At(eps, weights=tail))


def imb_sam(rho: Rho = 0.05, tail: Iterable[int] = (), weight: float = 2.0) -> ImbSam:
    r"""ImbSAM: sharpness of the rare classes' loss alone, for long-tailed data.  Three passes.

    .. math:: \text{descend along } \nabla L_\text{head}(w) + \nabla L_\text{tail}(w + \epsilon), \qquad
              \epsilon = \rho\, \nabla L_\text{tail} / \|\nabla L_\text{tail}\|,

    with :math:`L_\text{head} = \frac1{|B|}\sum_{y_i \notin \text{tail}} \ell_i` and :math:`L_\text{tail} =
    \frac{\text{weight}}{|B|} \sum_{y_i \in \text{tail}} \ell_i`. A batch without rare classes is a step of SGD.

    It needs the labels, ``opt.step(closure, labels=y)``, and the loss of each example, ``p.backward(losses)``.

    Args:
        rho: Length of the step uphill.
        tail: The rare classes; in the paper, those with fewer than 20 training examples.
        weight: Of the rare classes' loss; 2 in the released code, 1 in the paper.

    Example:
        >>> x = torch.tensor([0.0, 3.0])
        >>> losses = lambda w, examples=slice(None): (w["w"] - x[examples]) ** 2 / 2
        >>> memory = Memory(labels=torch.tensor([0, 1]))
        >>> sharpness_aware_gradient(imb_sam(0.1, tail=[1]), losses, {"w": torch.tensor(1.0)}, memory)
        {'w': tensor(-1.6000)}

    References:
        Zhou et al., ImbSAM: A Closer Look at Sharpness-Aware Minimization in Class-Imbalanced Recognition,
        ICCV 2023, https://arxiv.org/abs/2308.07815

    Differences:
        None in the gradients. The released code shares one forward between the two clean gradients.
    """
    return ImbSam(rho, frozenset(tail), weight)
