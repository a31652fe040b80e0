"""AE-SAM: a rule where the gradient is large."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from samphire.checks import BelowOne, Count, check_fields
from samphire.optim.requests import Asking, Memory, Rule, relayed
from samphire.optim.rules.sam import sam
from samphire.tree import Vector, norm

__all__ = ["ae_sam"]


@dataclass(frozen=True)
class ae_sam:
    r"""AE-SAM: a sharpness-aware step only where the gradient is large, by a running mean.  About 1.5 passes.

    .. math::
        \mu &\leftarrow \delta\mu + (1-\delta)\|g\|^2, \\
        s^2 &\leftarrow \delta s^2 + (1-\delta)(\|g\|^2 - \mu)^2, \\
        \text{the rule iff } & \|g\|^2 \ge \mu + c_t\, s, \quad c_t \text{ from high to low over the steps.}

    Args:
        steps: Length of the training, over which the threshold moves.
        rule: The rule for those steps; its first request must be the clean gradient.
        low: Threshold at the end (many such steps).
        high: Threshold at the start (few).
        decay: Of the running mean and variance, which start at 0 and exp(-10).

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(ae_sam(10), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0158, -3.1423])}

    References:
        Jiang et al., An Adaptive Policy to Employ Sharpness-Aware Minimization, ICLR 2023,
        https://arxiv.org/abs/2304.14647
    """

    steps: Count = 10_000
    rule: Rule = sam(0.05)
    low: float = -1.0
    high: float = 1.0
    decay: BelowOne = 0.9
    passes = 1.5  # about half of the steps, by design
    branches = True  # on the size of the gradient

    def __post_init__(self) -> None:
        check_fields(self, "ae_sam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        # The rule asks for the clean gradient first; it is sent the one we have already looked at. All of it, since
        # it may be what we descend along.
        inner = memory.part("rule")
        asking = self.rule.gradient(w, inner)
        request = next(asking)
        answer = yield replace(request, wrt=None)
        g = answer[0] if request.losses else answer
        size = norm(g).item() ** 2
        mean = self.decay * memory.get("mean", 0.0) + (1 - self.decay) * size
        variance = self.decay * memory.get("variance", math.exp(-10)) + (1 - self.decay) * (size - mean) ** 2
        memory["mean"], memory["variance"] = mean, variance
        t = min(1.0, memory.step / self.steps)
        if size < mean + (t * self.low + (1 - t) * self.high) * math.sqrt(variance):
            asking.close()
            return g
        descent = yield from relayed(asking, asking.send(answer))
        inner.step += 1
        return descent
