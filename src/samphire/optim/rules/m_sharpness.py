"""m-sharpness: a rule on each part of the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from samphire.checks import Count, check_fields
from samphire.optim.requests import Asking, At, Descent, Memory, Rule, relayed
from samphire.optim.rules.sam import sam
from samphire.tree import Vector

__all__ = ["m_sharpness"]


@dataclass(frozen=True)
class m_sharpness:
    r"""m-sharpness: its own perturbation for every micro-batch of m examples.  The passes of the inner rule.

    .. math:: \text{descend along } \frac1n \sum_j |B_j|\; G(w; B_j), \qquad |B_j| \le m,

    with ``G`` the inner rule's gradient on part ``B_j`` of the batch. SAM papers that train on many
    replicas without synchronizing the perturbation do this implicitly.

    Args:
        m: Examples that share one perturbation (a size, not a number of parts).
        rule: The rule for each part; each part keeps its own memory.

    Example:
        >>> x = torch.tensor([1.0, 3.0])
        >>> def loss(w, examples=slice(None)):
        ...     return ((w["w"] - x[examples]) ** 4).mean()
        >>> rule = m_sharpness(1, sam(0.5))
        >>> sharpness_aware_gradient(rule, loss, {"w": torch.tensor(1.0)}, Memory(n=2))
        {'w': tensor(-31.2500)}

    References:
        Foret et al. 2021, section 4; Andriushchenko and Flammarion, Towards Understanding Sharpness-Aware
        Minimization, ICML 2022.
    """

    m: Count = 16
    rule: Rule = sam(0.05)

    def __post_init__(self) -> None:
        check_fields(self, "m_sharpness")

    @property
    def passes(self) -> float:
        return self.rule.passes

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        if memory.n is None:
            raise TypeError(
                "m_sharpness needs to know the size of the batch and a closure that takes a part of it: "
                "opt.step(closure, n=len(x)) with 'def closure(p)' using x[p.examples], y[p.examples]."
            )
        total = Descent(Vector())
        for j, start in enumerate(range(0, memory.n, self.m)):
            part = slice(start, min(start + self.m, memory.n))
            inner = memory.part(j, part)
            asking = self.rule.gradient(w, inner)
            descent = yield from relayed(asking, next(asking), partial(_within, part))
            inner.step += 1
            total = total + (part.stop - part.start) / memory.n * Descent.of(descent)
        return total


def _within(part: slice, request: At) -> At:
    """A request about examples of a part, counted from its start, as one about the batch."""
    inner = request.examples
    if inner is None:
        return replace(request, examples=part)
    if isinstance(inner, slice):
        return replace(request, examples=slice(part.start + inner.start, part.start + inner.stop))
    return replace(request, examples=inner + part.start)
