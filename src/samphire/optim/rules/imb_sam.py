"""ImbSAM: SAM for the rare classes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass

import torch

from samphire.checks import AtLeastZero, check_fields
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho
from samphire.tree import Vector

__all__ = ["imb_sam"]


@dataclass(frozen=True)
class imb_sam:
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

    rho: Rho = 0.05
    tail: Iterable[int] = ()
    weight: AtLeastZero = 2.0
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 3.0

    def __post_init__(self) -> None:
        check_fields(self, "imb_sam")
        object.__setattr__(self, "tail", frozenset(self.tail))

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        if memory.labels is None:
            raise TypeError("imb_sam tells classes apart; give the batch's labels: opt.step(closure, labels=y).")
        classes = torch.tensor(sorted(self.tail), device=memory.labels.device)
        rare = (memory.labels[:, None] == classes).any(1)
        tail, head = self.weight * rare.float(), (~rare).float()
        eps = self.climb(w, memory.radius(self.rho), (yield At(wrt=self.climb.wrt, weights=tail)))
        g_head = yield At(weights=head)
        return g_head + (yield At(eps, weights=tail))
