"""What SAM costs beyond AdamW on a causal language model, as ratios in one run: `python benchmarks/llm.py [--quick]`.

A GPT-2 with tied embeddings from a configuration, random weights and texts with masked tokens; all weights, and LoRA
of rank 8 alone. AdamW, ours, pytorch-optimizer's SAM and one written by hand take a step in turn in each repetition;
ratios are taken within a repetition and their median is shown with the quartiles. Time is that of the CPU, so that
other work on the machine does not count. Peak memory is what training adds to a fresh process that has imported
everything.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from pytorch_optimizer.optimizer.sam import SAM
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from samphire.optim import SharpnessAware, sam
from timing import Step, interleaved, machine, peak_memory, quartiles, ratio, store

RESULTS = Path(__file__).parent.parent / "results" / "bench-llm.json"
VOCABULARY, LENGTH, BATCH = 8000, 64, 4
RHO, LR = 0.05, 1e-4
BARS = {"CPU time, ours / AdamW": 2.15, "CPU time, ours / peer": 1.0, "extra memory, ours / peer": 1.0}


def language_model(lora: bool) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 256, "n_layer": 4, "n_head": 4}
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    model.loss_type = "ForCausalLM"
    if lora:
        model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))
    return model.train()


def texts() -> dict[str, Tensor]:
    ids = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(ids.shape) < 0.3, -100)}


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def adamw(parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=LR, foreach=True)


class ByHand(torch.optim.Optimizer):
    """SAM as people write it: copies of the weights, a global norm, two passes."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.base = adamw(parameters)
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        loss = closure()
        with torch.no_grad():
            moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in moved]).norm() + 1e-12  # type: ignore[union-attr]
            before = [p.clone() for p in moved]
            for p in moved:
                p.add_(p.grad, alpha=RHO / norm.item())  # type: ignore[arg-type]
        closure()
        with torch.no_grad():
            for p, weight in zip(moved, before, strict=True):
                p.copy_(weight)
        self.base.step()
        return loss


def peer(model: nn.Module) -> torch.optim.Optimizer:
    return SAM(trained(model), torch.optim.AdamW, rho=RHO, lr=LR, foreach=True)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda model: adamw(trained(model)),
    "ours": lambda model: SharpnessAware(model, adamw(trained(model)), sam(RHO)),
    "peer": peer,
    "by hand": lambda model: ByHand(trained(model)),
}
SHARPNESS_AWARE = [who for who in OPTIMIZERS if who != "AdamW"]


def step_of(who: str, lora: bool) -> Step:
    """A model and an optimizer of its own, as a function that takes a step."""
    model, batch = language_model(lora), texts()
    opt = OPTIMIZERS[who](model)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        return loss

    def step() -> None:
        if who == "peer":  # it expects the first pass done
            closure()
        opt.step(closure)

    return step


def train_a_little(who: str, lora: bool) -> None:
    step = step_of(who, lora)
    for _ in range(4):
        step()


def measure(lora: bool, repetitions: int, processes: int) -> dict[str, dict[str, float]]:
    """What was measured, by its name."""
    times = interleaved({who: step_of(who, lora) for who in OPTIMIZERS}, repetitions, clock=time.process_time)
    peaks = {who: [peak_memory(train_a_little, who, lora) for _ in range(processes)] for who in OPTIMIZERS}
    extra = {who: [p - a for p, a in zip(peaks[who], peaks["AdamW"], strict=True)] for who in SHARPNESS_AWARE}
    rows = {f"CPU ms a step, {who}": quartiles([1e3 * t for t in times[who]]) for who in OPTIMIZERS}
    rows |= {f"CPU time, {who} / AdamW": ratio(times[who], times["AdamW"]) for who in SHARPNESS_AWARE}
    rows |= {f"peak MB, {who}": quartiles(peaks[who]) for who in OPTIMIZERS}
    rows |= {f"peak MB beyond AdamW, {who}": quartiles(extra[who]) for who in SHARPNESS_AWARE}
    for other in ("peer", "by hand"):
        rows[f"CPU time, ours / {other}"] = ratio(times["ours"], times[other])
        if not lora:  # where there is next to nothing to copy
            rows[f"extra memory, ours / {other}"] = ratio(extra["ours"], extra[other])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, nothing written")
    args = parser.parse_args()
    print(machine())
    rows = []
    for kind, lora in (("all weights", False), ("LoRA", True)):
        model = language_model(lora)
        print(f"{kind}: {sum(p.numel() for p in trained(model)) / 1e6:.2f} of "
              f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million weights")  # fmt: skip
        for what, value in measure(lora, *((5, 2) if args.quick else (15, 5))).items():
            bar = BARS.get(what)
            holds = None if bar is None else value["median"] <= bar
            rows.append({"what": f"{what}, {kind}", "must reach": bar, **value, "holds": holds})
            verdict = "" if bar is None else f"must reach <= {bar}  {'holds' if holds else 'MISSED'}"
            print(
                f"{rows[-1]['what']:44} {value['median']:8.3f}  [{value['low']:.3f}, {value['high']:.3f}] {verdict}"
            )
    if not args.quick:
        store(RESULTS, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
