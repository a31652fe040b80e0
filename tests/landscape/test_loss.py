"""The loss as a function of the weights: exact over batches, one value for each point, and nothing changed."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from samphire import landscape
from samphire.landscape import Landscape
from samphire.tree import Vector


class Net(nn.Module):
    """Tied weights, a frozen layer, BatchNorm, dropout: what a landscape must cope with."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = torch.tanh(self.norm(self.first(x)))
        return self.head(self.frozen(self.drop(torch.tanh(self.tied(h)))))


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net().double()
    model(torch.randn(20, 4).double())  # running statistics other than the first ones
    return model


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(11, 4, generator=generator).double(), torch.randint(3, (11,), generator=generator)


def mean(z, y):
    return F.cross_entropy(z, y)


def each(z, y):
    return F.cross_entropy(z, y, reduction="none")


def near(of, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return Vector({n: torch.randn(t.shape, generator=generator).to(t) for n, t in of.w.tensors.items()}, 0.1)


def close(a, b, tolerance=1e-12):
    a, b = a.dense(), b.dense()
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("loss", [mean, each])
@pytest.mark.parametrize("size", [1, 4, 11])
def test_batches_of_any_size_equal_one_big_batch(net, data, loss, size):
    x, y = data
    whole = Landscape.of(net, mean, (x, y))
    parts = Landscape.of(net, loss, list(zip(x.split(size), y.split(size), strict=True)))
    loader = Landscape.of(net, loss, torch.utils.data.DataLoader(list(zip(x, y, strict=True)), batch_size=size))
    u = near(whole)
    expected = F.cross_entropy(net.eval()(x), y).item()
    net.train()
    for of in (parts, loader):
        assert of.n == 11
        assert of.loss == pytest.approx(expected, rel=1e-14)
        assert of.value(u) == pytest.approx(whole.value(u), rel=1e-13)
        value, gradient = of.gradient(u)
        assert value == pytest.approx(whole.value(u), rel=1e-13)
        close(gradient, whole.gradient(u)[1])
        for ours, theirs in zip(of.products([u, near(of, 4)]), whole.products([u, near(of, 4)]), strict=True):
            close(ours, theirs)


def test_the_gradient_is_the_models_own_and_frozen_weights_are_no_coordinates(net, data):
    x, y = data
    of = Landscape.of(net, mean, data)
    F.cross_entropy(net.eval()(x), y).backward()
    own = {name: p.grad for name, p in net.named_parameters() if p.requires_grad}
    assert "frozen.weight" not in own
    assert "tied.weight" not in own
    close(of.gradient()[1], Vector(own))
    assert of.dimension == sum(g.numel() for g in own.values())


def test_groups_and_chunks_are_landscapes_of_their_examples(net, data):
    x, y = data
    of = Landscape.of(net, mean, list(zip(x.split(4), y.split(4), strict=True)))
    labels = np.array([0, 1, 1, 2, 0, 0, 1, 1, 1, 1, 1])
    parts = of.groups(labels)
    assert list(parts) == [0, 1, 2]
    for group, part in parts.items():
        alone = Landscape.of(net, mean, (x[labels == group], y[labels == group]))
        assert part.n == alone.n
        assert part.loss == pytest.approx(alone.loss, rel=1e-13)
        close(part.gradient()[1], alone.gradient()[1])
    whole = sum(part.n * part.loss for part in parts.values()) / of.n
    assert whole == pytest.approx(of.loss, rel=1e-13)
    chunks = list(of.chunks(5))
    assert [chunk.n for chunk in chunks] == [5, 5, 1]
    for chunk, start in zip(chunks, (0, 5, 10), strict=True):
        expected = Landscape.of(net, mean, (x[start : start + 5], y[start : start + 5])).loss
        assert chunk.loss == pytest.approx(expected, rel=1e-13)


def test_scaled_coordinates_are_the_chain_rule(net, data):
    of = Landscape.of(net, mean, data)
    scaled = of.scaled(eta=0.1, scaled="all")
    t = {name: w.abs() + 0.1 for name, w in of.w.tensors.items()}
    times = lambda v: Vector({n: x * t[n] for n, x in v.dense().items()})
    u = near(of)
    assert scaled.value(u) == of.value(times(u))
    close(scaled.gradient(u)[1], times(of.gradient(times(u))[1]))
    close(scaled.products([u])[0], times(of.products([times(u)])[0]))
    biases = of.scaled(eta=0.1).gradient()[1].dense()["head.bias"]  # by default ASAM scales weights alone
    torch.testing.assert_close(biases, of.gradient()[1].dense()["head.bias"])


def test_training_the_model_on_does_not_move_the_landscape(net, data):
    of = Landscape.of(net, mean, data)
    before, u = of.value(near(of)), near(of)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    F.cross_entropy(net(data[0]), data[1]).backward()
    optimizer.step()
    assert of.value(u) == before


def test_training_mode_normalizes_by_the_batch_and_says_so(net, data):
    net.drop.p = 0.0
    of = Landscape.of(net, mean, data, training=True)
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    net.train()
    assert of.loss == pytest.approx(F.cross_entropy(net(data[0]), data[1]).item(), rel=1e-13)
    assert of.loss != pytest.approx(Landscape.of(net, mean, data).loss, rel=1e-3)
    assert "training mode, 1 BatchNorm by the statistics of each batch" in repr(of)
    assert any(not torch.equal(b, buffers[name]) for name, b in net.named_buffers())  # by this test's own call
    assert "eval mode, 1 BatchNorm by running statistics, 1 dropout off" in repr(Landscape.of(net, mean, data))


def test_compiled_and_wrapped_models_are_their_insides(net, data):
    of = Landscape.of(net, mean, data)
    assert Landscape.of(torch.compile(net), mean, data).value(near(of)) == of.value(near(of))


def constant(*values):
    return [torch.full((3, 4), v).double() for v in values]


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3).double()

    def forward(self, x):
        return F.dropout(self.inner(x), 0.5, training=True)


LABELS = torch.tensor([0, 1, 2])
BAD = {
    "no differentiable parameters": (
        lambda: Landscape.of(nn.Linear(4, 3).requires_grad_(False), mean, (torch.ones(3, 4), LABELS)),
        "Linear has no differentiable parameters",
    ),
    "no parameters at all": (lambda: Landscape.of(nn.ReLU(), mean, (torch.ones(3, 4), LABELS)), "ReLU has no"),
    "nothing to differentiate": (
        lambda: Landscape.of_function(lambda w: w["x"], {"x": torch.tensor(1)}),
        "nothing to",
    ),
    "not finite": (
        lambda: Landscape.of(nn.Linear(4, 3).double(), mean, [(x, LABELS) for x in constant(1.0, torch.inf)]),
        "the loss is nan at the weights themselves",
    ),
    "dropout": (
        lambda: Landscape.of(Net().double(), mean, (torch.randn(3, 4).double(), LABELS), training=True),
        r"layer 'drop' \(Dropout\) gives different results for the same input",
    ),
    "functional dropout": (
        lambda: Landscape.of(Noisy(), mean, (torch.randn(3, 4).double(), LABELS)),
        r"the model \(Noisy\) gives different",
    ),
    "nested functional dropout": (
        lambda: Landscape.of(nn.Sequential(nn.Identity(), Noisy()), mean, (torch.randn(3, 4).double(), LABELS)),
        r"layer '1' \(Noisy\) gives different",
    ),
    "random loss": (
        lambda: Landscape.of(nn.Linear(4, 3), lambda z, y: z.mean() + torch.rand(()), (torch.ones(3, 4), LABELS)),
        "the loss function gives different",
    ),
    "random function": (
        lambda: Landscape.of_function(lambda w: w["x"] + torch.rand(()), {"x": torch.tensor(1.0)}),
        "the function gives different",
    ),
    "detached": (
        lambda: Landscape.of(nn.Linear(4, 3), lambda z, y: z.detach().mean(), (torch.ones(3, 4), LABELS)),
        "does not depend on the differentiable parameters",
    ),
    "shuffled": (
        lambda: Landscape.of(
            nn.Linear(1, 3),
            mean,
            torch.utils.data.DataLoader([(torch.ones(1) * i, i % 3) for i in range(99)], batch_size=9, shuffle=True),
        ),
        "other examples at a second pass",
    ),
    "used up": (
        lambda: Landscape.of(nn.Linear(4, 3), mean, iter([(torch.ones(3, 4), LABELS)])),
        "must allow more than one pass, got a list_iterator",
    ),
    "no data": (lambda: Landscape.of(nn.Linear(4, 3), mean, []), "no examples"),
    "no pair": (lambda: Landscape.of(nn.Linear(4, 3), mean, [torch.ones(3, 4)]), "must be a pair"),
    "labels missing": (
        lambda: Landscape.of(nn.Linear(4, 3), mean, [(torch.ones(3, 4), LABELS[:2])]),
        "3 inputs and 2",
    ),
    "loss of wrong shape": (
        lambda: Landscape.of(nn.Linear(4, 3), lambda z, y: z, (torch.ones(3, 4), LABELS)),
        r"must be their mean or a number for each, got \(3, 3\)",
    ),
    "function of wrong shape": (
        lambda: Landscape.of_function(lambda w: w["x"], {"x": torch.ones(2)}),
        r"0-dim tensor, got \(2,\)",
    ),
    "empty group": (lambda: here().only(np.zeros(3, bool)), "the group is empty: none of the 3 examples"),
    "mask of wrong length": (lambda: here().only([True]), "each of the 3 examples"),
    "groups of wrong length": (lambda: here().groups([0, 1]), "each of 3 examples"),
    "eta < 0": (lambda: here().scaled(eta=-1.0), "eta must be a finite number >= 0"),
    "rho = 0": (lambda: landscape.sharpness(here(), rho=0.0), "rho must be a finite number > 0, got 0.0"),
    "rho < 0 on average": (lambda: landscape.average_sharpness(here(), rho=-1.0), "rho must be a finite number > 0"),
    "rho nan": (lambda: landscape.m_sharpness(here(), rho=float("nan"), m=[1]), "rho must be a finite number > 0"),
    "rho inf": (lambda: landscape.second_order(here(), rho=float("inf")), "rho must be a finite number > 0"),
    "rho in the bound": (lambda: landscape.theorem_1(0.1, 1.0, 0.0, 10, 10), "rho must be a finite number > 0"),
    "rho in the assumption": (lambda: landscape.assumption(here(), rho=0.0), "rho must be a finite number > 0"),
    "overflow within rho": (
        lambda: landscape.sharpness(
            Landscape.of_function(lambda w: w["x"].exp(), {"x": torch.tensor(80.0)}), rho=50.0
        ),
        "not finite within rho=50; take a smaller rho",
    ),
    "negative steps": (lambda: landscape.sharpness(here(), steps=-1), "steps must be a whole number >= 0, got -1"),
    "m too large": (lambda: landscape.m_sharpness(here(), m=[4]), r"m must be a whole number in \[1, 3\], got 4"),
    "m = 0": (lambda: landscape.m_sharpness(here(), m=[0]), r"m must be a whole number in \[1, 3\], got 0"),
    "k too large": (lambda: landscape.eigenvalues(here(), k=16), r"k must be a whole number in \[1, 15\], got 16"),
    "k = 0": (lambda: landscape.eigenvalues(here(), k=0), "got 0"),
    "end": (
        lambda: landscape.eigenvalues(here(), end="middle"),
        "no end of the spectrum is named 'middle'; there are top, bottom",
    ),
    "no probes": (lambda: landscape.trace(here(), samples=0), "samples must be a whole number >= 1, got 0"),
    "no steps": (lambda: landscape.density(here(), steps=0), "steps must be a whole number >= 1, got 0"),
    "no draws": (
        lambda: landscape.average_sharpness(here(), samples=0),
        "samples must be a whole number >= 1, got 0",
    ),
    "one point": (lambda: landscape.trajectory(here(), [{}]), "two points at least, got 1"),
    "other model's points": (lambda: landscape.trajectory(here(), [{}, {}]), "no weights named 'weight'"),
    "unbounded loss": (lambda: landscape.bound(here(scale=9.0)), r"needs a loss in \[0, 1\], got"),
    "delta": (
        lambda: landscape.theorem_1(0.1, 1.0, 1.0, 10, 10, delta=1.0),
        r"delta must be a finite number in \(0, 1\), got 1.0",
    ),
    "n = 1": (lambda: landscape.lemma_1(1.0, n=1), "n must be a whole number >= 2, got 1"),
    "kl < 0": (lambda: landscape.lemma_1(-1.0, n=10), "kl must be a finite number >= 0"),
    "form": (
        lambda: landscape.lemma_1(1.0, n=10, form="new"),
        "no form is named 'new'; there are lemma 1, 1999, maurer",
    ),
}


def here(scale=1.0):
    torch.manual_seed(0)
    return Landscape.of(nn.Linear(4, 3), lambda z, y: scale * each(z, y), (torch.randn(3, 4), LABELS))


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_one_sentence(case):
    attempt, message = case
    with pytest.raises((ValueError, TypeError), match=message) as error:
        attempt()
    assert "\n" not in str(error.value)


MEASURES = {
    "of": lambda of: of.loss,
    "value": lambda of: of.value(near(of)),
    "gradient": lambda of: of.gradient(near(of)),
    "products": lambda of: of.products([near(of)]),
    "groups": lambda of: [part.gradient() for part in of.groups(np.arange(of.n) % 2).values()],
    "only": lambda of: of.only(np.arange(of.n) < 4).loss,
    "scaled": lambda of: of.scaled().gradient(),
    "chunks": lambda of: [chunk.gradient() for chunk in of.chunks(4)],
    "sharpness": lambda of: landscape.sharpness(of, steps=2, restarts=1),
    "second_order": lambda of: landscape.second_order(of),
    "average_sharpness": lambda of: landscape.average_sharpness(of, samples=2),
    "m_sharpness": lambda of: landscape.m_sharpness(of, m=[4]),
    "eigenvalues": lambda of: landscape.eigenvalues(of, k=2),
    "trace": lambda of: landscape.trace(of, samples=2),
    "density": lambda of: landscape.density(of, steps=3, samples=2),
    "line": lambda of: landscape.line(of, near(of), [0.0, 1.0]),
    "plane": lambda of: landscape.plane(of, near(of), near(of, 4), [0.0], [1.0]),
    "random_direction": lambda of: landscape.random_direction(of),
    "trajectory": lambda of: landscape.trajectory(of, [of.w.dense(), (of.w + near(of)).dense()]),
    "bound": lambda of: landscape.bound(of, steps=1),
    "assumption": lambda of: landscape.assumption(of, samples=2),
}
WITHOUT_A_MODEL = {"Landscape", "Estimate", "theorem_1", "lemma_1", "gaussian_kl", "wrong_probability"}


def test_every_public_function_is_in_the_table():
    assert set(landscape.__all__) - WITHOUT_A_MODEL <= set(MEASURES)
    methods = {name for name in vars(Landscape) if name[0] != "_" and callable(getattr(Landscape, name))}
    assert methods - {"of_function", "evaluate", "metric"} <= set(MEASURES)


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_nothing_is_changed(net, data, measure):
    net.train()
    net.norm.eval()  # a mixture of modes
    net.head.bias.grad = torch.ones_like(net.head.bias)
    state = {name: t.clone() for name, t in net.state_dict().items()}
    address = {name: p.data_ptr() for name, p in net.named_parameters()}
    modes = [module.training for module in net.modules()]
    needs = [p.requires_grad for p in net.parameters()]
    rng, old = torch.get_rng_state(), np.random.get_state()[1].copy()
    loader = torch.utils.data.DataLoader(list(zip(*data, strict=True)), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure(Landscape.of(net, landscape.wrong_probability, loader))
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())
    assert {name: p.data_ptr() for name, p in net.named_parameters()} == address
    assert [module.training for module in net.modules()] == modes
    assert [p.requires_grad for p in net.parameters()] == needs
    assert torch.equal(net.head.bias.grad, torch.ones_like(net.head.bias))
    assert all(p.grad is None for name, p in net.named_parameters() if name != "head.bias")
    assert torch.equal(torch.get_rng_state(), rng)
    assert np.array_equal(np.random.get_state()[1], old)
    assert not any(module._forward_hooks for module in net.modules())


def test_a_refused_model_keeps_no_hooks(net, data):
    with pytest.raises(ValueError, match="'drop'"):
        Landscape.of(net, mean, data, training=True)
    assert not any(module._forward_hooks for module in net.modules())


def test_everything_is_as_before_when_the_loss_raises(net, data):
    def broken(z, y):
        torch.rand(1)
        raise KeyError("mine")

    net.train()
    rng = torch.get_rng_state()
    with pytest.raises(KeyError, match="mine"):
        Landscape.of(net, broken, data)
    assert all(module.training for module in net.modules())
    assert torch.equal(torch.get_rng_state(), rng)


def test_the_same_measure_twice_is_the_same_to_the_bit(net, data):
    of = Landscape.of(net, mean, data)
    first, second = (landscape.sharpness(of, seed=3) for _ in range(2))
    assert first.traces == second.traces
    assert landscape.trace(of, seed=3) == landscape.trace(of, seed=3) != landscape.trace(of, seed=4)


def test_a_half_precision_model_is_measured_in_float32(data):
    torch.manual_seed(0)
    model = nn.Linear(4, 40)
    of = Landscape.of(model.bfloat16(), lambda z, y: mean(z.float(), y), (data[0].bfloat16(), data[1]))
    top = landscape.eigenvalues(of, k=2, tol=0.05)
    exact = landscape.eigenvalues(Landscape.of(model.double(), mean, (data[0].bfloat16().double(), data[1])), k=2)
    np.testing.assert_allclose(top.values, exact.values, rtol=0.05)
