"""Which parameters a rule perturbs: a scope is a set of names, or a function that finds them in a model.

``below`` needs names alone, so it also works on a bare ``{name: tensor}``; the others look at module types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from samphire import tree
from samphire.checks import check_whole

__all__ = ["NORM_LAYERS", "Scope", "as_scope", "below", "head", "last", "last_linear", "of_type"]

Named = nn.Module | Mapping[str, Tensor]
Scope = frozenset[str] | Callable[[Named], frozenset[str]] | None

NORM_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # every BatchNorm, SyncBatchNorm and InstanceNorm
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class below:
    """The parameters of the modules with these names (or the parameters themselves).

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        >>> sorted(below("1")(model))
        ['1.bias', '1.weight']
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def __call__(self, model: Named) -> frozenset[str]:
        known = tree.named_parameters(model) if isinstance(model, nn.Module) else model
        names = frozenset(n for n in known if any(n == m or n.startswith(m + ".") for m in self.names))
        if not names:
            raise ValueError(
                f"no parameter is named or lies below {' or '.join(map(repr, self.names))}; "
                f"the model has {', '.join(known)}."
            )
        return names


@dataclass(frozen=True)
class of_type:
    """The parameters of every module of these types, under any name.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8))
        >>> sorted(of_type(NORM_LAYERS)(model))
        ['1.bias', '1.weight']
    """

    types: tuple[type[nn.Module], ...]

    def __call__(self, model: Named) -> frozenset[str]:
        model = _module(model)
        names = frozenset(
            tree.plain_name(model, f"{prefix}.{name}" if prefix else name)
            for prefix, module in model.named_modules()
            if isinstance(module, self.types)
            for name, _ in module.named_parameters(recurse=False)
        )
        if not names:
            kinds = ", ".join(t.__name__ for t in self.types)
            raise ValueError(f"the model has no parameters in modules of type {kinds}; name others with layers=.")
        return names


@dataclass(frozen=True)
class last:
    """The parameters of the last ``n`` blocks: the model's own children that have parameters, in their order.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 1))
        >>> sorted(last(2)(model))
        ['2.bias', '2.weight', '3.bias', '3.weight']
    """

    n: int

    def __call__(self, model: Named) -> frozenset[str]:
        names = list(tree.named_parameters(_module(model)))
        blocks = list(dict.fromkeys(name.partition(".")[0] for name in names))
        check_whole("last: n, counted in the model's blocks,", self.n, most=len(blocks))
        return frozenset(name for name in names if name.partition(".")[0] in blocks[-self.n :])


def last_linear(model: Named) -> str:
    """The name of the last Linear layer in order of registration: ``fc``, ``classifier``, ``heads.head``, ...

    Example:
        >>> last_linear(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
        '2'
    """
    model = _module(model)
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name]
    if not names:
        raise ValueError(
            f"{type(model).__name__} has no Linear layer to take as its head; name the head, as in head='conv2'."
        )
    return tree.plain_name(model, names[-1])


def head(model: Named) -> frozenset[str]:
    """The parameters of the last Linear layer."""
    return below(last_linear(model))(model)


def as_scope(on: str | Iterable[str] | Scope) -> Scope:
    """A scope from what a user writes: a module's name, several, or a scope already."""
    if isinstance(on, str):
        return below(on)
    if on is None or callable(on) or isinstance(on, frozenset):
        return on
    return below(*on)


def _module(model: Named) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"this scope looks for layers in a model, but got only the names {', '.join(model)}; "
            "say which of them, for example head='fc'."
        )
    return model
