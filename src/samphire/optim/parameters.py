"""The base optimizer's parameters under the model's names, and what happens when they are replaced."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from samphire import restore, tree
from samphire.checks import check_value
from samphire.optim.requests import Group
from samphire.optim.schedules import Rho

__all__ = ["Parameters", "data_parallel_around"]


class Parameters:
    """What the base optimizer trains, by name and by group.

    Attributes:
        model: The model, as wrapped as it was given.
        base: The base optimizer.
        named: Its parameters under the names they have in the model unwrapped.
        others: The model's parameters that are not the base's.
        modules: The model unwrapped, and all that is in it.
        base_evaluates: Whether the base evaluates the loss itself, as LBFGS does.
        prunes: Whether a pass may leave out gradients that the rule does not ask for.
    """

    named: dict[str, nn.Parameter]
    others: list[nn.Parameter]
    modules: list[nn.Module]
    prunes: bool

    def __init__(self, model: nn.Module, base: Optimizer) -> None:
        self.base = base
        closure = inspect.signature(base.step).parameters.get("closure")
        self.base_evaluates = closure is not None and closure.default is inspect.Parameter.empty
        self._read(model)

    def groups(self) -> tuple[Group, ...]:
        """The base's groups as rules see them, at this moment's learning rates."""
        return tuple(
            Group(names, float(group["lr"]) if "lr" in group else None, self._rho(group))
            for names, group in zip(self._group_names, self.base.param_groups, strict=True)
        )

    def set_grads(self, grads: Mapping[str, Tensor | None]) -> None:
        """Give every parameter its gradient; none to those that are not mentioned."""
        for name, p in self.named.items():
            grad = grads.get(name)
            p.grad = None if grad is None else grad.to(p.dtype)

    def subtract(self, v: tree.Vector) -> None:
        """``w -= lr * v``, each group by its learning rate."""
        for group, names in zip(self.base.param_groups, self._group_names, strict=True):
            for name, by in v.only(names).dense().items():
                self.named[name].detach().sub_(by * group["lr"])

    def refresh(self) -> None:
        """Read the names again if the base's groups or the model's parameters are others than before."""
        if self._held() != self._ids or any(home.get(name) is not it for home, name, it in self._homes):
            self._read(self.model)

    def move_to(self, model: nn.Module) -> None:
        """Take over a model that was wrapped, sharded or rebuilt: its parameters and the base's state, by name."""
        names = {p: name for name, p in self.named.items()}
        new = tree.named_parameters(model)
        kept = set(new.values())
        for group in self.base.param_groups:
            group["params"] = [p if p in kept else new.get(names.get(p, ""), p) for p in group["params"]]
        for p, name in names.items():
            if p not in kept and name in new and p in self.base.state:
                state = self.base.state.pop(p)
                self.base.state[new[name]] = {key: _follow(value, new[name]) for key, value in state.items()}
        self._read(model)

    def _read(self, model: nn.Module) -> None:
        names = {p: name for name, p in tree.named_parameters(model).items()}
        for group in self.base.param_groups:
            for p in group["params"]:
                if p not in names:
                    raise ValueError(
                        f"the base optimizer holds a parameter of shape {tuple(p.shape)} that is not in the model; "
                        "build both from one model (before or after wrapping, but the same parameters), or call "
                        "opt.rebind(model) if its parameters were replaced since, as by sharding."
                    )
                if p.is_complex():
                    raise ValueError(
                        f"{names[p]} must be real, got {p.dtype}; keep its real and imaginary parts in a real "
                        "parameter, and use torch.view_as_complex of it."
                    )
            if self._rho(group) is not None:
                check_value("a group's rho", self._rho(group), Rho)
        self.model, self.modules = model, list(restore.unwrapped(model).modules())
        self._group_names = [tuple(names[p] for p in group["params"]) for group in self.base.param_groups]
        self.named = {names[p]: p for group in self.base.param_groups for p in group["params"]}
        self.others = [p for p, name in names.items() if name not in self.named]
        self.prunes = not (
            restore.data_parallel(model) is not None
            or any(map(tree.is_sharded, self.named.values()))
            or any("_orig_mod" in name for name, _ in model.named_modules())  # compiled
        )
        self._ids = self._held()
        self._homes = [  # sharded parameters come and go there by themselves
            (home, name, thing)
            for module in model.modules()
            for home in (module._modules, module._parameters)
            for name, thing in home.items()
            if not (isinstance(thing, Tensor) and tree.is_sharded(thing))
        ]

    def _held(self) -> list[int]:
        return [id(p) for group in self.base.param_groups for p in group["params"]]

    def _rho(self, group: Mapping[str, object]) -> Rho | None:
        """The group's own radius: ``sam_rho``, or ``rho`` unless that is a setting of the base, as of Adadelta."""
        own = None if "rho" in self.base.defaults else group.get("rho")
        return group.get("sam_rho", own)  # type: ignore[return-value]


def _follow(value: object, p: Tensor) -> object:
    """A piece of a parameter's state, where the parameter is now."""
    return tree.like(value, p) if isinstance(value, Tensor) and value.shape == p.shape else value


def data_parallel_around(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel that was put around a model behind our back, looked for in all of memory."""
    inner = restore.unwrapped(model)
    wrappers = [thing for thing in gc.get_objects() if issubclass(type(thing), DistributedDataParallel)]
    return next((wrapper for wrapper in wrappers if restore.unwrapped(wrapper) is inner), None)
