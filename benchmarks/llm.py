"""What SAM costs beyond AdamW on a causal language model, as ratios in one run: `python benchmarks/llm.py [--quick]`.

A GPT-2 with tied embeddings from a configuration, random weights and texts with masked tokens; all weights, and LoRA
of rank 8 alone. Ours, pytorch-optimizer's SAM and one written by hand take a step in turn in each repetition; ratios
are taken within a repetition and their median is shown with the quartiles. Peak memory is the largest resident size
of a fresh process, beyond that of the same process with AdamW.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samphire.optim import SharpnessAware, sam
from timing import Step, interleaved, machine, peak_memory, print_peak, ratio, store

RESULTS = Path(__file__).parent.parent / "results" / "bench-llm.json"
VOCABULARY, LENGTH, BATCH = 8000, 64, 4
RHO, LR = 0.05, 1e-4
BARS = {"time, ours / AdamW": 2.15, "time, ours / peer": 1.0, "memory, ours / peer": 1.0}


def language_model(lora: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 256, "n_layer": 4, "n_head": 4}
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    model.loss_type = "ForCausalLM"
    if lora:
        from peft import LoraConfig, get_peft_model

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
    from pytorch_optimizer.optimizer.sam import SAM

    return SAM(trained(model), torch.optim.AdamW, rho=RHO, lr=LR, foreach=True)


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda model: adamw(trained(model)),
    "ours": lambda model: SharpnessAware(model, adamw(trained(model)), sam(RHO)),
    "peer": peer,
    "by hand": lambda model: ByHand(trained(model)),
}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, nothing written")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        step = step_of(args.peak[0], args.peak[1] == "LoRA")
        for _ in range(4):
            step()
        print_peak()
        return
    print(machine())
    rows = []
    for kind in ("all weights", "LoRA"):
        model = language_model(kind == "LoRA")
        print(f"{kind}: {sum(p.numel() for p in trained(model)) / 1e6:.2f} of "
              f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million weights")  # fmt: skip
        times = interleaved({who: step_of(who, kind == "LoRA") for who in OPTIMIZERS}, 5 if args.quick else 25)
        print(f"one step of AdamW: {statistics.median(times['AdamW']) * 1e3:.0f} ms")
        peaks = {who: [peak_memory(__file__, who, kind) for _ in range(3)] for who in OPTIMIZERS}
        extra = {who: [p - a for p, a in zip(peaks[who], peaks["AdamW"], strict=True)] for who in OPTIMIZERS}
        print({who: f"{statistics.median(values):.0f} MB beyond AdamW" for who, values in extra.items()})
        measured = {
            "time, ours / AdamW": ratio(times["ours"], times["AdamW"]),
            "time, peer / AdamW": ratio(times["peer"], times["AdamW"]),
            "time, by hand / AdamW": ratio(times["by hand"], times["AdamW"]),
            "time, ours / peer": ratio(times["ours"], times["peer"]),
        }
        if kind == "all weights":  # with LoRA there is next to nothing to copy
            measured["memory, ours / peer"] = ratio(extra["ours"], extra["peer"])
            measured["memory, ours / by hand"] = ratio(extra["ours"], extra["by hand"])
        for what, value in measured.items():
            bar = BARS.get(what)
            holds = None if bar is None else value["median"] <= bar
            rows.append({"what": f"{what}, {kind}", "must reach": bar, **value, "holds": holds})
            verdict = "" if bar is None else f"must reach <= {bar}  {'holds' if holds else 'MISSED'}"
            print(
                f"{rows[-1]['what']:40} {value['median']:6.3f}  [{value['low']:.3f}, {value['high']:.3f}] {verdict}"
            )
    if not args.quick:
        store(RESULTS, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
