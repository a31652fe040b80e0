"""Why a larger phantom ratio helps the hard feature: propositions P1 to P4, predicted beside measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from samphire.checks import Range, check_number
from samphire.mechanisms.heads import column, head_gradient, logits_of, pair, phantom_head, ratio, unit
from samphire.mechanisms.shifts import Comparison, margin_shift
from samphire.mechanisms.weights import importance_weights, margins
from samphire.tree import Scalar, Vector

__all__ = [
    "MatchedMargin", "RatioRise", "WeightShift", "feature_speeds", "matched_margin", "ratio_rise", "weight_shift",
]  # fmt: skip


def feature_speeds(
    features: Callable[[dict[str, Tensor]], Tensor],
    theta: Mapping[str, Tensor],
    y: Tensor,
    v: Tensor,
    time: float = 1e-4,
) -> Comparison:
    r"""P1: how fast each feature is learned under gradient flow with frozen weights.

    With :math:`G_k = E[\lambda y \nabla\Phi_k]` and :math:`\dot\theta = \sum_k v_k G_k`,

    .. math:: \frac{d}{dt} E[\lambda y \Phi_k] = \sum_l \langle G_k, G_l\rangle v_l,

    so raising :math:`v_{hard}` alone speeds the hard feature by :math:`|G_{hard}|^2 \ge 0`. Nothing is assumed of the
    network. Measured by moving the network along the flow for a short time, forward and back. Entry 0 is the easy
    feature, entry 1 the hard one.

    Args:
        features: ``{name: tensor}`` to the features (n, 2) of the batch.
        theta: The body's weights; float64, else rounding hides the agreement.
        y: Labels -1 or 1 (n,).
        v: Head (2,): the real one for SGD, the phantom one for LSAM.
        time: How long the network is moved each way.

    Example:
        >>> x, y = torch.eye(2).double(), torch.ones(2).double()
        >>> theta = {"a": torch.zeros(2).double()}
        >>> feature_speeds(lambda w: torch.stack([x @ w["a"], 2 * x @ w["a"]], 1), theta, y, v=y).predicted
        tensor([0.3750, 0.7500], dtype=torch.float64)
    """
    here = {name: t.detach() for name, t in theta.items()}
    lam = importance_weights(logits_of(features(here), v), y)

    def fit(w: dict[str, Tensor]) -> Tensor:
        return torch.einsum("n,nk->k", lam * y, features(w)) / len(y)

    g = torch.func.jacrev(fit)(here)
    rows = torch.cat([t.flatten(1) for t in g.values()], 1)
    flow = Vector({name: torch.tensordot(v, t, 1) for name, t in g.items()})
    forward, back = (fit((Vector(here) + t * flow).dense()) for t in (time, -time))
    return Comparison(rows @ rows.T @ v, (forward - back) / (2 * time))


@dataclass(frozen=True)
class RatioRise:
    """Whether the phantom ratio exceeds the real one.

    Attributes:
        raised: Predicted by the condition, and measured.
        slope: Of the phantom ratio by rho at 0, predicted and measured.
        valid: Where both easy entries are positive, as the proposition assumes.
    """

    raised: Comparison
    slope: Comparison
    valid: Tensor


def ratio_rise(phi: Tensor, y: Tensor, v: Tensor, rho: Scalar) -> RatioRise:
    r"""P2: the phantom ratio of hard to easy exceeds the real one exactly when :math:`v_{hard} A > v_{easy} H`.

    The condition does not depend on rho. The slope at :math:`\rho = 0` is
    :math:`(v_{hard} A - v_{easy} H) / (v_{easy}^2 |(A, H)|)`. Training the head lowers the real ratio under the very
    same condition. It needs :math:`v_{easy} > 0` and :math:`\tilde v_{easy} > 0`, certain while
    :math:`\rho < v_{easy}`.

    Args:
        phi: Features (..., n, 2).
        y: Labels -1 or 1 (..., n).
        v: Head (..., 2).
        rho: Length of the perturbation, a number or one per run; > 0.

    Example:
        >>> phi, y = torch.tensor([[2.0, 0.5], [1.0, -0.5]]).double(), torch.ones(2).double()
        >>> ratio_rise(phi, y, y, rho=0.5).raised
        Comparison(predicted=tensor(True), measured=tensor(True))
    """
    d = head_gradient(phi, y, v)
    lean = _lean(d, v)
    easy, _ = pair(v)
    phantom = v - column(rho, v) * unit(d)
    small = torch.finfo(v.dtype).eps ** (1 / 3) * easy.abs().unsqueeze(-1) * unit(d)
    slope = (ratio(v - small) - ratio(v + small)) / (2 * torch.linalg.vector_norm(small, dim=-1))
    return RatioRise(
        raised=Comparison(lean > 0, ratio(phantom) > ratio(v)),
        slope=Comparison(lean / (easy**2 * torch.linalg.vector_norm(d, dim=-1)), slope),
        valid=(easy > 0) & (phantom[..., 0] > 0),
    )


@dataclass(frozen=True)
class WeightShift:
    """What the phantom head does to the weights.

    Attributes:
        logit: Shift of every weight's logit (..., n), predicted and measured.
        matched: Further shift per unit of easy margin among examples of equal real weight (...), predicted and
            measured.
    """

    logit: Comparison
    matched: Comparison


def weight_shift(phi: Tensor, y: Tensor, v: Tensor, rho: Scalar) -> WeightShift:
    r"""P3: which examples count more under LSAM.

    .. math:: \mathrm{logit}\,\tilde\lambda_i - \mathrm{logit}\,\lambda_i
              = \rho\, (A\, y_i\Phi_{easy,i} + H\, y_i\Phi_{hard,i}) / |(A, H)|, \quad\text{exactly.}

    Of two examples with equal real weight the one better fit by the easy feature, hence worse by the hard one,
    gains :math:`\rho\, (v_{hard} A - v_{easy} H) / (v_{hard} |(A, H)|)` more per unit of easy margin: more, for
    :math:`v_{hard} > 0`, under exactly the condition of :func:`ratio_rise`. Measured as the coefficient of the easy
    margin when the measured shifts are regressed on it and on the total margin.

    Args:
        phi: Features (..., n, 2), n >= 2.
        y: Labels -1 or 1 (..., n).
        v: Head (..., 2).
        rho: Length of the perturbation, a number or one per run.

    Example:
        >>> phi, y = torch.tensor([[2.0, 0.5], [1.0, -0.5]]).double(), torch.ones(2).double()
        >>> weight_shift(phi, y, y, rho=0.5).logit.predicted
        tensor([0.8932, 0.5494], dtype=torch.float64)

    Differences:
        The paper says that what the hard feature fits poorly is up-weighted, without "at equal real weight"; that
        needs :math:`H \le 0`.
    """
    d, z = head_gradient(phi, y, v), logits_of(phi, v)
    total = margins(z, y)
    predicted = margin_shift(phi, y, importance_weights(z, y), rho)
    measured = total - margins(logits_of(phi, phantom_head(phi, y, v, rho)), y)
    design = torch.stack([y * phi[..., 0], total], -1)
    coefficients = (torch.linalg.pinv(design) @ measured.unsqueeze(-1)).squeeze(-1)
    _, hard = pair(v)
    gain = column(rho, v).squeeze(-1) * _lean(d, v) / (hard * torch.linalg.vector_norm(d, dim=-1))
    return WeightShift(Comparison(predicted, measured), Comparison(gain, coefficients[..., 0]))


@dataclass(frozen=True)
class MatchedMargin:
    """The hard feature at the time the total margin is reached.

    Attributes:
        hard: Its margin, one per ratio, predicted and measured.
        share: Its share of the logit, one per ratio, predicted and measured.
        best: The ratio with the largest hard margin: predicted, and the best of the ratios given.
    """

    hard: Comparison
    share: Comparison
    best: Comparison


def matched_margin(r: Tensor, easy: float, hard: float, total: float) -> MatchedMargin:
    r"""P4: the hard margin when training stops at a given loss, in the smallest model that has two features.

    :math:`\Phi_k = \theta_k x_k` with :math:`y x_{easy} = s_a`, :math:`y x_{hard} = s_b`, :math:`\theta_0 = 0`, head
    :math:`(1, r)` fixed. When the total margin is M,

    .. math:: m_b = \frac{M r s_b^2}{s_a^2 + r^2 s_b^2}, \qquad
              \text{share} = \frac{r^2 s_b^2}{s_a^2 + r^2 s_b^2}.

    The share always rises with r, the hard margin only up to :math:`r = s_a / s_b`. Measured by descending the
    logistic loss until the margin is reached, in 100 steps that raise it equally.

    Args:
        r: Ratios of the head, hard over easy (k,).
        easy: Scale :math:`s_a` of the easy feature.
        hard: Scale :math:`s_b` of the hard feature.
        total: The margin M > 0 at which to stop.

    Example:
        >>> matched_margin(torch.tensor([2.0, 4.0, 8.0]), easy=2.0, hard=0.5, total=3.0).hard.predicted
        tensor([0.3000, 0.3750, 0.3000])
    """
    check_number("matched_margin: total", total, Range(above=0))
    s = torch.tensor([easy, hard], dtype=r.dtype, device=r.device)
    head = torch.stack([torch.ones_like(r), r], -1)
    norm = easy**2 + r**2 * hard**2

    def loss(theta: Tensor) -> Tensor:
        return F.softplus(-(head * theta * s).sum(-1)).sum()

    theta = torch.zeros_like(head)
    for _ in range(100):
        descent = -torch.func.grad(loss)(theta)
        rise = (head * descent * s).sum(-1, keepdim=True)
        theta = theta + (total / 100) * descent / rise
    reached = theta[:, 1] * hard
    return MatchedMargin(
        hard=Comparison(total * r * hard**2 / norm, reached),
        share=Comparison(r**2 * hard**2 / norm, r * reached / (head * theta * s).sum(-1)),
        best=Comparison(s[0] / s[1], r[reached.argmax()]),
    )


def _lean(d: Tensor, v: Tensor) -> Tensor:
    """``v_hard A - v_easy H``: positive when the easy feature leads."""
    return v[..., 1] * d[..., 0] - v[..., 0] * d[..., 1]
