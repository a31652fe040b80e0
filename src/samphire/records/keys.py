"""A configuration's stable name, and the seeds that come from it."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from samphire.records.cells import scalar

if TYPE_CHECKING:
    import torch

__all__ = ["added", "canonical", "generator", "key", "seed"]


def key(config: Any) -> str:
    """A short name for a configuration: equal configurations have equal keys, on any machine and version.

    The first 16 hexadecimal digits of the SHA-256 of :func:`canonical` as JSON with sorted keys.

    Args:
        config: A frozen dataclass of numbers, strings, booleans, ``None``, enums, tuples, lists, sets, mappings,
            functions with a name, and frozen dataclasses. Fields annotated as a path, or holding one, do not count;
            nor do those of :func:`added` at their default, nor those that the configuration names as ``uncounted``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     rho: float
        >>> key(Config(1.0)), key(Config(1)) == key(Config(1.0))
        ('5413fb3bac6c0952', True)
    """
    return hashlib.sha256(_dumps(canonical(config)).encode()).hexdigest()[:16]


def added(default: Any) -> Any:
    """A field of a configuration that is younger than stored runs: at its default it does not count in the key.

    Args:
        default: What the runs had before there was a choice.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     rho: float
        ...     base: str = added("sgd")
        >>> canonical(Config(0.05)), canonical(Config(0.05, "adam"))["base"]
        ({'__type__': 'samphire.records.keys.Config', 'rho': 0.05}, 'adam')
    """
    return field(default=default, metadata={"added": True})


def canonical(config: Any) -> dict[str, Any]:
    """A configuration as plain JSON data, without its paths; what :func:`key` hashes and ``config.json`` holds.

    The dataclass's module and name are part of it, so that two experiments with equal fields have different keys.

    Args:
        config: As for :func:`key`.

    Example:
        >>> from dataclasses import dataclass
        >>> from pathlib import Path
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     rho: float
        ...     root: Path
        >>> canonical(Config(0.05, Path("data")))
        {'__type__': 'samphire.records.keys.Config', 'rho': 0.05}
    """
    if not is_dataclass(config) or isinstance(config, type) or not _is_frozen(config):
        raise TypeError(f"a configuration must be an instance of a frozen dataclass, got {config!r}.")
    plain: dict[str, Any] = _plain(config, type(config).__name__)
    return plain


def seed(source: Any, purpose: str) -> int:
    """A seed for one purpose, so that a new random choice does not shift the others.

    Args:
        source: An integer, or a configuration. To compare configurations with paired seeds, pass the integer that
            they share: ``seed(config.seed, "init")``.
        purpose: What is drawn, for instance ``"init"`` or ``"data"``.

    Returns:
        An integer from 0 to 2**63 - 1, the same in every process and version of Python.

    Example:
        >>> seed(0, "init")
        3598610026517748695
        >>> seed(0, "init") == seed(0, "data")
        False
    """
    if isinstance(source, bool) or not (isinstance(source, int) or is_dataclass(source)):
        raise TypeError(f"a seed comes from an integer or a frozen dataclass, got {source!r}.")
    base = str(source) if isinstance(source, int) else key(source)
    return int.from_bytes(hashlib.sha256(f"{base}:{purpose}".encode()).digest()[:8], "big") >> 1


def generator(source: Any, purpose: str) -> torch.Generator:
    """A torch generator for one purpose, seeded by :func:`seed`.

    Example:
        >>> generator(0, "init").initial_seed() == seed(0, "init")
        True
    """
    import torch

    return torch.Generator().manual_seed(seed(source, purpose))


# The canonical form

_PATH = re.compile(r"\b(Pure)?(Posix|Windows)?Path(Like)?\b")


def _plain(value: Any, where: str) -> Any:
    value = scalar(value)
    if isinstance(value, enum.Enum):
        return {"__type__": _name(type(value)), "name": value.name}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _plain_float(value)
    if is_dataclass(value) and not isinstance(value, type):
        uncounted = getattr(value, "uncounted", ())
        counted = [f for f in fields(value) if _counts(f, getattr(value, f.name)) and f.name not in uncounted]
        return {"__type__": _name(type(value))} | {
            f.name: _plain(getattr(value, f.name), f"{where}.{f.name}") for f in counted
        }
    if isinstance(value, (tuple, list)):
        return [_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(v, where) for v in value), key=_dumps)
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: _plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    if callable(value) and "<" not in getattr(value, "__qualname__", "<"):
        return {"__function__": _name(value)}
    raise TypeError(
        f"{where} cannot be part of a configuration's key: {value!r} has no stable form; "
        "use numbers, strings, tuples, named functions or frozen dataclasses."
    )


def _plain_float(x: float) -> Any:
    """One form for equal numbers: 1.0 is 1, as in Python; JSON has no form for what is not finite."""
    if not math.isfinite(x):
        return {"__float__": repr(x)}
    return int(x) if x.is_integer() and abs(x) < 2**53 else x


def _counts(field: Field[Any], value: Any) -> bool:
    return not (_is_path(field, value) or (field.metadata.get("added") and value == field.default))


def _is_path(field: Field[Any], value: Any) -> bool:
    return isinstance(value, PurePath) or bool(_PATH.search(str(field.type)))


def _is_frozen(config: Any) -> bool:
    return bool(type(config).__dataclass_params__.frozen)


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
