"""accelerate's prepare, accumulate, clipping, scaler and save_state against a plain loop, bit for bit."""

import pytest
import torch
from accelerate import Accelerator, DistributedType
from tiny import net, point_steps, points, same, sgd, sharpness_aware_loop
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from samphire.integrations.accelerate import prepare
from samphire.optim import SharpnessAware, esam, looksam, m_sharpness, sam

BATCH, N, SAM = 4, 24, sam(0.1)


class Run:
    """A user's loop with accelerate, epoch by epoch."""

    def __init__(self, rule=SAM, accelerator=None, accumulate=1, clip=None, precision="no", **settings):
        self.accelerator = accelerator or Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision
        )
        model, self.clip = net(), clip
        self.model, self.opt = prepare(self.accelerator, model, sgd(model), rule, **settings)
        loader = DataLoader(points(N), BATCH)
        schedule = CosineAnnealingLR(self.opt, N // BATCH // self.accelerator.gradient_accumulation_steps)
        self.loader, self.schedule = self.accelerator.prepare(loader, schedule)
        self.losses = []

    def forward_backward(self, x, y):
        loss = cross_entropy(self.model(x), y)
        self.accelerator.backward(loss)
        return loss

    def epoch(self, batches=slice(None)):
        window, step = 0.0, 0
        for i, (x, y) in list(enumerate(self.loader))[batches]:
            with self.accelerator.accumulate(self.model):
                if i % self.accelerator.gradient_accumulation_steps == 0:
                    torch.manual_seed(i // self.accelerator.gradient_accumulation_steps)
                window += float(self.opt.gradient(self.forward_backward, x, y))
                if self.clip and self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
                self.opt.step()
                self.schedule.step()
                self.opt.zero_grad()
                if self.accelerator.sync_gradients:
                    self.losses.append(window)
                    window, step = 0.0, step + 1
        return self


def plain(rule=SAM, accumulate=1, precision="no", **settings):
    model = net()
    autocast = torch.bfloat16 if precision == "bf16" else None
    base, steps = sgd(model), point_steps(model, points(N), BATCH, accumulate, autocast)
    schedule = CosineAnnealingLR(base, len(steps))
    losses, _ = sharpness_aware_loop(
        model, base, rule, steps, before_step=torch.manual_seed, after_step=schedule.step, **settings
    )
    return model, losses


CASES = {
    "plain": {},
    "clipped": {"clip": 0.1},
    "accumulated, full": {"accumulate": 2},
    "accumulated, m": {"accumulate": 3, "micro": "m"},
    "bf16": {"precision": "bf16"},
    "looksam, accumulated, clipped": {"rule": looksam(0.1, k=2), "accumulate": 2, "clip": 0.1, "micro": "m"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_the_plain_loop(case):
    run = Run(**case).epoch()
    model, losses = plain(**case)
    assert same(run.model, model)
    assert run.losses == losses


def fp16_on_cpu():
    """An accelerator with fp16 and its scaler, which accelerate refuses on a CPU, planted."""
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
    return accelerator


def test_a_scaler_scales_once_and_an_overflow_skips_the_step_and_the_scheduler():
    overflow_at = 2

    class Overflows(Run):
        def forward_backward(self, x, y):
            loss = cross_entropy(self.model(x), y)
            self.accelerator.backward(loss * torch.inf if len(self.losses) == overflow_at else loss)
            return loss

    run = Overflows(accelerator=fp16_on_cpu(), clip=0.1).epoch()

    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    base, steps = sgd(model), point_steps(model, points(N), BATCH, 1, autocast=torch.float16)
    schedule = CosineAnnealingLR(base, len(steps))
    opt = SharpnessAware(model, base, sam(0.1), scaler=scaler)
    for i, (one,) in enumerate(steps):
        torch.manual_seed(i)
        for p in opt.passes():
            p.loss = one(p)
            if i == overflow_at:
                model[0].weight.grad *= torch.inf
        if i != overflow_at:
            clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        scaler.update()
        if i != overflow_at:
            schedule.step()
    assert same(run.model, model)
    assert run.schedule.get_last_lr() == schedule.get_last_lr()
    assert run.accelerator.scaler.get_scale() == scaler.get_scale()


@pytest.mark.parametrize("rule", [sam(0.1), looksam(0.1, k=2)], ids=["sam", "looksam"])
def test_save_state_and_load_state_resume_exactly(rule, tmp_path):
    whole = Run(rule, accumulate=2, micro="m").epoch(slice(0, 4))
    whole.accelerator.save_state(tmp_path)
    whole.epoch(slice(4, None))
    resumed = Run(rule, accumulate=2, micro="m")
    resumed.accelerator.load_state(tmp_path)
    resumed.epoch(slice(4, None))
    assert same(resumed.model, whole.model)
    assert resumed.losses == whole.losses[2:]


def test_m_sharpness_slices_the_batch():
    run = Run(m_sharpness(2, sam(0.1))).epoch()
    model = net()
    base, opt_losses = sgd(model), []
    opt = SharpnessAware(model, base, m_sharpness(2, sam(0.1)))
    schedule = CosineAnnealingLR(base, N // BATCH)
    for i, (x, y) in enumerate(DataLoader(points(N), BATCH)):
        torch.manual_seed(i)
        for p in opt.passes(n=len(y)):
            p.backward(cross_entropy(model(x[p.examples]), y[p.examples]))
        opt_losses.append(float(opt.step()))
        schedule.step()
    assert same(run.model, model)
    assert run.losses == opt_losses


def test_a_closure_that_accelerate_would_leave_out_is_refused():
    run = Run(accumulate=2)
    with pytest.raises(TypeError, match=r"takes no closure: .* give it to opt.gradient\(closure\) for each batch"):
        run.opt.step(lambda: torch.zeros(()))
    model = net()
    direct = SharpnessAware(model, sgd(model), sam(0.1))
    beside = SharpnessAware(model, sgd(model), sam(0.1))
    prepared = run.accelerator.prepare_optimizer(direct)

    def closure():
        prepared.zero_grad()
        loss = cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 1]))
        loss.backward()
        return loss

    with run.accelerator.accumulate(model):
        prepared.step(closure)  # no last batch of a window: accelerate does nothing
    with (
        run.accelerator.accumulate(model),
        pytest.raises(RuntimeError, match="accelerate accumulates 2 batches, but leaves out the closures of all but"),
    ):
        prepared.step(closure)
    beside.step(closure)  # which accelerate does not hold


def test_what_cannot_be_right_is_refused_with_a_sentence():
    with pytest.raises(TypeError, match="ranks or weighs single examples, but a trainer's loss is their mean"):
        Run(esam(0.1)).epoch()
    with pytest.raises(TypeError, match="micro='full' joins several; take micro='m'"):
        Run(m_sharpness(2), accumulate=2).epoch()
    with pytest.raises(ValueError, match="micro must be"):
        Run(micro="half")
    deepspeed = Accelerator(cpu=True)
    deepspeed.state.distributed_type = DistributedType.DEEPSPEED
    with pytest.raises(ValueError, match=r"DeepSpeed steps inside its own engine, .* use DDP or FSDP2"):
        Run(accelerator=deepspeed)
