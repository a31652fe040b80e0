"""What sharpness-aware training is compared with: losses, averages of weights, balanced data.

All work in any loop and under any rule of :mod:`samphire.optim`. What a loss remembers are the buffers of an
``nn.Module``: saved with ``state_dict``, moved with ``to``, changed in training mode only. It changes once for each
batch of examples, not once for each pass:

- a perturbed pass (a repeat at displaced weights) uses it as the clean pass left it, without changing it;
- the only pass of a one-pass rule (``msam``, ``stale``) is no repeat, so it counts, with the losses at that point;
- the parts of ``m_sharpness`` and accumulated micro-batches are batches by themselves, one change for each, since a
  loss cannot know which of its calls belong to one step;
- a step that raised after its clean pass has been counted; repeating it counts it again.
"""

from samphire.baselines.averaging import SWAD, Valley, refresh_batchnorm, valley
from samphire.baselines.cc_sam import CcSam
from samphire.baselines.group_dro import GroupDRO
from samphire.baselines.infer_groups import infer_groups
from samphire.baselines.pegr import pegr
from samphire.baselines.reweighting import (
    balanced_sampler,
    deferred,
    effective_number,
    error_set,
    inverse_frequency,
    upsampled,
)
from samphire.baselines.saf_mesa import MESA, SAF
from samphire.baselines.spectral_decoupling import spectral_decoupling, spectral_decoupling_by_class
from samphire.baselines.useful import slow_part

__all__ = [
    "GroupDRO", "SAF", "MESA", "CcSam", "pegr", "spectral_decoupling", "spectral_decoupling_by_class",
    "SWAD", "Valley", "valley", "refresh_batchnorm",
    "inverse_frequency", "effective_number", "deferred", "balanced_sampler", "error_set", "slow_part", "upsampled",
    "infer_groups",
]  # fmt: skip
