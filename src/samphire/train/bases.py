"""The optimizer under the rule: torch's SGD, Adam and AdamW, and its Muon for the weights that are matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samphire import tree
from samphire.checks import Count, Range, check_flag, check_number, check_value
from samphire.optim import scopes

__all__ = ["BASES", "MuonAndAdamW", "base_optimizer", "check_base"]

_ADAM: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}
BASES: dict[str, dict[str, Any]] = {
    "sgd": {"nesterov": False},
    "adam": _ADAM,
    "adamw": _ADAM,
    "muon": {"momentum": 0.95, "nesterov": True, "ns_steps": 5, **_ADAM},
}
"""The base optimizers, with their settings beside learning rate and weight decay, and the defaults of these."""


def check_base(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a base does not have or that are out of range, and Muon where torch has none."""
    known = BASES[name]
    for key, value in settings.items():
        if key not in known:
            raise ValueError(f"{name} has no setting base.{key}; its settings: {', '.join(known)}.")
        _check_setting(f"base.{key}", value, known[key])
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise ValueError(f"base=muon needs torch 2.9 or newer, got {torch.__version__}; take adamw.")


def _check_setting(name: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        check_flag(name, value)
    elif isinstance(default, int):
        check_value(name, value, Count)
    elif isinstance(default, float):
        check_number(name, value, Range(least=0))
    elif not (
        isinstance(value, tuple) and len(value) == 2 and all(beta in Range(least=0, below=1) for beta in value)
    ):
        raise ValueError(f"{name} must be two numbers in [0, 1), got {value!r}; write for instance {name}=0.9,0.999.")


def base_optimizer(
    name: str, model: nn.Module, *, lr: float, momentum: float, weight_decay: float, settings: Mapping[str, Any]
) -> Optimizer:
    """A base optimizer over a model's parameters.

    Args:
        name: A key of :data:`BASES`.
        model: The model.
        lr: Learning rate.
        momentum: Of SGD; the others have theirs in the settings.
        weight_decay: Added to the gradient by SGD and Adam, applied to the weights by AdamW and Muon.
        settings: Others, as in :data:`BASES`.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2))
        >>> muon = base_optimizer("muon", net, lr=0.01, momentum=0.9, weight_decay=0.0, settings={})
        >>> [[tuple(p.shape) for p in group["params"]] for group in muon.param_groups]
        [[(4, 3, 3, 3)], [(4,), (2, 4), (2,)]]
    """
    settings = {**BASES[name], **settings}
    if name == "muon":
        head = scopes.head(model)
        named = tree.named_parameters(model)
        matrices = [p for key, p in named.items() if p.ndim >= 2 and key not in head]
        others = [p for key, p in named.items() if p.ndim < 2 or key in head]
        return MuonAndAdamW(matrices, others, lr=lr, weight_decay=weight_decay, **settings)
    if name == "sgd":
        settings["momentum"] = momentum
    kinds: dict[str, Callable[..., Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    return kinds[name](model.parameters(), lr=lr, weight_decay=weight_decay, **settings)


class MuonAndAdamW(Optimizer):
    """``torch.optim.Muon`` for weight matrices and kernels, ``torch.optim.AdamW`` for everything else.

    Muon's steps are scaled to the size of AdamW's (``adjust_lr_fn="match_rms_adamw"``), so that one learning rate
    fits both. A kernel of shape (out, in, height, width) is a matrix of out rows.

    Args:
        matrices: Parameters of two axes or more, without the last layer.
        others: The rest.
        lr: Learning rate.
        weight_decay: Decoupled, for all.
        momentum: Of Muon.
        nesterov: Of Muon.
        ns_steps: Newton-Schulz iterations of Muon.
        betas: Of AdamW.
        eps: Of AdamW.

    References:
        Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Liu et al., Muon is Scalable for
        LLM Training, 2025, https://arxiv.org/abs/2502.16982 (the scale of the steps).
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        nesterov: bool,
        ns_steps: int,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self._flat = [nn.Parameter(p.detach().flatten(1).clone()) for p in matrices]  # Muon takes two axes only
        self._parts: dict[str, Optimizer] = {
            "muon": torch.optim.Muon(
                self._flat, momentum=momentum, nesterov=nesterov, ns_steps=ns_steps,
                adjust_lr_fn="match_rms_adamw", **common,
            ),
            "adamw": torch.optim.AdamW(others, betas=betas, eps=eps, **common),
        }  # fmt: skip
        super().__init__([{"params": list(matrices)}, {"params": list(others)}], {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices = self.param_groups[0]["params"]
        for flat, p in zip(self._flat, matrices, strict=True):
            flat.copy_(p.flatten(1))
            flat.grad = None if p.grad is None else p.grad.flatten(1)
        for part, group in zip(self._parts.values(), self.param_groups, strict=True):
            part.param_groups[0]["lr"] = group["lr"]
            part.step()
        for flat, p in zip(self._flat, matrices, strict=True):
            p.copy_(flat.view(p.shape))
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of both."""
        return {**super().state_dict(), **{name: part.state_dict() for name, part in self._parts.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        for name, part in self._parts.items():
            part.load_state_dict(state_dict[name])
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
