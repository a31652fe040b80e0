from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samphire.models import EfficientNetLite0, ResNet18, ToyNet, mlp, small_cnn

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
