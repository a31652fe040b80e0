"""Rules that climb and descend along the gradient found there; they differ in where the climb goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from samphire import tree
from samphire.optim import scopes
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory
from samphire.optim.schedules import Rho, check_rho
from samphire.optim.scopes import Scope
from samphire.tree import Vector, unit


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
        return (yield At(self.climb(w, rho, (yield At(wrt=self.climb.wrt)))))


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
    passes = 4 / 3  # the clean one is forward only

    def __post_init__(self) -> None:
        check_rho(self.rho)

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        yield At(wrt=frozenset())
        where = w if self.on is None else w.only(Climb(on=self.on).names)
        noise = tree.randn_like(where, seed=self.seed + memory.step)
        return (yield At(memory.radius(self.rho) * unit(noise)))


def random(rho: Rho = 0.05, seed: int = 0) -> Random:
    r"""A random direction of the same length as SAM's, for ablations.  One pass and a forward.

    .. math:: \epsilon = \rho\, z / \|z\|, \quad z \sim N(0, I) \text{ drawn anew each step}.

    The clean forward is kept, so that only the direction differs from SAM: BatchNorm sees clean weights, and the
    clean loss is returned. (A closure that runs ``loss.backward()`` itself pays for a gradient nobody uses;
    ``p.backward(loss)`` does not.) The draw depends on ``seed`` and the
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
