"""What it saves that workers keep the memory they free: `python benchmarks/worker.py [--quick]`.

A training step of the small CNN on batches of 100 images of 64 x 32 in two pools of one worker, as they are and with
glibc's own settings, in turn in each repetition. Ratios of CPU time are taken within a repetition; their median is
shown with the quartiles.
"""

from __future__ import annotations

import argparse
import time
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn.functional import cross_entropy

from samphire import models, pool
from timing import machine, ratio, store

RESULTS = Path(__file__).parent.parent / "results" / "bench-worker.json"


@lru_cache
def network() -> Any:
    """The paper's network for dominoes, with a batch and its labels."""
    draw = torch.Generator().manual_seed(0)
    net = models.load("small_cnn", 2, None, generator=draw).to(memory_format=torch.channels_last)
    x = torch.randn(100, 3, 64, 32, generator=draw).contiguous(memory_format=torch.channels_last)
    return net, x, torch.randint(2, (100,), generator=draw)


def steps(n: int) -> float:
    """CPU seconds of some forward and backward passes."""
    net, x, y = network()
    started = time.process_time()
    for _ in range(n):
        net.zero_grad()
        cross_entropy(net(x), y).backward()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, nothing stored")
    repetitions = 3 if parser.parse_args().quick else 15
    print(machine())
    times: dict[str, list[float]] = {"kept": [], "given back": []}
    with pool.Pool(1) as ours, pool.Pool(1) as plain:
        ours.submit(steps, 3).result()
        with mock.patch.dict(pool.KEEP_MEMORY, clear=True):
            plain.submit(steps, 3).result()
        for _ in range(repetitions):
            times["kept"].append(ours.submit(steps, 10).result())
            times["given back"].append(plain.submit(steps, 10).result())
    what, measured = (
        "a step whose memory is kept / given back to the kernel",
        ratio(times["kept"], times["given back"]),
    )
    print(f"{what} {measured['median']:.3f} [{measured['low']:.3f}, {measured['high']:.3f}] n={measured['n']}")
    if repetitions > 3:
        store(RESULTS, {"machine": machine(), "rows": [{"what": what, **measured}]})


if __name__ == "__main__":
    import worker  # where workers find the function

    worker.main()
