"""The rule's memory inside a state_dict of the base optimizer, and whose memory it is.

It travels as bytes in the first parameter group: what knows optimizers (trainers, ``torch.distributed.checkpoint``)
carries the groups along, whatever is in them, and asks no questions about tensors of a rule that has not begun.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from samphire import tree
from samphire.optim.engine import Engine, ranks
from samphire.optim.requests import Memory, Rule

__all__ = ["is_setting_up", "with_memory", "without_memory"]

KEY = "samphire"


def with_memory(state: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    """The base's state and the memory."""
    packed = io.BytesIO()
    torch.save({"rule": kind(engine.rule), "memories": [memory.state() for memory in engine.memories]}, packed)
    first, *others = state["param_groups"]
    return {**state, "param_groups": [{**first, _key(engine): packed.getvalue()}, *others]}


def without_memory(state: Mapping[str, Any], engine: Engine) -> tuple[dict[str, Any], list[Memory]]:
    """The base's state, and the memories the rule of this engine goes on with: none if they are not its own."""
    memories = _memories(state["param_groups"][0], engine)
    groups = [{k: v for k, v in g.items() if not k.startswith(KEY)} for g in state["param_groups"]]
    return {**state, "param_groups": groups}, [Memory.from_state(memory, engine.named) for memory in memories]


def _memories(group: Mapping[str, Any], engine: Engine) -> list[dict[str, Any]]:
    rule = kind(engine.rule)
    packed = group.get(_key(engine), group.get(KEY))
    if packed is None:
        by_rank = any(key.startswith(KEY) for key in group)
        engine.warn(
            f"the checkpoint holds {'the memory of other ranks' if by_rank else 'no memory of a rule'}, so {rule} "
            "starts afresh at step 0."
        )
        return []
    kept = torch.load(io.BytesIO(packed), weights_only=True)
    if kept["memories"] and kept["rule"] != rule:
        engine.warn(f"the checkpoint holds the memory of {kept['rule']}, so {rule} starts afresh at step 0.")
        return []
    return kept["memories"]


def kind(rule: Rule) -> str:
    """A rule's name and that of the rule inside it; settings may change from one run to the next.

    Example:
        >>> from samphire.optim.rules import every, sam
        >>> kind(every(2, sam(0.1)))
        'every(sam)'
    """
    name = type(rule).__name__
    return f"{name}({kind(rule.rule)})" if hasattr(rule, "rule") else name


def _key(engine: Engine) -> str:
    """Where the memory lies; each rank has a place of its own if their memories differ."""
    apart = engine.perturbation == "local" or any(map(tree.is_sharded, engine.named.values()))
    return f"{KEY} of rank {torch.distributed.get_rank()}" if apart and ranks() > 1 else KEY


def is_setting_up(engine: Engine) -> bool:
    """Whether a step is meant to do nothing but create the base's state, as ``torch.distributed.checkpoint`` asks."""
    groups = engine.parameters.base.param_groups
    grads = [p.grad for p in engine.named.values() if p.requires_grad]
    return (
        not engine.parameters.base.state
        and not any(group.get("lr", 0) for group in groups)
        and all(grad is not None and not tree.local(grad).any() for grad in grads)
    )
