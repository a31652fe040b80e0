"""Networks by name: our own, the user's, those of other packages; what is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from samphire.models import EfficientNetLite0, Normalize, ResNet18, load, mlp, small_cnn


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


IMPORTS = {
    "raise RuntimeError('operator torchvision::nms does not exist')": (
        "(operator torchvision::nms does not exist); install the build made for this PyTorch."
    ),
    "import pillow_of_another_name": (
        "(No module named 'pillow_of_another_name'); pip install pillow_of_another_name."
    ),
    "import html.none_such": "(No module named 'html.none_such'); pip install html.",
}


@pytest.mark.parametrize(("code", "sentence"), IMPORTS.items())
def test_a_package_that_fails_on_import_is_named(
    code: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    expected = f"torchvision:resnet50 needs torchvision, which is installed but fails on import {sentence}"
    with pytest.raises(ValueError, match=f"{re.escape(expected)}$"):
        load("torchvision:resnet50", 7)
