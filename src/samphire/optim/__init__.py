"""Sharpness-aware optimization: the rules, and the optimizer that drives them."""

from samphire.optim.lastlayer import Split, split
from samphire.optim.passes import Pass, Report
from samphire.optim.protocol import At, Climb, Memory, Rule, bind, on, sharpness_aware_gradient
from samphire.optim.rules import (
    RULES,
    ae_sam,
    asam,
    cr_sam,
    every,
    friendly,
    gam,
    gnp,
    gsam,
    looksam,
    lsam,
    m_sharpness,
    msam,
    random,
    rule,
    sagm,
    sam,
    sam_on,
    stable,
    stale,
    vasso,
)
from samphire.optim.schedules import inverse_sqrt, ramp, tied
from samphire.optim.scopes import below, of_type
from samphire.optim.step import SharpnessAware

__all__ = [
    # the optimizer
    "SharpnessAware", "Pass", "Report", "Split", "split",
    # rules, by name
    "sam", "asam", "lsam", "sam_on", "random", "gsam", "gnp", "gam", "sagm", "stable", "cr_sam",
    "looksam", "msam", "stale", "friendly", "vasso", "m_sharpness", "every", "ae_sam",
    "rule", "RULES",
    # their parts
    "on", "below", "of_type", "inverse_sqrt", "ramp", "tied",
    # what an engine or a new rule needs
    "At", "Climb", "Memory", "Rule", "bind", "sharpness_aware_gradient",
]  # fmt: skip
