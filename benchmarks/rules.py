"""What a step of every rule costs, beside what its paper claims: `python benchmarks/rules.py`, or with --quick.

Time and flops over SGD's on the small CNN, batches of 128 images of 3x64x32. As in step.py, every repetition times
all rules one after the other, in an order that rotates; ratios are taken within a repetition, and their median is
shown with the quartiles. Rules with a period are timed over whole periods, ae_sam over its threshold's whole course.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from samphire.baselines import SAF
from samphire.models import small_cnn
from samphire.optim import RULES, Rule, SharpnessAware, last_layer, lsam, rule_for_run
from samphire.optim.scopes import NORM_LAYERS
from step import sgd_for
from timing import Step, interleaved, machine, ratio, store

RESULTS = Path(__file__).parent.parent / "results" / "bench-rules.json"
BATCHES, BATCH = 4, 128
REPETITIONS = 15  # about ten seconds each
COURSE = 5  # spans over which flops are counted
ONE_PASS = "lsam, one pass"
SPANS = {"ae_sam": 20, "esam": 5}  # steps timed together, where the rule has no k: it chooses by the gradient, by lot
CLAIMS = {  # time over SGD's, as a paper or its readers have it, where it is not the number of passes; "" if none
    "lsam": "",
    "sam_on": "1.7 to 2",
    "random": "",
    "cr_sam": "3, in parallel less",
    "esam": "1.4",
    "imb_sam": "",
    "entropy_sgd": "inner + 1",
    "every": "1.07 with k=10",
    ONE_PASS: "",
    "saf": "1",
}
BARS = {
    "msam": 1.08,
    "stale": 1.08,
    ONE_PASS: 1.08,
    "saf": 1.08,
    "looksam": 1.25,
    "ae_sam": 1.6,
    "esam": 1.4,
}


class Data:
    """Batches in turn, the same for every method."""

    def __init__(self) -> None:
        source = torch.Generator().manual_seed(0)
        self.x = torch.randn(BATCHES, BATCH, 3, 64, 32, generator=source)
        self.y = torch.randint(2, (BATCHES, BATCH), generator=source)

    def __iter__(self) -> Any:
        return cycle(zip(self.x, self.y, strict=True))


def network(normed: bool = False) -> nn.Sequential:
    """The small CNN; with a norm layer for the rules that perturb nothing else."""
    torch.manual_seed(0)
    layers = list(small_cnn())
    return nn.Sequential(*layers[:6], nn.BatchNorm2d(128), *layers[6:]) if normed else nn.Sequential(*layers)


def sgd_step(data: Data, normed: bool = False) -> Step:
    model, batches = network(normed), iter(data)
    opt = sgd_for(model)

    def step() -> None:
        x, y = next(batches)
        opt.zero_grad()
        cross_entropy(model(x), y).backward()
        opt.step()

    return step


def rule_step(data: Data, rule: Rule, normed: bool = False) -> Step:
    model, batches = network(normed), iter(data)
    opt = SharpnessAware(model, sgd_for(model), rule)

    def step() -> None:
        x, y = next(batches)

        def closure(p: Any) -> Tensor:
            out = model(x[p.examples])
            losses = cross_entropy(out, y[p.examples], reduction="none")
            p.backward(losses, out)
            return losses.mean()

        opt.step(closure, labels=y)

    return step


def one_pass_step(data: Data) -> Step:
    model, batches = network(), iter(data)
    opt, last = SharpnessAware(model, sgd_for(model), lsam()), last_layer(model)

    def step() -> None:
        x, y = next(batches)
        opt.step(last.one_pass(lambda: model(x), lambda out: cross_entropy(out, y)))

    return step


def saf_step(data: Data) -> Step:
    """SAF at an epoch when its bank is full: the term is computed and the bank written to."""
    model, batches = network(), iter(data)
    opt, saf = sgd_for(model), SAF(examples=BATCH, classes=2, lag=1, start=1)
    ids, epochs = torch.arange(BATCH), iter(range(10**9))

    def step() -> None:
        x, y = next(batches)
        opt.zero_grad()
        z = model(x)
        (cross_entropy(z, y) + saf(z, ids, next(epochs))).backward()
        opt.step()

    return step


def spans(rules: dict[str, Rule]) -> dict[str, int]:
    """How many steps of each rule make a whole period."""
    return {name: SPANS.get(name, getattr(rule, "k", 1)) for name, rule in rules.items()}


def repeated(step: Step, times: int) -> Step:
    def unit() -> None:
        for _ in range(times):
            step()

    return unit


def flops(step: Step, steps: int) -> float:
    with FlopCounterMode(display=False) as counter:
        for _ in range(steps):
            step()
    return counter.get_total_flops() / steps


def steppers(data: Data, repetitions: int) -> dict[str, Callable[[], Step]]:
    """For each method what makes its step: SGD, both without and with a norm layer, the rules, and two that are none.

    Args:
        data: The batches.
        repetitions: How often the steps of a span will be taken, for rules that follow the training's length.
    """
    rules = {name: rule_for_run(name, repetitions * SPANS.get(name, 1), BATCH) for name in RULES}
    return {
        "sgd": partial(sgd_step, data),
        "sgd, normed": partial(sgd_step, data, normed=True),
        **{name: partial(rule_step, data, rule, _climbs_on_norms(rule)) for name, rule in rules.items()},
        ONE_PASS: partial(one_pass_step, data),
        "saf": partial(saf_step, data),
    }


def measure(repetitions: int) -> tuple[list[dict[str, Any]], float]:
    """A row for each rule, and the seconds of an SGD step."""
    data, rules = Data(), {name: make() for name, make in RULES.items()}
    timed, counted = steppers(data, repetitions + 5), steppers(data, COURSE)
    together = dict.fromkeys(timed, 1) | spans(rules)
    times = interleaved({name: repeated(make(), together[name]) for name, make in timed.items()}, repetitions)
    work = {name: flops(make(), COURSE * together[name]) for name, make in counted.items()}
    rows = []
    for name in (*rules, ONE_PASS, "saf"):
        base = "sgd, normed" if name in rules and _climbs_on_norms(rules[name]) else "sgd"
        seconds = [t / together[name] for t in times[name]]
        claimed = CLAIMS[name] if name in CLAIMS else f"{rules[name].passes:g}"
        row = {"rule": name, "claimed": claimed, "flops": round(work[name] / work[base], 3)}
        row |= ratio(seconds, times[base])
        if name in BARS:
            row |= {"must reach": BARS[name], "holds": row["median"] <= BARS[name]}
        rows.append(row)
    return rows, statistics.median(times["sgd"])


def _climbs_on_norms(rule: Rule) -> bool:
    return getattr(getattr(getattr(rule, "climb", None), "on", None), "types", None) == NORM_LAYERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, nothing written")
    repetitions = 5 if parser.parse_args().quick else REPETITIONS
    print(machine())
    rows, seconds = measure(repetitions)
    print(f"one SGD step {seconds * 1e3:.1f} ms\n{'rule':16}{'time':>7}  {'quartiles':18}{'flops':>6}  claimed")
    for row in rows:
        verdict = "" if "holds" not in row else f"<= {row['must reach']}: {'holds' if row['holds'] else 'MISSED'}"
        spread = f"[{row['low']:.3f}, {row['high']:.3f}]"
        print(f"{row['rule']:16}{row['median']:7.3f}  {spread:18}{row['flops']:6.2f}  {row['claimed']:20}{verdict}")
    if repetitions == REPETITIONS:
        store(RESULTS, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
