"""One process, or several that train together under torchrun."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed as dist

T = TypeVar("T")

__all__ = ["Ranks", "joined"]


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together.

    Attributes:
        rank: Its number, from 0.
        count: How many there are.
        device: Where it computes.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def from_first(self, value: T) -> T:
        """What the first process has; the others wait for it."""
        box: list[Any] = [value]
        if self.count > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def at_first(self, value: T) -> list[T]:
        """What each process has, in order of ranks, at the first one."""
        if self.count == 1:
            return [value]
        box: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(value, box, dst=0)
        return box or []

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        if self.count > 1:
            dist.all_reduce(value)
        return value


@contextmanager
def joined(device: str | torch.device | None = None) -> Iterator[Ranks]:
    """This process among those that torchrun started, or alone.

    Args:
        device: Where to compute; by default this process's GPU, or the CPU if there is none.
    """
    place = _place(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)  # where NCCL puts the objects that processes exchange
    began = "TORCHELASTIC_RUN_ID" in os.environ and not dist.is_initialized()
    if began:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        if dist.is_available() and dist.is_initialized():
            yield Ranks(dist.get_rank(), dist.get_world_size(), place)
        else:
            yield Ranks(0, 1, place)
    finally:
        if began:
            gc.collect()  # a DistributedDataParallel that outlives its group can wait for its threads for ever
            dist.destroy_process_group()


def _place(device: str | torch.device | None) -> torch.device:
    """The device, ``"cuda"`` being this process's own GPU."""
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"device must be one of torch's, such as cpu, cuda or cuda:1, got {device!r}.") from None
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    try:
        torch.ones((), device=place).item()
    except Exception as error:  # of a kind and in words of its own for each kind of device
        raise ValueError(f"torch cannot compute on device {device!r} here; leave it out.") from error
    return place
