"""Rules that descend along a combination of gradients from several points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Descent, Memory
from samphire.optim.schedules import Rho, check_rho
from samphire.tree import Vector, norm, project, unit


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
class Stable:
    """SAM's direction with the clean gradient's length."""

    rho: Rho
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        return norm(g) * unit(g_p)


def stable(rho: Rho = 0.05) -> Stable:
    r"""Stable SAM: SAM's gradient, rescaled to the length of the clean one.  Two passes.

    .. math:: \text{descend along } \frac{\|g\|}{\|g_p\|}\, g_p, \qquad g_p = \nabla L(w + \rho\, g/\|g\|).

    Training stays as stable as SGD's at the same learning rate, so larger rho can be used.

    Args:
        rho: Length of the step uphill.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(stable(rho=0.05), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 0.9727, -3.0090])}

    References:
        Tan et al., Stable Sharpness-Aware Minimization, JMLR 2025, https://arxiv.org/abs/2401.07250
    """
    return Stable(rho)


@dataclass(frozen=True)
class Sagm:
    """The mean of the clean gradient and of the one at a point between SAM's and a step downhill."""

    rho: Rho
    alpha: float
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        if not self.alpha >= 0:
            raise ValueError(f"sagm: alpha must be >= 0, got {self.alpha!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g) - self.alpha * g)
        return 0.5 * (g + g_p)


def sagm(rho: Rho = 0.05, alpha: float = 1e-3) -> Sagm:
    r"""Sharpness-aware gradient matching: clean loss and perturbed loss with matched gradients.  Two passes.

    .. math:: \text{descend along } \tfrac12 (g + g_p), \qquad g_p = \nabla L(w + \rho\, g/\|g\| - \alpha g).

    Args:
        rho: Length of the step uphill.
        alpha: Step back downhill; 0.001 on PACS and VLCS, 0.0005 on OfficeHome.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(sagm(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0074, -3.0667])}

    References:
        Wang et al., Sharpness-Aware Gradient Matching for Domain Generalization, CVPR 2023,
        https://arxiv.org/abs/2303.10353

    Differences:
        The mean of the two gradients, as in the released code; the paper writes their sum, which is twice the
        learning rate.
    """
    return Sagm(rho, alpha)


@dataclass(frozen=True)
class CrSam:
    """SAM with the curvature along its direction held down, from both sides of the weights."""

    rho: Rho
    gamma: float
    beta: float
    climb: Climb = EVERYWHERE
    passes = 3.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        for name in ("gamma", "beta"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"cr_sam: {name} must be >= 0, got {getattr(self, name)!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        eps = self.climb(w, memory.radius(self.rho), g)
        up = yield At(eps)
        down = yield At(-eps)
        return up + self.gamma * (up + down - 2 * g) + self.beta * (up - down)


def cr_sam(rho: Rho = 0.1, gamma: float = 0.1, beta: float = 0.01) -> CrSam:
    r"""Curvature-regularised SAM: a finite difference holds the curvature along the climb down.  Three passes.

    .. math:: g_\pm = \nabla L(w \pm \rho\, g/\|g\|), \qquad
              \text{descend along } g_+ + \gamma\,(g_+ + g_- - 2 g) + \beta\,(g_+ - g_-).

    Args:
        rho: Length of the step uphill, and of the one downhill.
        gamma: Weight of the second difference.
        beta: Weight of the first difference.

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(cr_sam(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.0323, -3.2903])}

    References:
        Wu, Luo, Wunsch, CR-SAM: Curvature Regularized Sharpness-Aware Minimization, AAAI 2024,
        https://arxiv.org/abs/2312.13555

    Differences:
        As in the released code; the paper's regulariser has logarithms, which would divide the two brackets.
    """
    return CrSam(rho, gamma, beta)


@dataclass(frozen=True)
class Wsam:
    """The clean loss and its sharpness, each with a weight of its own."""

    rho: Rho
    gamma: float
    decouple: bool
    max_norm: float | None = None
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_rho(self.rho)
        if not 0 <= self.gamma < 1:
            raise ValueError(f"wsam: gamma must lie in [0, 1), got {self.gamma!r}.")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"wsam: max_norm must be > 0 or None, got {self.max_norm!r}.")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At()
        g_p = yield At(self.climb(w, memory.radius(self.rho), g))
        g, g_p = self._clipped(g), self._clipped(g_p)
        sharpness = self.gamma / (1 - self.gamma) * (g_p - g)
        return Descent(g, sharpness) if self.decouple else g + sharpness

    def _clipped(self, g: Vector) -> Vector:
        return g if self.max_norm is None else norm(g).clamp(max=self.max_norm) * unit(g)


def wsam(rho: Rho = 0.05, gamma: float = 0.9, decouple: bool = True, max_norm: float | None = None) -> Wsam:
    r"""WSAM: sharpness as a regulariser with a weight of its own.  Two passes.

    .. math:: L + \frac{\gamma}{1-\gamma}\, (L_p - L): \qquad
              \text{base step along } g, \text{ then } w \leftarrow w - \eta\, \tfrac{\gamma}{1-\gamma}\, (g_p - g).

    With ``gamma=0.5`` and plain SGD this is SAM; 0 is the base optimizer.

    Args:
        rho: Length of the step uphill.
        gamma: Weight of the sharpness; 0.9 multiplies it by 9.
        decouple: Apply the sharpness past the base optimizer's momentum and preconditioner, as published; ``False``
            sends the sum through it.
        max_norm: Clip both gradients to this length, as the released code does. (The optimizer's own ``clip_norm``
            would clip the base step alone.)

    Example:
        >>> loss = lambda w: 0.5 * (torch.tensor([1.0, 3.0]) * w["w"] ** 2).sum()
        >>> sharpness_aware_gradient(wsam(), loss, {"w": torch.tensor([1.0, -1.0])})
        {'w': tensor([ 1.1423, -4.2807])}

    References:
        Yue et al., Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization Term, KDD 2023,
        https://arxiv.org/abs/2305.15817

    Differences:
        pytorch-optimizer clips the perturbed gradient alone, so that its step can go uphill.
    """
    return Wsam(rho, gamma, decouple, max_norm)
