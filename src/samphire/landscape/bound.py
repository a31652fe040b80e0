r"""Theorem 1 and lemma 1 of the review (Foret et al. 2021, McAllester), with every term shown.

Both need losses in [0, 1], examples drawn independently, and a prior chosen before the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from samphire.checks import Range, check_number, check_one_of, check_whole
from samphire.landscape.loss import Landscape
from samphire.landscape.sharpness import sharpness, smoothed_rise
from samphire.statistics import Estimate, Verdict, higher
from samphire.tree import norm

__all__ = [
    "Assumption", "Bound", "PacBayes",
    "assumption", "bound", "gaussian_kl", "lemma_1", "theorem_1", "wrong_probability",
]  # fmt: skip


@dataclass(frozen=True)
class Bound:
    r"""Theorem 1 term by term.

    Attributes:
        worst_loss: :math:`\max_{\|\epsilon\| \le \rho} L_S(w + \epsilon)`, as far as an ascent finds it.
        capacity: :math:`d \log(1 + \frac{\|w\|^2}{\rho^2} (1 + \sqrt{\log n / d})^2)`.
        confidence: :math:`4 \log(n/\delta)`.
        union: :math:`8 \log(6n + 3d)`.
        root: :math:`\sqrt{(\text{capacity} + \text{confidence} + \text{union})/(n-1)}`.
        d: Weights.
        n: Examples.
        rho: Radius.
        norm: :math:`\|w\|`.
        delta: Probability that the bound fails.
    """

    worst_loss: float
    capacity: float
    confidence: float
    union: float
    root: float
    d: int
    n: int
    rho: float
    norm: float
    delta: float

    @property
    def total(self) -> float:
        """The bound on the expected loss."""
        return self.worst_loss + self.root

    @property
    def vacuous(self) -> bool:
        """Whether it says no more than that a loss in [0, 1] is at most 1."""
        return self.total >= 1

    def in_words(self) -> str:
        """What the bound says here: mostly nothing."""
        if self.vacuous:
            verdict = f"VACUOUS: a loss in [0, 1] is at most 1 anyway, and the bound is {self.total:.4g}"
        else:
            verdict = f"with probability {1 - self.delta:g} the expected loss is at most {self.total:.4g}"
        return (
            f"{verdict}. Terms: largest loss within rho {self.worst_loss:.4g}; under the root, capacity "
            f"{self.capacity:.4g} + confidence {self.confidence:.4g} + union {self.union:.4g}, over n - 1 = "
            f"{self.n - 1}: {self.root:.4g}. The capacity grows with the {self.d} weights and with |w|/rho = "
            f"{self.norm / self.rho:.3g}. The largest loss is what an ascent found, so the true bound is no smaller."
        )


def theorem_1(worst_loss: float, norm: float, rho: float, d: int, n: int, delta: float = 0.05) -> Bound:
    r"""Theorem 1 from its numbers.

    .. math:: L_D(w) \le \max_{\|\epsilon\| \le \rho} L_S(w + \epsilon) + \sqrt{\frac{
              d \log\bigl(1 + \frac{\|w\|^2}{\rho^2} (1 + \sqrt{\frac{\log n}{d}})^2\bigr)
              + 4 \log\frac n\delta + 8 \log(6n + 3d)}{n - 1}}

    Args:
        worst_loss: The first term; 0 to look at the root alone.
        norm: Length of the weights.
        rho: Radius of the ball.
        d: Number of weights.
        n: Number of training examples.
        delta: Probability that the bound fails.

    Example:
        >>> theorem_1(worst_loss=0.0, norm=1.0, rho=1.0, d=10, n=1000).root
        0.3522538591...
        >>> theorem_1(worst_loss=0.0, norm=10.0, rho=0.05, d=545_810, n=60_000).vacuous
        True

    References:
        Foret et al. 2021, theorem 2, with the explicit constants of their proof.
    """
    _check(n, delta)
    check_number("rho", rho, Range(above=0))
    check_whole("d", d)
    capacity = d * math.log1p((norm / rho) ** 2 * (1 + math.sqrt(math.log(n) / d)) ** 2)
    confidence, union = 4 * math.log(n / delta), 8 * math.log(6 * n + 3 * d)
    root = math.sqrt((capacity + confidence + union) / (n - 1))
    return Bound(worst_loss, capacity, confidence, union, root, d, n, rho, norm, delta)


def bound(landscape: Landscape, rho: float = 0.05, delta: float = 0.05, steps: int = 10, restarts: int = 2) -> Bound:
    """Theorem 1 at a model's weights, the largest loss found by :func:`sharpness`.

    Args:
        landscape: The landscape of the training data, with a loss in [0, 1], such as :func:`wrong_probability`.
        rho: Radius of the ball.
        delta: Probability that the bound fails.
        steps: Of the ascent.
        restarts: Of the ascent.

    Example:
        >>> x, y = torch.eye(2).repeat(50, 1), torch.tensor([0, 1]).repeat(50)
        >>> here = Landscape.of(nn.Linear(2, 2), wrong_probability, (x, y))
        >>> bound(here, rho=0.5).vacuous
        True
    """
    ball = sharpness(landscape, rho, steps, restarts)
    worst = ball.loss + ball.worst
    if not 0 <= worst <= 1:
        raise ValueError(
            f"theorem 1 needs a loss in [0, 1], got {worst:.4g}; use landscape.wrong_probability, or divide by an "
            "upper limit of the loss."
        )
    return theorem_1(worst, norm(landscape.w).item(), rho, landscape.dimension, landscape.n, delta)


def wrong_probability(z: Tensor, y: Tensor) -> Tensor:
    """The probability that softmax gives to wrong classes: a differentiable loss in [0, 1], for each example.

    Args:
        z: Logits, shape (n, classes).
        y: Class indices, shape (n,).

    Example:
        >>> wrong_probability(torch.zeros(1, 4), torch.tensor([2]))
        tensor([0.7500])
    """
    return 1 - z.softmax(1).gather(1, y[:, None]).squeeze(1)


@dataclass(frozen=True)
class PacBayes:
    r"""Lemma 1 term by term: the gap between expected and training loss of weights drawn from Q.

    Attributes:
        kl: :math:`KL(Q\|P)`.
        confidence: The logarithm beside it.
        divisor: What both are divided by.
        gap: The root of the quotient.
    """

    kl: float
    confidence: float
    divisor: float
    gap: float

    @property
    def vacuous(self) -> bool:
        """Whether the gap alone exceeds any gap between losses in [0, 1]."""
        return self.gap >= 1

    def in_words(self) -> str:
        says = "VACUOUS, since no gap between losses in [0, 1] exceeds 1" if self.vacuous else "not vacuous by itself"
        return (
            f"The gap is at most sqrt(({self.kl:.4g} + {self.confidence:.4g}) / {self.divisor:g}) = {self.gap:.4g}: "
            f"{says}. It is about weights drawn from Q, not about one network, and P must not depend on the data."
        )


def lemma_1(
    kl: float, n: int, delta: float = 0.05, form: Literal["lemma 1", "1999", "maurer"] = "lemma 1"
) -> PacBayes:
    r"""The PAC-Bayes bound.

    .. math:: E_Q L_D - E_Q L_S \le \sqrt{\frac{KL(Q\|P) + \log(n/\delta)}{2(n-1)}}

    Args:
        kl: :math:`KL(Q\|P)`, for instance :func:`gaussian_kl`.
        n: Number of training examples.
        delta: Probability that the bound fails.
        form: ``"lemma 1"`` as above; ``"1999"`` McAllester's original, with :math:`\log(n/\delta) + 2` over
            :math:`2n - 1`; ``"maurer"`` (2004), the tightest, with :math:`\log(2\sqrt n/\delta)` over :math:`2n`.

    Example:
        >>> [round(lemma_1(1000, 60_000, form=form).gap, 6) for form in ("lemma 1", "1999", "maurer")]
        [0.091925, 0.092015, 0.091706]
    """
    _check(n, delta)
    check_number("kl", kl, Range(least=0))
    forms = {
        "lemma 1": (math.log(n / delta), 2 * (n - 1)),
        "1999": (math.log(n / delta) + 2, 2 * n - 1),
        "maurer": (math.log(2 * math.sqrt(n) / delta), 2 * n),
    }
    check_one_of("form", form, forms)
    confidence, divisor = forms[form]
    return PacBayes(kl, confidence, divisor, math.sqrt((kl + confidence) / divisor))


def gaussian_kl(norm: float, d: int, sigma: float, prior: float | None = None) -> float:
    r"""How far :math:`Q = N(w, \sigma^2 I)` is from :math:`P = N(0, \sigma_P^2 I)`.

    .. math:: KL = \tfrac12 \Bigl( \frac{d\sigma^2 + \|w\|^2}{\sigma_P^2} - d
              + d \log\frac{\sigma_P^2}{\sigma^2} \Bigr)

    Args:
        norm: Length of w.
        d: Number of weights.
        sigma: Standard deviation of Q.
        prior: That of P; by default the best one, :math:`\sigma_P^2 = \sigma^2 + \|w\|^2/d`, which gives
            :math:`\frac d2 \log(1 + \|w\|^2/(d\sigma^2))`. Choosing it after the data is what the theorem's union
            term pays for.

    Example:
        >>> round(gaussian_kl(norm=1.0, d=1, sigma=1.0, prior=1.0), 3)
        0.5
    """
    if prior is None:
        return 0.5 * d * math.log1p(norm**2 / (d * sigma**2))
    ratio = (prior / sigma) ** 2
    return 0.5 * ((d + (norm / sigma) ** 2) / ratio - d + d * math.log(ratio))


@dataclass(frozen=True)
class Assumption:
    r"""The two sides of theorem 1's assumption.

    Attributes:
        sigma: :math:`\rho/(\sqrt d + \sqrt{\log n})`.
        loss: The left side, :math:`L(w)`.
        rise: Right side minus left, with its standard error; the assumption is that it is not negative.
    """

    sigma: float
    loss: float
    rise: Estimate

    @property
    def smoothed(self) -> float:
        """The right side, the mean loss of perturbed weights."""
        return self.loss + self.rise.mean

    @property
    def verdict(self) -> Verdict:
        """``"holds"``, ``"contradicted"``, or ``"open"`` within the noise."""
        return higher(self.rise)

    def in_words(self) -> str:
        """Both sides, and what they mean."""
        return (
            f"The assumption {'is ' * (self.verdict != 'holds')}{self.verdict} here: loss {self.loss:.6g}; "
            f"with noise of standard deviation {self.sigma:.3g} on the weights {self.smoothed:.6g} on average; "
            f"difference {self.rise}. The theorem wants this of the expected loss: use data not trained on."
        )


def assumption(
    landscape: Landscape, rho: float = 0.05, n: int | None = None, samples: int = 32, seed: int = 0
) -> Assumption:
    r"""Theorem 1's assumption, both sides estimated with the standard deviation its proof uses.

    .. math:: L_D(w) \le E_{\epsilon \sim N(0, \sigma^2 I)} L_D(w + \epsilon), \qquad
              \sigma = \frac{\rho}{\sqrt d + \sqrt{\log n}}.

    Args:
        landscape: The landscape, best of data that were not trained on: they stand for the distribution.
        rho: The theorem's radius.
        n: Number of training examples; by default the landscape's own.
        samples: Pairs of draws.
        seed: Of the draws.

    Example:
        >>> here = Landscape.of_function(lambda w: (w["x"] ** 2).sum(), {"x": torch.zeros(3)})
        >>> assumption(here, rho=0.1, n=100).verdict
        'holds'

    Differences:
        The review, after Foret et al., writes :math:`N(0, \rho I)`; their proof uses the sigma above. It suffices
        that the expected loss is convex, or that w is its minimum; the review asks for both.
    """
    check_number("rho", rho, Range(above=0))
    n = landscape.n if n is None else n
    sigma = rho / (math.sqrt(landscape.dimension) + math.sqrt(math.log(max(n, 1))))
    return Assumption(sigma, landscape.loss, smoothed_rise(landscape, sigma, samples, seed))


def _check(n: int, delta: float) -> None:
    check_whole("n", n, least=2)
    check_number("delta", delta, Range(above=0, below=1))
