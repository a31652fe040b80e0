"""Rules around rules: on which steps, and on which examples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from samphire.optim.requests import Asking, At, Descent, Examples, Memory, Rule
from samphire.optim.rules.climbs import Sam
from samphire.tree import Vector, norm


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
        total = Descent(Vector())
        for j, start in enumerate(range(0, memory.n, self.m)):
            part = slice(start, min(start + self.m, memory.n))
            inner = memory.part(j, part)
            asking = self.rule.gradient(w, inner)
            descent = yield from _relayed(asking, next(asking), part)
            inner.step += 1
            total = total + (part.stop - part.start) / memory.n * Descent.of(descent)
        return total


def _relayed(asking: Asking, request: At, part: slice | None = None) -> Asking:
    """Pass a rule's requests on, from this one on, limited to a part of the batch."""
    while True:
        answer = yield request if part is None else replace(request, examples=_within(part, request.examples))
        try:
            request = asking.send(answer)
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


@dataclass(frozen=True)
class AeSam:
    """A rule on the steps whose gradient is large for its time, the plain gradient otherwise."""

    steps: int
    rule: Any
    low: float
    high: float
    decay: float
    passes = 1.5  # about half of the steps, by design

    def __post_init__(self) -> None:
        check_k("ae_sam", self.steps, "steps")
        if not 0 <= self.decay < 1:
            raise ValueError(f"ae_sam: decay must lie in [0, 1), got {self.decay!r}.")

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
        descent = yield from _relayed(asking, asking.send(answer))
        inner.step += 1
        return descent


def ae_sam(
    steps: int = 10_000, rule: Rule = Sam(0.05), low: float = -1.0, high: float = 1.0, decay: float = 0.9
) -> AeSam:
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
    return AeSam(steps, rule, low, high, decay)


def check_k(rule: str, k: int, name: str = "k") -> None:
    """Refuse an interval that is not a whole number of steps."""
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"{rule}: {name} must be a whole number of steps >= 1, got {k!r}.")
