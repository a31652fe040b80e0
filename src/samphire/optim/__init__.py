"""Sharpness-aware optimization: the rules, and the optimizer that drives them."""

from samphire.optim import rules
from samphire.optim.ada_sam import AdaSam
from samphire.optim.last_layer import LastLayer, last_layer
from samphire.optim.passes import Pass, Report, in_perturbed_pass
from samphire.optim.per_example import fisher
from samphire.optim.requests import (
    At,
    Climb,
    Descent,
    LossOfOutputs,
    Memory,
    Rule,
    bind,
    on,
    sharpness_aware_gradient,
)
from samphire.optim.rules import *  # noqa: F403
from samphire.optim.schedules import inverse_sqrt, ramp, tied
from samphire.optim.scopes import below, last, of_type
from samphire.optim.step import SharpnessAware

__all__ = [
    # the optimizer
    "SharpnessAware", "Pass", "Report", "LastLayer", "last_layer",
    # beside the rules
    "AdaSam", "fisher", "in_perturbed_pass",
    # their parts
    "on", "below", "of_type", "last", "inverse_sqrt", "ramp", "tied",
    # what an engine or a new rule needs
    "At", "Climb", "Descent", "LossOfOutputs", "Memory", "Rule", "bind", "sharpness_aware_gradient",
]  # fmt: skip
__all__ += rules.__all__
