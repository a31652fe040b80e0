"""Who saves, loads or copies a model, or a part of it, while its weights are displaced gets them put back first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from torch import nn

from samphire.restore import Undo

__all__ = ["guard"]


def guard(modules: Iterable[nn.Module], end: Callable[[str], None], undo: Undo) -> None:
    """Watch over a model's modules from now on, until it is undone.

    ``state_dict`` and ``load_state_dict`` put the weights back and go on. ``pickle`` and ``deepcopy`` may have copied
    displaced weights already when we learn of them, so they are refused; the weights are back then, and asking once
    more works.

    Args:
        modules: The model, and all that is in it.
        end: Ends the pass and puts everything back; it is given the name of who came.
        undo: Where the end of the watch is noted.
    """
    saving, loading = _Guard("model.state_dict()", end), _Guard("model.load_state_dict()", end)
    hooks: list[tuple[dict[Any, Any], _Guard]] = []
    for module in modules:
        hooks += (module._state_dict_pre_hooks, saving), (module._load_state_dict_pre_hooks, loading)
    undo.note(lambda: [registered.pop(one, None) for registered, one in hooks])
    for registered, one in hooks:
        registered[one] = one


class _Guard:
    """Lies among a model's hooks: it is called by its state_dict, and met by whatever copies the model."""

    def __init__(self, name: str, end: Callable[[str], None]) -> None:
        self.name, self.end = name, end

    def __call__(self, *_: Any) -> None:
        self.end(self.name)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.end("copying or pickling the model")
        raise RuntimeError(
            "the model was copied or pickled inside a perturbed pass, while its weights were displaced; they are "
            "back now. Leave the loop over passes() first (close() it, if a variable holds it)."
        )
