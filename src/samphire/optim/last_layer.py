"""LSAM at the cost of SGD: the body runs once, the last layer (the head) twice, backward once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from samphire import restore, tree
from samphire.checks import hint
from samphire.optim import scopes
from samphire.optim.passes import Pass

__all__ = ["LastLayer", "OnePass", "last_layer", "watching"]


class LastLayer:
    """A model seen as body and head, without taking it apart.

    Attributes:
        name: The head's name in the model.
        head: The head itself.
        parameters: The names of the head's parameters.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        self.model, self.name = model, name
        modules = {tree.plain_name(model, n): m for n, m in model.named_modules()}
        if name not in modules:
            raise ValueError(f"the model has no module named {name!r}; {hint(name, filter(None, modules))}")
        self.head = modules[name]
        self.parameters = scopes.own_parameters(model, name)

    def __repr__(self) -> str:
        return f"LastLayer({self.name!r}: {self.head})"

    def features(self, x: Any) -> Tensor:
        """What the head is given when the model sees ``x``."""
        with watching(self.head) as call:
            self.model(x)
        return call.inputs(self)[0]

    def one_pass(self, forward: Callable[[], Tensor], loss: Callable[..., Tensor]) -> OnePass:
        """A closure for ``SharpnessAware.step`` that runs the body once and the head as often as the rule needs it.

        The gradients are those of the two-pass form, bit for bit, with BatchNorm and dropout too. Where each part of
        the batch has a phantom head of its own (``m_sharpness``), the body still sees the batch as a whole.

        Args:
            forward: Runs the model and returns the head's output, as in ``lambda: model(x)``.
            loss: The loss of that output. What follows the head (a squeeze, a softmax) belongs here. For rules that
                take the batch in parts, of the outputs of some examples and of the slice that says which.

        Example:
            >>> from samphire.optim import SharpnessAware, lsam
            >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
            >>> x, y = torch.randn(16, 4), torch.randint(3, (16,))
            >>> opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1), lsam(rho=0.05))
            >>> last = last_layer(model)
            >>> last.name
            '3'
            >>> loss = opt.step(last.one_pass(lambda: model(x), lambda out: nn.functional.cross_entropy(out, y)))
            >>> opt.last.passes
            2
        """
        return OnePass(self, forward, loss)


def last_layer(model: nn.Module, head: nn.Module | str | None = None) -> LastLayer:
    """The last layer of a model, its head.

    Args:
        model: Any module.
        head: The head, or its name. By default the last layer in order of registration, if it is Linear or a 1x1
            convolution: the classifier in torchvision's, timm's and Hugging Face's models. Where two layers may be
            meant, it asks.

    Example:
        >>> last_layer(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
        LastLayer('2': Linear(in_features=8, out_features=2, bias=True))
    """
    if isinstance(head, nn.Module):
        names = [name for name, module in model.named_modules() if module is head]
        if not names:
            raise ValueError(f"head={head} is not a module of the model; pass one of its modules or a name.")
        head = tree.plain_name(model, names[0])
    return LastLayer(model, scopes.find_head(model) if head is None else head)


class OnePass:
    """The closure of :meth:`LastLayer.one_pass`, for one step."""

    starts_afresh = True  # gradients from before the step do not count, so there is nothing to zero

    def __init__(self, last: LastLayer, forward: Callable[[], Tensor], loss: Callable[..., Tensor]) -> None:
        self.last, self.forward, self.loss = last, forward, loss
        self._call: _Call | None = None  # how the body called the head, while the body's graph is alive
        self._into_features: list[Tensor] = []  # gradients of the sums over parts, until the body is sent them all

    def __call__(self, p: Pass) -> Tensor:
        """One pass: the whole model, or from the cached features on."""
        self._check(p)
        head_alone = p.wrt is not None and p.wrt <= self.last.parameters
        p.thaw()
        if isinstance(p.part, slice):
            return self._of_part(p, p.part, head_alone)
        out = self._head_again(p, head_alone) if self._call is not None else self._whole(p, cut=head_alone)
        if not head_alone:
            self._call = None  # this backward uses the body's graph up
        loss = self.loss(out)
        p.backward(loss, out)
        return loss

    def _of_part(self, p: Pass, part: slice, head_alone: bool) -> Tensor:
        """The head on some rows of the features. The body gets what goes back into all of them with the last part."""
        if self._call is None:
            self._whole(p, cut=True)
        assert self._call is not None
        if len(self._call.args) != 1 or self._call.kwargs:
            raise TypeError(f"one_pass in parts needs a head of one input, got more for {self.last.name!r}.")
        (features,) = self._call.args
        rows = features.detach()[part].requires_grad_(not head_alone)
        out = self._call.again(self.last.head, p, rows)
        loss = self.loss(out, part)
        p.backward(loss, out)
        if not head_alone:
            self._send_back(features, rows, part)
        return loss

    def _send_back(self, features: Tensor, rows: Tensor, part: slice) -> None:
        if sum(map(len, self._into_features)) != part.start:
            raise TypeError(
                "one_pass sends each part of the batch back once, but this rule does so twice; use a closure."
            )
        assert rows.grad is not None
        self._into_features.append(len(rows) * rows.grad)
        if part.stop == len(features):
            features.backward(torch.cat(self._into_features) / len(rows))  # the rule multiplies by len(rows) / n
            self._call, self._into_features = None, []

    def _whole(self, p: Pass, cut: bool) -> Tensor:
        """Run the model; if only the head's gradient is wanted, cut the body off and keep its graph."""
        with watching(self.last.head, cut) as call:
            out = self.forward()
        inputs = call.inputs(self.last)
        if out is not call.output:
            raise ValueError(
                f"forward returned something else than the output of the head {self.last.name!r}; move what follows "
                "the head into the loss, or name another head: last_layer(model, head=...)."
            )
        self._call = call if cut else None
        p.feature_norm = _mean_norm(inputs)
        return out

    def _head_again(self, p: Pass, cut: bool) -> Tensor:
        assert self._call is not None
        args, kwargs = self._call.args, self._call.kwargs
        if cut:
            args, kwargs = _cut_off(args, kwargs)
        return self._call.again(self.last.head, p, *args, **kwargs)

    def _check(self, p: Pass) -> None:
        if isinstance(p.part, Tensor):
            raise TypeError("one_pass runs the whole batch at once, but this rule chooses examples; use a closure.")
        outside = p.moved - self.last.parameters
        if outside:
            raise ValueError(
                f"one_pass reuses the features, but the rule moves {min(outside)!r}, outside the head "
                f"{self.last.name!r}; use lsam(head={self.last.name!r}) or on({self.last.name!r}, rule)."
            )
        ddp = restore.data_parallel(self.last.model)
        if ddp is not None and ddp.require_backward_grad_sync:
            raise ValueError("one_pass under DistributedDataParallel needs perturbation='local', got 'global'.")


class _Call:
    """How a head was called: its inputs, its output, and the surroundings to call it in again."""

    called = False
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    rng: restore.RngState
    _autocast: tuple[str, torch.dtype, bool]

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.called, self.args, self.kwargs = True, args, kwargs
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
        self.rng = restore.rng_state({t.device for t in tensors})
        kind = tensors[0].device.type
        self._autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def inputs(self, last: LastLayer) -> tuple[Any, ...]:
        if not self.called:
            raise RuntimeError(
                f"the model ran without calling its head {last.name!r} (a compiled model hides it: compile the body "
                "instead); name the head that is used: last_layer(model, head=...)."
            )
        return self.args

    def again(self, head: nn.Module, p: Pass, *args: Any, **kwargs: Any) -> Any:
        """The head, called as it was then."""
        if p.rng == "replay":
            restore.set_rng_state(self.rng)
        kind, dtype, enabled = self._autocast
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            return head(*args, **kwargs)


@contextmanager
def watching(head: nn.Module, cut: bool = False) -> Iterator[_Call]:
    """Note how the head is called; with ``cut``, hand it its inputs detached."""
    call = _Call()

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call.note(args, kwargs)
        return _cut_off(args, kwargs) if cut else None

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        call.output = output

    hooks = [head.register_forward_pre_hook(before, with_kwargs=True), head.register_forward_hook(after)]
    try:
        yield call
    finally:
        for hook in hooks:
            hook.remove()


def _mean_norm(inputs: tuple[Any, ...]) -> Tensor | None:
    """The root of the mean squared norm of a batch of features, if that is what the head was given."""
    if not inputs or not isinstance(inputs[0], Tensor) or inputs[0].ndim < 2:
        return None
    wide = torch.promote_types(inputs[0].dtype, torch.float32)
    return torch.linalg.vector_norm(inputs[0].detach(), dtype=wide) / len(inputs[0]) ** 0.5


def _cut_off(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A head's inputs without the graph of the body."""
    return tuple(map(_detached, args)), {name: _detached(value) for name, value in kwargs.items()}


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
