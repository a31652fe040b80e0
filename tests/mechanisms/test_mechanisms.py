"""Golden numbers worked out by hand, autograd in float64, independent libraries, and exact relations."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from samphire import mechanisms
from samphire.mechanisms.heads import head_gradient
from samphire.mechanisms.shifts import last_displacement
from samphire.optim.rules import lsam, sam
from samphire.tree import Vector


def vec(*entries):
    return torch.tensor(entries, dtype=torch.float64)


def near(actual, expected, tol=1e-12):
    assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tol, atol=tol)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape, seed=0):
    return random(*shape, seed=100 + seed).sign()


G6 = {"phi": vec(2, 0.5, 1, -0.5).reshape(2, 2), "y": vec(1, 1), "v": vec(1, 1), "rho": 0.5}


# Importance weights


def test_weight_of_class_zero_in_three():  # G7
    z, y = vec(0, math.log(2), math.log(4)).reshape(1, 3), torch.tensor([0])
    near(mechanisms.importance_weights(z, y), [6 / 7])
    grad = torch.func.grad(lambda z: nn.functional.cross_entropy(z, y))(z)
    near(grad.norm(), 1.0690449676, tol=1e-9)  # the 2-norm is another number


def test_multiclass_weight_is_minus_the_gradient_of_the_true_logit():
    z, y = 3 * random(50, 7), torch.arange(50) % 7
    grad = torch.func.grad(lambda z: nn.functional.cross_entropy(z, y, reduction="sum"))(z)
    lam = mechanisms.importance_weights(z, y)
    near(lam, -grad.gather(1, y[:, None])[:, 0])
    near(lam, grad.abs().amax(1))
    near(nn.functional.softplus(-mechanisms.margins(z, y)), nn.functional.cross_entropy(z, y, reduction="none"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tiny_weight_is_not_rounded_to_zero(dtype):
    z = torch.tensor([[50.0, 0.0, 1.0]], dtype=dtype)
    lam = mechanisms.importance_weights(z, torch.tensor([0]))
    assert_close(lam.double(), vec(math.exp(-50) + math.exp(-49)), rtol=1e-5, atol=0)
    assert_close(lam.double(), vec(7.1716355e-22), rtol=1e-5, atol=0)
    assert 1 - z.softmax(1)[0, 0] == 0


def test_two_classes_are_the_binary_case():
    f, y = random(20), labels(20)
    z = torch.stack([torch.zeros_like(f), f], 1)
    binary, multi = mechanisms.margins(f, y), mechanisms.margins(z, (y > 0).long())
    near(multi, binary)
    near(mechanisms.importance_weights(f, y), torch.sigmoid(-y * f))


@pytest.mark.parametrize(
    ("z", "y", "message"),
    [
        (vec(1, 2), torch.tensor([0, 1]), r"must be -1 or 1, got 0; for labels 0 and 1 pass 2 \* y - 1"),
        (random(4, 3), vec(1, 1, 1), r"got \(4, 3\) and torch.float64 \(3,\)"),
        (random(3, 3), vec(1, 1, 1), "integer labels"),
        (random(2, 3), torch.tensor([0, 3]), "class labels must be whole numbers from 0 to 2, got 0 to 3"),
        (random(2, 1), torch.tensor([0, 0]), "two classes or more"),
    ],
)
def test_labels_that_do_not_fit_are_refused(z, y, message):
    with pytest.raises(ValueError, match=message):
        mechanisms.margins(z, y)


# The phantom parameter


def test_one_example_under_lsam():  # G4
    phi, y, v = vec(3, 4).reshape(1, 2), vec(1), vec(1, 1)
    tilde = mechanisms.phantom_head(phi, y, v, rho=0.5)
    real, phantom = (mechanisms.importance_weights(phi @ u, y) for u in (v, tilde))
    near(phi @ tilde, [4.5])
    near(real, [0.0009110511944006454])
    near(phantom, [0.01098694263059318])
    shift = mechanisms.margin_shift(phi, y, real, rho=0.5)
    near(shift, [2.5])
    near(torch.logit(phantom) - torch.logit(real), shift)
    near(torch.log(phantom / real), [2.48986372160518])


def test_an_example_against_the_batch_counts_less():  # G5
    phi, y, v = vec(2, 0, -1, 0).reshape(2, 2), vec(1, 1), vec(1, 1)
    lam = mechanisms.importance_weights(phi @ v, y)
    near(lam, [0.11920292202211755, 0.7310585786300049])
    near(mechanisms.margin_shift(phi, y, lam, rho=0.5), [-1, 0.5])
    tilde = mechanisms.phantom_head(phi, y, v, rho=0.5)
    near(mechanisms.importance_weights(phi @ tilde, y), [0.04742587317756678, 0.8175744761936437])


def test_two_examples_that_raise_the_phantom_ratio():  # G6
    phi, y, v, rho = G6.values()
    near(mechanisms.importance_weights(phi @ v, y), [0.07585818, 0.37754067], tol=1e-7)
    near(head_gradient(phi, y, v), [0.26462851, -0.07542062], tol=1e-7)
    tilde = mechanisms.phantom_head(phi, y, v, rho)
    near(tilde, [0.51914812, 1.13704550], tol=1e-7)
    near(mechanisms.ratio(tilde), 2.190214041815144)
    near(mechanisms.importance_weights(phi @ tilde, y), [0.16703072, 0.51234115], tol=1e-7)
    near(mechanisms.weight_shift(**G6).logit.measured, [0.89318101, 0.54937463], tol=1e-7)


def test_head_gradient_is_minus_autograd():
    phi, y, v = random(8, 3), labels(8), random(3, seed=1)
    loss = lambda v: nn.functional.softplus(-y * (phi @ v)).mean()
    near(head_gradient(phi, y, v), -torch.func.grad(loss)(v))


def test_phantom_head_is_the_rule_lsam():
    phi, y, v = random(8, 2), labels(8), random(2, seed=1)
    loss = lambda w: nn.functional.softplus(-y * (phi @ w["head.weight"])).mean()
    eps = last_displacement(lsam(rho=0.3, head="head"), loss, {"head.weight": v}).dense()
    near(mechanisms.phantom_head(phi, y, v, rho=0.3), v + eps["head.weight"])


def test_runs_side_by_side_equal_runs_alone():
    phi, y, v = random(3, 8, 2), labels(3, 8), random(3, 2, seed=1)
    rho = vec(0.1, 0.5, 2)
    together = mechanisms.phantom_head(phi, y, v, rho)
    rise, shift = mechanisms.ratio_rise(phi, y, v, rho), mechanisms.weight_shift(phi, y, v, rho)
    for i in range(3):
        near(together[i], mechanisms.phantom_head(phi[i], y[i], v[i], rho[i].item()))
        near(rise.slope.predicted[i], mechanisms.ratio_rise(phi[i], y[i], v[i], rho[i]).slope.predicted)
        near(shift.matched.measured[i], mechanisms.weight_shift(phi[i], y[i], v[i], rho[i]).matched.measured)


@pytest.mark.parametrize("scale", [1.0, 1e-200])
def test_the_perturbation_has_length_rho_however_small_the_gradient(scale):
    phi, y, v = scale * random(8, 2), labels(8), random(2, seed=1)
    near((mechanisms.phantom_head(phi, y, v, rho=0.3) - v).norm(), 0.3)


def test_zero_gradient_means_no_perturbation():
    phi, y, v = torch.zeros(4, 2), torch.ones(4), torch.tensor([1.0, 2.0])
    assert torch.equal(mechanisms.phantom_head(phi, y, v, rho=1.0), v)
    assert torch.equal(mechanisms.margin_shift(phi, y, torch.ones(4), rho=1.0), torch.zeros(4))


def test_ratio_is_summarized_by_median_share_and_crossings():
    v = vec(1, 1, 1, 2, 2, 8, -0.1, 3).reshape(4, 2)
    summary = mechanisms.summarize_ratio(v)
    near(summary.median, 1.5)  # of 1, 2, 4 and -30
    near(summary.share, (1 / 2 + 2 / 3 + 8 / 10 + 3 / 3.1) / 4)
    near(summary.crossed, 0.25)


def test_learning_rates_of_both_features():
    rates = mechanisms.learning_rates(vec(2, 2), vec(1, 3))
    near(rates.factor, [0.5, 1.5])
    near(rates.real, 0.5)
    near(rates.phantom, 0.75)


def test_head_of_three_has_no_ratio():
    with pytest.raises(ValueError, match=r"two entries, easy and hard, .* got \(3,\)"):
        mechanisms.ratio(vec(1, 2, 3))


# Lorenz, Gini, effective sample size


@pytest.mark.parametrize(
    ("lam", "gini", "size"),
    [
        ((1, 2, 3, 4), 0.25, 10 / 3),
        ((1, 1, 1, 1), 0, 4),
        ((0, 0, 0, 1), 0.75, 1),
        ((1, 3), 0.25, 1.6),
    ],
)
def test_inequality_of_small_samples(lam, gini, size):  # G8
    near(mechanisms.gini(vec(*lam)), gini)
    near(mechanisms.effective_sample_size(vec(*lam)), size)


def test_lorenz_of_one_to_four():  # G8
    near(mechanisms.lorenz(vec(3, 1, 4, 2)), [0, 0.1, 0.3, 0.6, 1])
    near(mechanisms.lorenz(vec(3, 1, 4, 2), order="top"), [0, 0.4, 0.7, 0.9, 1])


def test_gini_four_ways():
    lam = random(3, 101).exp()
    n = lam.shape[-1]
    gini = mechanisms.gini(lam)
    below, above = mechanisms.lorenz(lam), mechanisms.lorenz(lam, order="top")
    near(gini, 1 - 2 * torch.trapezoid(below, dx=1 / n))
    near(gini, 2 * torch.trapezoid(above, dx=1 / n) - 1)
    near(gini, (lam[..., None] - lam[:, None]).abs().sum((1, 2)) / (2 * n * n * lam.mean(1)))
    near(above, 1 - below.flip(-1))
    assert (below <= torch.arange(n + 1) / n + 1e-6).all()
    assert (below[:, -1] == 1).all()
    assert (below.diff().diff() >= -1e-12).all()


def test_spread_ignores_scale_and_sees_uniformity():
    lam = random(50).exp()
    for measure in (mechanisms.gini, mechanisms.effective_sample_size, mechanisms.lorenz):
        near(measure(1e-30 * lam), measure(lam))
    assert mechanisms.gini(lam + 1) < mechanisms.gini(lam)
    assert mechanisms.effective_sample_size(lam + 1) > mechanisms.effective_sample_size(lam)


def test_zero_weights_have_no_spread():
    zero = torch.zeros(3)
    for measure in (mechanisms.gini, mechanisms.effective_sample_size, mechanisms.lorenz):
        assert measure(zero).isnan().all()


@pytest.mark.parametrize("measure", [mechanisms.gini, mechanisms.effective_sample_size, mechanisms.lorenz])
def test_bad_weights_are_refused(measure):
    with pytest.raises(ValueError, match=">= 0, got -1"):
        measure(vec(2, -1))
    with pytest.raises(ValueError, match=r"at least one weight .* got shape \(0,\)"):
        measure(vec())


def test_a_bad_order_is_refused():
    with pytest.raises(ValueError, match="no order is named 'down'; there are ascending, top"):
        mechanisms.lorenz(vec(1), order="down")


# Appendix D


def tanh_net(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    return net, {name: p.detach() for name, p in net.named_parameters()}


def logits(net, x):
    return lambda w: torch.func.functional_call(net, w, (x,))[:, 0]


@pytest.mark.parametrize("batch", [1, 5])
def test_logit_shift_is_exact_for_lsam(batch):
    net, w = tanh_net(0)
    x, y = random(batch, 3), labels(batch)
    shift = mechanisms.logit_shift(lsam(rho=0.5, head="2"), lambda w: mechanisms.margins(logits(net, x)(w), y), w)
    near(shift.predicted, shift.measured)
    phi = torch.cat([net[:2](x).detach(), torch.ones(batch, 1)], 1)  # the head has a bias
    lam = mechanisms.importance_weights(net(x)[:, 0].detach(), y)
    near(mechanisms.margin_shift(phi, y, lam, rho=0.5), shift.measured)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_remainder_for_sam_is_quadratic_in_rho(batch, seed):
    net, w = tanh_net(seed)
    x, y = random(batch, 3, seed=seed), labels(batch, seed=seed)
    margins = lambda w: mechanisms.margins(logits(net, x)(w), y)
    rhos = (1e-3, 1e-4)
    errors = [mechanisms.logit_shift(sam(rho), margins, w).error for rho in rhos]
    assert 90 < errors[0] / errors[1] < 110


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_shift_from_gradients_per_example_is_the_first_order_of_sam(batch, loss):
    net, w = tanh_net(1)
    x, y = random(batch, 3), labels(batch)
    rows = torch.func.jacrev(logits(net, x))(w)
    g = torch.cat([t.flatten(1) for t in rows.values()], 1)
    m = y * logits(net, x)(w)
    lam = torch.sigmoid(-m) if loss == "logistic" else torch.exp(-m)
    penalty = nn.functional.softplus if loss == "logistic" else torch.exp
    errors = []
    for rho in (1e-3, 1e-4):
        eps = last_displacement(sam(rho), lambda w: penalty(-y * logits(net, x)(w)).mean(), w)
        measured = m - y * logits(net, x)((Vector(w) + eps).dense())
        shift = mechanisms.margin_shift(g, y, lam, rho)
        errors.append((shift - measured).abs().max())
        near((lam * shift).sum(), rho * ((lam * y)[:, None] * g).sum(0).norm())
        if batch == 1:
            near(shift, rho * g.norm(dim=1))
    assert 90 < errors[0] / errors[1] < 110


def test_multiclass_logit_shift_is_first_order():
    x, y = random(6, 3), torch.arange(6) % 4
    w = {"head.weight": random(4, 3, seed=1)}
    margins = lambda w: mechanisms.margins(x @ w["head.weight"].T, y)
    errors = [mechanisms.logit_shift(sam(rho), margins, w).error for rho in (1e-3, 1e-4)]
    assert 90 < errors[0] / errors[1] < 110


def test_two_layer_linear_gradient():  # G1
    assert mechanisms.feature_gradient(vec(1, 2), [torch.eye(2).double()], vec(3, 4), relu=False).squared_norm == 150


def test_three_layer_linear_gradient():  # G2
    w1, w2 = vec(1, 2, 0, 1).reshape(2, 2), vec(1, 0, 1, 1).reshape(2, 2)
    gradient = mechanisms.feature_gradient(vec(1, 1), [w1, w2], vec(1, 2), relu=False)
    near(gradient.a, [1, 2, 10])
    near(gradient.h, [58, 10, 5])
    assert gradient.squared_norm == 128


def test_relu_gradient():  # G3
    w1, w2 = vec(1, -1, -1, 1).reshape(2, 2), vec(1, 0, -1, 1).reshape(2, 2)
    assert mechanisms.feature_gradient(vec(3, 5), [w1, w2], vec(2, 1)).squared_norm == 85


@pytest.mark.parametrize("layers", [2, 3, 4, 6])
@pytest.mark.parametrize("kind", ["linear", "relu", "relu with biases"])
def test_squared_gradient_norm_agrees_with_autograd(layers, kind):
    torch.manual_seed(layers)
    bias = kind == "relu with biases"
    widths = [3, 7, 4, 6, 5, 8][:layers]
    parts = []
    for a, b in itertools.pairwise(widths):
        parts += [nn.Linear(a, b, bias=bias)] + ([nn.ReLU()] if kind != "linear" else [])
    net = nn.Sequential(*parts, nn.Linear(widths[-1], 1, bias=bias)).double()
    hidden = [m for m in net[:-1] if isinstance(m, nn.Linear)][::-1]
    v, weights, biases = net[-1].weight[0].detach(), [m.weight.detach() for m in hidden], [m.bias for m in hidden]
    x = random(20, 3)
    given = biases if bias else ()
    ours = mechanisms.feature_gradient(v, weights, x, given, relu=kind != "linear", head_bias=bias)
    w = {name: p.detach() for name, p in net.named_parameters()}
    rows = torch.func.jacrev(logits(net, x))(w)
    near(ours.squared_norm.detach(), sum(t.flatten(1).square().sum(1) for t in rows.values()))
    assert ours.a.shape == ours.h.shape == (20, layers)


def test_biases_of_some_layers_only_are_refused():
    with pytest.raises(ValueError, match="needs 2 biases, one per layer, or none, got 1"):
        mechanisms.feature_gradient(vec(1, 1), [torch.eye(2)] * 2, vec(1, 1), [vec(0, 0)])


# P1 to P4


class Toy(nn.Module):
    """The shared body of the toy: easy and hard half of the input through one network."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        easy, hard = x * torch.tensor([1, 1, 0, 0]), x * torch.tensor([0, 0, 1, 1])
        return torch.cat([self.body(easy), self.body(hard)], 1)


def toy(seed):
    torch.manual_seed(seed)
    net = Toy().double()
    x, y = random(12, 4, seed=seed), labels(12, seed=seed)
    return lambda w: torch.func.functional_call(net, w, (x,)), {n: p.detach() for n, p in net.named_parameters()}, y


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hard", [0.5, 1, 4])
def test_p1_speeds_are_as_predicted(seed, hard):
    features, theta, y = toy(seed)
    speeds = mechanisms.feature_speeds(features, theta, y, vec(1, hard), time=1e-6)
    near(speeds.predicted, speeds.measured, tol=1e-6)


def test_p1_flow_descends_the_loss():
    """The speeds are those of gradient descent: v . speed is minus the loss's derivative along its gradient."""
    features, theta, y = toy(0)
    v = vec(1, 2)
    grad = torch.func.grad(lambda w: nn.functional.softplus(-y * (features(w) @ v)).mean())(theta)
    squared = sum(g.square().sum() for g in grad.values())
    near(v @ mechanisms.feature_speeds(features, theta, y, v).predicted, squared)


def test_p2_condition_and_slope():
    phi, y = random(2000, 5, 2), labels(2000, 5)
    v, rho = random(2000, 2, seed=1).abs() + 0.1, random(2000, seed=2).abs()
    rise = mechanisms.ratio_rise(phi, y, v, rho)
    assert rise.valid.sum() > 800
    assert rise.raised.predicted[rise.valid].equal(rise.raised.measured[rise.valid])
    assert 0.1 < rise.raised.predicted.double().mean() < 0.9
    assert_close(rise.slope.measured, rise.slope.predicted, rtol=1e-6, atol=1e-6)
    assert (rise.valid | (rho > v[:, 0])).all()  # certain while rho < v_easy


def test_p2_golden():  # G6
    rise = mechanisms.ratio_rise(**G6)
    assert rise.raised.predicted
    assert rise.raised.measured
    a, h = 0.26462851, -0.07542062
    near(rise.slope.predicted, (a - h) / math.hypot(a, h), tol=1e-7)


def test_p2_training_the_head_lowers_the_real_ratio_under_the_same_condition():
    phi, y, v = random(500, 5, 2), labels(500, 5), random(500, 2, seed=1).abs() + 0.1
    trained = v + 1e-6 * head_gradient(phi, y, v)
    fell = mechanisms.ratio(trained) < mechanisms.ratio(v)
    assert fell.equal(mechanisms.ratio_rise(phi, y, v, rho=0.05).raised.predicted)


def test_p3_shift_is_exact_and_matched_gain_is_measured():
    phi, y = random(200, 6, 2), labels(200, 6)
    v, rho = random(200, 2, seed=1), random(200, seed=2).abs()
    shift = mechanisms.weight_shift(phi, y, v, rho)
    near(shift.logit.predicted, shift.logit.measured)
    assert_close(shift.matched.predicted, shift.matched.measured, rtol=1e-6, atol=1e-6)


def test_p3_of_two_examples_with_equal_weight_the_easier_gains_under_p2s_condition():
    for seed in range(200):
        v = random(2, seed=seed).abs() + 0.1
        phi, y = random(6, 2, seed=seed), torch.ones(6).double()
        phi[1] = phi[0] + 0.7 * vec(1, -v[0] / v[1])  # more easy margin, less hard margin, equal weight
        near((phi @ v)[0], (phi @ v)[1])
        shift = mechanisms.weight_shift(phi, y, v, rho=0.3).logit.measured
        assert (shift[1] > shift[0]) == mechanisms.ratio_rise(phi, y, v, rho=0.3).raised.predicted


def test_p4_hard_margin_at_matched_loss():  # G12
    r = vec(0.5, 1, 2, 4, 8)
    matched = mechanisms.matched_margin(r, easy=2, hard=0.5, total=3)
    near(matched.hard.predicted, [0.0923, 0.1765, 0.3, 0.375, 0.3], tol=1e-4)
    near(matched.hard.predicted[3], 0.375)
    near(matched.hard.predicted, matched.hard.measured)
    near(matched.share.predicted, matched.share.measured)
    assert (matched.share.measured.diff() > 0).all()
    assert matched.best.predicted == matched.best.measured == 4


def test_p4_agrees_with_plain_gradient_descent():
    theta, r, s = vec(0, 0), 2.0, vec(2, 0.5)
    while (theta * s * vec(1, r)).sum() < 3:
        lam = torch.sigmoid(-(theta * s * vec(1, r)).sum())
        theta = theta + 1e-3 * lam * s * vec(1, r)
    near(theta[1] * s[1], mechanisms.matched_margin(vec(r), 2, 0.5, 3).hard.predicted[0], tol=1e-3)


def test_p4_margin_must_be_positive():
    with pytest.raises(ValueError, match="total must be a finite number > 0, got -1"):
        mechanisms.matched_margin(vec(1), 2, 0.5, -1)
