"""Lightning's Trainer with our mixin against a plain loop, bit for bit; and what it shows, logs and counts."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from samphire.integrations.lightning import LogSharpness, SharpnessAwareMixin
from samphire.optim import SharpnessAware, esam, looksam, m_sharpness, sam
from tiny import net, point_steps, points, same, sgd, sharpness_aware_loop

BATCH, N = 4, 28
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*smaller than the logging interval",
    "ignore:Starting from v1.9.0",
    "ignore:.*LeafSpec",
    "ignore:.*Checkpoint directory",
)


class Module(LightningModule):
    """What a user writes."""

    def __init__(self, rule=sam(0.1), period=N // BATCH):
        super().__init__()
        self.net, self.rule, self.period = net(), rule, period
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.net(x)
        loss = cross_entropy(out.float(), y)
        self.accuracy.update(out, y)
        self.log("loss", loss, on_step=True, reduce_fx="sum")
        return loss


class Sharp(SharpnessAwareMixin, Module):
    """... and makes of it."""

    def configure_optimizers(self):
        opt = SharpnessAware(self, sgd(self), self.rule)
        schedule = {"scheduler": CosineAnnealingLR(opt, self.period), "interval": "step"}
        return {"optimizer": opt, "lr_scheduler": schedule}


class Watcher(Callback):
    """Seeds each window, as the plain loop does, and keeps what a user sees."""

    def __init__(self):
        self.shown, self.logged, self.examples = [], [], 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx % trainer.accumulate_grad_batches == 0:
            torch.manual_seed(trainer.global_step)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.shown.append(float(outputs["loss"]))
        self.logged.append(float(trainer.callback_metrics["loss"]))


def fit(module, folder, checkpoint=None, **settings):
    watcher = Watcher()
    callbacks = [watcher, *settings.pop("callbacks", [])]
    trainer = Trainer(
        default_root_dir=folder, accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=callbacks, **settings,
    )  # fmt: skip
    trainer.fit(module, DataLoader(points(N), BATCH), ckpt_path=checkpoint)
    return trainer, watcher


def plain(rule, accumulate=1, **settings):
    model = net()
    autocast = settings.pop("autocast", None)
    base, steps = sgd(model), point_steps(model, points(N), BATCH, accumulate, autocast)
    schedule = CosineAnnealingLR(base, N // BATCH)
    losses, opt = sharpness_aware_loop(
        model, base, rule, steps, before_step=torch.manual_seed, after_step=schedule.step, **settings
    )
    return model, losses, opt


CASES = {
    "plain": ({}, {}),
    "accumulated with a remainder": ({"accumulate_grad_batches": 2}, {"accumulate": 2}),
    "three accumulated": ({"accumulate_grad_batches": 3}, {"accumulate": 3}),
    "clipped": ({"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}, {"clip": 0.1, "accumulate": 2}),
    "bf16-mixed": ({"precision": "bf16-mixed"}, {"autocast": torch.bfloat16}),
}


@pytest.mark.parametrize("rule", [sam(0.1), looksam(0.1, k=2)], ids=["sam", "looksam"])
@pytest.mark.parametrize(("lightning", "loop"), CASES.values(), ids=CASES)
def test_equals_the_plain_loop(lightning, loop, rule, tmp_path):
    module = Sharp(rule)
    trainer, watcher = fit(module, tmp_path, **lightning)
    model, losses, opt = plain(rule, **loop)
    assert same(module.net, model)
    k = loop.get("accumulate", 1)
    windows = [watcher.shown[i : i + k] for i in range(0, len(watcher.shown), k)]
    assert [sum(window) for window in windows] == pytest.approx(losses, rel=1e-6)  # the clean loss, shown once
    assert watcher.logged == pytest.approx([k * loss for loss in watcher.shown], rel=1e-6)
    assert trainer.global_step == len(losses)
    assert float(module.optimizers().last.loss) == pytest.approx(losses[-1], rel=1e-6)
    assert int(module.accuracy.tp + module.accuracy.fn) == N  # every example counted once
