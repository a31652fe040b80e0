"""The explorer's network, data, algorithms and measures are samphire's, in float64, in a real browser."""

import numpy as np
import pytest
import torch

from explorer_page import Explorer
from samphire import mechanisms
from samphire.experiments.paper import importance_weights
from samphire.models import two_views
from samphire.optim.batched import stacked
from samphire.optim.feature_runs import ALGORITHMS, FeatureRuns
from samphire.records import generator
from samphire.train import ToyConfig, fit_many

STEPS = 50
RADII = {"lsam": 1.0, "sam": 0.1}


@pytest.fixture(scope="module")
def page(chromium):
    """Opened once: these tests only call its engine."""
    return Explorer(chromium).open()


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


def started(config):
    """A run's settings as the engine takes them."""
    names = ("seed", "chi", "corruption", "level", "where", "rho", "lr", "batch", "algorithm")
    more = {"vStar": config.v_star, "trainHead": config.train_head}
    return {name: getattr(config, name) for name in names} | more


def config_of(algorithm, **settings):
    star = {"v_star": 3.0} if algorithm in ("weights", "rates", "both") else {}
    return ToyConfig(algorithm=algorithm, rho=RADII.get(algorithm, 0.0), **star, **settings)


def test_it_has_the_same_algorithms(page):
    table = page.engine("return engine.ALGORITHMS")
    ours = {name: (a.climb, a.star_weights, a.star_rates) for name, a in ALGORITHMS.items()}
    assert {name: (a["climb"], a["starWeights"], a["starRates"]) for name, a in table.items()} == ours


@pytest.mark.parametrize("train_head", [True, False], ids=["trained head", "frozen head"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fifty_steps_are_equal(page, algorithm, train_head):
    config = config_of(algorithm, train_head=train_head, batch=7, lr=0.02)
    start = {name: t.double() for name, t in config.network().state_dict().items()}
    x, y = config.train_points(torch.float64)
    order = torch.stack(
        [torch.randperm(config.n, generator=torch.Generator().manual_seed(s))[:7] for s in range(STEPS)]
    )

    weights = stacked([start], torch.float64)
    ours = FeatureRuns(
        config.network().double().phi, weights, [algorithm], rho=vector([config.rho]), lr=vector([config.lr]),
        v_star=vector([[1.0, config.v_star]]), train_head=torch.tensor([train_head]),
    )  # fmt: skip
    heads = [ours.step(two_views(x[index])[None], y[index][None]) for index in order]
    theirs = page.engine(
        """
        const [start, batches, settings] = arguments, weights = new engine.Weights();
        for (const [name] of engine.SHAPES) weights[name].set(start[name]);
        const stepper = new engine.Stepper(weights, settings);
        const heads = batches.map(([x, y]) => stepper.step(Float64Array.from(x), Float64Array.from(y)));
        return {heads, weights: Object.fromEntries(engine.SHAPES.map(([name]) => [name, [...weights[name]]]))};
        """,
        {name: t.flatten().tolist() for name, t in start.items()},
        [[two_views(x[index]).flatten().tolist(), y[index].tolist()] for index in order],
        started(config),
    )
    for name, t in weights.items():
        assert (vector(theirs["weights"][name]) - t.flatten()).abs().max() < 1e-10, name
    for ours_now, now in zip(heads, theirs["heads"], strict=True):
        assert torch.allclose(
            vector([now["real"], now["phantom"]]), torch.cat(ours_now).view(2, 2), atol=1e-10, rtol=0
        )
    moved = (weights["phi.3.weight"][0] - start["phi.3.weight"]).abs().max()
    assert moved > 1e-3  # else the comparison says nothing


@pytest.mark.parametrize("noise", [("none", 0.0, "both"), ("label", 0.1, "both"), ("gaussian", 0.3, "hard"), ("dropout", 0.3, "both")], ids=str)  # fmt: skip
def test_a_seed_gives_the_same_run(page, noise):
    corruption, level, where = noise
    config = ToyConfig(seed=3, chi=450.0, corruption=corruption, level=level, where=where, batch=7)
    theirs = page.engine(
        """
        const settings = arguments[0], train = engine.trainPoints(settings), test = engine.testPoints(settings);
        const order = engine.generator(settings.seed, "order");
        return {
            train: [[...train.x], [...train.y]], test: [[...test.x], [...test.y]],
            weights: [...engine.initialWeights(engine.generator(settings.seed, "init")).all],
            orders: [[...order.permutation(300)], [...order.permutation(300)]],
        };
        """,
        started(config),
    )
    for points, (x, y) in ((config.train_points(torch.float64), theirs["train"]), (config.test_points(torch.float64), theirs["test"])):  # fmt: skip
        assert (points.x.flatten() - vector(x)).abs().max() < 1e-14
        assert points.y.tolist() == y
    weights = torch.cat([t.flatten().double() for t in config.network().state_dict().values()])
    assert (weights - vector(theirs["weights"])).abs().max() < 1e-8  # one rounding of float32
    source = generator(config.seed, "order")
    assert theirs["orders"] == [torch.randperm(300, generator=source).tolist() for _ in range(2)]


@pytest.mark.parametrize("algorithm", ["sgd", "lsam"])
def test_epochs_and_measures_are_equal(page, algorithm):
    config = config_of(algorithm, epochs=3, batch=7, seed=1)
    (result,) = fit_many([config], dtype=torch.float64, keep_weights=True)
    last = result.checkpoints[-1]
    theirs = page.engine(
        """
        const run = new engine.Run(arguments[0]), heads = [];
        while (run.epoch < 3) heads.push(run.step());
        const points = engine.pointMeasures(run, 1), plain = (o) => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, [...v]]));
        return {
            errors: engine.errors(run.weights, engine.testSet(arguments[0])), points: plain(points),
            lorenz: [...engine.lorenz(points.used)], gini: engine.gini(points.used), heads: engine.summarizeHeads(heads),
            planes: [0, 1].map(k => [...engine.field(run.weights, k, 1.9, 12)]),
        };
        """,
        started(config),
    )
    names = {"easy": "probe_easy", "hard": "probe_hard", "all": "test_error", "loss": "test_loss"}
    assert theirs["errors"] == pytest.approx({name: last.values[ours] for name, ours in names.items()}, abs=1e-12)

    net = config.network().double()
    net.load_state_dict(last.weights)
    net.requires_grad_(False)
    x, y = config.train_points(torch.float64)
    phi, v = net.features(x), net.head.weight[0]
    index = torch.randperm(config.n, generator=generator(config.seed, "measure")).split(config.batch)
    used = torch.empty_like(y)
    for batch in index:
        used[batch] = importance_weights.phantom_weights(phi[batch], y[batch], v, 1.0, torch.arange(len(batch))[None])
    easy, hard = mechanisms.contributions(phi, y, v).T
    real = mechanisms.importance_weights(phi @ v, y)
    for name, ours in {"real": real, "used": used, "easy": easy, "hard": hard}.items():
        assert (vector(theirs["points"][name]) - ours).abs().max() < 1e-9, name
    assert (vector(theirs["lorenz"]) - mechanisms.lorenz(used)).abs().max() < 1e-9
    assert theirs["gini"] == pytest.approx(float(mechanisms.gini(used)), abs=1e-9)

    levels = [0.1, 0.5, 0.9]
    rates = mechanisms.learning_rates(result.v, result.phantom)
    assert np.allclose(theirs["heads"]["real"], np.quantile(result.v, levels, axis=0).T, atol=1e-10)
    assert np.allclose(theirs["heads"]["rates"], np.quantile(result.phantom, levels, axis=0).T, atol=1e-10)
    assert np.allclose(theirs["heads"]["factor"], np.quantile(rates.factor, levels, axis=0).T, atol=1e-10)
    assert np.allclose(
        theirs["heads"]["ratesRatio"], np.quantile(mechanisms.ratio(result.phantom), levels), atol=1e-8
    )

    axis = 1.9 * ((2 * torch.arange(12) + 1) / 12 - 1)  # the middles of 12 cells
    height, width = torch.meshgrid(axis, axis, indexing="ij")
    for k in range(2):
        plane = torch.zeros(144, 4, dtype=torch.float64)
        plane[:, 2 * k], plane[:, 2 * k + 1] = width.flatten(), height.flatten()
        p = torch.sigmoid(v[k] * net.features(plane)[:, k])
        assert (vector(theirs["planes"][k]) - p).abs().max() < 1e-6  # float32


def test_sam_and_interventions_weigh_examples_as_their_steps_do(page):
    """The weights shown are those that reproduce the head's own gradient."""
    for algorithm in ("sam", "weights"):
        config = config_of(algorithm, batch=300)
        used, moved, features = page.engine(
            """
            const run = new engine.Run(arguments[0]), {used} = engine.pointMeasures(run, arguments[0].rho);
            const before = [...run.weights['phi.6.bias']];
            run.step();
            return [[...used], run.weights['phi.6.bias'][0] - before[0], [...run.points.y]];
            """,
            started(config),
        )
        net = config.network().double()
        x, y = config.train_points(torch.float64)
        v = net.head.weight[0].detach()
        if algorithm == "sam":
            loss = torch.nn.functional.softplus(-y * net(x)).mean()
            grads = torch.autograd.grad(loss, list(net.parameters()))
            length = torch.cat([g.flatten() for g in grads]).norm()
            with torch.no_grad():
                for p, g in zip(net.parameters(), grads, strict=True):
                    p += config.rho * g / length
            v = net.head.weight[0].detach()
            expected = mechanisms.importance_weights(net(x), y)
        else:
            expected = mechanisms.importance_weights(net.features(x) @ vector([1.0, 3.0]), y)
        assert (vector(used) - expected).abs().max() < 1e-10
        # d f / d bias of the last layer is v_easy + v_hard: the step moves it by lr mean(lambda y) (v_easy + v_hard).
        assert moved == pytest.approx(config.lr * ((expected.detach() * y).mean() * v.sum()).item(), abs=1e-12)
        assert features == y.tolist()
