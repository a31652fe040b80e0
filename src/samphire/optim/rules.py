r"""The rules of the SAM family, each a small frozen coroutine that reads like its paper's algorithm.

Symbols: ``w`` weights, ``g`` clean gradient, ``eps`` displacement, ``rho`` its length, ``t`` step from 0.

For all rules: the norm runs over all perturbed parameters together; a zero gradient means no climb; weight
decay belongs to the base optimizer, so it neither bends the ascent nor is evaluated at ``w + eps``
(google-research/sam has it inside the loss: for that, add the penalty to yours and take it out of the optimizer).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from samphire import tree
from samphire.optim import scopes
from samphire.optim.protocol import EVERYWHERE, Asking, At, Climb, Examples, Memory, Rule
from samphire.optim.schedules import Rho, check_rho
from samphire.optim.scopes import Scope
from samphire.tree import Vector, norm, project, unit


@dataclass(frozen=True)
class Sam:
    """Climb, then descend along the gradient found there."""

    rho: Rho
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        rho = memory.radius(self.rho)
        # One expression, so that nothing keeps the clean gradient alive during the second pass.
        return (yield At(self.climb(w, rho, (yield At(wrt=_bound(self.climb.on))))))


def _bound(scope: Scope) -> frozenset[str] | None:
    return scope if isinstance(scope, frozenset) else None


def sam(rho: Rho = 0.05) -> Sam:
    r"""Sharpness-aware minimization: descend along the gradient found one step uphill.  Two passes.

    .. math:: \epsilon = \rho\, g / \|g\|, \qquad \text{descend along } \nabla L(w + \epsilon).

    Args:
        rho: Length of the step uphill. 0.05 on CIFAR-10 and ImageNet ResNets, 0.1 to 0.2 for ViTs.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(sam(rho=0.05), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0158, -3.1423])}

    References:
        Foret et al., Sharpness-Aware Minimization, ICLR 2021, https://arxiv.org/abs/2010.01412
        (equation 3 of Springer et al. 2024).
    """
    return Sam(rho)


@dataclass(frozen=True)
class Magnitude:
    """ASAM's metric ``T = |w| + eta`` on the chosen tensors, 1 on the others."""

    eta: float
    scaled: str

    def __call__(self, w: Vector, v: Vector) -> Vector:
        sizes = {n: w.tensors[n].abs() + self.eta for n in v if SCALED[self.scaled](n, w.tensors[n])}
        return tree.times(v, sizes)


SCALED: dict[str, Callable[[str, Tensor], bool]] = {
    "weights": lambda name, t: "weight" in name.rpartition(".")[2],
    "matrices": lambda name, t: t.ndim > 1,
    "all": lambda name, t: True,
}


def asam(rho: Rho = 0.5, eta: float = 0.01, scaled: Literal["weights", "matrices", "all"] = "weights") -> Sam:
    r"""Adaptive SAM: climb in proportion to the size of each weight.  Two passes.

    .. math:: T = \mathrm{diag}(|w| + \eta), \qquad \epsilon = \rho\, T^2 g / \|T g\|.

    Rescaling one layer up and the next one down leaves the method unchanged (up to ``eta``).

    Args:
        rho: Length of the step measured by :math:`T^{-1}`; about ten times SAM's.
        eta: Keeps weights near zero movable.
        scaled: Which tensors ``T`` scales, the others having ``T = 1``: ``"weights"`` those named so (norm
            scales too, biases not: the released code), ``"matrices"`` those of two or more dimensions
            (neither), ``"all"`` (both; with ``eta=0`` this is davda54/sam's ``adaptive``).

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["weight"] ** 2).sum()
        >>> sharpness_aware_gradient(asam(rho=0.5, eta=0.01), loss, {"weight": torch.tensor([1.0, -2.0])})
        {'weight': tensor([ 1.0421, -9.0045])}

    References:
        Kwon et al., ASAM, ICML 2021, https://arxiv.org/abs/2102.11600

    Differences:
        big_vision's ``adaptive_perturbation`` is another formula (``|w| g / |g|``) and is not offered.
    """
    if not eta >= 0:
        raise ValueError(f"asam: eta must be >= 0, got {eta!r}.")
    if scaled not in SCALED:
        raise ValueError(f"asam: scaled must be one of {', '.join(map(repr, SCALED))}, got {scaled!r}.")
    return Sam(rho, Climb(metric=Magnitude(eta, scaled)))


def lsam(rho: Rho = 0.05, head: str | Iterable[str] | Scope = scopes.head) -> Sam:
    r"""Last-layer SAM: climb with the head alone, descend with everything.  Two passes; one by ``split``.

    .. math:: \tilde v = v + \rho\, \nabla_v L / \|\nabla_v L\|, \qquad
              \text{descend along } \nabla_{(\theta, v)} L(\theta, \tilde v).

    ``split(model).one_pass`` makes a closure that takes this step at the cost of SGD.

    Args:
        rho: Length of the step, measured over the head.
        head: The module that is the last layer, or the names of its parameters; by default the model's
            last Linear layer.

    Example:
        >>> loss = lambda w: (w["body"] * w["head"]).sum()
        >>> w = {"body": torch.tensor([3.0, 4.0]), "head": torch.tensor([1.0, 1.0])}
        >>> sharpness_aware_gradient(lsam(rho=0.5, head="head"), loss, w)["body"]
        tensor([1.3000, 1.4000])

    References:
        Springer, Nagarajan, Raghunathan, Sharpness-Aware Minimization Enhances Feature Quality via Balanced
        Learning, ICLR 2024 (section 5.1).
    """
    return Sam(rho, Climb(on=scopes.as_scope(head)))


def sam_on(rho: Rho = 0.5, layers: tuple[type[nn.Module], ...] = scopes.NORM_LAYERS) -> Sam:
    r"""SAM on the normalisation layers only.  Two passes.

    .. math:: \epsilon = \rho\, g_N / \|g_N\| \text{ on the scales and shifts } N \text{ of the norm layers, else } 0.

    Args:
        rho: Length of the step; about ten times SAM's.
        layers: The module types that count as normalisation layers.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
        >>> sorted(bind(sam_on(), model).climb.on)
        ['1.bias', '1.weight']

    References:
        Mueller et al., Normalization Layers Are All That Sharpness-Aware Minimization Needs, NeurIPS 2023,
        https://arxiv.org/abs/2306.04226

    Differences:
        The released code picks parameters whose name contains ``norm`` or ``bn``, which misses
        torchvision's ``downsample.1`` and ``features.N``; here the module's type decides.
    """
    return Sam(rho, Climb(on=scopes.of_type(tuple(layers))))


@dataclass(frozen=True)
class Random:
    """Climb in a random direction."""

    rho: Rho
    seed: int = 0
    on: Scope = None
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        yield At(wrt=frozenset())
        where = w if self.on is None else w.only(Climb(on=self.on).names)
        noise = tree.randn_like(where, seed=self.seed + memory.step)
        return (yield At(memory.radius(self.rho) * unit(noise)))


def random(rho: Rho = 0.05, seed: int = 0) -> Random:
    r"""A random direction of the same length as SAM's, for ablations.  Two passes.

    .. math:: \epsilon = \rho\, z / \|z\|, \quad z \sim N(0, I) \text{ drawn anew each step}.

    The clean pass is kept, so that only the direction differs from SAM. The draw depends on ``seed`` and the
    step alone: it is the same on every rank and after a resume, and the global RNG is not touched.

    Args:
        rho: Length of the step.
        seed: Chooses the sequence of directions.

    Example:
        >>> loss = lambda w: w["w"].sum() * 2
        >>> sharpness_aware_gradient(random(), loss, {"w": torch.zeros(2)})
        {'w': tensor([2., 2.])}
    """
    return Random(rho, seed)


@dataclass(frozen=True)
class Gsam:
    """SAM minus what of the clean gradient is orthogonal to it."""

    rho: Rho
    alpha: float
    descend: str = "perturbed"
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        if not self.alpha >= 0:
            raise ValueError(f"gsam: alpha must be >= 0, got {self.alpha!r}.")
        if self.descend not in ("perturbed", "clean"):
            raise ValueError(f"gsam: descend must be 'perturbed' or 'clean', got {self.descend!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        if self.descend == "clean":
            return g + self.alpha * (g_p - project(g_p, onto=g))
        return g_p - self.alpha * (g - project(g, onto=g_p))


def gsam(rho: Rho = 0.05, alpha: float = 0.4, descend: Literal["perturbed", "clean"] = "perturbed") -> Gsam:
    r"""Surrogate-gap SAM: also reduce the gap between perturbed and clean loss.  Two passes.

    .. math:: \text{descend along } g_p - \alpha\,(g - \mathrm{proj}_{g_p} g), \qquad g_p = \nabla L(w + \rho \hat g).

    With ``alpha=0`` this is SAM. The published radius follows the learning rate: ``rho=tied(0.6, 0.1, lr_max)``.

    Args:
        rho: Length of the step uphill.
        alpha: Weight of the orthogonal part.
        descend: ``"perturbed"`` as above; ``"clean"`` is big_vision's other mode,
            :math:`g + \alpha\,(g_p - \mathrm{proj}_g g_p)`.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(gsam(rho=0.05, alpha=0.4), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0049, -3.1458])}

    References:
        Zhuang et al., Surrogate Gap Minimization Improves Sharpness-Aware Training, ICLR 2022,
        https://arxiv.org/abs/2203.08065
    """
    return Gsam(rho, alpha, descend)


@dataclass(frozen=True)
class Gnp:
    """A mixture of the clean gradient and SAM's."""

    rho: Rho
    a: float
    clean: str = "gradient"
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        if not 0 <= self.a <= 1:
            raise ValueError(f"gnp: a must lie in [0, 1], got {self.a!r}.")
        if self.clean not in ("gradient", "unit"):
            raise ValueError(f"gnp: clean must be 'gradient' or 'unit', got {self.clean!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        if self.a == 1:
            return g_p
        return (1 - self.a) * (unit(g) if self.clean == "unit" else g) + self.a * g_p


def gnp(rho: Rho = 0.1, a: float = 0.8, clean: Literal["gradient", "unit"] = "gradient") -> Gnp:
    r"""Gradient-norm penalty: minimise the loss plus a multiple of its gradient's norm.  Two passes.

    .. math:: L + \lambda \|\nabla L\|: \qquad \text{descend along } (1-a)\, g + a\, \nabla L(w + \rho g/\|g\|),
              \quad a = \lambda/\rho.

    With ``a=1`` this is SAM.

    Args:
        rho: Step of the finite difference (the paper's r).
        a: Weight of the perturbed gradient.
        clean: ``"gradient"`` as above; ``"unit"`` uses ``g/|g|`` in the first term, which is what the
            released code does by default.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(gnp(rho=0.1, a=0.8), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0253, -3.2277])}

    References:
        Zhao et al., Penalizing Gradient Norm for Efficiently Improving Generalization in Deep Learning,
        ICML 2022, https://arxiv.org/abs/2202.03599
    """
    return Gnp(rho, a, clean)


@dataclass(frozen=True)
class LookSam:
    """SAM every k steps; in between, the part of it that changes slowly is reused."""

    rho: Rho
    k: int
    alpha: float
    climb: Climb = EVERYWHERE

    def __post_init__(self) -> None:
        check_rho(self.rho)
        _check_k("looksam", self.k)
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
        memory["v"] = self.mu * v + g
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
class Gam:
    """First-order flatness, by four gradients."""

    rho: Rho
    r: float
    b0: float
    b1: float
    gamma: float
    clean_weight: str = "b0"
    climb: Climb = EVERYWHERE
    passes = 4.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_rho(self.r, "r")
        if self.clean_weight not in ("b0", "one"):
            raise ValueError(f"gam: clean_weight must be 'b0' or 'one', got {self.clean_weight!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        rho = memory.radius(self.rho)
        g0 = yield At()
        g1 = yield At(self.climb(w, self.r, g0))
        up = self.climb(w, rho, g1 - g0)  # towards larger gradient norm
        g2 = yield At(up)
        g3 = yield At(up + self.climb(w, self.r, g2))
        b = 1.0 if self.clean_weight == "one" else self.b0
        m = b * g0 + abs(1 - self.b0) * g2
        p = self.b1 * g1 + (1 - self.b1) * g3
        return p - self.gamma * (m - project(m, onto=p))


def gam(
    rho: Rho = 0.2,
    r: float = 0.02,
    b0: float = 0.5,
    b1: float = 0.6,
    gamma: float = 0.03,
    clean_weight: Literal["b0", "one"] = "b0",
) -> Gam:
    r"""Gradient-norm-aware minimization, accelerated form.  Four passes.

    .. math::
        g_1 &= \nabla L(w + r\,\hat g_0),\quad d = \rho\,\widehat{g_1 - g_0},\quad g_2 = \nabla L(w + d),\quad
        g_3 = \nabla L(w + d + r\,\hat g_2) \\
        m &= b_0 g_0 + |1-b_0|\, g_2,\quad p = b_1 g_1 + (1-b_1)\, g_3,\quad
        \text{descend along } p - \gamma\,(m - \mathrm{proj}_p m).

    Args:
        rho: Length of the step towards larger gradient norm.
        r: Length of the steps uphill. The defaults are those for ResNets on CIFAR-100.
        b0: Share of the clean gradient in m.
        b1: Share of :math:`g_1` in p.
        gamma: Weight of the part of m orthogonal to p.
        clean_weight: ``"b0"`` as above; ``"one"`` gives :math:`g_0` weight 1, as the released code does.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(gam(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0149, -3.2957])}

    References:
        Zhang et al., Gradient Norm Aware Minimization Seeks First-Order Flatness, CVPR 2023,
        https://arxiv.org/abs/2303.03108
    """
    return Gam(rho, r, b0, b1, gamma, clean_weight)


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


@dataclass(frozen=True)
class Every:
    """A rule on every k-th step, the plain gradient otherwise."""

    k: int
    rule: Any

    def __post_init__(self) -> None:
        _check_k("every", self.k)

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


def _check_k(name: str, k: int) -> None:
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"{name}: k must be a whole number of steps >= 1, got {k!r}.")


RULES: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (sam, asam, lsam, sam_on, gsam, gnp, looksam, msam, gam, random, m_sharpness, every)
}  # fmt: skip


def rule(name: str, **settings: Any) -> Any:
    """A rule by its name, for configuration files and command lines.

    Example:
        >>> rule("sam", rho=0.1)
        Sam(rho=0.1, climb=Climb(metric=None, on=None))
        >>> rule("asm")
        Traceback (most recent call last):
            ...
        ValueError: no rule named 'asm'; did you mean 'asam', 'sam' or 'gam'? Known: sam, asam, ...
    """
    if name not in RULES:
        close = difflib.get_close_matches(name, RULES)
        *rest, last = map(repr, close or list(RULES)[:1])
        guess = f"{', '.join(rest)} or {last}" if rest else last
        raise ValueError(f"no rule named {name!r}; did you mean {guess}? Known: {', '.join(RULES)}.")
    return RULES[name](**settings)
