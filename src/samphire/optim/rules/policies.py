"""Rules around rules: on which steps, and on which examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from samphire.optim.protocol import Asking, At, Examples, Memory, Rule
from samphire.optim.rules.climbs import Sam
from samphire.tree import Vector


@dataclass(frozen=True)
class Every:
    """A rule on every k-th step, the plain gradient otherwise."""

    k: int
    rule: Any

    def __post_init__(self) -> None:
        check_k("every", self.k)

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


def every(k: int = 5, rule: Rule = Sam(0.05)) -> Every:
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
    return Every(k, rule)


@dataclass(frozen=True)
class MSharpness:
    """A rule applied to each micro-batch by itself, the results averaged."""

    m: int
    rule: Any

    def __post_init__(self) -> None:
        if not isinstance(self.m, int) or self.m < 1:
            raise ValueError(f"m_sharpness: m must be a number of examples >= 1, got {self.m!r}.")

    @property
    def passes(self) -> float:
        return self.rule.passes

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        if memory.n is None:
            raise TypeError(
                "m_sharpness needs to know the size of the batch and a closure that takes a part of it: "
                "opt.step(closure, n=len(x)) with 'def closure(p)' using x[p.examples], y[p.examples]."
            )
        total = Vector()
        for j, start in enumerate(range(0, memory.n, self.m)):
            part = slice(start, min(start + self.m, memory.n))
            size = part.stop - part.start
            inner = memory.part(j, n=size)
            g = yield from _on_examples(part, self.rule.gradient(w, inner))
            inner.step += 1
            total = total + (size / memory.n) * g
        return total


def _on_examples(part: slice, asking: Asking) -> Asking:
    request = next(asking)
    while True:
        g = yield replace(request, examples=_within(part, request.examples))
        try:
            request = asking.send(g)
        except StopIteration as done:
            return done.value


def _within(part: slice, inner: Examples) -> Examples:
    """Examples counted from the start of a part, counted from the start of the batch."""
    if inner is None:
        return part
    if isinstance(inner, slice):
        return slice(part.start + inner.start, part.start + inner.stop)
    return inner + part.start


def m_sharpness(m: int = 16, rule: Rule = Sam(0.05)) -> MSharpness:
    r"""m-sharpness: a perturbation of its own for every micro-batch of m examples.  The passes of the inner rule.

    .. math:: \text{descend along } \frac1n \sum_j |B_j|\; G(w; B_j), \qquad |B_j| \le m,

    with ``G`` the inner rule's gradient on part ``B_j`` of the batch. SAM papers that train on many
    replicas without synchronising the perturbation do this implicitly.

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
    return MSharpness(m, rule)


def check_k(name: str, k: int) -> None:
    """Refuse an interval that is not a whole number of steps."""
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"{name}: k must be a whole number of steps >= 1, got {k!r}.")
