"""Many toy runs at once against one at a time, against their matrix products alone, and LSAM against SGD.

    python benchmarks/batched.py [--runs 320] [--repeats 15] [--out results/bench-batched.json]

The four are measured in turn, again and again, in one process, so that whatever else the machine does falls on all
of them alike; medians over the repeats. A model-step is one step of one run: batch 5, float32, appendix B's network.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.nn import functional as F

from samphire.train import CHUNK, ToyConfig, _ToyFleet

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
    fleet = _ToyFleet([ToyConfig(rho=rho, algorithm=algorithm, seed=s, epochs=1) for s in range(runs)], torch.float32)
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


def shared(make: Callable[[int], Callable[[], int]], runs: int, threads: int) -> Callable[[], int]:
    """The runs in chunks, the chunks on threads of one core each, as `fit_many` has them."""
    parts = [make(min(runs, CHUNK)) for _ in range(max(1, runs // CHUNK))]
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    return lambda: sum(pool.map(lambda part: part(), parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=320)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tasks = {
        "eager": shared(
            lambda _: eager(ToyConfig(rho=1.0)), 1, 1
        ),  # one core is faster than two for tensors this small
        "lsam": shared(lambda r: engine("lsam", 1.0, r), args.runs, args.threads),
        "sgd": shared(lambda r: engine("sgd", 0.0, r), args.runs, args.threads),
        "products": shared(products, args.runs, args.threads),
    }
    before = os.getloadavg()[0]
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(args.repeats + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            steps = task()
            if repeat:
                times[name].append((time.perf_counter() - start) / steps)
    ratios = {
        "eager / lsam (must be >= 60)": ("eager", "lsam"),
        "lsam / products (must be <= 3)": ("lsam", "products"),
        "lsam / sgd (must be <= 1.1)": ("lsam", "sgd"),
    }
    report = {
        "load of the machine, before and after": [before, os.getloadavg()[0]],
        "machine": f"{_cpu()}, {args.threads} threads, torch {torch.__version__}, Python {platform.python_version()}",
        "runs": args.runs,
        "repeats": args.repeats,
        "microseconds a model-step (median)": {k: round(1e6 * statistics.median(v), 2) for k, v in times.items()},
        "ratios (median over repeats, quartiles)": {
            name: _spread([a / b for a, b in zip(times[top], times[bottom], strict=True)])
            for name, (top, bottom) in ratios.items()
        },
    }
    print(json.dumps(report, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(report, indent=2) + "\n")


def _spread(values: list[float]) -> list[float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return [round(middle, 3), round(low, 3), round(high, 3)]


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} x {len(names)}" if names else platform.processor()


if __name__ == "__main__":
    main()
