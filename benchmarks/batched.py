"""Many toy runs at once against one at a time, against their matrix products alone, and LSAM against SGD.

    python benchmarks/batched.py [--runs 320] [--repeats 15] [--out results/bench-batched.json]

The four are measured in turn, again and again, in one run, so that whatever else the machine does falls on all of
them alike; medians over the repeats. The eager loop has one core: a second one only slows tensors this small down.
A model-step is one step of one run: batch 5, float32, appendix B's network.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from samphire.train.fit_many import CHUNK
from samphire.train.fleets import ToyFleet
from samphire.train.small_configs import ToyConfig
from timing import machine, ratio, store

BATCH, N = 5, 300


def eager(config: ToyConfig) -> Callable[[], int]:
    """LSAM as one writes it by hand: forward, backward, climb, forward, backward, restore, step."""
    net, (x, y) = config.network(), config.train_points()
    optimizer = torch.optim.SGD(net.parameters(), lr=config.lr)
    v = net.head.weight

    def epoch_part(steps: int = 20) -> int:
        for start in range(0, steps * BATCH, BATCH):
            bx, by = x[start : start + BATCH], y[start : start + BATCH]
            optimizer.zero_grad()
            F.softplus(-by * net(bx)).mean().backward()
            with torch.no_grad():
                kept = v.clone()
                v.add_(config.rho * v.grad / (v.grad.norm() + 1e-12))
            optimizer.zero_grad()
            F.softplus(-by * net(bx)).mean().backward()
            with torch.no_grad():
                v.copy_(kept)
            optimizer.step()
        return steps

    return epoch_part


def engine(algorithm: str, rho: float, runs: int) -> Callable[[], int]:
    fleet = ToyFleet([ToyConfig(rho=rho, algorithm=algorithm, seed=s, epochs=1) for s in range(runs)], torch.float32)
    x, y = fleet.x, fleet.y

    @torch.no_grad()
    def steps(count: int = 10) -> int:
        for start in range(0, count * BATCH, BATCH):
            fleet.engine.step(x[:, start : start + BATCH], y[:, start : start + BATCH])
        return count * runs

    return steps


def products(runs: int) -> Callable[[], int]:
    """Every matrix product of a step (three layers forward; weights and inputs backward), nothing else."""
    w1, w2, w3 = torch.randn(runs, 100, 4), torch.randn(runs, 100, 100), torch.randn(runs, 1, 100)
    x, h, d = torch.randn(runs, 2 * BATCH, 4), torch.randn(runs, 2 * BATCH, 100), torch.randn(runs, 2 * BATCH, 1)
    out = torch.empty_like(h)
    phi = torch.empty_like(d)

    def steps(count: int = 10) -> int:
        for _ in range(count):
            torch.bmm(x, w1.mT, out=out)
            torch.bmm(h, w2.mT, out=out)
            torch.bmm(h, w3.mT, out=phi)
            torch.bmm(d, w3, out=out)
            w3.baddbmm_(d.mT, h, beta=0)
            torch.bmm(h, w2, out=out)
            w2.baddbmm_(h.mT, h, beta=0)
            w1.baddbmm_(h.mT, x, beta=0)
        return count * runs

    return steps


def serve(name: str, chunks: int) -> None:
    """A worker: builds its chunks, runs them once for every line it reads, and says the steps and the CPU time."""
    torch.set_num_threads(1)
    parts = [TASKS[name]() for _ in range(chunks)]
    for _ in sys.stdin:
        start = time.process_time()
        steps = sum(part() for part in parts)
        print(steps, time.process_time() - start, flush=True)


class Workers:
    """A task on one or several cores, in processes of one core each, as `fit_many` has them."""

    def __init__(self, name: str, chunks: int, workers: int) -> None:
        command = [sys.executable, __file__, "--serve", name, str(max(1, chunks // workers))]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(workers)
        ]

    def __call__(self) -> tuple[float, float]:
        """Seconds a model-step: by the clock, and of CPU."""
        start = time.perf_counter()
        for process in self.processes:
            print(file=process.stdin, flush=True)
        steps, cpu = zip(*(map(float, process.stdout.readline().split()) for process in self.processes), strict=True)
        return (time.perf_counter() - start) / sum(steps), sum(cpu) / sum(steps)

    def close(self) -> None:
        for process in self.processes:
            process.stdin.close()
            process.wait()


TASKS: dict[str, Callable[[], Callable[[], int]]] = {
    "eager": lambda: eager(ToyConfig(rho=1.0)),
    "lsam": lambda: engine("lsam", 1.0, CHUNK),
    "sgd": lambda: engine("sgd", 0.0, CHUNK),
    "products": lambda: products(CHUNK),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=320)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--serve", nargs=2, metavar=("TASK", "CHUNKS"), help="be a worker; for this script itself")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve[0], int(args.serve[1]))
        return
    tasks = {name: Workers(name, args.runs // CHUNK, 1 if name == "eager" else args.workers) for name in TASKS}
    before = os.getloadavg()[0]
    for task in tasks.values():
        task()
    times: dict[str, list[float]] = {name: [] for name in tasks}
    cpu: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(args.repeats):
        for name, task in tasks.items():
            clock, work = task()
            times[name].append(clock)
            cpu[name].append(work)
    for task in tasks.values():
        task.close()
    ratios = {
        "eager / lsam (must be >= 60)": ("eager", "lsam"),
        "lsam / products (must be <= 3)": ("lsam", "products"),
        "lsam / sgd (must be <= 1.1)": ("lsam", "sgd"),
    }
    report = {
        "load of the machine, before and after": [before, os.getloadavg()[0]],
        "machine": machine(),
        "workers of one core": args.workers,
        "runs": args.runs,
        "repeats": args.repeats,
        "microseconds a model-step (median)": {k: round(1e6 * statistics.median(v), 2) for k, v in times.items()},
        "CPU microseconds a model-step (median)": {k: round(1e6 * statistics.median(v), 2) for k, v in cpu.items()},
        "ratios (median over repeats, quartiles)": {
            name: ratio(times[top], times[bottom]) for name, (top, bottom) in ratios.items()
        },
        "ratios of CPU time (median over repeats, quartiles)": {
            name.split(" (")[0]: ratio(cpu[top], cpu[bottom]) for name, (top, bottom) in ratios.items()
        },
    }
    print(json.dumps(report, indent=2))
    if args.out is not None:
        store(args.out, report)


if __name__ == "__main__":
    main()
