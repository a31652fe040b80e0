"""Is it a function of the weights? What is random, cannot be repeated or does not depend on them is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samphire.landscape.evaluation import Evaluate, ModelLoss, Weights, pair, total

REPEATS = 8  # passes in which a random layer must show itself

__all__ = ["check_function"]


def check_function(evaluate: Evaluate, batches: Iterable[Any], w: Weights) -> None:
    """Refuse what is no function of the weights: a loss that is random, unrepeatable or constant.

    Args:
        evaluate: The loss of one batch.
        batches: The data.
        w: Weights that require gradients.
    """
    with evaluate.undisturbed(), torch.enable_grad():
        first, again = next(iter(batches)), next(iter(batches))
        if _differ([total(*evaluate(w, first)) for _ in range(4)]):
            raise ValueError(
                f"{_random_part(evaluate, w, first)} gives different results for the same input; switch its "
                "randomness off (dropout: training=False), since a landscape needs one loss for each point."
            )
        if first is not None and not all(torch.equal(a, b) for a, b in zip(pair(first), pair(again), strict=True)):
            raise ValueError(
                "batches gives other examples at a second pass; pass list(batches), or a DataLoader with "
                "shuffle=False and no random augmentation."
            )
        if not evaluate(w, first)[0].requires_grad:
            raise ValueError("the loss does not depend on the differentiable parameters; look for a detach().")


def _differ(losses: Sequence[float]) -> bool:
    """Beyond what a reduction in another order changes."""
    return max(losses) - min(losses) > 1e-5 * max(map(abs, losses))


def _random_part(evaluate: Evaluate, w: Weights, batch: Any) -> str:
    """The innermost layer with outputs that differ from pass to pass, in words."""
    if not isinstance(evaluate, ModelLoss):
        return "the function"
    outputs: list[tuple[str, nn.Module, Tensor]] = []
    names = {module: name for name, module in evaluate.model.named_modules()}

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs.append((names[module], module, output.detach()))

    hooks = [module.register_forward_hook(keep) for module in names]
    try:
        for _ in range(REPEATS):
            evaluate(w, batch)
    finally:
        for hook in hooks:
            hook.remove()
    calls = len(outputs) // REPEATS
    for i, (name, module, output) in enumerate(outputs[:calls]):
        others = (other for _, _, other in outputs[i + calls :: calls])
        if not all(torch.allclose(output, other, rtol=1e-5, equal_nan=True) for other in others):
            return f"layer {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
    return "the loss function"
