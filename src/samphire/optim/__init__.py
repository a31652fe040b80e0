"""Sharpness-aware optimization: the rules, and the optimizer that drives them."""

from samphire.optim.ada_sam import AdaSam
from samphire.optim.last_layer import Split, split
from samphire.optim.passes import Pass, Report, in_perturbed_pass
from samphire.optim.per_example import fisher, pegr
from samphire.optim.requests import At, Climb, Descent, Memory, Rule, bind, on, sharpness_aware_gradient
from samphire.optim.rules import (
    RULES,
    ae_sam,
    asam,
    cr_sam,
    entropy_sgd,
    esam,
    every,
    friendly,
    gam,
    gnp,
    gsam,
    imb_sam,
    looksam,
    lsam,
    m_sharpness,
    msam,
    random,
    rule,
    sagm,
    sam,
    sam_on,
    ssam_d,
    ssam_f,
    stable,
    stale,
    vasso,
    wsam,
)
from samphire.optim.schedules import inverse_sqrt, ramp, tied
from samphire.optim.scopes import below, last, of_type
from samphire.optim.step import SharpnessAware

__all__ = [
    # the optimizer
    "SharpnessAware", "Pass", "Report", "Split", "split",
    # rules, by name
    "sam", "asam", "lsam", "sam_on", "random", "gsam", "gnp", "gam", "sagm", "stable", "cr_sam", "wsam",
    "ssam_f", "ssam_d", "esam", "imb_sam", "entropy_sgd",
    "looksam", "msam", "stale", "friendly", "vasso", "m_sharpness", "every", "ae_sam",
    "rule", "RULES",
    # beside the rules
    "AdaSam", "pegr", "fisher", "in_perturbed_pass",
    # their parts
    "on", "below", "of_type", "last", "inverse_sqrt", "ramp", "tied",
    # what an engine or a new rule needs
    "At", "Climb", "Descent", "Memory", "Rule", "bind", "sharpness_aware_gradient",
]  # fmt: skip
