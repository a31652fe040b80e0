"""Two gloo ranks under Trainer, accelerate and Lightning: the ranks agree, and with one process that sees all batches."""

import os

import pytest
import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from tiny import language_model, points, sentences, sgd
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, default_collate
from transformers import Trainer, TrainingArguments

from samphire.integrations.accelerate import prepare
from samphire.integrations.lightning import SharpnessAwareModule
from samphire.integrations.transformers import SharpnessAwareTrainer
from samphire.optim import SharpnessAware, looksam, sam
from two_ranks import on_two_ranks

BATCH, N = 2, 16  # each rank: two steps of two batches
RULES = {"sam": sam(0.1), "looksam": looksam(0.1, k=2)}
KINDS = {
    "full": {"micro": "full"},
    "m": {"micro": "m"},
    "local": {"micro": "full", "perturbation": "local"},
    "local m": {"micro": "m", "perturbation": "local"},
}


def quiet_language_model():
    return language_model(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def quiet_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def values(model):
    full = lambda p: p.full_tensor() if hasattr(p, "full_tensor") else p
    return [full(p).detach().clone() for p in model.parameters()]


def arguments(folder):
    return TrainingArguments(
        str(folder), per_device_train_batch_size=BATCH, gradient_accumulation_steps=2, num_train_epochs=1,
        learning_rate=0.01, lr_scheduler_type="constant", max_grad_norm=0.0, optim="sgd", report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", train_sampling_strategy="sequential",
    )  # fmt: skip


def transformers_run(folder, rule, **kind):
    trainer = SharpnessAwareTrainer(
        quiet_language_model(), arguments(folder), train_dataset=sentences(N), data_collator=default_collate,
        rule=rule, **kind,
    )  # fmt: skip
    trainer.train()
    return values(trainer.model)


def accelerate_run(folder, rule, sharded=False, **kind):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    if sharded:  # accelerate shards on accelerators only; what it does is the same
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="NO_WRAP")
        accelerator.state.distributed_type = DistributedType.FSDP
    model = quiet_net()
    model, opt = prepare(accelerator, model, sgd(model), rule, **kind)
    loader = accelerator.prepare(DataLoader(points(N), BATCH))

    def run(x, y):
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss

    for x, y in loader:
        with accelerator.accumulate(model):
            opt.gradient(run, x, y)
            opt.step()
            opt.zero_grad()
    accelerator.save_state(folder / f"state {rule} {kind} {sharded}")
    accelerator.wait_for_everyone()
    weights = values(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    accelerator.load_state(folder / f"state {rule} {kind} {sharded}")
    assert all(torch.equal(p, q) for p, q in zip(values(model), weights, strict=True))
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return weights


class Module(SharpnessAwareModule, LightningModule):
    def __init__(self, rule, perturbation):
        super().__init__()
        self.net, self.rule, self.perturbation = quiet_net(), rule, perturbation

    def training_step(self, batch):
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return SharpnessAware(self, sgd(self), self.rule, perturbation=self.perturbation)


def lightning_run(folder, rule, micro="full", perturbation="global"):
    module = Module(rule, perturbation)
    in_order = DistributedSampler(points(N), 2, int(os.environ["RANK"]), shuffle=False)
    LightningTrainer(
        default_root_dir=folder, accelerator="cpu", strategy="ddp", devices=2, max_epochs=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, accumulate_grad_batches=2,
        use_distributed_sampler=False,
    ).fit(module, DataLoader(points(N), BATCH, sampler=in_order))  # fmt: skip
    return values(module.net)


def work(rank, folder):
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "tests",
    }  # fmt: skip
    results = {}
    for name, rule in RULES.items():
        for kind, settings in KINDS.items():
            results["accelerate", name, kind] = accelerate_run(folder, rule, **settings)
            results["transformers", name, kind] = transformers_run(folder, rule, **settings)
            AcceleratorState._reset_state()
            GradientState._reset_state()
        results["sharded", name, "full"] = accelerate_run(folder, rule, sharded=True)
        for kind in ("full", "local"):
            results["lightning", name, kind] = lightning_run(folder, rule, **KINDS[kind])
    torch.save(results, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    on_two_ranks(work, folder)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def perturbed_together(kind, order):
    """Which of a step's four batches share a perturbation: ``order`` has those of each rank, in their order."""
    (a, b), (c, d) = order
    return {
        "full": [[a, b, c, d]],
        "m": [[a, c], [b, d]],
        "local": [[a, b], [c, d]],
        "local m": [[a], [b], [c], [d]],
    }[kind]


def alone(model, base, batches, loss, rule, kind, order):
    """One process that sees every batch; the share of each batch in the step's loss is the same as there."""
    opt = SharpnessAware(model, base, rule)
    for step in range(2):
        four = batches[4 * step : 4 * step + 4]
        for together in perturbed_together(kind, order):
            for p in opt.passes():
                p.backward(sum(loss(model, four[i], four) for i in together))
        opt.step()
    return values(model)


def token_loss(model, batch, step):
    items = sum((b["labels"][:, 1:] != -100).sum() for b in step)
    return model(**batch, num_items_in_batch=items).loss


def mean_loss(model, batch, step):
    return cross_entropy(model(batch[0]), batch[1]) / len(step)


ALTERNATING = ((0, 2), (1, 3))  # rank 0 has the first and third batch
CASES = [(library, name, kind) for library in ("transformers", "accelerate") for name in RULES for kind in KINDS]
CASES += [("sharded", name, "full") for name in RULES]
CASES += [("lightning", name, kind) for name in RULES for kind in ("full", "local")]


@pytest.mark.parametrize(("library", "name", "kind"), CASES)
def test_ranks_agree_with_each_other_and_with_one_process(ranks, library, name, kind, tmp_path):
    first, second = (rank[library, name, kind] for rank in ranks)
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    if library == "transformers":
        data, loss, model = sentences(N), token_loss, quiet_language_model()
        base = Trainer(model, arguments(tmp_path)).create_optimizer()
    else:
        data, loss, model = points(N), mean_loss, quiet_net()
        base = sgd(model)
    if library == "lightning":  # its sampler deals out examples, not batches
        data = [data[i + 2 * j + r] for i in range(0, N, 2 * BATCH) for r in range(2) for j in range(BATCH)]
    batches = [default_collate(data[i : i + BATCH]) for i in range(0, N, BATCH)]
    expected = alone(model, base, batches, loss, RULES[name], kind, ALTERNATING)
    for p, q in zip(first, expected, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
