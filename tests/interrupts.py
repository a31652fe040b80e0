"""Interrupt steps at random moments and see what is left: ``python tests/interrupts.py 20000``.

An interrupt comes either at a random bytecode of samphire's own code, however unlikely a real one is there, or by a
real signal after a random time. What was displaced, marked or frozen must be back at once or at the next entry, and
the step after it must be one of an optimizer that was never interrupted.
"""

from __future__ import annotations

import collections
import copy
import random
import signal
import sys
import time
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cases import ALL, sgd
from samphire import optim
from samphire.optim import SharpnessAware

WATCHED = ("samphire", "contextlib.py", "hooks.py", "grad_mode.py")
DOORS = ("step", "several", "gradient", "passes", "held")
ENTRIES = ("zero_grad", "state_dict", "model.state_dict", "gradient", "step")


def network() -> nn.Module:
    """Buffers, random numbers, a frozen parameter: all that a pass disturbs."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 6), nn.LayerNorm(6), nn.BatchNorm1d(6), nn.Linear(6, 3), nn.Dropout(0.2), nn.Linear(3, 3)
    )
    net[0].bias.requires_grad_(False)
    return net


class Bench:
    """An optimizer that has done some steps, at learning rate 0, so that any other weight is a displaced one."""

    def __init__(self, rule: object) -> None:
        self.model = network()
        self.x, self.y = torch.randn(8, 5), torch.arange(8) % 3
        self.opt = SharpnessAware(self.model, sgd(self.model, lr=0.0), rule, clip_norm=1e6)
        for _ in range(3):
            self.through("step")

    def closure(self, p: optim.Pass) -> torch.Tensor:
        out = self.model(self.x[p.examples])
        losses = cross_entropy(out, self.y[p.examples], reduction="none")
        p.backward(losses, out)
        return losses.mean()

    def through(self, door: str) -> None:
        """One step through one of the doors."""
        opt, y = self.opt, self.y
        torch.manual_seed(2)
        opt.zero_grad()
        if door == "step":
            opt.step(self.closure, labels=y)
        elif door == "several":
            opt.step([self.closure], labels=y, micro="m")
        elif door == "gradient":
            opt.gradient(self.closure, labels=y)
            opt.step()
        else:
            loop = opt.passes(labels=y)
            for p in loop:
                self.closure(p)
            opt.step()

    def enter(self, entry: str) -> None:
        """Touch the optimizer or the model, as one does after an interrupt."""
        if entry == "model.state_dict":
            self.model.state_dict()
        elif entry in ("zero_grad", "state_dict"):
            getattr(self.opt, entry)()
        else:
            self.through(entry)

    def left(self) -> dict[str, object]:
        """What must be the same before and after."""
        return {
            "weights": [p.detach().clone() for p in self.model.parameters()],
            "addresses": [p.data_ptr() for p in self.model.parameters()],
            "requires_grad": [p.requires_grad for p in self.model.parameters()],
            "grad mode": torch.is_grad_enabled(),
            "mark": optim.in_perturbed_pass(),
            "guards": len(self.model._state_dict_pre_hooks) + len(self.model._load_state_dict_pre_hooks),
            "in a pass": self.opt._engine.in_pass(),
        }

    def gradients(self) -> list[torch.Tensor]:
        """Of one more step."""
        torch.manual_seed(1)
        self.opt.zero_grad()
        self.opt.gradient(self.closure, labels=self.y)
        return [p.grad for p in self.model.parameters() if p.grad is not None]


def differences(a: dict[str, object], b: dict[str, object]) -> list[str]:
    same = {k: all(map(torch.equal, a[k], b[k])) if k == "weights" else a[k] == b[k] for k in a}
    return [key for key, equal in same.items() if not equal]


@contextmanager
def after_bytecodes(count: int, watched: tuple[str, ...] = WATCHED):
    """Raise at a bytecode of the watched files; count them if there are fewer."""
    seen = [0]

    def trace(frame, event, arg):
        if not any(part in frame.f_code.co_filename for part in watched):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            seen[0] += 1
            if seen[0] == count:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


@contextmanager
def after_seconds(seconds: float):
    """A real signal."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Rehearsal:
    """What a rule's steps are without interrupts: how long they take, and the gradients that may follow them."""

    def __init__(self, rule: object) -> None:
        self.bench, self._seen = Bench(rule), {}

    def start(self) -> Bench:
        return copy.deepcopy(self.bench)

    def length(self, door: str, in_seconds: bool) -> float:
        return self._once(("length", door), lambda: self._measure(door))[in_seconds]

    def gradients(self, *doors: str) -> list[torch.Tensor]:
        """After steps through these doors."""

        def run() -> list[torch.Tensor]:
            bench = self.start()
            for door in doors:
                bench.through(door)
            return bench.gradients()

        return self._once(doors, run)

    def _measure(self, door: str) -> tuple[int, float]:
        with after_bytecodes(-1) as seen:
            self.start().through(door)
        bench, begun = self.start(), time.perf_counter()
        bench.through(door)
        return seen[0], time.perf_counter() - begun

    def _once(self, key, compute):
        if key not in self._seen:
            self._seen[key] = compute()
        return self._seen[key]


def trial(rehearsal: Rehearsal, draw: random.Random, signals: bool = False) -> tuple[str, list[str]]:
    """One interrupted step: whether it was healed at once or at the next entry, and what is still wrong then."""
    bench, door, entry = rehearsal.start(), draw.choice(DOORS), draw.choice(ENTRIES)
    before, length = bench.left(), rehearsal.length(door, signals)
    moment = after_seconds(max(1e-6, draw.random() * length)) if signals else after_bytecodes(draw.randint(1, length))
    entered = [entry] if entry in DOORS else []
    try:
        with moment:
            bench.through(door)
        result, entered = "finished", []
    except KeyboardInterrupt as held:  # its traceback keeps the frames alive
        result = "at once" if not differences(bench.left(), before) else "at the next entry"
        bench.enter(entry)
        del held
    wrong = differences(bench.left(), before)
    gradients = bench.gradients()
    possible = (rehearsal.gradients(*entered), rehearsal.gradients(door, *entered))
    if not any(all(map(torch.equal, gradients, other)) for other in possible):
        wrong.append("the next gradient")
    return result, [f"{what} ({door}, then {entry})" for what in wrong]


def run(number: int, seed: int = 0, signals: bool = False) -> tuple[collections.Counter, list[str]]:
    """So many trials over all rules in turn."""
    draw, results, wrong = random.Random(seed), collections.Counter(), []
    rehearsals = {name: Rehearsal(rule) for name, rule in ALL.items()}
    for i in range(number):
        name = list(ALL)[i % len(ALL)]
        try:
            result, faults = trial(rehearsals[name], draw, signals)
        except Exception as failed:
            result, faults = "failed", [f"{type(failed).__name__}: {failed}"]
        torch.set_grad_enabled(True)  # a trial that left it off has said so; the next one is another
        results[result] += 1
        wrong += [f"{name}: {fault}" for fault in faults]
        if i % 1000 == 999:
            print(f"{i + 1} of {number}: {dict(results)}, wrong {len(wrong)}", flush=True)
    return results, wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    total = int(sys.argv[1])
    for how in (False, True):
        results, wrong = run(total // 2, seed=int(how), signals=how)
        print("by signals" if how else "by bytecodes", dict(results), f"{len(wrong)} wrong", *wrong[:20], sep="\n")
