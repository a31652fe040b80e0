"""One-pass LSAM against the two-pass form, bit for bit, and finding the head."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import weights
from samphire import optim
from samphire.models import ToyNet, two_views
from samphire.optim import At, SharpnessAware, asam, every, gsam, last_layer, lsam, sam
from samphire.optim.feature_runs import FeatureRuns
from samphire.tree import unit


class Net(nn.Module):
    """A body with BatchNorm and dropout, and a head with a dropout of its own."""

    def __init__(self, head=None):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        self.fc = head or nn.Linear(36, 3)

    def forward(self, x):
        return self.fc(self.conv(x))


HEADS = {
    "linear": lambda: nn.Linear(36, 3),
    "mlp with dropout and BatchNorm": lambda: nn.Sequential(
        nn.Dropout(0.5), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    ),
}
LOSSES = {
    "cross entropy": lambda out, y: cross_entropy(out, y),
    "squared, on a reshaped output": lambda out, y: (out.softmax(-1).reshape(-1) - 0.3).square().sum() + 0 * y.sum(),
}


@dataclass(frozen=True)
class ThreePoints:
    """Asks for the head alone, then twice for everything, so the body's graph is needed twice."""

    passes = 3.0

    def gradient(self, w, memory):
        eps = 0.2 * unit((yield At(wrt=frozenset(n for n in w if n.startswith("fc.")))))
        g = yield At(eps)
        return g + (yield At(2 * eps))


@dataclass(frozen=True)
class Chosen:
    """Descends on some examples."""

    passes = 1.0

    def gradient(self, w, memory):
        return (yield At(examples=torch.arange(2)))


HEAD_RULES = {
    "three points": ThreePoints(),
    "lsam": lsam(0.2, head="fc"),
    "asam on the head": optim.on("fc", asam(0.3)),
    "gsam on the head": optim.on("fc", gsam(0.2)),
    "every second": every(2, lsam(0.2, head="fc")),
    "lsam, weights only": lsam(0.2, head="fc", effects="weights"),
    "lsam, rates only": lsam(0.2, head="fc", effects="rates"),
    "functional_sam on the head": optim.on("fc", optim.functional_sam(0.2)),
    "looksam on the head": optim.on("fc", optim.looksam(0.2, k=2)),
}


def train(one_pass, rule, head, loss, dtype=torch.float32, steps=4, rng="replay"):
    torch.manual_seed(0)
    model = Net(head()).to(dtype)
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rule, rng=rng)
    last = last_layer(model, "fc")
    seen, bodies = [], []
    model.conv.register_forward_pre_hook(lambda *_: bodies.append(1))
    for _ in range(steps):
        x, y = torch.randn(6, 2, 5, 5, dtype=dtype), torch.randint(3, (6,))
        if one_pass:
            closure = last.one_pass(lambda: model(x), lambda out: loss(out, y))
        else:
            closure = lambda p: p.backward(loss(out := model(x), y), out) or p.loss
        seen.append(float(opt.step(closure)))
        seen += [float(opt.last.perturbed_loss), float(opt.last.radius)]
    return copy.deepcopy(model.state_dict()), seen, len(bodies), torch.rand(())


@pytest.mark.parametrize("rule", HEAD_RULES.values(), ids=HEAD_RULES)
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_one_pass_is_bit_identical_to_two_passes(rule, head, loss):
    once, seen_once, _, next_random = train(True, rule, head, loss)
    twice, seen_twice, _, next_random_twice = train(False, rule, head, loss)
    for name in once:
        assert torch.equal(once[name], twice[name]), name
    assert str(seen_once) == str(seen_twice)  # NaN where a step was not perturbed
    assert torch.equal(next_random, next_random_twice)


def test_gradients_from_before_the_step_do_not_count():
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(6, 2, 5, 5), torch.randint(3, (6,))
    ends = []
    for earlier in (False, True):
        twin = copy.deepcopy(model)
        opt = SharpnessAware(twin, torch.optim.SGD(twin.parameters(), lr=0.1), lsam(0.2))
        if earlier:
            twin.eval()
            cross_entropy(twin(x), y).backward()
            twin.train()
        torch.manual_seed(1)
        opt.step(last_layer(twin).one_pass(lambda twin=twin: twin(x), lambda out: cross_entropy(out, y)))
        ends.append(twin.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_the_body_runs_once_per_step():
    assert train(True, HEAD_RULES["lsam"], HEADS["linear"], LOSSES["cross entropy"])[2] == 4
    assert train(False, HEAD_RULES["lsam"], HEADS["linear"], LOSSES["cross entropy"])[2] == 8


@pytest.mark.parametrize("m", [1, 4, 6, 9])
def test_a_phantom_head_for_each_part_is_the_gradient_written_out(m):
    torch.manual_seed(0)
    model, x, y = Net(), torch.randn(6, 2, 5, 5), torch.randint(3, (6,))
    model.conv[3].p = 0.0
    model.double(), (x := x.double())
    twin = copy.deepcopy(model)
    losses, features = 0.0, twin.conv(x)
    for part in torch.arange(6).split(m):
        head = twin.fc.weight.detach().requires_grad_(), twin.fc.bias.detach().requires_grad_()
        loss = cross_entropy(nn.functional.linear(features[part].detach(), *head), y[part])
        g = torch.autograd.grad(loss, head)
        length = torch.cat([t.flatten() for t in g]).norm()
        phantom = [p + 0.2 * t / length for p, t in zip(twin.fc.parameters(), g, strict=True)]
        losses = losses + len(part) / 6 * cross_entropy(nn.functional.linear(features[part], *phantom), y[part])
    losses.backward()
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), lsam(0.2, m=m))
    bodies = []
    model.conv.register_forward_pre_hook(lambda *_: bodies.append(1))
    opt.step(last_layer(model).one_pass(lambda: model(x), lambda out, part: cross_entropy(out, y[part])), n=6)
    assert len(bodies) == 1
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q - 0.1 * q.grad, rtol=1e-12, atol=1e-14)


# One effect at a time.


@pytest.mark.parametrize("effects", ["weights", "rates", "both"])
def test_each_effect_is_the_gradient_written_out(effects):
    """Into the features goes v_b' (p(v_a) - y) / n; the head follows the clean gradient, or with both the phantom's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y, rho = torch.randn(7, 4, dtype=torch.float64), torch.randint(3, (7,)), 0.7
    v, b = (p.detach() for p in model[2].parameters())
    phi = model[:2](x)
    residual = lambda v, b: ((phi @ v.T + b).softmax(1) - nn.functional.one_hot(y, 3)).detach() / 7
    head = lambda r: (r.T @ phi.detach(), r.sum(0))
    g = head(residual(v, b))
    length = torch.cat([t.flatten() for t in g]).norm()
    phantom = tuple(p + rho * t / length for p, t in zip((v, b), g, strict=True))
    at, along = {"weights": (phantom, v), "rates": ((v, b), phantom[0]), "both": (phantom, phantom[0])}[effects]
    body = torch.autograd.grad(phi, list(model[0].parameters()), residual(*at) @ along)
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=1.0), lsam(rho, effects=effects))
    opt.step(last_layer(model).one_pass(lambda: model(x), lambda out: cross_entropy(out, y)))
    expected = (*body, *(head(residual(*phantom)) if effects == "both" else g))
    for p, e in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("effects", ["weights", "rates", "both"])
def test_each_effect_is_the_toy_s_algorithm_at_the_phantom_head(effects):
    """Equations 10 to 12, with the phantom head of each step as v*; LSAM itself, where the head moves by it too."""
    net, rho, lr = ToyNet(width=8, generator=torch.Generator().manual_seed(0)).double(), 0.5, 0.1
    toy = {name: t.detach().clone()[None] for name, t in net.named_parameters()}
    opt = SharpnessAware(net, torch.optim.SGD(net.parameters(), lr=lr), lsam(rho, effects=effects))
    one = torch.ones(1, dtype=torch.float64)
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(5, 4, generator=draw, dtype=torch.float64)
        y = torch.randn(5, generator=draw, dtype=torch.float64).sign()
        with torch.no_grad():
            Q = -y[:, None] * net.features(x)
            g = (Q @ net.head.weight[0]).sigmoid() @ Q
            star = net.head.weight + rho * g / g.norm()
        algorithm = "lsam" if effects == "both" else effects
        FeatureRuns(net.phi, toy, [algorithm], rho * one, lr * one, star, one.bool()).step(
            two_views(x)[None], y[None]
        )
        logistic = lambda out, y=y: nn.functional.softplus(-y * out[:, 0]).mean()
        opt.step(last_layer(net).one_pass(lambda x=x: net.head(net.features(x)), logistic))
        for name, p in net.named_parameters():
            torch.testing.assert_close(p.detach(), toy[name][0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("radius", ["head", "features"])
def test_a_tied_radius_is_that_of_plain_lsam_at_the_product(radius):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.randint(3, (7,))
    with torch.no_grad():
        head = sum(p.square().sum() for p in model[2].parameters()).sqrt()
        features = model[:2](x).square().sum(1).mean().sqrt()
    factor = float(head if radius == "head" else 1 / features)
    steps = {}
    for name, rule in {"tied": lsam(0.3, radius=radius), "plain": lsam(0.3 * factor)}.items():
        twin = copy.deepcopy(model)
        opt = SharpnessAware(twin, torch.optim.SGD(twin.parameters(), lr=1.0), rule)
        opt.step(last_layer(twin).one_pass(lambda twin=twin: twin(x), lambda out: cross_entropy(out, y)))
        assert float(opt.last.radius) == pytest.approx(0.3 * factor)
        steps[name] = twin.state_dict()
    for name, t in steps["tied"].items():
        torch.testing.assert_close(t, steps["plain"][name], rtol=1e-12, atol=1e-14)


def test_a_radius_by_features_needs_one_pass_and_settings_are_not_mixed():
    model, x, y = Net(), torch.randn(6, 2, 5, 5), torch.randint(3, (6,))
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), lsam(0.2, radius="features"))
    with pytest.raises(TypeError, match="must see the features; use last_layer"):
        opt.step(lambda p: p.backward(cross_entropy(model(x), y)) or p.loss)
    for mixed in ({"effects": "weights", "theta": 0.5}, {"radius": "head", "theta": 0.5}, {"radius": "head", "m": 2}):
        with pytest.raises(ValueError, match=f"lsam takes one of .* and m, got {', '.join(mixed)}; leave out"):
            lsam(**mixed)


def test_each_effect_runs_the_body_once():
    for effects in ("weights", "rates"):
        rule = lsam(0.2, head="fc", effects=effects)
        assert train(True, rule, HEADS["linear"], LOSSES["cross entropy"])[2] == 4


def test_a_closure_that_hides_the_outputs_is_refused():
    model, x, y = Net(), torch.randn(6, 2, 5, 5), torch.randint(3, (6,))
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), lsam(0.2, effects="rates"))
    with pytest.raises(TypeError, match=r"backward was not given the outputs; use p\.backward"):
        opt.step(lambda p: p.backward(cross_entropy(model(x), y)) or p.loss)
    with pytest.raises(TypeError, match=r"p\.backward was not called"):
        for _ in opt.passes():
            cross_entropy(model(x), y).backward()
    with pytest.raises(ValueError, match="effects must be 'both' or 'weights' or 'rates', got 'neither'"):
        lsam(effects="neither")


def test_one_pass_under_autocast_and_scaler():
    def run(one_pass):
        torch.manual_seed(0)
        model = Net()
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), lsam(0.2), scaler=scaler)
        x, y = torch.randn(6, 2, 5, 5), torch.randint(3, (6,))

        def forward():
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)

        loss = lambda out: cross_entropy(out.float(), y)
        opt.step(
            last_layer(model).one_pass(forward, loss) if one_pass else lambda p: p.backward(loss(forward())) or p.loss
        )
        scaler.update()
        return model.state_dict()

    once, twice = run(True), run(False)
    for name in once:
        assert torch.equal(once[name], twice[name]), name


def test_clean_loss_and_weights_after_an_exception_in_the_loss():
    model = Net()
    opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), lsam(0.2))
    before, x, y = weights(model), torch.randn(6, 2, 5, 5), torch.randint(3, (6,))
    calls = []

    def loss(out):
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("boom")
        return cross_entropy(out, y)

    with pytest.raises(KeyError, match="boom"):
        opt.step(last_layer(model).one_pass(lambda: model(x), loss))
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    assert not model.fc._forward_hooks
    assert not model.fc._forward_pre_hooks


class Tail(Net):
    def forward(self, x):
        return super().forward(x).log_softmax(-1)


class TwoInputs(Net):
    def forward(self, x):
        features = self.conv(x)
        return self.fc(features, features)


class TwoHeads(Net):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(36, 3)


def test_bad_use_gets_one_sentence():
    x, y = torch.randn(6, 2, 5, 5), torch.randint(3, (6,))

    def attempt(model, rule, head=None):
        opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), rule)
        loss = lambda out, part=slice(None): cross_entropy(out, y[part])
        opt.step(last_layer(model, head).one_pass(lambda: model(x), loss), n=6)

    for call, kind, message in [
        (
            lambda: attempt(Tail(), lsam()),
            ValueError,
            "forward returned something else than the output of the head 'fc'",
        ),
        (lambda: attempt(TwoHeads(), lsam()), ValueError, "2 layers that may be its head, 'fc', 'unused'; say which"),
        (
            lambda: attempt(TwoHeads(), lsam(head="unused"), head="unused"),
            RuntimeError,
            "the model ran without calling its head 'unused'",
        ),
        (lambda: attempt(Net(), sam()), ValueError, "the rule moves 'conv.0.bias', outside the head 'fc'; use lsam"),
        (lambda: attempt(Net(), Chosen()), TypeError, "this rule chooses examples"),
        (
            lambda: attempt(Net(), optim.m_sharpness(2, ThreePoints())),
            TypeError,
            "sends each part of the batch back once, but this rule does so twice",
        ),
        (
            lambda: attempt(TwoInputs(nn.Bilinear(36, 36, 3)), lsam(m=2, head="fc"), "fc"),
            TypeError,
            "a head of one input",
        ),
        (lambda: last_layer(Net(), "head"), ValueError, "no module named 'head'; there are conv, conv.0"),
        (lambda: last_layer(Net(), nn.Linear(1, 1)), ValueError, "is not a module of the model"),
        (lambda: last_layer(nn.Conv2d(1, 1, 1)), ValueError, "Conv2d has no Linear layer"),
    ]:
        with pytest.raises(kind, match=message):
            call()
    attempt(TwoHeads(), lsam(head="fc"), head="fc")


class Named(nn.Module):
    """A stand-in for a family of architectures: where its classifier sits."""

    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


ARCHITECTURES = {
    "resnet": (Named(conv1=nn.Conv2d(3, 4, 1), fc=nn.Linear(4, 2)), "fc"),
    "vgg": (
        Named(features=nn.Conv2d(3, 4, 1), classifier=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))),
        "classifier.2",
    ),
    "vit": (Named(encoder=nn.Linear(4, 4), heads=Named(head=nn.Linear(4, 2))), "heads.head"),
    "bert": (
        Named(bert=Named(pooler=nn.Linear(4, 4)), dropout=nn.Dropout(), classifier=nn.Linear(4, 2)),
        "classifier",
    ),
    "timm": (
        Named(blocks=nn.Linear(4, 4), norm=nn.LayerNorm(4), head=nn.Linear(4, 2), head_drop=nn.Dropout()),
        "head",
    ),
}


@pytest.mark.parametrize(("model", "name"), ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_the_head_is_found_and_named(model, name):
    last = last_layer(model)
    assert last.name == name
    assert last.parameters == {f"{name}.weight", f"{name}.bias"}
    assert repr(last).startswith(f"LastLayer({name!r}: Linear(")
    assert last_layer(model, last.head).name == name
    assert last_layer(torch.compile(model)).name == name


def test_features_are_what_the_head_is_given():
    model = Net().eval()
    x = torch.randn(3, 2, 5, 5)
    assert torch.equal(last_layer(model).features(x), model.conv(x))
