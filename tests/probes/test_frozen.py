"""Frozen features: any layer, any batches, pooled by what the axes are; the network stays as it was."""

import numpy as np
import pytest
import torch
from torch import nn

from samphire import probes
from samphire.models import Normalize, ResNet18, small_cnn


class Noisy(nn.Module):
    """A network that breaks what it can in evaluation mode: buffers, random numbers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.frozen = nn.BatchNorm1d(3).eval()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.fc(self.frozen(self.body(x)) + 0 * torch.randn(len(x), 3))


@pytest.mark.parametrize("fails", [False, True])
def test_features_leave_the_network_as_it_was(fails):
    model = Noisy().train()
    model.frozen.eval()
    model(torch.randn(8, 4)).sum().backward()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    grads = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="shape"):
            probes.features(model, torch.randn(6, 5))
        torch.set_rng_state(state)
    else:
        images = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
        assert probes.features(model, images).shape == (6, 3)
        assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_default_features_are_what_the_last_linear_is_given():
    net = ResNet18(3, generator=torch.Generator().manual_seed(0)).train()
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    found = probes.features(net, images, batch_size=2)
    net.eval()
    with torch.no_grad():
        expected = net.features(net.normalize(torch.from_numpy(images)))
    assert found == pytest.approx(expected.numpy(), abs=1e-5)
    assert found.dtype == np.float32


def test_any_layer_flattened_or_averaged():
    net = small_cnn(4, generator=torch.Generator().manual_seed(0))
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 64, 32), np.uint8)
    with torch.no_grad():
        hidden = net[:2](torch.from_numpy(images) / 255)
        logits = net(torch.from_numpy(images) / 255)
    net.normalize = Normalize()
    flat, out, last = (probes.features(net, images, layer) for layer in ("1", "", None))
    assert flat == pytest.approx(hidden.flatten(1).numpy(), abs=1e-6)
    assert out == pytest.approx(logits.numpy(), abs=1e-5)
    assert last.shape == (3, 4096)
    assert probes.features(net, images, net[1], pool="channels") == pytest.approx(
        hidden.mean((2, 3)).numpy(), abs=1e-6
    )


def test_batches_of_any_size_and_iterables_give_the_same():
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    images = torch.randn(7, 4)
    whole = probes.features(net, images)
    assert probes.features(net, images, batch_size=3) == pytest.approx(whole, abs=1e-6)
    assert probes.features(net, iter(images.split(2))) == pytest.approx(whole, abs=1e-6)


def test_the_networks_own_scale_or_a_given_one_is_applied():
    net = nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(1, 1))
    images = np.array([[[[255]]]], np.uint8)
    with pytest.raises(ValueError, match="bytes from 0 to 255, but Sequential does not say the scale of its inputs"):
        probes.features(net, images)
    assert probes.features(net, images / np.float32(255)).item() == 1
    net.normalize = lambda x: x.float() / 255 - 3
    assert probes.features(net, images).item() == -2
    assert probes.features(net, images, prepare=lambda x: x.float()).item() == 255


def test_a_layer_that_runs_twice_or_returns_no_tensor_is_refused():
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="ran 2 times"):
        probes.features(nn.Sequential(layer, layer), torch.ones(1, 2), "0")
    with pytest.raises(TypeError, match="returned dict, not a tensor"):
        probes.features(nn.Sequential(Named(lambda x: {"hidden": x})), torch.ones(1, 2), "0")
    with pytest.raises(ValueError, match="layer Linear is no part of the model"):
        probes.features(nn.Sequential(nn.GRU(2, 2)), torch.ones(1, 3, 2), layer)


class Named(nn.Module):
    """A module that is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *x, **named):
        return self.function(*x, **named)


# Pooling, by hand


def test_pooling_is_by_the_axis_it_is_named_for():
    tokens = torch.arange(24.0).reshape(2, 3, 4)  # examples, tokens, d
    maps = torch.arange(48.0).reshape(2, 3, 2, 4)  # examples, channels, height, width
    by = {pool: probes.features(Named(lambda x: x), tokens, "", pool=pool).tolist() for pool in ("tokens", "cls")}
    assert by["tokens"] == [[4, 5, 6, 7], [16, 17, 18, 19]]
    assert by["cls"] == [[0, 1, 2, 3], [12, 13, 14, 15]]
    pooled = probes.features(Named(lambda x: x), maps, "", pool="channels")
    assert pooled.tolist() == [[3.5, 11.5, 19.5], [27.5, 35.5, 43.5]]
    assert probes.features(Named(lambda x: x), tokens, "").shape == (2, 12)


@pytest.mark.parametrize(
    ("shape", "pool", "message"),
    [
        ((2, 3, 4), "channels", r"pool='channels' needs features \(n, channels, height, width\), got shape \(2, 3, 4\); take pool='tokens'"),
        ((2, 3, 4, 4), "tokens", r"pool='tokens' needs features \(n, tokens, d\), got shape \(2, 3, 4, 4\); take pool='channels'"),
        ((2, 3, 4, 4), "cls", r"take pool='channels'"),
    ],
)  # fmt: skip
def test_pooling_over_another_axis_is_refused(shape, pool, message):
    with pytest.raises(ValueError, match=message):
        probes.features(Named(lambda x: x), torch.zeros(shape), "", pool=pool)


# Batches of every kind


def test_batches_may_be_tuples_dicts_and_loaders():
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.randn(7, 4), torch.arange(7)
    expected = probes.features(net, x)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=3)
    assert probes.features(net, loader) == pytest.approx(expected, abs=1e-6)
    dicts = ({"input": a, "label": b} for a, b in loader)

    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, input):
            return {"logits": self.net(input)}

    assert probes.features(ByName(), dicts) == pytest.approx(expected, abs=1e-6)
    logits = probes.features(ByName(), ({"input": a, "labels": b} for a, b in loader), "")
    assert logits == pytest.approx(net(x).detach().numpy(), abs=1e-6)


def test_a_mask_says_which_tokens_are_averaged():
    embed = nn.Embedding(5, 3)

    def forward(input_ids, attention_mask):
        return embed(input_ids)

    model = Named(forward)
    model.embed = embed
    batch = {
        "input_ids": torch.tensor([[1, 2, 0], [3, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]]),
    }
    pooled = probes.features(model, iter([batch]), embed, pool="tokens")
    expected = torch.stack([(embed.weight[1] + embed.weight[2]) / 2, embed.weight[3]])
    assert pooled == pytest.approx(expected.detach().numpy(), abs=1e-6)


def test_transformers_vit_and_bert_as_they_are():
    import transformers

    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "num_labels": 3,
    }
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **small)).eval()
    images = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        out = vit(images, output_hidden_states=True)
        hidden = vit.vit(images).last_hidden_state
    assert probes.features(vit, images, "") == pytest.approx(out.logits.numpy(), abs=1e-6)
    assert probes.features(vit, images, "vit", pool="cls") == pytest.approx(hidden[:, 0].numpy(), abs=1e-6)
    assert probes.features(vit, images, vit.vit, pool="tokens") == pytest.approx(hidden.mean(1).numpy(), abs=1e-6)
    bert = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=11, **small)).eval()
    batch = {
        "input_ids": torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]),
        "labels": torch.tensor([0, 1]),
    }
    with torch.no_grad():
        logits = bert(**batch).logits
        states = bert.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    assert probes.features(bert, iter([batch]), "") == pytest.approx(logits.numpy(), abs=1e-6)
    masked = probes.features(bert, iter([batch]), "bert.encoder", pool="tokens")
    expected = [states[0, :3].mean(0).tolist(), states[1, :2].mean(0).tolist()]
    assert masked == pytest.approx(np.array(expected), abs=1e-6)
