"""Lightning's Trainer with our mixin against a plain loop, bit for bit; and what it shows, logs and counts."""

import copy
import csv
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from tiny import net, point_steps, points, same, sgd, sharpness_aware_loop
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from samphire.integrations.lightning import LogSharpness, SharpnessAwareModule
from samphire.optim import SharpnessAware, esam, in_perturbed_pass, looksam, m_sharpness, msam, sam

BATCH, N, SAM = 4, 28, sam(0.1)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*smaller than the logging interval",
    "ignore:Starting from v1.9.0",
    "ignore:.*LeafSpec",
    "ignore:.*Checkpoint directory",
    "ignore:When using `Trainer.accumulate_grad_batches",
)


class Module(LightningModule):
    """What a user writes."""

    def __init__(self, rule=SAM, period=N // BATCH):
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


class Sharp(SharpnessAwareModule, Module):
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
        self.shown.append(float(outputs["loss"]) if outputs else None)
        self.logged.append(float(trainer.callback_metrics["loss"]))


def fit(module, folder, checkpoint=None, **settings):
    watcher = Watcher()
    callbacks = [watcher, *settings.pop("callbacks", [])]
    trainer = Trainer(
        default_root_dir=folder, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=callbacks, **{"max_epochs": 1, **settings},
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
    model, losses, _ = plain(rule, **loop)
    assert same(module.net, model)
    k = loop.get("accumulate", 1)
    windows = [watcher.shown[i : i + k] for i in range(0, len(watcher.shown), k)]
    assert [sum(window) for window in windows] == pytest.approx(losses, rel=1e-6)  # the clean loss, shown once
    assert watcher.logged == pytest.approx([k * loss for loss in watcher.shown], rel=1e-6)
    assert trainer.global_step == len(losses)
    assert float(module.optimizers().last.loss) == pytest.approx(losses[-1], rel=1e-6)
    assert int(module.accuracy.tp + module.accuracy.fn) == N  # every example counted once


def plateau(opt):
    return {"scheduler": ReduceLROnPlateau(opt, patience=0, threshold=1.0), "monitor": "loss"}


def one_cycle(opt):
    return {"scheduler": OneCycleLR(opt, 0.1, total_steps=40), "interval": "step"}


SETTINGS = {
    "clipped by value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "overfitting few batches": {"overfit_batches": 2},
    "a schedule that watches the loss": {"schedule": plateau},
    "a schedule of rate and momentum": {"schedule": one_cycle, "accumulate_grad_batches": 3},
    "moving average of the weights": {"callbacks": [EMAWeightAveraging(decay=0.9)]},
    "windows that grow": {"callbacks": [GradientAccumulationScheduler({0: 1, 2: 2})]},
    "bf16-true": {"precision": "bf16-true"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_at_radius_zero_nothing_differs_from_plain_lightning(settings, tmp_path):
    settings = {"max_epochs": 4, **copy.deepcopy(settings)}
    schedule = settings.pop("schedule", None)

    def configured(opt):
        return opt if schedule is None else {"optimizer": opt, "lr_scheduler": schedule(opt)}

    class Plain(Module):
        def configure_optimizers(self):
            return configured(sgd(self))

    class Ours(SharpnessAwareModule, Module):
        def configure_optimizers(self):
            return configured(SharpnessAware(self, sgd(self), sam(0.0)))

    (plain, seen), (ours, also_seen) = (
        (module, fit(module, tmp_path, **copy.deepcopy(settings))[1]) for module in (Plain(), Ours())
    )
    assert same(ours, plain)
    assert also_seen.shown == seen.shown
    assert also_seen.logged == seen.logged


def test_averaged_weights_stay_while_an_epoch_without_backward_updates_batch_norm(tmp_path):
    averaged = {}

    class Keeps(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if trainer.current_epoch == 4 and batch_idx == 0:
                averaged.update(copy.deepcopy(module.net.state_dict()))

    class Ours(SharpnessAwareModule, Module):
        def configure_optimizers(self):
            return SharpnessAware(self, sgd(self), SAM)

    module = Ours()
    swa = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=0.5)
    fit(module, tmp_path, max_epochs=4, callbacks=[swa, Keeps()])
    assert all(torch.equal(p, averaged[name]) for name, p in module.net.named_parameters())
    assert not torch.equal(module.net[1].running_mean, averaged["1.running_mean"])


def test_a_rule_that_never_asks_at_the_weights_themselves(tmp_path):
    module = Sharp(msam(0.1))
    fit(module, tmp_path, accumulate_grad_batches=3)
    model, _, _ = plain(msam(0.1), accumulate=3)
    assert all(torch.equal(p, q) for p, q in zip(module.net.parameters(), model.parameters(), strict=True))
    assert module.net[1].num_batches_tracked == model[1].num_batches_tracked
    assert int(module.accuracy.tp + module.accuracy.fn) == N


def fp16():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    return scaler, MixedPrecision("16-mixed", "cpu", scaler)


def test_16_mixed_scales_once_clips_and_skips_steps_that_overflow(tmp_path):
    overflow_at = 2

    class Overflows(Sharp):
        def backward(self, loss):
            super().backward(loss * torch.inf if self.trainer.global_step == overflow_at else loss)

    scaler, plugin = fp16()
    module = Overflows()
    fit(module, tmp_path, plugins=[plugin], gradient_clip_val=0.1)

    model, (expected, _) = net(), fp16()
    base, steps = sgd(model), point_steps(model, points(N), BATCH, 1, torch.float16)
    schedule = CosineAnnealingLR(base, N // BATCH)
    opt = SharpnessAware(model, base, sam(0.1), scaler=expected)
    for i, (one,) in enumerate(steps):
        torch.manual_seed(i)
        for p in opt.passes():
            p.loss = one(p)
            if i == overflow_at:
                model[0].weight.grad *= torch.inf
        if i != overflow_at:
            clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        expected.update()
        schedule.step()
    assert same(module.net, model)
    assert scaler.get_scale() == expected.get_scale()


@pytest.mark.parametrize("rule", [sam(0.1), looksam(0.1, k=2)], ids=["sam", "looksam"])
def test_resuming_from_a_checkpoint_is_exact(rule, tmp_path):
    whole, first, resumed = Sharp(rule), Sharp(rule), Sharp(rule)
    fit(whole, tmp_path, accumulate_grad_batches=2, max_epochs=2)
    trainer, _ = fit(first, tmp_path, accumulate_grad_batches=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    fit(resumed, tmp_path, tmp_path / "half.ckpt", accumulate_grad_batches=2, max_epochs=2)
    assert same(resumed.net, whole.net)
    assert not same(first.net, whole.net)


class Manual(Module):
    """Manual optimization, by each of the doors."""

    def __init__(self, door):
        super().__init__()
        self.door, self.automatic_optimization = door, False

    def configure_optimizers(self):
        return SharpnessAware(self, sgd(self), sam(0.1))

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()

        def closure():
            opt.zero_grad()
            loss = cross_entropy(self.net(batch[0]), batch[1])
            self.manual_backward(loss)
            return loss.detach()

        if self.door == "step":
            opt.step(closure)
        elif self.door == "gradient":
            opt.gradient(closure)
            opt.step()
        else:
            for p in opt.passes():
                p.backward(cross_entropy(self.net(batch[0]), batch[1]))
            opt.step()
        self.log("loss", opt.last.loss)
        return {"loss": opt.last.loss}


@pytest.mark.parametrize("door", ["step", "gradient", "passes"])
def test_manual_optimization(door, tmp_path):
    module = Manual(door)
    trainer, watcher = fit(module, tmp_path)
    model = net()
    losses, _ = sharpness_aware_loop(
        model, sgd(model), sam(0.1), point_steps(model, points(N), BATCH, 1), before_step=torch.manual_seed
    )
    assert same(module.net, model)
    assert watcher.logged == losses
    assert trainer.global_step == len(losses)


def test_our_optimizer_without_the_mixin_is_right_or_refused(tmp_path):
    class Bare(Module):
        configure_optimizers = Sharp.configure_optimizers

    module = Bare()
    fit(module, tmp_path)
    assert same(module.net, plain(sam(0.1))[0])
    with pytest.raises(RuntimeError, match="gradients of an earlier backward that the closure does not zero"):
        fit(Bare(), tmp_path, accumulate_grad_batches=2)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_clipping_of_the_users_own(precision, tmp_path):
    class Clips(Sharp):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")

    module = Clips()
    fit(module, tmp_path, precision=precision)
    assert same(module.net, plain(SAM, clip=0.1, autocast=torch.bfloat16 if "bf16" in precision else None)[0])


def test_hooks_around_backward_can_ask_whether_the_pass_is_a_repeat(tmp_path):
    repeats = []

    class Asks(Callback):
        def on_after_backward(self, trainer, module):
            repeats.append(in_perturbed_pass())

    fit(Sharp(), tmp_path, callbacks=[Asks()])
    assert repeats == [False, True] * (N // BATCH)


def test_what_a_step_saw_goes_to_the_loggers(tmp_path):
    module = Sharp()
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=CSVLogger(tmp_path), enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[LogSharpness()], log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module, DataLoader(points(N), BATCH))
    with open(Path(trainer.logger.log_dir) / "metrics.csv") as file:
        gaps = [float(row["sharpness/gap"]) for row in csv.DictReader(file) if row["sharpness/gap"]]
    assert len(gaps) == N // BATCH
    assert gaps[-1] == pytest.approx(module.optimizers().last.numbers()["gap"])


def test_what_cannot_be_right_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(
        TypeError, match="ranks or weighs single examples, but the loss of training_step is their mean"
    ):
        fit(Sharp(esam(0.1)), tmp_path)
    with pytest.raises(TypeError, match="takes a batch in parts, but Lightning runs training_step on whole batches"):
        fit(Sharp(m_sharpness(2)), tmp_path)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("skipped", [2, 3], ids=["first of a window", "last of a window"])
def test_a_training_step_without_loss_is_refused(skipped, tmp_path):
    class Skips(Sharp):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == skipped else loss

    with pytest.raises(TypeError, match=r"training_step returned None, .* skip the batch in on_train_batch_start"):
        fit(Skips(), tmp_path, accumulate_grad_batches=2)
