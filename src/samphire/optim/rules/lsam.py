"""Last-layer SAM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from torch import Tensor

from samphire.checks import Count, PositiveFraction, check_fields, check_value
from samphire.optim import scopes
from samphire.optim.requests import EVERYWHERE, Asking, At, Climb, Memory, Rule
from samphire.optim.rules.m_sharpness import m_sharpness
from samphire.optim.rules.sam import sam
from samphire.optim.rules.vasso import vasso
from samphire.optim.schedules import Rho
from samphire.optim.scopes import Scope
from samphire.tree import Vector, norm

Effects = Literal["both", "weights", "rates"]
Radius = Literal["fixed", "head", "features"]

__all__ = ["lsam"]


def lsam(
    rho: Rho = 0.05,
    head: str | Iterable[str] | Scope = scopes.head,
    effects: Effects = "both",
    radius: Radius = "fixed",
    theta: PositiveFraction = 1.0,
    m: Count | None = None,
) -> Rule:
    r"""Last-layer SAM: climb with the head alone, descend with everything.  Two passes; one by ``last_layer``.

    .. math:: \tilde v = v + \rho\, \nabla_v L / \|\nabla_v L\|, \qquad
              \text{descend along } \nabla_{(\theta, v)} L(\theta, \tilde v).

    ``last_layer(model).one_pass`` makes a closure that takes this step at the cost of SGD.

    At a linear head, with outputs :math:`z = v\,\phi_\theta(x)` and :math:`p(v)` their softmax (or logistic
    function), what goes back into the features is :math:`v_b^\top (p(v_a) - y)`, with the phantom head in both
    places. Its first factor weighs the examples, its second is the speed of each feature; one of them may stay at
    the real head, by ``effects`` (in ``one_pass``, or with the outputs given to ``p.backward``).

    .. math:: \text{weights: } v_a = \tilde v,\ v_b = v; \qquad \text{rates: } v_a = v,\ v_b = \tilde v.

    ``radius``, ``theta`` and ``m`` are trials of ours, not the paper's. At most one of the last four settings may be
    changed.

    Args:
        rho: Length of the step, measured over the head.
        head: The module that is the last layer, or the names of its parameters; by default the model's
            last Linear layer.
        effects: ``"both"`` of LSAM's effects, importance ``"weights"`` alone or learning ``"rates"`` alone.
        radius: ``"fixed"``: rho itself. ``"head"``: rho times the norm of the head, so that phantom outputs differ
            by a share of the outputs. ``"features"`` (in ``one_pass``): rho over the root mean square of
            :math:`\|\phi\|`, so that outputs move by at most about rho, whatever the scale of the features
            (appendix D: they move by :math:`\rho\,\|\phi\|`).
        theta: Weight of the new gradient in the running mean that the head climbs along, as in ``vasso``; 1 for the
            batch's own gradient.
        m: Examples that share a phantom head, as in ``m_sharpness``; ``None`` for all of a batch. In ``one_pass`` the
            body still runs once, on the whole batch.

    Example:
        >>> loss = lambda w: (w["body"] * w["head"]).sum()
        >>> w = {"body": torch.tensor([3.0, 4.0]), "head": torch.tensor([1.0, 1.0])}
        >>> sharpness_aware_gradient(lsam(rho=0.5, head="head"), loss, w)["body"]
        tensor([1.3000, 1.4000])

    References:
        Springer, Nagarajan, Raghunathan, Sharpness-Aware Minimization Enhances Feature Quality via Balanced
        Learning, ICLR 2024 (section 5.1; equations 10 to 12 for the effects, there with a fixed head in place of the
        phantom one).

    Differences:
        The paper does not say what the head does when only one effect acts on the features. Here it then follows its
        ordinary gradient, at the real head, as in figure 7; with both effects it follows LSAM's, at the phantom head.
    """
    check_value("lsam: effects", effects, Effects)
    check_value("lsam: radius", radius, Radius)
    check_value("lsam: theta", theta, PositiveFraction)
    check_value("lsam: m", m, Count | None)
    changed = {"effects": effects != "both", "radius": radius != "fixed", "theta": theta != 1, "m": m is not None}
    if sum(changed.values()) > 1:
        given = ", ".join(name for name, differs in changed.items() if differs)
        raise ValueError(f"lsam takes one of effects, radius, theta and m, got {given}; leave out all but one.")
    climb = Climb(on=scopes.as_scope(head))
    if effects != "both":
        return one_effect(rho, effects, climb=climb)
    if radius != "fixed":
        return tied_radius(rho, radius, climb=climb)
    if theta != 1:
        return vasso(rho, theta, climb=climb)
    return sam(rho, climb=climb) if m is None else m_sharpness(m, sam(rho, climb=climb))


@dataclass(frozen=True)
class one_effect:
    """One of LSAM's effects on everything below the head; the head follows its ordinary gradient."""

    rho: Rho = 0.05
    effect: Literal["weights", "rates"] = "weights"
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    needs_outputs = True

    def __post_init__(self) -> None:
        check_fields(self, "lsam")

    @property
    def passes(self) -> float:
        return 3.0 if self.effect == "weights" else 2.0

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        head = self.climb.names
        g = yield At(wrt=head)
        eps = self.climb(w, memory.radius(self.rho), g)
        if self.effect == "weights":
            yield At(eps, wrt=head)  # p(phantom head) - y
            descent = yield At(output_gradient="before")  # times the real head
        else:
            descent = yield At(eps, output_gradient="before")  # p(real head) - y, times the phantom head
        return descent.only([name for name in descent if name not in head]) + g


@dataclass(frozen=True)
class tied_radius:
    """LSAM with a radius that follows the head's norm or the features'."""

    rho: Rho = 0.05
    to: Literal["head", "features"] = "head"
    _: KW_ONLY
    climb: Climb = EVERYWHERE
    passes = 2.0

    def __post_init__(self) -> None:
        check_fields(self, "lsam")

    def gradient(self, w: Vector, memory: Memory) -> Asking:
        g = yield At(wrt=self.climb.wrt)
        eps = self.climb(w, memory.radius(self.rho), g)
        return (yield At(self._factor(w, memory) * eps))

    def _factor(self, w: Vector, memory: Memory) -> Tensor:
        if self.to == "head":
            return norm(w.only(self.climb.names))
        if memory.feature_norm is None:
            raise TypeError("lsam(radius='features') must see the features; use last_layer(model).one_pass.")
        return 1 / memory.feature_norm
