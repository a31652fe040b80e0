"""SharpnessAwareTrainer against a plain loop over the same batches, bit for bit, with the real Trainer."""

import contextlib

import pytest
import torch
from accelerate import DistributedType
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from tiny import classifier, labeled, language_model, same, sentences, sharpness_aware_loop, windows
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import SequentialSampler, default_collate
from transformers import (
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)

from samphire.integrations.transformers import SharpnessAwareTrainer
from samphire.optim import SharpnessAware, esam, looksam, m_sharpness, sam

# peft asks transformers for a name that is on its way out
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
LR, BATCH, N, SAM = 0.01, 4, 20, sam(0.1)


class SeedEachStep(TrainerCallback):
    """Dropout of step i from seed i, so that a plain loop can draw the same."""

    def on_step_begin(self, args, state, control, **kwargs):
        torch.manual_seed(state.global_step)


class InOrder:
    """No shuffling."""

    def _get_train_sampler(self, *args):
        return SequentialSampler(self.train_dataset)


class InOrderTrainer(InOrder, SharpnessAwareTrainer):
    pass


def trainer_of(
    folder, model, data, rule=SAM, kind=InOrderTrainer, micro="full", arguments=TrainingArguments, **settings
):
    chosen = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "save_strategy": "no"} | settings
    args = arguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        learning_rate=LR,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **chosen,
    )
    return kind(
        model, args, train_dataset=data, rule=rule, micro=micro, callbacks=[SeedEachStep()],
        data_collator=default_collate,
    )  # fmt: skip


def plain_steps(model, data, accumulate, loss, autocast=None):
    """One list of functions per step, as ``sharpness_aware_loop`` wants them."""
    steps = []
    for window in windows(data, BATCH, accumulate):
        batches = [default_collate(batch) for batch in window]
        items = sum((batch["labels"][..., 1:] != -100).sum() for batch in batches)

        def run(batch, items, p):
            with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
                value = loss(model, batch, items).float()
            (value if p.scaler is None else p.scaler.scale(value)).backward()
            return value.detach()

        steps.append([lambda p, batch=batch, items=items: run(batch, items, p) for batch in batches])
    return steps


def causal_loss(model, batch, items):
    return model(**batch, num_items_in_batch=items).loss


def logged(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


CASES = {
    "plain": {},
    "accumulated, full": {"gradient_accumulation_steps": 2},
    "accumulated, m": {"gradient_accumulation_steps": 2, "micro": "m"},
    "accumulated with a remainder": {"gradient_accumulation_steps": 3},
    "clipped": {"max_grad_norm": 0.05, "gradient_accumulation_steps": 2},
    "cosine with warm-up": {"lr_scheduler_type": "cosine", "warmup_steps": 2},
    "bf16": {"bf16": True},
    "gradient checkpointing": {"activation_checkpointing": True},
    "reentrant checkpointing": {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": True},
    },
    "schedule-free": {"optim": "schedule_free_adamw"},
    "another rule": {"rule": looksam(0.1, k=2)},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_the_plain_loop(case, tmp_path):
    data = sentences(N)
    trainer = trainer_of(tmp_path, language_model(), data, **case)
    trainer.train()

    model = language_model().train()
    accumulate, clip = case.get("gradient_accumulation_steps", 1), case.get("max_grad_norm")
    steps = plain_steps(model, data, accumulate, causal_loss, autocast=torch.bfloat16 if "bf16" in case else None)
    base = Trainer(model, trainer.args).create_optimizer()
    schedule = (
        get_cosine_schedule_with_warmup(base, case["warmup_steps"], len(steps)) if "warmup_steps" in case else None
    )
    losses, opt = sharpness_aware_loop(
        model, base, case.get("rule", sam(0.1)), steps,
        micro=case.get("micro", "full"), clip=clip, before_step=torch.manual_seed,
        after_step=schedule and schedule.step,
    )  # fmt: skip
    assert same(trainer.model, model)
    assert logged(trainer) == losses
    assert trainer.optimizer.optimizer.last.numbers()["gap"] == opt.last.numbers()["gap"]


EVALUATES = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
SETTINGS = {
    "the best model, early stopping": EVALUATES | {"load_best_model_at_end": True, "metric_for_best_model": "loss"},
    "a schedule that watches the loss": EVALUATES
    | {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}},
    "noisy embeddings": {"neftune_noise_alpha": 5.0},
    "Adafactor": {"optim": "adafactor", "gradient_accumulation_steps": 3},
    "fused AdamW": {"optim": "adamw_torch_fused", "weight_decay": 0.1},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
    "groups by length": {"train_sampling_strategy": "group_by_length", "dataloader_drop_last": True},
}


class Reads(TrainerCallback):
    """What a user's callback reads from the optimizer."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, model=None, **kwargs):
        self.seen.append([float(p.grad.sum()) for p in model.parameters()])

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        self.seen.append([group["lr"] for group in optimizer.param_groups])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_at_radius_zero_nothing_differs_from_the_plain_trainer(settings, tmp_path):
    results = []
    for kind, ours in ((Trainer, {}), (SharpnessAwareTrainer, {"rule": sam(0.0)})):
        args = TrainingArguments(
            str(tmp_path / kind.__name__), per_device_train_batch_size=BATCH, num_train_epochs=2, learning_rate=LR,
            logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, **{"save_strategy": "no"} | settings,
        )  # fmt: skip
        reads = Reads()
        callbacks = [reads, *([EarlyStoppingCallback(1)] if "metric_for_best_model" in settings else [])]
        trainer = kind(
            language_model(), args, train_dataset=sentences(18), eval_dataset=sentences(6),
            data_collator=default_collate, callbacks=callbacks, **ours,
        )  # fmt: skip
        trainer.train()
        shown = [
            {name: v for name, v in row.items() if not name.startswith("sharpness/") and "_per_" not in name}
            for row in trainer.state.log_history
        ]
        for row in shown:
            for name in ("eval_runtime", "train_runtime", "total_flos"):
                row.pop(name, None)
        results.append((trainer.model, shown, reads.seen))
    (plain_model, *plain), (model, *ours) = results
    assert ours == plain
    assert same(model, plain_model)


class ScaledTrainer(InOrderTrainer):
    """fp16's scaler on a CPU, where accelerate makes none: planted before the optimizer is made."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        self.accelerator.native_amp = True
        self.accelerator.state._mixed_precision = "fp16"  # so that clipping asks to unscale


def test_with_a_scaler_the_gradient_is_unscaled_once_and_an_overflow_skips_the_step_and_the_scheduler(tmp_path):
    overflow_at = 1
    data = sentences(N)

    class Overflows(ScaledTrainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss * torch.inf if self.state.global_step == overflow_at else loss

    trainer = trainer_of(
        tmp_path,
        language_model(),
        data,
        kind=Overflows,
        max_grad_norm=0.05,
        lr_scheduler_type="cosine",
        warmup_steps=2,
    )
    trainer.train()

    AcceleratorState._reset_state()
    model = language_model().train()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    plain = plain_steps(model, data, 1, causal_loss, autocast=torch.float16)
    base = Trainer(model, trainer.args).create_optimizer()
    schedule = get_cosine_schedule_with_warmup(base, 2, len(plain))
    opt = SharpnessAware(model, base, sam(0.1), scaler=scaler)
    for i, (run,) in enumerate(plain):
        torch.manual_seed(i)
        if i != overflow_at:
            for p in opt.passes():
                p.loss = run(p)
            clip_grad_norm_(model.parameters(), 0.05)
            opt.step()
            schedule.step()
        else:
            for p in opt.passes():
                p.backward(model(**default_collate(data[:2])).loss * torch.inf)
            opt.step()
        scaler.update()
    assert same(trainer.model, model)
    assert trainer.accelerator.scaler.get_scale() == scaler.get_scale()
    assert trainer.lr_scheduler.get_last_lr() == schedule.get_last_lr()


def test_label_smoothing(tmp_path):
    data = labeled(N)
    trainer = trainer_of(tmp_path, classifier(), data, label_smoothing_factor=0.1)
    trainer.train()

    def smooth(model, batch, items):
        labels = batch["labels"]
        return trainer.label_smoother(model(input_ids=batch["input_ids"]), labels, num_items_in_batch=len(labels))

    model = classifier().train()
    losses, _ = sharpness_aware_loop(
        model, Trainer(model, trainer.args).create_optimizer(), sam(0.1), plain_steps(model, data, 1, smooth),
        before_step=torch.manual_seed,
    )  # fmt: skip
    assert same(trainer.model, model)
    assert logged(trainer) == losses
    by_hand = cross_entropy(torch.eye(3)[:2], torch.tensor([0, 2]), label_smoothing=0.1)
    assert torch.isclose(trainer.label_smoother({"logits": torch.eye(3)[:2]}, torch.tensor([0, 2])), by_hand)


def lora():
    torch.manual_seed(0)
    return get_peft_model(classifier(), LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))


def test_lora_moves_only_what_is_trained(tmp_path):
    data = labeled(N)
    trainer = trainer_of(tmp_path, lora(), data)
    frozen = {name: p.clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
    trainer.train()

    model = lora().train()
    loss = lambda model, batch, items: model(**batch).loss
    losses, _ = sharpness_aware_loop(
        model, Trainer(model, trainer.args).create_optimizer(), sam(0.1), plain_steps(model, data, 1, loss),
        before_step=torch.manual_seed,
    )  # fmt: skip
    assert same(trainer.model, model)
    assert logged(trainer) == losses
    assert all(torch.equal(p, frozen[name]) for name, p in trainer.model.named_parameters() if name in frozen)
    assert frozen


def test_m_sharpness_takes_each_part_with_its_own_number_of_tokens(tmp_path):
    data = sentences(N)
    trainer = trainer_of(
        tmp_path, language_model(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), data, m_sharpness(2, sam(0.1))
    )
    trainer.train()

    model = language_model(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0).train()
    opt = SharpnessAware(model, Trainer(model, trainer.args).create_optimizer(), m_sharpness(2, sam(0.1)))
    for window in windows(data, BATCH, 1):
        batch = default_collate(window[0])
        items = (batch["labels"][:, 1:] != -100).sum()
        for p in opt.passes(n=BATCH):
            part = {name: value[p.examples] for name, value in batch.items()}
            p.backward(model(**part, num_items_in_batch=items * (len(part["labels"]) / BATCH)).loss)
        opt.step()
    assert same(trainer.model, model)


@pytest.mark.parametrize("rule", [sam(0.1), looksam(0.1, k=2)], ids=["sam", "looksam"])
def test_resuming_from_a_checkpoint_is_exact(rule, tmp_path):
    data = sentences(N)
    settings = {"gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine", "micro": "m"}
    whole = trainer_of(
        tmp_path / "whole", language_model(), data, rule, save_strategy="steps", save_steps=2, **settings
    )
    whole.train()
    resumed = trainer_of(tmp_path / "resumed", language_model(), data, rule, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed.state.global_step == whole.state.global_step == 3
    assert same(resumed.model, whole.model)


class Chatty(Seq2SeqTrainer):
    """A Trainer that logs from inside its loss."""

    def compute_loss(self, *args, **kwargs):
        self.log({"seen": 1.0})
        return super().compute_loss(*args, **kwargs)


def test_any_trainer_can_be_mixed_and_logs_once_and_trains_again(tmp_path):
    class Mixed(SharpnessAwareTrainer, Chatty):
        pass

    trainer = trainer_of(tmp_path, language_model(), sentences(N), kind=Mixed, arguments=Seq2SeqTrainingArguments)
    trainer.train()
    assert sum("seen" in row for row in trainer.state.log_history) == len(logged(trainer)) == N // BATCH
    optimizer = trainer.optimizer
    trainer.train()
    assert trainer.optimizer is optimizer
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert all(row["sharpness/gap"] == pytest.approx(row["sharpness/perturbed_loss"] - row["loss"]) for row in rows)


class StopsInTheFirstWindow(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_training_stop = True


def test_a_window_left_before_its_end_is_forgotten(tmp_path):
    seen = []

    class Counts(InOrderTrainer):
        def compute_loss(self, *args, **kwargs):
            seen.append(self.state.global_step)
            return super().compute_loss(*args, **kwargs)

    trainer = trainer_of(tmp_path, language_model(), sentences(N), kind=Counts, gradient_accumulation_steps=2)
    trainer.add_callback(StopsInTheFirstWindow)
    trainer.train()
    assert seen == []
    trainer.remove_callback(StopsInTheFirstWindow)
    trainer.train()
    assert seen == [0] * 4 + [1] * 4 + [2] * 2  # batches times passes


def test_what_cannot_be_right_is_refused_with_a_sentence(tmp_path):
    data = sentences(N)
    with pytest.raises(TypeError, match="ranks or weighs single examples, but a trainer's loss is their mean"):
        trainer_of(tmp_path, language_model(), data, esam(0.1)).train()
    with pytest.raises(TypeError, match="micro='full' joins several; take micro='m'"):
        trainer_of(tmp_path, language_model(), data, m_sharpness(2), gradient_accumulation_steps=2).train()
    uneven = [row | {"positions": torch.zeros(())} for row in data]
    trainer = trainer_of(tmp_path, language_model(), uneven, m_sharpness(2), remove_unused_columns=False)
    trainer.data_collator = lambda rows: default_collate(rows) | {"position_ids": torch.arange(6)}
    with pytest.raises(TypeError, match=r"takes the batch in parts, but its tensors have \[4, 4, 4, 6\] rows"):
        trainer.train()
    with pytest.raises(ValueError, match="micro must be"):
        trainer_of(tmp_path, language_model(), data, micro="half").train()

    class DeepSpeedTrainer(SharpnessAwareTrainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.state.distributed_type = DistributedType.DEEPSPEED

    with pytest.raises(ValueError, match=r"DeepSpeed steps inside its own engine, .* use DDP or FSDP2"):
        trainer_of(tmp_path, language_model(), data, kind=DeepSpeedTrainer)
