"""Points of parameter space as vectors: ``{name: tensor}`` with the arithmetic of a formula.

``g + alpha * unit(v)`` means here what it means in a paper. Three conventions carry the package:

- a name that is absent is zero, so an unused or frozen parameter needs no special case;
- a common factor is kept apart from the tensors, so ``rho * unit(g)`` costs one norm and no memory;
- norms and dot products run over *all* of a vector: accumulated in float32 at least, over every device,
  and over every shard of a sharded (FSDP2) parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Scalar = float | Tensor


class Vector:
    """A point or direction in parameter space; immutable.

    Args:
        tensors: The entries by name. They are never written to.
        scale: A factor common to all entries, a number or a 0-dim tensor.

    Example:
        >>> g = Vector({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
        >>> (g - 2 * g).dense()
        {'a': tensor([-3.]), 'b': tensor([-4.])}
        >>> norm(unit(g)).item()
        1.0
    """

    __slots__ = ("__weakref__", "_norm", "scale", "tensors")

    def __init__(self, tensors: Mapping[str, Tensor] | None = None, scale: Scalar = 1.0) -> None:
        self.tensors = {} if tensors is None else tensors
        self.scale = scale
        self._norm: list[Tensor] = []  # of the unscaled tensors, once known; shared by all multiples

    def dense(self) -> dict[str, Tensor]:
        """The entries with the common factor multiplied in."""
        if _is_one(self.scale):
            return dict(self.tensors)
        return dict(zip(self.tensors, _scaled(list(self.tensors.values()), self.scale), strict=True))

    def only(self, names: Collection[str]) -> Vector:
        """The part with these names; itself if it has no others."""
        if all(name in names for name in self.tensors):
            return self
        return Vector({name: t for name, t in self.tensors.items() if name in names}, self.scale)

    def __mul__(self, factor: Scalar | Mapping[str, float]) -> Vector:
        if isinstance(factor, Mapping):
            return Vector({name: factor[name] * t for name, t in self.tensors.items()}, self.scale)
        multiple = Vector(self.tensors, factor if _is_one(self.scale) else self.scale * factor)
        multiple._norm = self._norm
        return multiple

    __rmul__ = __mul__

    def __neg__(self) -> Vector:
        return self * -1.0

    def __truediv__(self, divisor: Scalar) -> Vector:
        return self * (1.0 / divisor)

    def __add__(self, other: Vector) -> Vector:
        if not self.tensors or not other.tensors:
            return self if self.tensors else other
        shared = [name for name in self.tensors if name in other.tensors]
        mine, others = ([v.tensors[name] for name in shared] for v in (self, other))
        sums = _sum(mine, self.scale, others, other.scale)
        return Vector(self._without(shared) | other._without(shared) | dict(zip(shared, sums, strict=True)))

    def __sub__(self, other: Vector) -> Vector:
        return self + -1.0 * other

    def _without(self, names: Collection[str]) -> dict[str, Tensor]:
        rest = {name: t for name, t in self.tensors.items() if name not in names}
        return Vector(rest, self.scale).dense()

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __repr__(self) -> str:
        return f"Vector({self.dense()})"


def norm(v: Vector) -> Tensor:
    """Euclidean length over all entries, in float32 or better."""
    if not v._norm:
        v._norm.append(_length(list(v.tensors.values())))
    length = v._norm[0]
    return length if _is_one(v.scale) else abs(length * v.scale)


def known_norm(v: Vector) -> Tensor | None:
    """The norm if it has been computed before, for this vector or a multiple of it."""
    return norm(v) if v._norm else None


def dot(a: Vector, b: Vector) -> Tensor:
    """Inner product over the names both have, in float32 or better."""
    shared = [name for name in a.tensors if name in b.tensors]

    def product(least: torch.dtype) -> Tensor:
        products = [(_inner(a.tensors[name], b.tensors[name], least), a.tensors[name]) for name in shared]
        return _over_shards(products, torch.sum)

    return _in_range(product) * (a.scale * b.scale)


def unit(v: Vector) -> Vector:
    """``v / |v|``, and zero where ``v`` is zero.

    Example:
        >>> unit(Vector({"a": torch.zeros(2)})).dense()
        {'a': tensor([0., 0.])}
    """
    wide = any(t.dtype == torch.float64 for t in v.tensors.values())
    return v * _inverse(norm(v), torch.finfo(torch.float64 if wide else torch.float32).tiny)


def project(v: Vector, *, onto: Vector) -> Vector:
    """The component of ``v`` along ``onto``; zero where ``onto`` is zero."""
    along = unit(onto)
    return dot(v, along) * along


def times(a: Vector, b: Mapping[str, Tensor]) -> Vector:
    """Entry by entry ``a * b`` for the names in ``b``; the other entries of ``a`` as they are."""
    return Vector({name: t * b[name] if name in b else t for name, t in a.tensors.items()}, a.scale)


def size(v: Vector) -> int:
    """How many numbers a vector has, over all ranks."""
    return sum(t.numel() for t in v.tensors.values())


def largest(v: Vector, count: int) -> Vector:
    """Marks the ``count`` largest entries of all, by booleans of the same shapes; ``v`` must have a factor > 0.

    Example:
        >>> largest(Vector({"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([2.0])}), 2).dense()
        {'a': tensor([ True, False]), 'b': tensor([True])}
    """
    if not v.tensors:
        return v
    whole = [t.full_tensor() if is_sharded(t) else t.to_dense() for t in v.tensors.values()]  # type: ignore[attr-defined]
    flat = torch.cat([t.reshape(-1) for t in whole])
    marked = torch.zeros_like(flat, dtype=torch.bool).scatter(0, flat.topk(count).indices, True)
    parts = [m.view(t.shape) for m, t in zip(marked.split([t.numel() for t in whole]), whole, strict=True)]
    return Vector({name: _spread(m, t) for (name, t), m in zip(v.tensors.items(), parts, strict=True)})


def randn_like(w: Vector, seed: int) -> Vector:
    """Standard normal entries: the same on every rank and after a resume, and no global RNG is touched."""
    generator = torch.Generator().manual_seed(seed)
    return Vector({name: _randn_like(t, generator) for name, t in w.tensors.items()})


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """A model's parameters by the names it has unwrapped: the same compiled, data-parallel or plain.

    Example:
        >>> list(named_parameters(torch.compile(nn.Linear(2, 1))))
        ['weight', 'bias']
    """
    return {plain_name(model, name): p for name, p in model.named_parameters()}


def plain_name(model: nn.Module, name: str) -> str:
    """A module's or parameter's name without what torch.compile and DistributedDataParallel put before it."""
    name = name.replace("_orig_mod.", "")
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        if isinstance(model, DistributedDataParallel):
            name = name.removeprefix("module.")
            model = model.module
        else:
            model = model._orig_mod  # type: ignore[assignment]
    return name


def is_sharded(t: Tensor) -> bool:
    """Whether other ranks hold parts of this tensor."""
    return bool(_shard_groups(t))


def local(t: Tensor) -> Tensor:
    """The memory a tensor has on this rank: its own shard if it is sharded, else itself."""
    return t if _mesh(t) is None else t.to_local()  # type: ignore[attr-defined]


def like(t: Tensor, other: Tensor) -> Tensor:
    """A tensor, whole or this rank's shard of it, on the device of another and sharded as that is."""
    mesh = _mesh(other)
    if mesh is None or t.shape == other.shape:
        return _spread(t.to(other.device), other) if _mesh(t) is None else t
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        t.to(other.device),
        mesh,
        other.placements,  # type: ignore[attr-defined]
        shape=other.shape,
        stride=other.stride(),
    )


def displace(
    w: Mapping[str, Tensor], by: Vector, spare: dict[str, Tensor], note: Callable[[Callable[[], None]], None]
) -> Mapping[str, Tensor]:
    """Move weights; the way back, noted before anything moves, brings the very same bits.

    Adding and subtracting again is not restoring: in float32 it changes some 2 % of the entries. On a CPU the weights
    point to a displaced copy meanwhile, which saves two sweeps over memory; elsewhere they are moved in place and
    copied back, so that addresses captured by a CUDA graph or a sharded parameter stay true.

    Args:
        w: The weights by name. On the way back they get the addresses they had.
        by: The displacement.
        spare: Memory for one copy of the displaced weights. Hand in the same dictionary again to reuse it.
        note: Is given the way back, a function that may be called more than once.

    Returns:
        The undisplaced weights.

    Example:
        >>> w, back = {"a": torch.tensor([0.1])}, []
        >>> _ = displace(w, Vector({"a": torch.tensor([0.7])}), {}, back.append)
        >>> w["a"]
        tensor([0.8000])
        >>> back[0]()
        >>> w["a"]
        tensor([0.1000])
    """
    if not by.tensors:
        return {}
    names = list(by.tensors)
    here = [local(w[name].detach()) for name in names]
    for name, t in zip(names, here, strict=True):
        kept = spare.get(name)
        if kept is None or (kept.shape, kept.dtype, kept.device) != (t.shape, t.dtype, t.device):
            spare[name] = torch.empty_like(t)
    copies = [spare[name] for name in names]
    if all(_swappable(w[name], t) for name, t in by.tensors.items()) and isinstance(number(by.scale), float):
        weights = [w[name] for name in names]
        note(lambda: _point_to(weights, here))
        _point_to_sums(w, here, copies, by)
        return dict(zip(names, here, strict=True))
    torch._foreach_copy_(copies, here)
    note(lambda: torch._foreach_copy_(here, copies))
    _add_(here, [local(t) for t in by.tensors.values()], by.scale)
    return dict(zip(names, copies, strict=True))


def _point_to(weights: list[Tensor], data: list[Tensor]) -> None:
    for t, own in zip(weights, data, strict=True):
        t.data = own


def _point_to_sums(w: Mapping[str, Tensor], here: list[Tensor], sums: list[Tensor], by: Vector) -> None:
    factor = float(by.scale)
    for (name, t), old, new in zip(by.tensors.items(), here, sums, strict=True):
        w[name].data = torch.add(old, t, alpha=factor, out=new)


def _swappable(w: Tensor, step: Tensor) -> bool:
    """Whether a weight may point elsewhere for a while, and adding to it rounds once."""
    return _mesh(w) is None and w.device.type == "cpu" and w.element_size() >= 4 and not step.is_sparse


class Displacement(NamedTuple):
    """What a displacement really was, after rounding: its length, its product with a vector, how many moved.

    ``entries`` of them moved (on this rank), a share ``moved`` of those that should have.
    """

    length: Tensor
    along: Tensor
    moved: float
    entries: int


def measure_displacement(w: Mapping[str, Tensor], kept: Mapping[str, Tensor], g: Vector) -> Displacement:
    """Compare displaced weights with the kept ones, tensor by tensor so that little memory is needed.

    The share of coordinates that moved is counted for weights below float32, where a small displacement may
    round away; elsewhere it is taken as 1.
    """
    lengths, products, count, in_half, of_half = [], [], 0, 0, 0
    for name, old in kept.items():
        wide = torch.promote_types(old.dtype, torch.float32)
        by = local(w[name].detach()).to(wide) - old
        lengths.append((torch.linalg.vector_norm(by), w[name]))
        if name in g.tensors:
            products.append((_inner(by, local(g.tensors[name])), w[name]))
        moved = int(torch.count_nonzero(by))
        count += moved
        if old.dtype != wide:
            in_half, of_half = in_half + moved, of_half + by.numel()
    return Displacement(
        _over_shards(lengths, _root_of_squares),
        _over_shards(products, torch.sum) * g.scale,
        in_half / of_half if of_half else 1.0,
        count,
    )


def _length(tensors: list[Tensor]) -> Tensor:
    """Norm of norms, so that squares neither overflow nor round away."""
    here = [local(t) for t in tensors]

    def length(least: torch.dtype) -> Tensor:
        return _over_shards(list(zip(_norms(here, least), tensors, strict=True)), _root_of_squares)

    return _in_range(length)


def _in_range(sum_of_products: Callable[[torch.dtype], Tensor]) -> Tensor:
    """A sum of products accumulated in float32; in float64 if they underflow or overflow there.

    So gradients from 1e-36 to 1e36 have a length, and others pay nothing for it. On an accelerator, where reading a
    number would stall the queue, and in vmap it stays float32: from 1e-18 to 1e18.
    """
    value = sum_of_products(torch.float32)
    if value.dtype != torch.float32 or not isinstance(seen := number(value), float):
        return value
    return value if 1e-15 < abs(seen) < math.inf else sum_of_products(torch.float64)


def _over_shards(parts: list[tuple[Tensor, Tensor]], combine: Any) -> Tensor:
    """Combine per-tensor results, first here, then over the ranks that hold the shards of a tensor."""
    if not parts:
        return torch.zeros(())
    by_groups: dict[tuple[Any, ...], list[Tensor]] = {}
    for value, owner in parts:
        by_groups.setdefault(_shard_groups(owner), []).append(value)
    device = parts[0][0].device
    totals = []
    for groups, values in by_groups.items():
        total = combine(torch.stack([v.to(device) for v in values]))
        for group in groups:
            total = combine(_gathered(total, group))
        totals.append(total)
    return totals[0] if len(totals) == 1 else combine(torch.stack(totals))


def _gathered(value: Tensor, group: Any) -> Tensor:
    everyone = [torch.empty_like(value) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(everyone, value, group=group)
    return torch.stack(everyone)


def _root_of_squares(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values)


def _mesh(t: Tensor) -> Any:
    """The device mesh of a DTensor, known by its attribute so that torch.distributed.tensor stays unloaded."""
    return None if type(t) in (Tensor, nn.Parameter) else getattr(t, "device_mesh", None)


def _shard_groups(t: Tensor) -> tuple[Any, ...]:
    mesh = _mesh(t)
    if mesh is None:
        return ()
    return tuple(mesh.get_group(i) for i, place in enumerate(t.placements) if place.is_shard())  # type: ignore[attr-defined]


def _in_transform() -> bool:
    """Whether a torch.func transform (vmap, grad) is running; foreach kernels have no rules for those."""
    return torch._C._functorch.maybe_current_level() is not None


def _foreach(tensors: list[Tensor]) -> bool:
    """Whether torch's multi-tensor kernels take this list."""
    return bool(tensors) and not _in_transform() and not any(t.is_sparse for t in tensors)


def _norms(tensors: list[Tensor], least: torch.dtype) -> list[Tensor]:
    wide = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else least
    if _foreach(tensors):
        return list(torch._foreach_norm(tensors, 2, dtype=wide))
    return [torch.linalg.vector_norm(_values(t), dtype=wide) for t in tensors]


def _values(t: Tensor) -> Tensor:
    return t.coalesce().values() if t.is_sparse else t


def _inner(a: Tensor, b: Tensor, least: torch.dtype = torch.float32) -> Tensor:
    a, b = (local(t).to_dense() if t.is_sparse else local(t) for t in (a, b))
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), least)
    return torch.dot(a.reshape(-1).to(wide), b.reshape(-1).to(wide))


def _inverse(length: Tensor, tiny: float) -> Tensor:
    """``1 / length``; 0 where the length is 0 or so small that its inverse overflows. NaN stays NaN."""
    return torch.where(length < tiny, 0.0, 1.0 / length.clamp_min(tiny))


def _is_one(scale: Scalar) -> bool:
    return isinstance(scale, (int, float)) and scale == 1.0


def number(scale: Scalar) -> Scalar:
    """A factor as a Python number wherever reading it is free; on an accelerator or in vmap it stays a tensor."""
    if isinstance(scale, Tensor) and scale.device.type == "cpu" and not _in_transform():
        return scale.item()
    return scale


def _scaled(tensors: list[Tensor], scale: Scalar) -> list[Tensor]:
    factor = number(scale)
    if _foreach(tensors):
        return list(torch._foreach_mul(tensors, factor))
    return [t * factor for t in tensors]


def _sum(xs: list[Tensor], a: Scalar, ys: list[Tensor], b: Scalar) -> list[Tensor]:
    """``a * x + b * y`` for each pair."""
    if not _is_one(a):
        xs = _scaled(xs, a)
    factor = number(b)
    if not _foreach(xs + ys):
        return [factor * y + x if x.is_sparse else x + factor * y for x, y in zip(xs, ys, strict=True)]
    if isinstance(factor, Tensor):
        return list(torch._foreach_add(xs, torch._foreach_mul(ys, factor)))
    return list(torch._foreach_add(xs, ys, alpha=factor))


def _add_(xs: list[Tensor], ys: list[Tensor], b: Scalar) -> None:
    """``x += b * y`` for each pair. Half precision goes through float32: ``b`` may not fit, and it rounds once."""
    factor = number(b)
    if isinstance(factor, float) and _foreach(ys) and all(x.element_size() >= 4 for x in xs):
        torch._foreach_add_(xs, ys, alpha=factor)
        return
    for x, y in zip(xs, ys, strict=True):
        wide = torch.promote_types(x.dtype, torch.float32)
        x.copy_(x.to(wide) + factor * y.to(wide))


def _randn_like(t: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(t.shape, generator=generator, dtype=torch.promote_types(t.dtype, torch.float32))
    return _spread(noise.to(device=t.device, dtype=t.dtype), t)


def _spread(whole: Tensor, like: Tensor) -> Tensor:
    """A tensor that every rank has whole, sharded as another is."""
    mesh = _mesh(like)
    if mesh is None:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def finite(v: Vector) -> bool:
    """Whether every entry is a number, judged by the norm."""
    return math.isfinite(norm(v).item())
