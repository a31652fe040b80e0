"""Rules that reuse gradients of earlier steps, to save passes or to steady the direction."""

from __future__ import annotations

from dataclasses import dataclass

from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.rules.policies import check_k
from samphire.optim.schedules import Rho, check_rho
from samphire.optim.scopes import Scope
from samphire.tree import Vector, norm, project, unit


@dataclass(frozen=True)
class LookSam:
    """SAM every k steps; in between, the part of it that changes slowly is reused."""

    rho: Rho
    k: int
    alpha: float
    climb: Climb = EVERYWHERE

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_k("looksam", self.k)
        if not self.alpha >= 0:
            raise ValueError(f"looksam: alpha must be >= 0, got {self.alpha!r}.")

    @property
    def passes(self) -> float:
        return 1 + 1 / self.k

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        if memory.step % self.k:
            return g + (self.alpha * norm(g)) * unit(memory["v"])
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        memory["v"] = g_p - project(g_p, onto=g)
        return g_p


def looksam(rho: Rho = 0.05, k: int = 5, alpha: float = 0.7) -> LookSam:
    r"""LookSAM: a SAM step every k-th step, its slowly changing part reused in between.  1 + 1/k passes.

    .. math::
        t \bmod k = 0:&\quad \text{descend along } g_p,\quad g_v = g_p - \mathrm{proj}_g\, g_p \\
        \text{else}:&\quad \text{descend along } g + \alpha\, \frac{\|g\|}{\|g_v\|}\, g_v.

    Args:
        rho: Length of the step uphill.
        k: Steps between two SAM steps; ``k=1`` is SAM.
        alpha: Weight of the reused part.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(looksam(rho=0.1), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0316, -3.2846])}

    References:
        Liu et al., Towards Efficient and Scalable Sharpness-Aware Minimization, CVPR 2022,
        https://arxiv.org/abs/2203.02714

    Differences:
        None from the paper. The ports in rollovd/LookSAM and pytorch-optimizer project tensor by tensor,
        which turns one-element tensors into plain SGD.
    """
    return LookSam(rho, k, alpha)


@dataclass(frozen=True)
class Msam:
    """Climb along the momentum, which costs no pass."""

    rho: Rho
    mu: float
    on: Scope = None
    passes = 1.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        if not 0 <= self.mu < 1:
            raise ValueError(f"msam: mu must lie in [0, 1), got {self.mu!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        v = memory.get("v", Vector())
        along = v if self.on is None else v.only(Climb(on=self.on).names)
        g = yield At(memory.radius(self.rho) * -unit(along))
        memory["v"] = g + self.mu * v
        return g


def msam(rho: Rho = 0.3, mu: float = 0.9) -> Msam:
    r"""Momentum-SAM: the last steps' momentum gives the direction.  One pass.

    .. math:: g = \nabla L(w - \rho\, v/\|v\|), \qquad v \leftarrow \mu v + g, \qquad \text{descend along } g.

    The displacement points downhill (``v`` accumulates gradients), as in Nesterov's method but of fixed
    length. The first step is clean. The only pass of a step is the displaced one, so its loss is what
    ``step`` returns and BatchNorm sees.

    Args:
        rho: Length of the displacement; much larger than SAM's (0.3 to 3).
        mu: Momentum; give the base optimizer the same.

    Example:
        >>> memory, w = Memory(), {"w": torch.tensor([1.0, -1.0])}
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(msam(), loss, w, memory)
        {'w': tensor([ 1., -3.])}
        >>> sharpness_aware_gradient(msam(), loss, {"w": torch.tensor([0.9, -0.7])}, memory)
        {'w': tensor([ 0.8051, -1.2462])}

    References:
        Becker et al., Momentum-SAM, 2024, https://arxiv.org/abs/2401.12033

    Differences:
        The released code leaves the live weights displaced between steps, takes the old displacement out
        with the new rho, and adds weight decay at the displaced point; here the weights are put back
        within each step and ``v`` is the momentum of the loss gradients alone.
    """
    return Msam(rho, mu)


@dataclass(frozen=True)
class Stale:
    """Climb along the last step's descent gradient, which costs no pass."""

    rho: Rho
    climb: Climb = EVERYWHERE
    passes = 1.0

    def __post_init__(self) -> None:
        check_rho(self.rho)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        last = memory.get("last", Vector())
        memory["last"] = yield At(self.climb(w, memory.radius(self.rho), last))
        return memory["last"]


def stale(rho: Rho = 0.05) -> Stale:
    r"""S²-SAM: the last step's gradient gives the direction of the climb.  One pass.

    .. math:: g_t = \nabla L_t(w_t + \rho\, g_{t-1}/\|g_{t-1}\|), \qquad \text{descend along } g_t.

    The first step is clean. The only pass of a step is the displaced one, so its loss is what ``step`` returns and
    BatchNorm sees.

    Args:
        rho: Length of the step uphill.

    Example:
        >>> memory, w = Memory(), {"w": torch.tensor([1.0, -1.0])}
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(stale(), loss, w, memory)
        {'w': tensor([ 1., -3.])}
        >>> sharpness_aware_gradient(stale(), loss, {"w": torch.tensor([0.9, -0.7])}, memory)
        {'w': tensor([ 0.9158, -2.2423])}

    References:
        Single-step Sharpness-Aware Minimization for sparse training (S²-SAM), NeurIPS 2024,
        https://openreview.net/forum?id=MJgMMqMDu4

    Differences:
        None from the formula. The released code looks at ``p.grad`` before the backward pass, so with gradients set
        to None it is plain SGD; here the gradient is kept in the rule's memory.
    """
    return Stale(rho)


@dataclass(frozen=True)
class Friendly:
    """Climb along what is particular to the batch: its gradient less the running mean."""

    rho: Rho
    sigma: float
    lam: float
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        _check_share("friendly", "lam", self.lam)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        m = memory.get("m")
        memory["m"] = g if m is None else self.lam * m + (1 - self.lam) * g
        own = g if m is None else g - self.sigma * m
        return (yield At(self.climb(w, memory.radius(self.rho), own)))


def friendly(rho: Rho = 0.1, sigma: float = 1.0, lam: float = 0.9) -> Friendly:
    r"""Friendly SAM: climb without the full-batch part of the gradient, which is estimated by a mean.  Two passes.

    .. math:: \epsilon = \rho\, \widehat{(g - \sigma m)}, \qquad m \leftarrow \lambda m + (1-\lambda)\, g.

    Args:
        rho: Length of the step.
        sigma: How much of the mean is taken out; 0 is SAM.
        lam: Decay of the mean, which starts as the first gradient.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(friendly(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0316, -3.2846])}

    References:
        Li et al., Friendly Sharpness-Aware Minimization, CVPR 2024, https://arxiv.org/abs/2403.12350

    Differences:
        The mean taken out is the one before this batch, as in the released code; the paper's line has the one after,
        which for ``sigma=1`` is the same direction.
    """
    return Friendly(rho, sigma, lam)


@dataclass(frozen=True)
class Vasso:
    """Climb along a running mean of the gradients."""

    rho: Rho
    theta: float
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        _check_share("vasso", "theta", self.theta)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        d = memory.get("d")
        memory["d"] = g if d is None else (1 - self.theta) * d + self.theta * g
        return (yield At(self.climb(w, memory.radius(self.rho), memory["d"])))


def vasso(rho: Rho = 0.1, theta: float = 0.9) -> Vasso:
    r"""VaSSO: a steadier direction of climb, by a running mean of the gradients.  Two passes.

    .. math:: d \leftarrow (1-\theta)\, d + \theta\, g, \qquad \epsilon = \rho\, d/\|d\|.

    Args:
        rho: Length of the step uphill.
        theta: Weight of the new gradient (not of the old mean); 1 is SAM. The mean starts as the first gradient.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(vasso(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0316, -3.2846])}

    References:
        Li and Giannakis, Enhancing Sharpness-Aware Optimization Through Variance Suppression, NeurIPS 2023,
        https://arxiv.org/abs/2309.15639
    """
    return Vasso(rho, theta)


def _check_share(rule: str, name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{rule}: {name} must lie in [0, 1], got {value!r}.")
