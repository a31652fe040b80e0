"""Which parameters a rule perturbs: a scope is a set of names, or a function that finds them in a model.

``below`` needs names alone, so it also works on a bare ``{name: tensor}``; the others look at module types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from samphire import tree
from samphire.checks import check_whole, hint

__all__ = [
    "NORM_LAYERS", "Scope", "as_scope", "below", "find_head", "head", "last", "of_type",
    "own_parameters",
]  # fmt: skip

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
            modules = dict.fromkeys(name.rpartition(".")[0] or name for name in known)
            raise ValueError(
                f"no parameter is named or lies below {' or '.join(map(repr, self.names))}; "
                f"{hint(self.names[0], modules)}"
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


def find_head(model: Named) -> str:
    """The name of the layer that gives the output: the last one in order of registration.

    That is a Linear layer (``fc``, ``classifier``, ``heads.head``, ...), or a 1x1 convolution; with an adapter of
    peft around it, the layer and its adapter. Where the order leaves a doubt, it asks.

    Example:
        >>> find_head(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
        '2'
    """
    model = _module(model)
    layers = {tree.plain_name(model, name): layer for name, layer in _layers(model) if name}
    kind = type(model).__name__
    if not layers:
        raise ValueError(f"{kind} has no Linear layer to take as its head; name the head, as in head='conv2'.")
    *_, (name, layer) = layers.items()
    if isinstance(layer, Conv) and any(size > 1 for size in layer.kernel_size):
        linear = [n for n, other in layers.items() if not isinstance(other, Conv)]
        before = f"comes after its last Linear layer, {linear[-1]!r}" if linear else "is no Linear layer"
        raise ValueError(
            f"the last layer of {kind}, {name!r}, is a {type(layer).__name__} with a kernel of "
            f"{tuple(layer.kernel_size)} and {before}; name the head, as in head={name!r}."
        )
    heads = [name]
    for other in [*layers][-2::-1]:
        if not _beside(layers[other], layer):
            break
        heads.insert(0, other)
    if len(heads) > 1:
        raise ValueError(
            f"{kind} has {len(heads)} layers that may be its head, {', '.join(map(repr, heads))}; say which, as in "
            f"head={name!r}."
        )
    return name


Conv = nn.modules.conv._ConvNd


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear and convolution layers in order of registration, each with its adapter, if it has one."""
    wrapped: str | None = None
    for name, module in model.named_modules():
        if wrapped is not None and name.startswith(wrapped):
            continue
        if isinstance(getattr(module, "base_layer", None), nn.Module):  # peft's way to wrap a layer
            wrapped = f"{name}."
            yield name, module
        elif isinstance(module, (nn.Linear, Conv)) and "original_module" not in name.split("."):  # peft's frozen copy
            yield name, module


def _beside(other: nn.Module, last: nn.Module) -> bool:
    """Whether a layer reads what the last one reads, and feeds something else: a second head."""
    reads, gives = getattr(other, "in_features", None), getattr(other, "out_features", None)
    return reads is not None and reads == getattr(last, "in_features", None) != gives


def head(model: Named) -> frozenset[str]:
    """The parameters of the model's head."""
    return own_parameters(_module(model), find_head(model))


def own_parameters(model: nn.Module, name: str) -> frozenset[str]:
    """The parameters of a layer that is to move alone, so that it must share none with another."""
    names = [tree.plain_name(model, n) for n, _ in model.named_parameters(remove_duplicate=False)]
    parameters = [p for _, p in model.named_parameters(remove_duplicate=False)]
    inside = [n == name or n.startswith(f"{name}.") for n in names]
    own = {id(p) for p, mine in zip(parameters, inside, strict=True) if mine}
    for other, p, mine in zip(names, parameters, inside, strict=True):
        if id(p) in own and not mine:
            raise ValueError(
                f"the head {name!r} is tied: it shares its weight with {other!r}, so it cannot move alone; "
                "untie them (tie_word_embeddings=False), or take a rule that moves both."
            )
    return below(name)(model)


def as_scope(on: str | int | Iterable[str | int] | Scope) -> Scope:
    """A scope from what a user writes: a module's name (in a Sequential its number), several, or a scope already.

    Example:
        >>> as_scope((4, 7))
        below(names=('4', '7'))
    """
    if isinstance(on, (str, int)):
        return below(str(on))
    if on is None or callable(on) or isinstance(on, frozenset):
        return on
    return below(*map(str, on))


def _module(model: Named) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"this scope looks for layers in a model, but got only the names {', '.join(model)}; "
            "say which of them, for example head='fc'."
        )
    return model
