"""What a sharpness-aware step costs, as ratios in one run: `make bench`, or `python benchmarks/step.py --quick`.

Every repetition times one step of all methods one after the other (five of looksam, its cycle; the order rotates), so
that a slow moment of the machine falls on all of them; ratios are taken within a repetition and their median is shown
with the quartiles. Peak memory is what training adds to a fresh process that has imported everything, beyond what SGD
adds to one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from pytorch_optimizer.optimizer.sam import SAM
from torch import Tensor, nn

from samphire.models import ResNet18, small_cnn
from samphire.optim import SharpnessAware, last_layer, looksam, lsam, msam, sam
from timing import Step, interleaved, machine, peak_memory, ratio, store

RESULTS = Path(__file__).parent.parent / "results" / "bench-step.json"
STEPS = {"looksam(k=5)": 5}  # steps timed together, where it is not one
BARS = {
    "sam": 2.06,
    "lsam, one pass": 1.08,
    "looksam(k=5)": 1.25,
    "msam": 1.05,
    "wrapper time / peer's": 0.7,
    "extra memory / peer's": 1.0,
}


def sgd_for(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)


def methods(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Step]:
    """One model and one optimizer per method, each as a function that takes a step."""

    def plain(model: nn.Module, opt: torch.optim.Optimizer) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return closure

    def wrapped(rule: object) -> Step:
        model = make()
        opt = SharpnessAware(model, sgd_for(model), rule)
        closure = plain(model, opt)
        return lambda: opt.step(closure)

    def once() -> Step:
        model = make()
        opt = SharpnessAware(model, sgd_for(model), lsam(0.05))
        last = last_layer(model)
        return lambda: opt.step(last.one_pass(lambda: model(x), lambda out: nn.functional.cross_entropy(out, y)))

    model = make()
    sgd = sgd_for(model)
    closure = plain(model, sgd)
    return {
        "sgd": lambda: sgd.step(closure),
        "sam": wrapped(sam(0.05)),
        "lsam, one pass": once(),
        "looksam(k=5)": wrapped(looksam(0.05, k=5)),
        "msam": wrapped(msam(0.3)),
    }


def ten_million() -> nn.Sequential:
    """An MLP of 10.0M parameters in 58 tensors."""
    return nn.Sequential(*[layer for _ in range(29) for layer in (nn.Linear(587, 587), nn.ReLU())])


def peer_sam(model: nn.Module) -> torch.optim.Optimizer:
    return SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=1e-3, momentum=0.9, foreach=True)


def wrapper_units() -> dict[str, Step]:
    """Optimizer-side work alone: the closure only hands over gradients made beforehand."""
    model, peers, plain = ten_million(), ten_million(), ten_million()
    grads = [torch.randn_like(p) for p in model.parameters()]
    loss = torch.zeros(())

    def handing(m: nn.Module) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            for p, g in zip(m.parameters(), grads, strict=True):
                p.grad = g
            return loss

        return closure

    ours, peer, sgd = SharpnessAware(model, sgd_for(model), sam(0.05)), peer_sam(peers), sgd_for(plain)
    ours_closure, peer_closure, sgd_closure = handing(model), handing(peers), handing(plain)

    def peer_step() -> None:
        peer_closure()
        peer.step(peer_closure)

    return {
        "ours": lambda: ours.step(ours_closure),
        "peer": peer_step,
        "sgd": lambda: sgd.step(sgd_closure),
    }


def train_a_little(method: str) -> None:
    torch.manual_seed(0)
    model = ten_million()
    x = torch.randn(128, 587)
    opt: torch.optim.Optimizer
    opt = {"sgd": sgd_for, "ours": lambda m: SharpnessAware(m, sgd_for(m), sam(0.05)), "peer": peer_sam}[method](
        model
    )

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        if method == "peer":
            closure()
        opt.step(closure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, nothing written")
    args = parser.parse_args()
    repetitions = 10 if args.quick else 45
    torch.manual_seed(0)
    nets = {
        "small CNN, 3x64x32, batch 100": (small_cnn, torch.randn(100, 3, 64, 32), torch.randint(2, (100,))),
        "ResNet-18, 64x64, batch 32": (
            lambda: ResNet18(num_classes=10),
            torch.randn(32, 3, 64, 64),
            torch.randint(10, (32,)),
        ),
    }
    rows = []

    def row(what: str, bar: str, measured: dict[str, float]) -> None:
        rows.append({"what": what, "must reach": BARS[bar], **measured, "holds": measured["median"] <= BARS[bar]})
        spread = f"[{measured['low']:.3f}, {measured['high']:.3f}] n={measured['n']}"
        verdict = "holds" if rows[-1]["holds"] else "MISSED"
        print(f"{what:62} {measured['median']:6.3f}  {spread:24} must reach <= {BARS[bar]}  {verdict}", flush=True)

    print(machine())
    for name, (make, x, y) in nets.items():
        times = interleaved(methods(make, x, y), repetitions, STEPS)
        print(f"{name}: one SGD step {statistics.median(times['sgd']) * 1e3:.1f} ms")
        for method in list(times)[1:]:
            row(f"{method} / sgd, {name}", method, ratio(times[method], times["sgd"]))
    times = interleaved(wrapper_units(), repetitions)
    alone = {who: [t - s for t, s in zip(times[who], times["sgd"], strict=True)] for who in ("ours", "peer")}
    row(
        "wrapper alone on 10M parameters, ours / pytorch-optimizer",
        "wrapper time / peer's",
        ratio(alone["ours"], alone["peer"]),
    )
    processes = range(3 if args.quick else 5)
    peaks = {who: [peak_memory(train_a_little, who) for _ in processes] for who in ("sgd", "ours", "peer")}
    extra = {who: [p - s for p, s in zip(peaks[who], peaks["sgd"], strict=True)] for who in ("ours", "peer")}
    print({who: f"{statistics.median(values):.0f} MB beyond SGD" for who, values in extra.items()})
    row(
        "extra peak memory on 10M parameters, ours / pytorch-optimizer",
        "extra memory / peer's",
        ratio(extra["ours"], extra["peer"]),
    )
    if not args.quick:
        store(RESULTS, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
