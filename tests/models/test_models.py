from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire.models import NETWORKS, EfficientNetLite0, Normalize, ResNet18, ToyNet, load, mlp, small_cnn

BUILDERS: dict[str, Callable[[torch.Generator | None], nn.Module]] = {
    "toy": lambda g: ToyNet(generator=g),
    "mlp": lambda g: mlp((6, 5, 3), generator=g),
    "cnn": lambda g: small_cnn(generator=g),
    "resnet18": lambda g: ResNet18(3, generator=g),
    "efficientnet_lite0": lambda g: EfficientNetLite0(3, generator=g),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_weights_depend_on_the_generator_alone(build: Callable[[torch.Generator | None], nn.Module]) -> None:
    before = torch.get_rng_state()
    one, same, other = (build(torch.Generator().manual_seed(s)).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert all(t.isfinite().all() for t in one.values())


def test_initial_weights_are_pytorchs_own() -> None:
    torch.manual_seed(0)
    ours = mlp((6, 5, 3))
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    torch.manual_seed(0)
    conv = small_cnn()[0]
    torch.manual_seed(0)
    torch.testing.assert_close(conv.weight, nn.Conv2d(3, 32, 5, 2, 2).weight)


def test_toy_net_is_a_shared_mlp_on_each_feature_alone() -> None:  # eq. 4
    net = ToyNet(generator=torch.Generator().manual_seed(0))
    x, zero = torch.randn(7, 4, generator=torch.Generator().manual_seed(1)), torch.zeros(7, 2)
    easy, hard = net.phi(torch.cat([x[:, :2], zero], 1)), net.phi(torch.cat([zero, x[:, 2:]], 1))
    torch.testing.assert_close(net.features(x), torch.cat([easy, hard], 1))
    assert torch.equal(net.head.weight, torch.ones(1, 2))
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[2.0, -3.0]]))
    torch.testing.assert_close(net(x), (2 * easy - 3 * hard)[:, 0])
    assert [type(m).__name__ for m in net.phi] == ["Linear", "LayerNorm", "ReLU"] * 2 + ["Linear"]
    assert sum(p.numel() for p in net.phi.parameters()) == 4 * 100 + 100 + 200 + 100 * 100 + 100 + 200 + 101


def test_small_cnn_has_the_papers_shapes() -> None:
    net = small_cnn(num_classes=5)
    assert [tuple(p.shape) for p in net.parameters() if p.ndim > 1] == [
        (32, 3, 5, 5), (64, 32, 3, 3), (128, 64, 3, 3), (5, 4096),
    ]  # fmt: skip
    assert net[:6](torch.zeros(1, 3, 64, 32)).shape == (1, 128, 8, 4)
    assert small_cnn(in_features=3584)(torch.zeros(1, 3, 56, 28)).shape == (1, 2)


def test_resnet18_has_torchvisions_names() -> None:
    state = ResNet18().state_dict()
    assert len(state) == 122
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{n}" for n in norm)}
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            for k in (1, 2):
                expected |= {f"layer{stage}.{block}.conv{k}.weight"}
                expected |= {f"layer{stage}.{block}.bn{k}.{n}" for n in norm}
        if stage > 1:
            expected |= {f"layer{stage}.0.downsample.0.weight", *(f"layer{stage}.0.downsample.1.{n}" for n in norm)}
    assert set(state) == expected


def test_resnet18_has_torchvisions_shapes() -> None:
    state = ResNet18().state_dict()
    width = {1: 64, 2: 128, 3: 256, 4: 512}
    expected = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (1000, 512), "fc.bias": (1000,)}
    for stage, o in width.items():
        i = width.get(stage - 1, 64)
        for block in (0, 1):
            expected[f"layer{stage}.{block}.conv1.weight"] = (o, o if block else i, 3, 3)
            expected[f"layer{stage}.{block}.conv2.weight"] = (o, o, 3, 3)
        if stage > 1:
            expected[f"layer{stage}.0.downsample.0.weight"] = (o, i, 1, 1)
    assert {n: tuple(t.shape) for n, t in state.items() if t.ndim > 1 or n == "fc.bias"} == expected
    assert sum(p.numel() for p in ResNet18().parameters()) == 11689512


def plain_resnet18(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """He et al. 2016, written out."""

    def bn(x: Tensor, name: str) -> Tensor:
        return F.batch_norm(
            x, w[f"{name}.running_mean"], w[f"{name}.running_var"], w[f"{name}.weight"], w[f"{name}.bias"]
        )

    x = F.max_pool2d(F.relu(bn(F.conv2d(x, w["conv1.weight"], stride=2, padding=3), "bn1")), 3, 2, 1)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            h = F.relu(bn(F.conv2d(x, w[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.bn1"))
            h = bn(F.conv2d(h, w[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
            if f"{at}.downsample.0.weight" in w:
                x = bn(F.conv2d(x, w[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1")
            x = F.relu(h + x)
    return F.linear(F.adaptive_avg_pool2d(x, 1).flatten(1), w["fc.weight"], w["fc.bias"])


@pytest.mark.parametrize("size", [(64, 64), (96, 80)])
def test_resnet18_is_the_published_network_at_any_size(size: tuple[int, int]) -> None:
    source = torch.Generator().manual_seed(0)
    net = ResNet18(3, generator=source).double().eval()
    for name, t in net.state_dict().items():
        if "bn" in name or "downsample.1" in name:
            t.copy_(torch.rand(t.shape, generator=source) + 0.5)
    x = torch.randn(2, 3, *size, generator=source, dtype=torch.float64)
    torch.testing.assert_close(net(x), plain_resnet18(net.state_dict(), x))


def test_mlp_refuses_a_single_width() -> None:
    with pytest.raises(ValueError, match=r"mlp: widths must have at least an input and an output, got \(784,\)"):
        mlp((784,))


@pytest.mark.parametrize(("build", "features"), [(ResNet18, 512), (EfficientNetLite0, 1280)])
def test_features_are_what_the_classifier_sees(build: type[ResNet18 | EfficientNetLite0], features: int) -> None:
    net = build(3).eval()
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert net.num_features == features
    assert net.features(x).shape == (2, features)
    head = list(net.children())[-1]
    torch.testing.assert_close(head(net.features(x)), net(x))


def test_convolutions_start_with_the_variance_of_their_fan_out() -> None:
    net = EfficientNetLite0(generator=torch.Generator().manual_seed(0))
    block = net._blocks[-1]  # 192 -> 1152 channels, 3 x 3 for each alone, -> 320
    for layer, fan_out in [(block._expand_conv, 1152), (block._depthwise_conv, 9), (block._project_conv, 320)]:
        assert layer.weight.var().item() == pytest.approx(2 / fan_out, rel=0.05)


SCALES = [
    ("small_cnn", (0, 51, 255), (0, 0.2, 1)),
    ("mlp", (0, 51, 255), (0, 0.2, 1)),
    ("resnet18", (0, 51, 255), (-0.485 / 0.229, (0.2 - 0.456) / 0.224, (1 - 0.406) / 0.225)),
    ("efficientnet_lite0", (0, 127, 255), (-127 / 128, 0, 1)),
]


@pytest.mark.parametrize(("spec", "pixels", "expected"), SCALES, ids=[s for s, _, _ in SCALES])
def test_every_network_says_the_scale_of_its_inputs(
    spec: str, pixels: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    assert {s for s, _, _ in SCALES} == set(NETWORKS)
    images = torch.tensor(pixels, dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 2, 2)
    scaled = load(spec, 2).normalize(images)
    torch.testing.assert_close(scaled, torch.tensor(expected).view(1, 3, 1, 1).expand(2, 3, 2, 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(load(spec, 2).normalize(images.double() / 255), scaled.double(), atol=1e-6, rtol=0)


def test_normalise_refuses_what_it_would_get_wrong() -> None:
    with pytest.raises(
        TypeError, match=r"images must be uint8 from 0 to 255 or floats from 0 to 1, got torch\.int64"
    ):
        Normalize()(torch.zeros(1, 3, 2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"must have the 3 channels the network expects, got shape \(1, 1, 2, 2\)"):
        ResNet18.normalize(torch.zeros(1, 1, 2, 2))


# load by name


@pytest.mark.parametrize(
    ("spec", "direct"),
    [
        ("small_cnn", lambda g: small_cnn(5, generator=g)),
        ("mlp", lambda g: mlp((784, 500, 300, 5), generator=g)),
        ("resnet18", lambda g: ResNet18(5, generator=g)),
        ("efficientnet_lite0", lambda g: EfficientNetLite0(5, generator=g)),
    ],
)
def test_load_builds_what_the_constructor_builds(spec: str, direct: Callable[[torch.Generator], nn.Module]) -> None:
    before = torch.get_rng_state()
    net = load(spec, 5, generator=torch.Generator().manual_seed(3))
    expected = direct(torch.Generator().manual_seed(3)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert net.state_dict().keys() == expected.keys()
    assert all(torch.equal(t, expected[n]) for n, t in net.state_dict().items())
    assert net.note == f"{spec} with fresh weights"


def test_settings_reach_the_network() -> None:
    assert load("small_cnn", 2, in_features=3584)(torch.zeros(1, 3, 56, 28)).shape == (1, 2)
    assert [tuple(p.shape) for p in load("mlp", 2, in_features=6, hidden=(4,)).parameters()][::2] == [(4, 6), (2, 4)]


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's, on the path for one test."""
    (tmp_path / "own_networks.py").write_text(
        "from torch import nn\n"
        "from samphire.models import Normalize\n"
        "def tiny(num_classes, width=4): return nn.Sequential(nn.Linear(3, width), nn.Linear(width, num_classes))\n"
        "def fixed(): return nn.Linear(3, 2)\n"
        "def scaled(**settings):\n"
        "    model = nn.Linear(3, settings['num_classes'])\n"
        "    model.normalize = Normalize((0.5,), (0.5,))\n"
        "    return model\n"
        "def seeded(num_classes, generator): model = nn.Linear(3, num_classes); model.seen = generator; return model\n"
        "def text(num_classes): return 'a network'\n"
        "def needs(depth): return nn.Linear(depth, 1)\n"
        "class Zoo:\n"
        "    one = staticmethod(lambda num_classes: nn.Linear(1, num_classes))\n"
        "constant = 3\n"
    )
    (tmp_path / "own_broken.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("own_networks", "own_broken"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own_module")
def test_load_takes_a_function_of_the_users() -> None:
    assert load("own_networks:tiny", 7, width=9)[1].weight.shape == (7, 9)
    assert load("own_networks:fixed", 7).weight.shape == (2, 3)
    assert load("own_networks:Zoo.one", 7).weight.shape == (7, 1)
    assert load("own_networks:tiny", 7).normalize == Normalize((0.0,), (1.0,))
    assert load("own_networks:scaled", 7).normalize == Normalize((0.5,), (0.5,))
    source = torch.Generator()
    assert load("own_networks:seeded", 7, generator=source).seen is source


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize("name", ["tiny", "seeded"])
def test_a_function_that_knows_no_generator_still_depends_on_it_alone(name: str) -> None:
    before = torch.get_rng_state()
    nets = [load(f"own_networks:{name}", 7, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    one, same, other = (torch.cat([p.flatten() for p in net.parameters()]) for net in nets)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.usefixtures("own_module")
def test_a_generator_used_twice_gives_two_networks() -> None:
    source = torch.Generator().manual_seed(0)
    one, other = (load("own_networks:tiny", 7, generator=source) for _ in range(2))
    assert not torch.equal(one[0].weight, other[0].weight)


REFUSED = [
    ("resnet81", {}, r"^no network is named 'resnet81'; did you mean 'resnet18'\? Your own is 'module:function'\.$"),
    ("vgg", {}, r"^no network is named 'vgg'; there are small_cnn, mlp, resnet18, efficientnet_lite0\. Your own"),
    ("resnet18", {"width": 3}, r"^resnet18 cannot be built: got an unexpected keyword argument 'width'; its settings are none\.$"),
    ("small_cnn", {"in_feature": 3}, r"unexpected keyword argument 'in_feature'; its settings are in_features\.$"),
    ("own_networks:needs", {}, r"^own_networks:needs cannot be built: missing a required argument: 'depth'; its settings are depth\.$"),
    ("own_networks:tine", {}, r"^module 'own_networks' has no 'tine'; did you mean 'own_networks:tiny'\?$"),
    ("own_networks:zzzz", {}, r"^module 'own_networks' has no 'zzzz'; check the name\.$"),
    ("own_networks:text", {}, r"^own_networks:text must return a torch\.nn\.Module, got str\.$"),
    ("own_networks:constant", {}, r"^own_networks:constant must be a function that returns a torch\.nn\.Module, got 3\.$"),
    ("nowhere_to_be_found:f", {}, r"^nowhere_to_be_found:f needs the module 'nowhere_to_be_found', which cannot be found; pip install nowhere_to_be_found, or add its folder to PYTHONPATH\.$"),
]  # fmt: skip


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(("spec", "settings", "message"), REFUSED, ids=[f"{s} {d or ''}" for s, d, _ in REFUSED])
def test_load_refuses_in_one_sentence(spec: str, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(spec, 7, **settings)


@pytest.mark.usefixtures("own_module")
def test_an_error_inside_the_users_module_is_shown_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        load("own_broken:f", 7)


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "7"])
def test_load_refuses_a_bad_number_of_classes(count: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"num_classes must be a whole number >= 1, got {count!r}.")):
        load("mlp", count)


# Stand-ins with the one function of each package that load calls: the real ones cannot be imported everywhere.
TORCHVISION = """
from torch import nn
def get_model(name, weights=None, num_classes=1000):
    assert name == "tiny_net" and weights in (None, "DEFAULT")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, num_classes))
    if weights: nn.init.constant_(model[0].weight, 5.0)
    return model
"""
TIMM = """
from torch import nn
def create_model(name, pretrained=False, num_classes=1000):
    assert name == "tiny_net"
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, num_classes))
    model.pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    if pretrained: nn.init.constant_(model[0].weight, 5.0)
    return model
"""
PACKAGES = [
    ("torchvision", {"torchvision/__init__.py": "", "torchvision/models.py": TORCHVISION}, ResNet18.normalize),
    ("timm", {"timm/__init__.py": TIMM}, Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))),
]


@pytest.mark.parametrize(("package", "files", "normalize"), PACKAGES, ids=[p for p, _, _ in PACKAGES])
def test_networks_of_other_packages(
    package: str, files: dict[str, str], normalize: Normalize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / package).mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        before = torch.get_rng_state()
        net = load(f"{package}:tiny_net", 7, weights="imagenet", generator=torch.Generator().manual_seed(0))
        assert torch.equal(torch.get_rng_state(), before)
        assert bool((net[0].weight == 5).all())
        assert net[1].weight.shape == (7, 4)
        assert net.normalize == normalize
        assert (
            net.note
            == f"{package}:tiny_net with the weights of imagenet, except a fresh 1 of 7 classes instead of 1000"
        )
    finally:
        for name in [m for m in sys.modules if m.partition(".")[0] == package]:
            del sys.modules[name]


def test_a_package_that_fails_on_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    expected = (
        "torchvision:resnet50 needs torchvision, which is installed but fails on import "
        "(operator torchvision::nms does not exist); install the build made for this PyTorch."
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        load("torchvision:resnet50", 7)
