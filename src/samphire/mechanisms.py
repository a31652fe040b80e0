r"""How a sharpness-aware step changes what is learned: phantom parameters, importance weights, and their theory.

Symbols: ``phi`` (..., n, k) features, the easy one first and the hard one second; ``v`` (..., k) the head;
``y`` (..., n) labels -1 or 1; ``lam`` (..., n) importance weights; ``m`` margins. Leading dimensions are runs.
With ``E`` the mean over the batch, :math:`A = E[\lambda y \Phi_{easy}]` and :math:`H = E[\lambda y \Phi_{hard}]`.

Equation numbers are those of Springer, Nagarajan and Raghunathan (2024); where a printed formula is wrong the
corrected one is used, and the function says so. P1 to P4 are our propositions on when the phantom step helps the
hard feature; each returns what it predicts beside what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from samphire.optim.protocol import At, Memory, Rule, bind, drive, gradient_at
from samphire.tree import Scalar, Vector

Weights = Mapping[str, Tensor]


class Compared(NamedTuple):
    """A prediction beside its measurement, of the same shape.

    Example:
        >>> Compared(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])).error.item()
        0.5
    """

    predicted: Tensor
    measured: Tensor

    @property
    def error(self) -> Tensor:
        """The largest absolute difference."""
        return (self.predicted.double() - self.measured.double()).abs().max()


# Importance weights


def margins(z: Tensor, y: Tensor) -> Tensor:
    r"""How far each example lies on its label's side: minus the logit of its importance weight.

    Binary :math:`m = y f`; multi-class :math:`m = z_y - \log\sum_{k \ne y} e^{z_k}`. In both cases the
    cross-entropy is :math:`\log(1 + e^{-m})` and the weight :math:`\lambda = \sigma(-m)`.

    Args:
        z: Binary logits of the shape of ``y``, or class logits with one more dimension.
        y: Labels -1 or 1 for binary logits, class indices for class logits.

    Example:
        >>> margins(torch.tensor([2.0, 3.0]), torch.tensor([1, -1]))
        tensor([ 2., -3.])
        >>> margins(torch.tensor([[1.0, 4.0]]), torch.tensor([0]))
        tensor([-3.])
    """
    if z.shape == y.shape:
        if not ((y == 1) | (y == -1)).all():
            wrong = y[(y != 1) & (y != -1)][0].item()
            raise ValueError(f"binary labels must be -1 or 1, got {wrong!r}; 0 and 1 become so by 2 * y - 1.")
        return y * z
    if z.shape[:-1] != y.shape or y.dtype.is_floating_point:
        raise ValueError(
            "margins needs binary logits and labels of one shape, or class logits (..., classes) and integer "
            f"labels (...), got {tuple(z.shape)} and {y.dtype} {tuple(y.shape)}."
        )
    classes = z.shape[-1]
    if classes < 2 or not ((y >= 0) & (y < classes)).all():
        raise ValueError(f"class labels must be in 0 to {classes - 1} with two classes or more, got {_span(y)}.")
    index = y.long().unsqueeze(-1)
    others = z.scatter(-1, index, -torch.inf).logsumexp(-1)
    return z.gather(-1, index).squeeze(-1) - others


def importance_weights(z: Tensor, y: Tensor) -> Tensor:
    r"""How much each example is heard in the gradient: eq. 6's :math:`\lambda`, for any classifier.

    Binary :math:`\lambda = \sigma(-y f)`; multi-class :math:`\lambda = 1 - p_y = -\partial\ell/\partial z_y`,
    computed as :math:`\sigma(-m)` so that a tiny weight is not rounded to zero. Evaluate the logits at the real or
    at the phantom parameter to get the real or the phantom weights.

    Args:
        z: Logits, see :func:`margins`.
        y: Labels, see :func:`margins`.

    Example:
        >>> importance_weights(torch.tensor([[1.0, 2.0, 4.0]]).log(), torch.tensor([0])) * 7
        tensor([6.])
        >>> importance_weights(torch.tensor([[50.0, 0.0, 1.0]]), torch.tensor([0]))
        tensor([7.1716e-22])

    Differences:
        Eq. 6 lacks the sign: the gradient is :math:`-y \lambda g`. With soft labels :math:`1 - p_y` is not the
        weight; use :func:`soft_importance_weights`.
    """
    return torch.sigmoid(-margins(z, y))


def log_importance_weights(z: Tensor, y: Tensor) -> Tensor:
    r"""The logarithm of :func:`importance_weights`, finite where the weight itself underflows.

    Multi-class it equals :math:`\log\sum_{k \ne y} e^{z_k} - \log\sum_k e^{z_k}`.

    Args:
        z: Logits, see :func:`margins`.
        y: Labels, see :func:`margins`.

    Example:
        >>> log_importance_weights(torch.tensor([200.0]), torch.tensor([1]))
        tensor([-200.])
    """
    return F.logsigmoid(-margins(z, y))


def soft_importance_weights(z: Tensor, t: Tensor) -> Tensor:
    r"""Importance weights under soft targets (label smoothing, mixup): :math:`\lambda = \frac12 |p - t|_1`.

    Args:
        z: Class logits (..., classes).
        t: Target probabilities of the same shape; with one-hot targets the result is :math:`1 - p_y`.

    Example:
        >>> soft_importance_weights(torch.zeros(1, 2), torch.tensor([[0.9, 0.1]]))
        tensor([0.4000])
    """
    if z.shape != t.shape:
        raise ValueError(
            f"soft targets must have the shape of the logits {tuple(z.shape)}, got {tuple(t.shape)}; "
            "for class indices use importance_weights."
        )
    return 0.5 * (z.softmax(-1) - t).abs().sum(-1)


# The phantom parameter


def head_gradient(phi: Tensor, y: Tensor, v: Tensor) -> Tensor:
    r""":math:`E[\lambda y \Phi] = -\nabla_v L` for the logistic loss; for two features this is ``(A, H)``.

    Args:
        phi: Features (..., n, k).
        y: Labels -1 or 1 (..., n).
        v: Head (..., k), no bias.

    Example:
        >>> head_gradient(torch.tensor([[2.0, 0.5], [1.0, -0.5]]), torch.tensor([1.0, 1.0]), torch.ones(2))
        tensor([ 0.2646, -0.0754])
    """
    lam = importance_weights(_logits(phi, v), y)
    return torch.einsum("...n,...nk->...k", lam * y, phi) / y.shape[-1]


def phantom_head(phi: Tensor, y: Tensor, v: Tensor, rho: Scalar) -> Tensor:
    r"""The head at which LSAM reads its gradient: :math:`\tilde v = v - \rho\,(A, H) / |(A, H)|` (eq. 5).

    Args:
        phi: Features of the batch (..., n, k).
        y: Labels -1 or 1 (..., n).
        v: Head (..., k), no bias.
        rho: Length of the phantom step, a number or one per run (...).

    Example:
        >>> phantom_head(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]), torch.ones(2), rho=0.5)
        tensor([0.7000, 0.6000])
    """
    return v - _column(rho, v) * _unit(head_gradient(phi, y, v))


def phantom(rule: Rule, loss: Callable[[dict[str, Tensor]], Tensor], w: Weights) -> dict[str, Tensor]:
    r"""The weights at which any rule reads the last gradient of a step; SAM's :math:`\tilde w` (eq. 3, eq. 15).

    Args:
        rule: A rule of :mod:`samphire.optim.rules`.
        loss: The batch loss as a function of ``{name: tensor}``.
        w: The weights.

    Example:
        >>> from samphire.optim.rules import sam
        >>> phantom(sam(rho=0.5), lambda w: (w["a"] ** 2).sum(), {"a": torch.tensor([3.0, 4.0])})
        {'a': tensor([3.3000, 4.4000])}
    """
    return (Vector(w) + _displacement(rule, loss, w)).dense()


def ratio(v: Tensor) -> Tensor:
    r"""Hard over easy, :math:`v_{hard} / v_{easy}` (fig. 3), of the real or the phantom head.

    Args:
        v: Head (..., 2), easy feature first.

    Example:
        >>> ratio(torch.tensor([2.0, 3.0]))
        tensor(1.5000)
    """
    easy, hard = _pair(v)
    return hard / easy


def share(v: Tensor) -> Tensor:
    r"""The hard feature's part of the head, :math:`v_{hard} / (|v_{easy}| + |v_{hard}|)` (fig. 4, right).

    Unlike the ratio it stays between -1 and 1 when :math:`\tilde v_{easy}` crosses zero.

    Args:
        v: Head (..., 2), easy feature first.

    Example:
        >>> share(torch.tensor([1.0, 3.0]))
        tensor(0.7500)

    Differences:
        Fig. 4 divides by :math:`v_{easy} + v_{hard}`: the same while both are positive.
    """
    easy, hard = _pair(v)
    return hard / (easy.abs() + hard.abs())


class RatioSummary(NamedTuple):
    """The ratio of hard to easy over many steps.

    Attributes:
        median: Of the ratios; a mean would be ruled by steps whose easy entry is near zero.
        share: Mean of :func:`share`.
        crossed: Fraction of the steps whose easy entry is not positive: there the ratio means nothing.
    """

    median: Tensor
    share: Tensor
    crossed: Tensor


def summarize_ratio(v: Tensor) -> RatioSummary:
    """Median ratio, mean share and fraction of meaningless steps, over the steps of each run.

    Args:
        v: Real or phantom heads (..., steps, 2).

    Example:
        >>> summarize_ratio(torch.tensor([[1.0, 1.0], [1.0, 2.0], [-0.1, 2.0]])).median
        tensor(1.)
    """
    easy, _ = _pair(v)
    return RatioSummary(_median(ratio(v)), share(v).mean(-1), (easy <= 0).to(v.dtype).mean(-1))


class LearningRates(NamedTuple):
    """Effective learning rates of the features at the phantom head.

    Attributes:
        factor: What the phantom step multiplies each feature's rate by (..., 2).
        real: The hard feature's share of the rates at the real head.
        phantom: The same at the phantom head.
    """

    factor: Tensor
    real: Tensor
    phantom: Tensor


def learning_rates(v: Tensor, phantom: Tensor) -> LearningRates:
    r"""Effective feature learning rates (fig. 4): factors :math:`\tilde v_k / v_k`, and the hard feature's share.

    Args:
        v: Real heads (..., 2), for instance one for each batch.
        phantom: Phantom heads of the same shape.

    Example:
        >>> learning_rates(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 1.5])).factor
        tensor([0.5000, 1.5000])
    """
    return LearningRates(phantom / v, share(v), share(phantom))


# How evenly the weights are spread


def lorenz(lam: Tensor, order: Literal["ascending", "top"] = "ascending") -> Tensor:
    r"""Share of the total weight held by the first k of n examples, at :math:`k/n` for k = 0 ... n (fig. 5).

    Args:
        lam: Weights >= 0 (..., n).
        order: ``"ascending"``: least first, the usual Lorenz curve, on or below the diagonal. ``"top"``: greatest
            first, as the paper words it, on or above; ``top(x) = 1 - ascending(1 - x)``.

    Returns:
        The curve (..., n + 1), from 0 to 1; nan if all weights are zero.

    Example:
        >>> lorenz(torch.tensor([4.0, 1.0, 3.0, 2.0]))
        tensor([0.0000, 0.1000, 0.3000, 0.6000, 1.0000])
        >>> lorenz(torch.tensor([4.0, 1.0, 3.0, 2.0]), order="top")
        tensor([0.0000, 0.4000, 0.7000, 0.9000, 1.0000])
    """
    if order not in ("ascending", "top"):
        raise ValueError(f"order must be 'ascending' or 'top', got {order!r}.")
    ordered = _checked(lam).sort(-1, descending=order == "top").values
    held = ordered.cumsum(-1)
    return F.pad(held, (1, 0)) / held[..., -1:]


def gini(lam: Tensor) -> Tensor:
    r"""Gini coefficient: 0 if all weights are equal, :math:`(n-1)/n` if one example has everything.

    .. math:: G = \frac{2 \sum_i i\, \lambda_{(i)}}{n \sum_i \lambda_i} - \frac{n+1}{n}
                = 1 - 2 \cdot \text{area under the Lorenz curve.}

    Args:
        lam: Weights >= 0 (..., n).

    Returns:
        One number per run; nan if all its weights are zero.

    Example:
        >>> gini(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor(0.2500)
    """
    n = lam.shape[-1] if lam.ndim else 0
    ordered = _checked(lam).sort(-1).values
    rank = torch.arange(1, n + 1, dtype=lam.dtype, device=lam.device)
    # 2i - (n+1) instead of 2i, then minus (n+1)/n: the same sum without its cancellation.
    return ((2 * rank - (n + 1)) * ordered).sum(-1) / (n * ordered.sum(-1))


def gini_small_sample(lam: Tensor) -> Tensor:
    r"""Gini coefficient times :math:`n / (n-1)`, so that 1 means one example has everything, whatever n.

    Args:
        lam: Weights >= 0 (..., n), two or more.

    Example:
        >>> gini_small_sample(torch.tensor([0.0, 0.0, 0.0, 1.0]))
        tensor(1.)
    """
    n = lam.shape[-1] if lam.ndim else 0
    if n < 2:
        raise ValueError(f"the small-sample Gini coefficient needs two weights or more, got {n}.")
    return gini(lam) * (n / (n - 1))


def effective_sample_size(lam: Tensor) -> Tensor:
    r"""How many equally weighted examples weigh as much: :math:`(\sum\lambda)^2 / \sum\lambda^2`, from 1 to n.

    Args:
        lam: Weights >= 0 (..., n).

    Returns:
        One number per run; nan if all its weights are zero.

    Example:
        >>> effective_sample_size(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor(3.3333)
    """
    scaled = _checked(lam) / lam.amax(-1, keepdim=True)
    return scaled.sum(-1) ** 2 / (scaled**2).sum(-1)


# Weights by what each feature contributes


def contributions(phi: Tensor, y: Tensor, v: Tensor) -> Tensor:
    r"""Signed contribution of every feature, :math:`y v_k \Phi_k` (..., n, k); their sum is the margin.

    For a network without such features, pass the outputs of two linear probes as ``phi`` and ones as ``v``.

    Args:
        phi: Features (..., n, k).
        y: Labels -1 or 1 (..., n).
        v: Head (..., k).

    Example:
        >>> contributions(torch.tensor([[3.0, 4.0]]), torch.tensor([-1.0]), torch.tensor([1.0, 0.5]))
        tensor([[-3., -2.]])

    Differences:
        The captions of fig. 6 and 9 print :math:`y v_{easy} \Phi_{hard}` for the hard feature, a slip.
    """
    return y.unsqueeze(-1) * v.unsqueeze(-2) * phi


class Binned(NamedTuple):
    """Medians over a grid; the first index is the easy feature's bin, the second the hard one's.

    Attributes:
        median: Median weight of each bin, nan where it is empty.
        counts: Examples in each bin.
        edges: Edges of the easy and of the hard bins, each one longer than the bins.
        outside: Examples that lie in no bin.
    """

    median: Tensor
    counts: Tensor
    edges: tuple[Tensor, Tensor]
    outside: int


def median_by_contribution(lam: Tensor, easy: Tensor, hard: Tensor, bins: int | tuple[Tensor, Tensor] = 10) -> Binned:
    """Median weight of the examples in each bin of two signed contributions (fig. 6 and 9).

    Args:
        lam: Weights (n,).
        easy: Contribution of the easy feature (n,), see :func:`contributions`.
        hard: Contribution of the hard feature (n,).
        bins: Bins along each axis between the least and the greatest contribution, or the edges themselves,
            rising, to compare several networks on one grid. A bin holds its lower edge; the last one both.

    Example:
        >>> lam, easy, hard = torch.tensor([[1.0, 3.0, 5.0], [0.0, 0.1, 1.0], [0.0, 0.1, 1.0]])
        >>> median_by_contribution(lam, easy, hard, bins=2).median
        tensor([[2., nan],
                [nan, 5.]])
    """
    lam, easy, hard = (x.detach().reshape(-1) for x in (lam, easy, hard))
    if not lam.shape == easy.shape == hard.shape:
        raise ValueError(
            "median_by_contribution needs one weight and two contributions per example, "
            f"got {lam.numel()}, {easy.numel()} and {hard.numel()}."
        )
    edges = (_edges(easy, bins), _edges(hard, bins)) if isinstance(bins, int) else bins
    i, j = _bin(easy, edges[0]), _bin(hard, edges[1])
    rows, columns = (len(e) - 1 for e in edges)
    inside = (i >= 0) & (j >= 0)
    cell = (i * columns + j)[inside]
    count = torch.bincount(cell, minlength=rows * columns)
    median = torch.full((rows * columns,), torch.nan, dtype=lam.dtype, device=lam.device)
    for k in cell.unique().tolist():
        median[k] = _median(lam[inside][cell == k])
    shape = (rows, columns)
    return Binned(median.reshape(shape), count.reshape(shape), edges, int((~inside).sum()))


# Appendix D: what the phantom step does to the weights


def margin_shift(g: Tensor, y: Tensor, lam: Tensor, rho: Scalar) -> Tensor:
    r"""By how much the phantom step lowers each margin, to first order (eq. 25, for any batch size).

    .. math:: m_i = y_i f_i(w) - y_i f_i(\tilde w) = \rho\, \frac{y_i \langle g_i, D\rangle}{|D|} + O(\rho^2),
              \qquad D = \sum_j \lambda_j y_j g_j.

    With one example it is :math:`\rho |g|`. For LSAM, where ``g`` is ``phi``, there is no remainder at any batch
    size. In a batch it can be negative: an example whose gradient opposes the batch's is heard less.

    Args:
        g: Gradient of every example's logit by the perturbed parameters (..., n, p); append 1 for a head bias.
        y: Labels -1 or 1 (..., n).
        lam: Weights of the loss in use (..., n): logistic :math:`\sigma(-yf)` or exponential :math:`e^{-yf}`.
        rho: Length of the phantom step.

    Example:
        >>> margin_shift(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0]), torch.tensor([0.1]), rho=0.5)
        tensor([2.5000])

    Differences:
        The paper treats one example. "Proportional to the gradient norm" holds for the *logarithm* of the ratio of
        weights, and for one example only.
    """
    d = torch.einsum("...n,...np->...p", lam * y, g)
    return y * torch.einsum("...np,...p->...n", g, _column(rho, d) * _unit(d))


def log_weight_ratio(m: Tensor, shift: Tensor) -> Tensor:
    r""":math:`\log(\tilde\lambda / \lambda)` of the logistic loss, exact for a given shift of the margin.

    :math:`\log\sigma(s - m) - \log\sigma(-m)`; in logits simply :math:`\mathrm{logit}\,\tilde\lambda =
    \mathrm{logit}\,\lambda + s`. For the exponential loss the log ratio is the shift itself (eq. 21).

    Args:
        m: Real margins, see :func:`margins`.
        shift: By how much the phantom step lowers them.

    Example:
        >>> log_weight_ratio(torch.tensor([7.0]), torch.tensor([2.5]))
        tensor([2.4899])
    """
    return F.logsigmoid(shift - m) - F.logsigmoid(-m)


def log_weight_ratio_first_order(m: Tensor, shift: Tensor) -> Tensor:
    r""":math:`(1 - \lambda)\, s`, the first-order form of :func:`log_weight_ratio`; not exact even for LSAM.

    Args:
        m: Real margins, see :func:`margins`.
        shift: By how much the phantom step lowers them.

    Example:
        >>> log_weight_ratio_first_order(torch.tensor([7.0]), torch.tensor([2.5]))
        tensor([2.4977])
    """
    return torch.sigmoid(m) * shift


def logit_shift(rule: Rule, margins_at: Callable[[dict[str, Tensor]], Tensor], w: Weights) -> Compared:
    r"""What any rule's phantom step does to the logit of every importance weight of any classifier.

    Predicted :math:`-\langle \nabla m_i, \epsilon\rangle`, one forward-mode product, so no gradient per example is
    stored; measured :math:`m_i(w) - m_i(w + \epsilon)`. Equal for LSAM with binary logits at any batch size; for
    SAM they differ by :math:`O(\rho^2)`.

    Args:
        rule: A rule of :mod:`samphire.optim.rules`.
        margins_at: The batch's margins (n,) as a function of ``{name: tensor}``; build it with :func:`margins`.
        w: The weights.

    Example:
        >>> from samphire.optim.rules import sam
        >>> phi, y = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0])
        >>> logit_shift(sam(rho=0.5), lambda w: margins(phi @ w["v"], y), {"v": torch.ones(2)})
        Compared(predicted=tensor([2.5000]), measured=tensor([2.5000]))
    """
    eps = _displacement(rule, lambda w: F.softplus(-margins_at(w)).mean(), w)
    here = dict(w)
    there = (Vector(w) + eps).dense()
    step = {name: torch.zeros_like(t) for name, t in w.items()} | eps.dense()
    now, slope = torch.func.jvp(margins_at, (here,), (step,))[:2]
    return Compared(-slope, now - margins_at(there))


class FeatureGradient(NamedTuple):
    r""":math:`|\nabla f|^2 = \sum_j a_j |h_j|^2 + b`, layer by layer from the head down to the input.

    Attributes:
        a: Coefficients :math:`a_1, \dots, a_L` (..., L).
        h: Squared norms :math:`|h_1|^2, \dots, |h_L|^2` of the representations (..., L); the last is the input's.
        bias: What the biases add (...).
    """

    a: Tensor
    h: Tensor
    bias: Tensor

    @property
    def squared_norm(self) -> Tensor:
        r""":math:`|\nabla f|^2`."""
        return (self.a * self.h).sum(-1) + self.bias


def linear_feature_gradient(v: Tensor, weights: Sequence[Tensor], x: Tensor) -> FeatureGradient:
    r"""Squared gradient norm of a linear network :math:`f = v^T W_1 \cdots W_{L-1} x` (eq. 28 to 33).

    With :math:`h_L = x,\ h_j = W_j h_{j+1}`:
    :math:`a_1 = 1,\ a_j = |v^T W_1 \cdots W_{j-2}|^2`. Two layers: :math:`|Wx|^2 + |v|^2 |x|^2`.

    Args:
        v: Head (k,).
        weights: :math:`W_1, \dots, W_{L-1}`, the one next to the head first.
        x: Inputs (..., d).

    Example:
        >>> linear_feature_gradient(torch.tensor([1.0, 2.0]), [torch.eye(2)], torch.tensor([3.0, 4.0])).squared_norm
        tensor(150.)

    Differences:
        Eq. 29 lacks the square on :math:`|x|`; eq. 32 has its transposes, eq. 33 its index one off.
    """
    return _feature_gradient(v, weights, x, [None] * len(weights), head_bias=False, relu=False)


def relu_feature_gradient(
    v: Tensor,
    weights: Sequence[Tensor],
    x: Tensor,
    biases: Sequence[Tensor] = (),
    head_bias: bool = False,
) -> FeatureGradient:
    r"""Squared gradient norm of a ReLU network (eq. 34 to 40), with or without biases.

    :math:`f = v^T h_1 + c_0,\ h_i = \mathrm{relu}(W_i h_{i+1} + c_i),\ h_L = x`. With
    :math:`A_i = \mathrm{diag}(1\{h_i > 0\})`: :math:`a_1 = 1,\ a_j = |v^T A_1 W_1 \cdots W_{j-2} A_{j-1}|^2`;
    every bias :math:`c_i` adds :math:`a_{i+1}`, that of the head adds 1.

    Args:
        v: Head (k,).
        weights: :math:`W_1, \dots, W_{L-1}`, the one next to the head first.
        x: Inputs (..., d).
        biases: :math:`c_1, \dots, c_{L-1}`, or none.
        head_bias: Whether the head has one.

    Example:
        >>> v, w1, w2 = torch.tensor([3.0, 5.0]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.eye(2)
        >>> relu_feature_gradient(v, [w1, w2], torch.tensor([2.0, 1.0])).squared_norm
        tensor(136.)

    Differences:
        Eq. 37 lacks the input in its first term and the trailing :math:`A_i` in the others; the constants after
        eq. 40 lack the head. Read :math:`\sigma_L(x)` of eq. 39 as :math:`x`.
    """
    if len(biases) not in (0, len(weights)):
        raise ValueError(
            f"relu_feature_gradient needs {len(weights)} biases, one per layer, or none, got {len(biases)}."
        )
    return _feature_gradient(v, weights, x, biases or [None] * len(weights), head_bias, relu=True)


# Why a larger phantom ratio helps the hard feature: P1 to P4


class Speeds(NamedTuple):
    """How fast the weighted margins grow; entry 0 is the easy feature, entry 1 the hard one.

    Attributes:
        speed: Predicted and measured (2,).
        gram: Inner products of the features' gradients (2, 2).
    """

    speed: Compared
    gram: Tensor

    @property
    def cosine(self) -> Tensor:
        """How strongly the shared network couples the features."""
        return self.gram[0, 1] / (self.gram[0, 0] * self.gram[1, 1]).sqrt()


def feature_speeds(
    features: Callable[[dict[str, Tensor]], Tensor], theta: Weights, y: Tensor, v: Tensor, time: float = 1e-4
) -> Speeds:
    r"""P1: how fast each feature is learned under gradient flow with frozen weights.

    With :math:`G_k = E[\lambda y \nabla\Phi_k]` and :math:`\dot\theta = \sum_k v_k G_k`,

    .. math:: \frac{d}{dt} E[\lambda y \Phi_k] = \sum_l \langle G_k, G_l\rangle v_l,

    so raising :math:`v_{hard}` alone speeds the hard feature by :math:`|G_{hard}|^2 \ge 0`. Nothing is assumed of the
    network. Measured by moving the network along the flow for a short time, forth and back.

    Args:
        features: ``{name: tensor}`` to the features (n, 2) of the batch.
        theta: The body's weights; float64, else rounding hides the agreement.
        y: Labels -1 or 1 (n,).
        v: Head (2,): the real one for SGD, the phantom one for LSAM.
        time: How long the network is moved each way.

    Example:
        >>> x, y = torch.eye(2).double(), torch.ones(2).double()
        >>> theta = {"a": torch.zeros(2).double()}
        >>> feature_speeds(lambda w: torch.stack([x @ w["a"], 2 * x @ w["a"]], 1), theta, y, v=y).speed.predicted
        tensor([0.3750, 0.7500], dtype=torch.float64)
    """
    here = {name: t.detach() for name, t in theta.items()}
    lam = importance_weights(_logits(features(here), v), y)

    def fit(w: dict[str, Tensor]) -> Tensor:
        return torch.einsum("n,nk->k", lam * y, features(w)) / len(y)

    g = torch.func.jacrev(fit)(here)
    rows = torch.cat([t.flatten(1) for t in g.values()], 1)
    gram = rows @ rows.T
    flow = Vector({name: torch.tensordot(v, t, 1) for name, t in g.items()})
    forth, back = (fit((Vector(here) + t * flow).dense()) for t in (time, -time))
    return Speeds(Compared(gram @ v, (forth - back) / (2 * time)), gram)


def speed_ratio(gram: Tensor, r: Tensor) -> Tensor:
    r"""P1: the hard feature's speed over the easy one's, as a function of :math:`r = v_{hard} / v_{easy}`.

    :math:`R(r) = (r |G_b|^2 + c) / (|G_a|^2 + r c)` with :math:`c = \langle G_a, G_b\rangle`; while its denominator
    is positive it never falls, by Cauchy and Schwarz.

    Args:
        gram: Inner products of the features' gradients, from :func:`feature_speeds`.
        r: Ratios.

    Example:
        >>> speed_ratio(torch.tensor([[4.0, 1.0], [1.0, 1.0]]), torch.tensor([1.0, 2.0]))
        tensor([0.4000, 0.5000])
    """
    return (r * gram[1, 1] + gram[0, 1]) / (gram[0, 0] + r * gram[0, 1])


class RatioRise(NamedTuple):
    """Whether the phantom ratio exceeds the real one.

    Attributes:
        raised: Predicted by the condition, and measured.
        slope: Of the phantom ratio by rho at 0, predicted and measured.
        valid: Where both easy entries are positive, so that the proposition speaks.
    """

    raised: Compared
    slope: Compared
    valid: Tensor


def ratio_rise(phi: Tensor, y: Tensor, v: Tensor, rho: Scalar) -> RatioRise:
    r"""P2: the phantom step raises the ratio of hard to easy exactly when :math:`v_{hard} A > v_{easy} H`.

    The condition does not depend on rho. The slope at :math:`\rho = 0` is
    :math:`(v_{hard} A - v_{easy} H) / (v_{easy}^2 |(A, H)|)`. Training the head lowers the real ratio under the very
    same condition. It needs :math:`v_{easy} > 0` and :math:`\tilde v_{easy} > 0`, certain while
    :math:`\rho < v_{easy}`.

    Args:
        phi: Features (..., n, 2).
        y: Labels -1 or 1 (..., n).
        v: Head (..., 2).
        rho: Length of the phantom step, a number or one per run; > 0.

    Example:
        >>> phi, y = torch.tensor([[2.0, 0.5], [1.0, -0.5]]).double(), torch.ones(2).double()
        >>> ratio_rise(phi, y, y, rho=0.5).raised
        Compared(predicted=tensor(True), measured=tensor(True))
    """
    d = head_gradient(phi, y, v)
    lean = _lean(d, v)
    easy, _ = _pair(v)
    there = v - _column(rho, v) * _unit(d)
    small = torch.finfo(v.dtype).eps ** (1 / 3) * easy.abs().unsqueeze(-1) * _unit(d)
    slope = (ratio(v - small) - ratio(v + small)) / (2 * torch.linalg.vector_norm(small, dim=-1))
    return RatioRise(
        raised=Compared(lean > 0, ratio(there) > ratio(v)),
        slope=Compared(lean / (easy**2 * torch.linalg.vector_norm(d, dim=-1)), slope),
        valid=(easy > 0) & (there[..., 0] > 0),
    )


class WeightShift(NamedTuple):
    """What the phantom head does to the weights.

    Attributes:
        logit: Shift of every weight's logit (..., n), predicted and measured.
        matched: Further shift per unit of easy margin among examples of equal real weight (...), predicted and
            measured.
    """

    logit: Compared
    matched: Compared


def weight_shift(phi: Tensor, y: Tensor, v: Tensor, rho: Scalar) -> WeightShift:
    r"""P3: which examples LSAM hears more.

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
        rho: Length of the phantom step, a number or one per run.

    Example:
        >>> phi, y = torch.tensor([[2.0, 0.5], [1.0, -0.5]]).double(), torch.ones(2).double()
        >>> weight_shift(phi, y, y, rho=0.5).logit.predicted
        tensor([0.8932, 0.5494], dtype=torch.float64)

    Differences:
        The paper says that what the hard feature fits poorly is up-weighted, without "at equal real weight"; that
        needs :math:`H \le 0`.
    """
    d = head_gradient(phi, y, v)
    m = y.unsqueeze(-1) * phi
    predicted = torch.einsum("...nk,...k->...n", m, _column(rho, v) * _unit(d))
    measured = margins(_logits(phi, v), y) - margins(_logits(phi, phantom_head(phi, y, v, rho)), y)
    total = margins(_logits(phi, v), y)
    design = torch.stack([m[..., 0], total], -1)
    coefficients = (torch.linalg.pinv(design) @ measured.unsqueeze(-1)).squeeze(-1)
    _, hard = _pair(v)
    gain = _column(rho, v).squeeze(-1) * _lean(d, v) / (hard * torch.linalg.vector_norm(d, dim=-1))
    return WeightShift(Compared(predicted, measured), Compared(gain, coefficients[..., 0]))


class MatchedMargin(NamedTuple):
    """The hard feature at the time the total margin is reached.

    Attributes:
        hard: Its margin, one per ratio, predicted and measured.
        share: Its share of the logit, one per ratio, predicted and measured.
        best: The ratio with the largest hard margin: predicted, and the best of the ratios given.
    """

    hard: Compared
    share: Compared
    best: Compared


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
    if not total > 0:
        raise ValueError(f"matched_margin: total must be > 0, got {total!r}.")
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
        hard=Compared(total * r * hard**2 / norm, reached),
        share=Compared(r**2 * hard**2 / norm, r * reached / (head * theta * s).sum(-1)),
        best=Compared(s[0] / s[1], r[reached.argmax()]),
    )


def _displacement(rule: Rule, loss: Callable[[dict[str, Tensor]], Tensor], w: Weights) -> Vector:
    """Where the rule asks for its last gradient, relative to the weights."""
    asked: list[Vector] = []
    answer = gradient_at(loss, w)

    def noted(request: At) -> Vector:
        asked.append(request.eps)
        return answer(request)

    drive(bind(rule, w), w, Memory(), noted)
    return asked[-1]


def _feature_gradient(
    v: Tensor,
    weights: Sequence[Tensor],
    x: Tensor,
    biases: Sequence[Tensor | None],
    head_bias: bool,
    relu: bool,
) -> FeatureGradient:
    """One forward sweep for the representations h_L ... h_1, one backward sweep for u_i = df/dz_i."""
    h = [x]
    for w, c in zip(reversed(weights), reversed(biases), strict=True):
        h.append(F.relu(F.linear(h[-1], w, c)) if relu else F.linear(h[-1], w, c))
    h.reverse()
    a = [torch.ones_like(x[..., 0])]
    u = v.expand_as(h[0])
    for i, w in enumerate(weights):
        u = u * (h[i] > 0) if relu else u
        a.append(u.square().sum(-1))
        u = u @ w
    bias = sum((a_i for a_i, c in zip(a[1:], biases, strict=True) if c is not None), a[0] * head_bias)
    return FeatureGradient(torch.stack(a, -1), torch.stack([t.square().sum(-1) for t in h], -1), bias)


def _logits(phi: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("...nk,...k->...n", phi, v)


def _lean(d: Tensor, v: Tensor) -> Tensor:
    """``v_hard A - v_easy H``: positive when the easy feature leads."""
    return v[..., 1] * d[..., 0] - v[..., 0] * d[..., 1]


def _pair(v: Tensor) -> tuple[Tensor, Tensor]:
    if not v.ndim or v.shape[-1] != 2:
        raise ValueError(
            f"the head must have two entries, easy and hard, in its last dimension, got {tuple(v.shape)}."
        )
    return v[..., 0], v[..., 1]


def _column(rho: Scalar, like: Tensor) -> Tensor:
    """Rho, one number or one per run, ready to multiply vectors (..., k)."""
    return torch.as_tensor(rho, dtype=like.dtype, device=like.device).unsqueeze(-1)


def _unit(d: Tensor) -> Tensor:
    """``d / |d|`` along the last dimension, zero where ``d`` is zero; tiny vectors do not underflow."""
    top = d.abs().amax(-1, keepdim=True)
    scaled = d / torch.where(top == 0, 1.0, top)
    return scaled / torch.where(top == 0, 1.0, torch.linalg.vector_norm(scaled, dim=-1, keepdim=True))


def _median(x: Tensor) -> Tensor:
    """The middle, or the mean of the two in the middle, along the last dimension."""
    ordered = x.sort(-1).values
    n = x.shape[-1]
    return (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2


def _checked(lam: Tensor) -> Tensor:
    if not lam.ndim or not lam.shape[-1]:
        raise ValueError(f"needs at least one weight in the last dimension, got shape {tuple(lam.shape)}.")
    if (lam < 0).any():
        raise ValueError(f"importance weights must be >= 0, got {lam.min().item():.6g}.")
    return lam


def _edges(x: Tensor, bins: int) -> Tensor:
    if bins < 1 or not x.numel():
        raise ValueError(f"needs at least one bin and one example, got {bins} and {x.numel()}.")
    low, high = x.min(), x.max()
    if low == high:
        low, high = low - 0.5, high + 0.5
    return low + (high - low) * torch.linspace(0, 1, bins + 1, dtype=x.dtype, device=x.device)


def _bin(x: Tensor, edges: Tensor) -> Tensor:
    """The bin of every entry, -1 outside; the last bin holds its upper edge."""
    k = torch.searchsorted(edges.to(x), x, right=True) - 1
    k = torch.where(x == edges[-1], len(edges) - 2, k)
    return torch.where((x >= edges[0]) & (x <= edges[-1]), k, -1)


def _span(y: Tensor) -> str:
    return f"{y.min().item()} to {y.max().item()}" if y.numel() else "none"
