"""Sharpness, Hessian, surfaces and bounds against dense float64 computations, closed forms and hand-worked numbers."""

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn
from torch.nn import functional as F

from samphire import landscape, optim
from samphire.landscape import Landscape, density, eigenvalues, trace
from samphire.landscape.bound import Assumption
from samphire.mechanisms.shifts import last_displacement
from samphire.statistics import Estimate
from samphire.tree import Vector, dot, norm

D = 6


@pytest.fixture
def matrix():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(D, D, generator=generator, dtype=torch.float64)
    return (a + a.T) / 2


def quadratic(matrix, w, slope=None):
    slope = torch.zeros(D, dtype=torch.float64) if slope is None else slope
    f = lambda v: 0.5 * (v["w"] - w) @ matrix @ (v["w"] - w) + slope @ (v["w"] - w) + 3.0
    return Landscape.of_function(f, {"w": w})


@pytest.fixture(scope="module")
def network():
    """A network of 72 weights with its dense Hessian in float64, in batches of 7."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3, bias=False)).double()
    model[0].bias.data += 0.1
    x, y = torch.randn(30, 5).double(), torch.randint(3, (30,))
    of = Landscape.of(model, F.cross_entropy, list(zip(x.split(7), y.split(7), strict=True)))
    sizes = [(n, p.shape, p.numel()) for n, p in model.named_parameters()]

    def loss(flat):
        parts = flat.split([size for *_, size in sizes])
        w = {n: p.view(shape) for (n, shape, _), p in zip(sizes, parts, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, w, (x,)), y)

    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return of, torch.func.hessian(loss)(flat), torch.func.grad(loss)(flat), flat, (model, x, y)


def flatten(v):
    return torch.cat([t.reshape(-1) for t in v.dense().values()])


def like(of, flat):
    parts = flat.split([t.numel() for t in of.w.tensors.values()])
    return Vector({n: p.view_as(t) for (n, t), p in zip(of.w.tensors.items(), parts, strict=True)})


# Hessian


def test_products_are_those_of_the_dense_hessian(network):
    of, hessian, *_ = network
    v = torch.randn(2, of.dimension, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = torch.stack([flatten(h) for h in of.products([like(of, row) for row in v])])
    torch.testing.assert_close(found, v @ hessian, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("end", ["top", "bottom"])
@pytest.mark.parametrize("k", [1, 5, 10, 72])  # by ARPACK, and by the whole matrix
def test_eigenvalues_are_those_of_the_dense_hessian(network, end, k):
    of, hessian, *_ = network
    values, vectors = torch.linalg.eigh(hessian)
    if end == "top":
        values, vectors = values.flip(0), vectors.flip(1)
    found = eigenvalues(of, k, end, tol=1e-10)
    np.testing.assert_allclose(found.values, values[:k], atol=1e-9 * values.abs().max().item())
    for i in range(min(k, 3)):
        assert abs(flatten(found.vectors[i]) @ vectors[:, i]) == pytest.approx(1, abs=1e-6)
    assert (found.residuals < 1e-8).all()
    assert found.products <= of.dimension + 2 * k + 100


def test_the_residual_is_an_error_bar(network):
    of, hessian, *_ = network
    rough = eigenvalues(of, 3, tol=0.3)
    values = torch.linalg.eigvalsh(hessian).numpy()
    for value, residual, v in zip(rough.values, rough.residuals, rough.vectors, strict=True):
        flat = flatten(v)
        assert residual == pytest.approx((hessian @ flat - value * flat).norm().item(), rel=1e-6)
        assert abs(values - value).min() <= residual + 1e-12
        assert residual <= 0.3 * abs(value)


def test_trace_is_the_dense_one_within_its_error(network):
    of, hessian, *_ = network
    found = trace(of, samples=400).trace
    exact = hessian.trace().item()
    deviation = math.sqrt(2 * (hessian.square().sum() - hessian.diag().square().sum()))
    assert found.error == pytest.approx(deviation / math.sqrt(400), rel=0.2)
    assert abs(found.mean - exact) < 3 * found.error
    assert found.n == 400


def test_probes_are_signs_of_both_kinds_and_stacks_do_not_matter(network, monkeypatch):
    of, *_ = network
    whole = trace(of, samples=5)
    monkeypatch.setattr(landscape.hessian, "_NUMBERS", 4 * of.dimension)
    assert trace(of, samples=5).trace.mean == pytest.approx(whole.trace.mean, rel=1e-12)
    space = landscape.hessian._Space(of)
    probes = torch.cat(list(space.probes(50, 0, each=2)))
    assert probes.shape == (50, of.dimension)
    assert set(probes.unique().tolist()) == {-1.0, 1.0}
    assert abs(probes.mean()) < 3 / math.sqrt(probes.numel())


def test_density_has_the_moments_of_its_probes_exactly(network):
    of, hessian, *_ = network
    steps, samples = 8, 3
    found = density(of, steps, samples, seed=1)
    z = next(landscape.hessian._Space(of).probes(samples, 1, each=2)) / math.sqrt(of.dimension)
    power = z.clone()
    for p in range(2 * steps):
        exact = (z * power).sum(1).numpy()
        np.testing.assert_allclose((found.weights * found.nodes**p).sum(1), exact, rtol=1e-9, atol=1e-12)
        power = power @ hessian
    np.testing.assert_allclose(found.weights.sum(1), 1.0)


def test_density_of_few_distinct_eigenvalues_stops_at_them():
    curvatures = torch.tensor([2.0] * 30 + [-1.0] * 10, dtype=torch.float64)
    f = lambda w: 0.5 * (curvatures * w["x"] ** 2).sum()
    found = density(Landscape.of_function(f, {"x": torch.zeros(40).double()}), steps=20, samples=2)
    assert found.share(1.999, 2.001) == pytest.approx(0.75)
    assert found.share(-1.001, -0.999) == pytest.approx(0.25)
    grid = np.linspace(-4, 5, 2001)
    blurred = found.at(grid, width=0.2)
    assert np.trapezoid(blurred, grid) == pytest.approx(1, abs=1e-6)
    assert blurred[np.abs(grid - 2).argmin()] == pytest.approx(0.75 / (0.2 * math.sqrt(2 * math.pi)), rel=1e-3)
    assert "75" in found.in_words() or "25.00% curve down" in found.in_words()


def test_a_linear_loss_has_no_curvature():
    of = Landscape.of_function(lambda w: w["x"].sum(), {"x": torch.ones(40)})
    assert (eigenvalues(of, 2).values == 0).all()
    assert trace(of, samples=2).trace.mean == 0


# Sharpness


def exact_maximum(matrix, slope, rho):
    """max over the ball of e'Ae/2 + g'e, by the secular equation |(mu - A)^-1 g| = rho with mu above the spectrum."""
    values, vectors = torch.linalg.eigh(matrix)
    c = (vectors.T @ slope).numpy()
    values = values.numpy()
    length = lambda mu: np.linalg.norm(c / (mu - values)) - rho
    low = max(values.max(), 0) + 1e-12
    mu = optimize.brentq(length, low, low + np.linalg.norm(c) / rho + abs(values).max())
    e = c / (mu - values)
    return 0.5 * (values * e**2).sum() + c @ e


@pytest.mark.parametrize("rho", [0.01, 0.3, 2.0])
def test_worst_case_of_a_quadratic_is_the_exact_maximum(matrix, rho):
    slope = torch.linspace(-1, 1, D, dtype=torch.float64)
    found = landscape.sharpness(quadratic(matrix, torch.ones(D).double(), slope), rho, steps=200)
    assert found.worst == pytest.approx(exact_maximum(matrix, slope, rho), rel=1e-7)
    g, h = slope.norm().item(), (slope @ matrix @ slope / slope.square().sum()).item()
    assert found.first_order == pytest.approx(rho * g)
    assert found.one_step == pytest.approx(rho * g + 0.5 * rho**2 * h, rel=1e-10)
    assert norm(found.point).item() == pytest.approx(rho)
    assert found.loss == 3


def test_at_a_minimum_kappa_is_half_rho_squared_lambda(matrix):
    positive = matrix @ matrix
    of = quadratic(positive, torch.ones(D).double())
    lambda_1 = torch.linalg.eigvalsh(positive)[-1].item()
    found, forecast = landscape.sharpness(of, 0.1, steps=300), landscape.second_order(of, 0.1)
    assert found.first_order == 0
    assert found.one_step == 0
    assert found.worst == pytest.approx(0.5 * 0.01 * lambda_1, rel=1e-6)
    assert forecast.at_minimum == pytest.approx(0.5 * 0.01 * lambda_1, rel=1e-6)
    assert forecast.is_minimum


def test_at_a_maximum_nothing_rises(matrix):
    of = quadratic(-(matrix @ matrix), torch.ones(D).double())
    assert landscape.sharpness(of, 0.1).worst == 0
    assert len(landscape.sharpness(of, 0.1).point) == 0
    assert landscape.second_order(of, 0.1).at_minimum == 0


def test_kappa_is_never_negative_since_the_ball_has_its_center():
    hill = Landscape.of_function(lambda w: -(w["x"] ** 2), {"x": torch.tensor(0.01)})
    found = landscape.sharpness(hill, rho=1.0, steps=0)
    assert found.one_step < 0
    assert found.worst == 0
    assert len(found.point) == 0


@pytest.mark.parametrize("rho", [1e-1, 1e-2, 1e-3])
def test_the_remainder_after_second_order_is_of_third_order(matrix, rho):
    slope = torch.linspace(-1, 1, D, dtype=torch.float64)
    of = quadratic(matrix, torch.zeros(D).double(), slope)
    g2, hg = slope.square().sum(), matrix @ slope
    third = ((hg.square().sum() / g2 - (slope @ hg / g2) ** 2) / (2 * g2.sqrt())).item()
    forecast = landscape.second_order(of, rho)
    remainder = exact_maximum(matrix, slope, rho) - forecast.along_gradient
    assert remainder / rho**3 == pytest.approx(third, rel=10 * rho)
    assert not forecast.is_minimum


def test_traces_rise_and_the_worst_is_never_below_sams_point(network):
    of, *_ = network
    for rho in (0.05, 1.0, 5.0):
        found = landscape.sharpness(of, rho, steps=8, restarts=3)
        assert len(found.traces) == 4
        assert all(len(t) == 9 and t == sorted(t) for t in found.traces)
        assert found.worst == max(t[-1] for t in found.traces) >= found.one_step
        assert of.value(found.point) - of.loss == pytest.approx(found.worst, rel=1e-9)
        assert norm(found.point).item() <= rho * (1 + 1e-9)


@pytest.mark.parametrize("scaled", ["weights", "matrices", "all"])
def test_one_step_goes_where_the_rule_goes(network, scaled):
    of, _, _, _, (model, x, y) = network
    loss = lambda w: F.cross_entropy(torch.func.functional_call(model, w, (x,)), y)
    w = {n: p.detach() for n, p in model.named_parameters()}
    rise = lambda rule: loss((Vector(w) + last_displacement(rule, loss, w)).dense()) - loss(w)
    sam, asam = rise(optim.sam(0.1)), rise(optim.asam(0.1, eta=0.02, scaled=scaled))
    assert landscape.sharpness(of, 0.1, steps=0).one_step == pytest.approx(sam.item(), rel=1e-9)
    adaptive = landscape.sharpness(of.scaled(eta=0.02, scaled=scaled), 0.1, steps=0)
    assert adaptive.one_step == pytest.approx(asam.item(), rel=1e-9)


def test_scaled_sharpness_does_not_change_when_layers_are_rescaled():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 2, bias=False)).double()
    x, y = torch.randn(20, 4).double(), torch.randint(2, (20,))
    before = Landscape.of(model, F.cross_entropy, (x, y))
    model[0].weight.data *= 10
    model[2].weight.data /= 10
    after = Landscape.of(model, F.cross_entropy, (x, y))
    assert after.loss == pytest.approx(before.loss, rel=1e-12)
    plain = [landscape.sharpness(of, 0.05).worst for of in (before, after)]
    assert abs(plain[1] / plain[0] - 1) > 0.5
    adaptive = [landscape.sharpness(of.scaled(eta=0.0), 0.05).worst for of in (before, after)]
    assert adaptive[1] == pytest.approx(adaptive[0], rel=1e-6)


def test_average_sharpness_is_half_the_trace_on_a_quadratic(matrix):
    slope = 100 * torch.ones(D, dtype=torch.float64)  # cancels in pairs of opposite steps
    found = landscape.average_sharpness(quadratic(matrix, torch.ones(D).double(), slope), 0.3, samples=4000)
    exact = 0.5 * 0.3**2 / D * matrix.trace().item()
    deviation = 0.5 * 0.3**2 / D * math.sqrt(2 * matrix.square().sum())
    assert found.sigma == pytest.approx(0.3 / math.sqrt(D))
    assert found.rise.error == pytest.approx(deviation / math.sqrt(4000), rel=0.1)
    assert abs(found.rise.mean - exact) < 3 * found.rise.error


def test_m_sharpness_is_the_mean_over_chunks(network):
    of, _, _, _, (model, x, y) = network
    rows = landscape.m_sharpness(of, 0.1, m=(4, 30))
    parts = [
        (len(b), landscape.sharpness(Landscape.of(model, F.cross_entropy, (a, b)), 0.1, steps=0).one_step)
        for a, b in zip(x.split(4), y.split(4), strict=True)
    ]
    assert rows[0].rise == pytest.approx(sum(n * rise for n, rise in parts) / 30, rel=1e-9)
    assert rows[0].chunks == 8
    assert rows[1].rise == pytest.approx(landscape.sharpness(of, 0.1, steps=0).one_step, rel=1e-9)
    assert math.isnan(rows[1].error)
    assert rows[0].rise > rows[1].rise


# Surfaces


def test_lines_and_planes_are_the_loss_where_they_say(network):
    of, *_ = network
    right, up = landscape.random_direction(of, 0), landscape.random_direction(of, 1)
    plane = landscape.plane(of, right, up, x=[-1, 0, 0.5], y=[0, 2])
    assert plane.loss.shape == (2, 3)
    assert plane.loss[0, 1] == of.loss
    assert plane.loss[1, 2] == of.value(0.5 * right + 2 * up)
    line = landscape.line(of, right, at=[-1, 0, 0.5])
    np.testing.assert_array_equal(line.loss, plane.loss[0])


def test_filters_are_as_long_as_the_networks_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5, 4))
    with torch.no_grad():
        model[0].weight[2] = 0
    of = Landscape.of(model, F.cross_entropy, (torch.randn(6, 3, 2, 2), torch.randint(4, (6,))))
    found = landscape.random_direction(of).dense()
    for name in ("0.weight", "3.weight"):
        ours, theirs = found[name].flatten(1), of.w.tensors[name].flatten(1)
        torch.testing.assert_close(ours.norm(dim=1), theirs.norm(dim=1))
        assert abs(F.cosine_similarity(ours, theirs)[0]) < 0.9
    assert all((found[name] == 0).all() for name in ("0.bias", "1.weight", "1.bias", "3.bias"))
    assert not torch.equal(landscape.random_direction(of, 1).dense()["3.weight"], found["3.weight"])


def test_a_trajectory_is_projected_as_by_svd(network):
    of, *_ = network
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(7, of.dimension, generator=generator, dtype=torch.float64).cumsum(0)
    found = landscape.trajectory(of, [(of.w + like(of, s)).dense() for s in steps])
    u, s, v = torch.linalg.svd(steps, full_matrices=False)
    np.testing.assert_allclose(np.abs(found.coordinates), (u * s)[:, :2].abs(), atol=1e-9)
    np.testing.assert_allclose(found.explained, (s**2 / (s**2).sum())[:2], rtol=1e-9)
    for i, direction in enumerate(found.directions):
        assert abs(flatten(direction) @ v[i]) == pytest.approx(1, abs=1e-9)
        np.testing.assert_allclose(steps @ flatten(direction), found.coordinates[:, i], atol=1e-9)
    assert abs(dot(*found.directions).item()) < 1e-9


def test_a_trajectory_along_a_line_has_one_direction():
    of = Landscape.of_function(lambda w: (w["x"] ** 2).sum(), {"x": torch.zeros(3)})
    found = landscape.trajectory(of, [{"x": torch.tensor([3.0, 4.0, 0.0]) * t} for t in (1, 2)])
    np.testing.assert_allclose(found.coordinates, [[5, 0], [10, 0]], atol=1e-6)
    np.testing.assert_allclose(found.explained, [1, 0], atol=1e-9)


# Bounds


def test_theorem_1_term_by_term():  # golden numbers worked out apart
    found = landscape.theorem_1(0.1, norm=1.0, rho=1.0, d=10, n=1000, delta=0.05)
    assert found.capacity == pytest.approx(14.708729960958102, rel=1e-14)
    assert found.confidence == pytest.approx(39.61395021014451, rel=1e-14)
    assert found.union == pytest.approx(69.63601831776985, rel=1e-14)
    assert found.root == pytest.approx(0.352253859127395, rel=1e-14)
    assert found.total == 0.1 + found.root
    assert not found.vacuous


@pytest.mark.parametrize(
    ("d", "ratio", "root"),
    [
        (1e2, 0.1, 0.0517),
        (1e4, 1, 0.3517151512797334),
        (1e4, 100, 1.244),
        (1e5, 0.3, 0.3863),
        (1e5, 1, 1.084),
        (1e7, 1000, 47.99),
    ],
)
def test_theorem_1_is_vacuous_where_the_table_says(d, ratio, root):
    found = landscape.theorem_1(0.0, norm=ratio, rho=1.0, d=int(d), n=60_000)
    assert found.root == pytest.approx(root, rel=1e-3 if root < 0.1 or root > 0.36 else 1e-12)
    assert found.vacuous == (root >= 1)
    assert ("VACUOUS" in found.in_words()) == found.vacuous


def test_the_bound_of_a_model_takes_its_numbers_from_it(network):
    _, _, _, flat, (model, x, y) = network
    of = Landscape.of(model, landscape.wrong_probability, (x, y))
    found = landscape.bound(of, rho=0.5, delta=0.1)
    worst = landscape.sharpness(of, 0.5)
    expected = landscape.theorem_1(worst.loss + worst.worst, flat.norm().item(), 0.5, 72, 30, 0.1)
    assert astuple(found) == pytest.approx(astuple(expected))


def test_lemma_1_with_the_best_gaussian_prior():
    norm, d, sigma = 3.0, 50, 0.2
    best = landscape.gaussian_kl(norm, d, sigma)
    assert best == pytest.approx(0.5 * d * math.log(1 + norm**2 / (d * sigma**2)))
    prior = math.sqrt(sigma**2 + norm**2 / d)
    assert landscape.gaussian_kl(norm, d, sigma, prior) == pytest.approx(best)
    for other in (0.9 * prior, 1.1 * prior):
        assert landscape.gaussian_kl(norm, d, sigma, other) > best
    w = torch.zeros(d).double().index_fill_(0, torch.tensor(0), norm)
    q, p = torch.distributions.Normal(w, sigma), torch.distributions.Normal(0 * w, 0.7)
    kl = torch.distributions.kl_divergence(q, p).sum().item()
    assert landscape.gaussian_kl(norm, d, sigma, 0.7) == pytest.approx(kl)
    assert landscape.lemma_1(kl, 100).gap == pytest.approx(math.sqrt((kl + math.log(100 / 0.05)) / 198))
    assert landscape.lemma_1(1e9, 100).vacuous
    assert "VACUOUS" in landscape.lemma_1(1e9, 100).in_words()


@pytest.mark.parametrize(
    ("form", "inside"),
    [
        ("lemma 1", (7 + math.log(100)) / 8),
        ("1999", (7 + math.log(100) + 2) / 9),
        ("maurer", (7 + math.log(40 * 5**0.5)) / 10),
    ],
)
def test_forms_of_the_pac_bayes_bound(form, inside):
    assert landscape.lemma_1(7.0, n=5, delta=0.05, form=form).gap == pytest.approx(math.sqrt(inside))


@pytest.mark.parametrize(
    ("mean", "verdict"), [(1.4, "open"), (-1.4, "open"), (1.43, "holds"), (-1.43, "contradicted")]
)
def test_the_assumption_is_judged_by_the_95_percent_interval(mean, verdict):  # t of 7 degrees of freedom: 2.3646
    found = Assumption(0.1, 1.0, Estimate(mean, 0.6, 8))
    assert found.verdict == verdict
    assert verdict in found.in_words()


def test_the_assumption_uses_the_proofs_standard_deviation():
    of = Landscape.of_function(lambda w: (w["x"] ** 2).sum(), {"x": torch.zeros(10_000).double()})
    found = landscape.assumption(of, rho=0.05, n=60_000, samples=8)
    assert found.sigma == pytest.approx(4.84e-4, rel=1e-3)
    assert found.rise.mean == pytest.approx(10_000 * found.sigma**2, rel=0.02)
    assert found.verdict == "holds"
    hill = Landscape.of_function(lambda w: -(w["x"] ** 2).sum(), {"x": torch.zeros(10).double()})
    assert landscape.assumption(hill, n=100).verdict == "contradicted"
    flat = Landscape.of_function(lambda w: w["x"].sum(), {"x": torch.zeros(10).double()})
    assert landscape.assumption(flat, n=100).verdict == "open"


# Words


def test_every_result_speaks(network):
    of, *_ = network
    directions = landscape.random_direction(of, 0), landscape.random_direction(of, 1)
    words = {
        "sharpness": landscape.sharpness(of),
        "second_order": landscape.second_order(of),
        "average": landscape.average_sharpness(of, samples=2),
        "m": landscape.m_sharpness(of, m=[4])[0],
        "top": eigenvalues(of, 2),
        "bottom": eigenvalues(of, 2, "bottom"),
        "trace": trace(of, samples=2),
        "density": density(of, steps=5, samples=2),
        "line": landscape.line(of, directions[0], [0.0, 1.0]),
        "plane": landscape.plane(of, *directions, [0.0], [0.0, 1.0]),
        "trajectory": landscape.trajectory(of, [(of.w + d).dense() for d in directions]),
        "assumption": landscape.assumption(of, samples=2),
        "bound": landscape.theorem_1(0.1, 1.0, 1.0, 10, 1000),
        "lemma": landscape.lemma_1(1.0, 1000),
    }
    said = {name: result.in_words() for name, result in words.items()}
    assert all(text[-1] == "." and "nan" not in text and "\n" not in text for text in said.values())
    assert f"{words['sharpness'].worst:.4g}" in said["sharpness"]
    assert f"lr = 2/lambda_1 = {2 / words['top'].values[0]:.3g}" in said["top"]
    assert "no minimum" in said["bottom"]
    assert len(set(said.values())) == len(said)
