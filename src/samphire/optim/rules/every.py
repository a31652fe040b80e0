"""A rule on every k-th step."""

from __future__ import annotations

from dataclasses import dataclass

from samphire.checks import Count, check_fields
from samphire.optim.requests import Asking, At, Memory, Rule
from samphire.optim.rules.sam import sam
from samphire.tree import Vector

__all__ = ["every"]


@dataclass(frozen=True)
class every:
    """Any rule on every k-th step, plain gradients in between.  1 + (passes - 1)/k passes.

    Args:
        k: Steps from one use of the rule to the next; ``k=1`` is the rule itself.
        rule: The rule.

    Example:
        >>> every(5, sam(0.05)).passes
        1.2

    References:
        Composer's ``interval``; it scales rho up with k (0.5 for k=10).
    """

    k: Count = 5
    rule: Rule = sam(0.05)

    def __post_init__(self) -> None:
        check_fields(self, "every")

    @property
    def passes(self) -> float:
        return 1 + (self.rule.passes - 1) / self.k

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        if memory.step % self.k:
            return (yield At())
        inner = memory.part("rule")
        g = yield from self.rule.gradient(w, inner)
        inner.step += 1
        return g
