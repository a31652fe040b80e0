"""How the benchmarks measure: seconds, units in turn, ratios with quartiles, the machine beside the numbers."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from samphire import records

T = TypeVar("T")
Step = Callable[[], object]

WARM_UP = 5  # repetitions that are not counted
PRELOADED = ["samphire.optim", "pytorch_optimizer.optimizer.sam", "transformers.models.gpt2.modeling_gpt2", "peft"]


def timed(work: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[T, float]:
    """The result of some work and its seconds; ``time.process_time`` gives those of the CPU."""
    start = clock()
    result = work()
    return result, clock() - start


def interleaved(
    units: Mapping[str, Step],
    repetitions: int,
    steps: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per step of each unit in each repetition. The order rotates, so that a slow moment falls on all units.

    Args:
        units: Functions that take a step.
        repetitions: How many are counted, after those that warm up.
        steps: How many steps are timed together, where it is not one.
        clock: As in :func:`timed`.
    """
    times: dict[str, list[float]] = {name: [] for name in units}
    names = list(units)
    for r in range(repetitions + WARM_UP):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            n = (steps or {}).get(name, 1)
            seconds = sum(timed(units[name], clock)[1] for _ in range(n)) / n
            if r >= WARM_UP:
                times[name].append(seconds)
    return times


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The median of the ratios within each repetition, with the quartiles."""
    return quartiles([a / b for a, b in zip(above, below, strict=True)])


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """The median of some numbers, with the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 3), "low": round(low, 3), "high": round(high, 3), "n": len(values)}


def peak_memory(work: Callable[..., object], *arguments: object) -> float:
    """MB that some work adds, at its peak, to a fresh process that has imported the benchmark's modules."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    receiver, sender = server.Pipe(duplex=False)
    process = server.Process(target=_send_peak, args=(sender, work, arguments))
    process.start()
    sender.close()
    peak = float(receiver.recv())
    process.join()
    return peak


def _send_peak(sender: Connection, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    before = _resident("VmRSS")
    work(*arguments)
    sender.send(_resident("VmHWM") - before)


def _resident(what: str) -> float:
    """A resident size of this process, in MB: ``VmRSS`` now, ``VmHWM`` the largest it has had."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    wanted = ("cpu", "cores", "threads", "torch", "numpy", "python")
    return {name: value for name, value in records.provenance().items() if name in wanted}


def store(path: Path, report: Mapping[str, Any]) -> None:
    """Write what was measured, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    records.write_atomic(path, (json.dumps(report, indent=1) + "\n").encode())
