"""What images cost on their way to the network, as ratios in one run: `python benchmarks/images.py [--quick]`.

The peer is what a torchvision `DataLoader` does, one worker for each core: open a file, random resized crop and flip
by Pillow, to a tensor, normalise. Ours reads the decoded cache and transforms whole batches. Both go over the same
files, one epoch in turn in each repetition; ratios are taken within a repetition and their median is shown with the
quartiles. Files are written for the purpose (smooth noise as JPEG) at the size of the Waterbirds images and at
128 x 96; or give a folder of your own with `--images`. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from samphire.data.augment import batches, moments, random_resized_crop
from samphire.data.cache import Decoded, decoded
from samphire.data.files import Files
from samphire.data.split import Split
from samphire.models import ResNet18
from step import sgd_for
from timing import machine, ratio, store, timed

RESULTS = Path(__file__).parent.parent / "results" / "bench-images.json"
BATCH, SIDE, STORED = 128, 96, 128
CORES = len(os.sched_getaffinity(0))


def written(folder: Path, n: int, height: int, width: int) -> list[Path]:
    """JPEG files of smooth noise."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    paths = [folder / f"{i}.jpg" for i in range(n)]
    for path in paths:
        coarse = Image.fromarray(draw.integers(0, 256, (height // 6, width // 6, 3), dtype=np.uint8))
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


class OneByOne(Dataset[Tensor]):
    """The paper's transform of one file after the other, by Pillow."""

    def __init__(self, paths: list[Path], mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.paths, self.mean, self.std = paths, torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB")
        left, top, w, h = self.box(*image.size)
        image = image.crop((left, top, left + w, top + h)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div_(255)
        return x.sub_(self.mean).div_(self.std)

    @staticmethod
    def box(width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * random.uniform(0.7, 1)
            wide = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * wide)), round(math.sqrt(area / wide))
            if w <= width and h <= height:
                return random.randint(0, width - w), random.randint(0, height - h), w, h
        side = min(width, height)
        return (width - side) // 2, (height - side) // 2, side, side


def epochs(paths: list[Path], cache: Path) -> tuple[Decoded, dict[str, Callable[[], None]]]:
    """The two ways over the same files, each as a function that runs through an epoch."""
    encoded = Split(Files(paths), np.zeros(len(paths), np.int64), {})
    split, seconds = timed(lambda: decoded(encoded, STORED, cache))
    print(f"  decoded once, {len(paths) / seconds:.0f} images/s")
    mean, std = moments(split.images)
    generator = torch.Generator().manual_seed(0)
    transform = random_resized_crop(SIDE, mean=mean, std=std)
    loader = DataLoader(
        OneByOne(paths, mean, std), BATCH, shuffle=True, num_workers=CORES, persistent_workers=True, prefetch_factor=2
    )

    def ours() -> None:
        for _ in batches(split, BATCH, transform, generator):
            pass

    def peer() -> None:
        for _ in loader:
            pass

    return split, {"ours": ours, "peer": peer}


def own_memory() -> float:
    """MB of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def training_step() -> Callable[[], None]:
    model = ResNet18(num_classes=2)
    optimizer = sgd_for(model)
    x, y = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(2, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, nothing stored")
    parser.add_argument("--images", type=Path, help="a folder with JPEG files, at any depth, to use as well")
    args = parser.parse_args()
    n, repetitions = (1024, 3) if args.quick else (2048, 15)
    torch.manual_seed(0)
    rows = []

    def row(what: str, measured: dict[str, float], bar: float, *, at_least: bool = False) -> None:
        holds = measured["median"] >= bar if at_least else measured["median"] <= bar
        rows.append({"what": what, "must reach": bar, **measured, "holds": holds})
        spread = f"[{measured['low']:.3f}, {measured['high']:.3f}] n={measured['n']}"
        sign, verdict = (">=" if at_least else "<="), ("holds" if holds else "MISSED")
        print(f"{what:66} {measured['median']:7.3f}  {spread:24} must reach {sign} {bar}  {verdict}", flush=True)

    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        sets = {f"{w} x {h}": written(place / f"{w}", n, h, w) for w, h in ((500, 375), (128, 96))}
        if args.images:
            sets["given"] = sorted(args.images.rglob("*.jpg"))[:n]
        for name, paths in sets.items():
            print(f"{name}: {len(paths)} files")
            split, ways = epochs(paths, place / "cache")
            for way in ways.values():
                way()
            times: dict[str, list[float]] = {way: [] for way in ways}
            for r in range(repetitions):
                for way in sorted(ways, reverse=bool(r % 2)):
                    times[way].append(timed(ways[way])[1])
            speeds = {way: f"{len(paths) / statistics.median(taken):.0f} images/s" for way, taken in times.items()}
            print(f"  {speeds}")
            row(
                f"images a second, ours / Pillow one by one, {name}",
                ratio(times["peer"], times["ours"]),
                5,
                at_least=True,
            )
        step, per_batch = training_step(), BATCH / len(split)
        step()
        pairs = [(timed(ways["ours"])[1] * per_batch, timed(step)[1]) for _ in range(max(3, repetitions // 2))]
        print(f"one ResNet-18 step {statistics.median(s for _, s in pairs) * 1e3:.0f} ms")
        share = ratio([batch for batch, _ in pairs], [s for _, s in pairs])
        row(f"a batch of {BATCH} / one ResNet-18 step at {SIDE} px", share, 0.1)
        sizes = []
        for _ in range(4 * repetitions):
            ways["ours"]()
            sizes.append(own_memory())
        half = len(sizes) // 2
        row("own memory, later epochs / earlier ones", ratio(sizes[half:], sizes[:half]), 1.02)
    if not args.quick:
        store(RESULTS, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
