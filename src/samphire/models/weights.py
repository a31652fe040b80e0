"""Weights of a network: read from a file or a URL without running code, and copied into a model."""

from __future__ import annotations

import functools
import hashlib
import http.client
import importlib
import logging
import os
import pickle
import re
import urllib.error
import urllib.parse
import urllib.request
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samphire import records

log = logging.getLogger(__name__)

State = dict[str, Tensor]
WRAPPERS = ("state_dict", "model_state_dict", "model")
_SAVE = "write it with torch.save(model.state_dict(), PATH)"

__all__ = [
    "WRAPPERS",
    "State",
    "check_archive",
    "download",
    "file_name",
    "fill",
    "first_line",
    "is_url",
    "read",
    "required",
]


def is_url(weights: str | os.PathLike[str]) -> bool:
    """Whether weights are an address rather than a path."""
    return isinstance(weights, str) and "://" in weights


def file_name(weights: str | os.PathLike[str]) -> str:
    """The name of the file of weights, without a URL's query, which may hold a secret."""
    return Path(urllib.parse.urlparse(str(weights)).path if is_url(weights) else weights).name


def required(name: str, what: str, remedy: str) -> Any:
    """Import a module; if it is missing, the error says what needs it and how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"{what} needs the module {error.name!r}, which cannot be found; {remedy}.") from None


def read(path: Path) -> State:
    """The state dict in a file, also one inside a training script's checkpoint; no code in the file is run.

    Args:
        path: Written by ``torch.save``, or a ``.safetensors`` file if that package is installed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file of weights at {path}; check the path.")
    parse = functools.partial(torch.load, map_location="cpu", weights_only=True)
    if path.suffix == ".safetensors":
        parse = required("safetensors.torch", path.name, "pip install safetensors").load_file
    path.open("rb").close()  # a file without permission to read is not damaged
    try:
        check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = parse(path)
    except Exception as error:  # damaged bytes raise anything
        advice = isinstance(error, pickle.UnpicklingError)  # torch's, to trust the file
        reason = "" if advice else f" ({first_line(error)})"
        raise ValueError(
            f"{path} is damaged, or holds more than tensors and could run code when loaded{reason}; {_SAVE}."
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


def check_archive(path: Path) -> None:
    """Raise ``ValueError`` if a tensor of a file by ``torch.save`` is not what was saved: torch.load does not look.

    Other kinds of files pass: one from before torch 1.6 has no checksums, ``.safetensors`` none either.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            packed = next((e.filename for e in archive.infolist() if e.compress_type != zipfile.ZIP_STORED), None)
            if packed is not None:  # torch.save packs nothing, and what is packed may unpack to anything
                raise ValueError(f"its part {packed} is compressed")
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of its part {damaged} does not match")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind if it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__).strip().rstrip(".")


def download(url: str) -> Path:
    """The file behind a URL, complete, in PyTorch's hub cache.

    A name with a checksum is verified. Others are kept apart by URL, since many servers have a ``model.pth``.

    Args:
        url: ``.../NAME-DIGITS.pth``, where the eight or more DIGITS begin the file's SHA-256; or any other.
    """
    name = file_name(url)
    promised = re.search(r"-([0-9a-f]{8,64})\.", name)
    path = Path(torch.hub.get_dir(), "checkpoints", name if promised else f"{_sha256(url.encode())[:16]}-{name}")
    data = path.read_bytes() if path.exists() else _fetched(url, path)
    if promised and not _sha256(data).startswith(promised[1]):
        where = f"{path}, kept from an earlier download," if path.exists() else f"the download {name}"
        raise ValueError(
            f"{where} should have a SHA-256 that begins with {promised[1]}, got {_sha256(data)[:16]}; "
            "delete the file if it exists and try again, or pass the path of a file you trust."
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
            data: bytes = answer.read()  # raises if the connection ends early
            return data
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise ConnectionError(
            f"cannot download {shown} ({first_line(error)}); "
            f"download it elsewhere and pass weights=PATH, or put it at {path}."
        ) from None


def fill(
    model: nn.Module, state: State, num_classes: int, spec: str, source: str, *, other_classes: bool = True
) -> str:
    """Copy a checkpoint into a model, except for a classifier of another size; returns a sentence on the result.

    Args:
        model: Changed in place.
        state: The weights; anything else that does not fit is refused.
        num_classes: Outputs of the model's classifier.
        spec: Name of the model, for messages.
        source: Name of the checkpoint, for messages.
        other_classes: Whether the checkpoint's classifier may have another size: to train on, not to measure.
    """
    own = model.state_dict()
    for prefix in ("_orig_mod.", "module.", "_orig_mod."):  # of torch.compile and DataParallel, in any order
        if not any(name.startswith(prefix) for name in own):
            nn.modules.utils.consume_prefix_in_state_dict_if_present(state, prefix)
    shared = own.keys() & state.keys()
    other = {name for name in shared if own[name].shape != state[name].shape}
    fresh = {
        name
        for name in other
        if other_classes and own[name].shape[:1] == (num_classes,) and own[name].shape[1:] == state[name].shape[1:]
    }
    odd = {name for name in shared if _kind(own[name]) != _kind(state[name])}
    usable = shared - other - odd
    fits = model.load_state_dict({n: t for n, t in state.items() if n not in other | odd}, strict=False)
    faults = {
        "it lacks": [n for n in fits.missing_keys if n not in other | odd],
        "it has in excess": fits.unexpected_keys,
        "of another shape are": [
            f"{n} {tuple(state[n].shape)} for {tuple(own[n].shape)}" for n in own if n in other - fresh
        ],
        "of another type are": [
            f"{n} {_kind(state[n])} ({state[n].dtype}) for {own[n].dtype}" for n in own if n in odd
        ],
        "not finite are": [n for n in own if n in usable and not state[n].to(own[n].dtype).isfinite().all()],
    }
    if any(faults.values()):
        reasons = "; ".join(f"{what} {_few(names)}" for what, names in faults.items() if names)
        raise ValueError(
            f"the weights of {source} do not fit {spec}: {reasons}; load them into the network they were saved from."
        )
    if not fresh:
        return f"{spec} with all weights of {source}"
    layers = sorted({name.rpartition(".")[0] or name for name in fresh})
    sizes = sorted({len(state[name]) for name in fresh})
    return (
        f"{spec} with the weights of {source}, except a fresh {', '.join(layers)} "
        f"of {num_classes} classes instead of {', '.join(map(str, sizes))}"
    )


def _kind(t: Tensor) -> str:
    """What may stand for what: any floating-point numbers for others, integers for others."""
    if t.is_meta or t.is_quantized or t.layout != torch.strided:
        return "empty" if t.is_meta else "quantized" if t.is_quantized else "sparse"
    if t.is_floating_point():
        return "floating"
    return "complex" if t.is_complex() else "bool" if t.dtype == torch.bool else "whole"


def _few(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
