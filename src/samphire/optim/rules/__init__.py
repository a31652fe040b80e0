r"""The rules of the SAM family, each a small frozen coroutine that reads like its paper's algorithm.

Symbols: ``w`` weights, ``g`` clean gradient, ``eps`` displacement, ``rho`` its length, ``t`` step from 0.

For all rules: the norm runs over all perturbed parameters together; a zero gradient means no climb; weight
decay belongs to the base optimizer, so it neither bends the climb nor is evaluated at ``w + eps``
(google-research/sam has it inside the loss: for that, add the penalty to yours and take it out of the optimizer).
Where a rule climbs is its ``climb`` (its ``on``, if it walks instead), which :func:`samphire.optim.on` sets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from samphire import checks
from samphire.optim.requests import Rule, with_rho
from samphire.optim.rules.ae_sam import ae_sam
from samphire.optim.rules.asam import asam
from samphire.optim.rules.cr_sam import cr_sam
from samphire.optim.rules.entropy_sgd import entropy_sgd
from samphire.optim.rules.esam import esam
from samphire.optim.rules.every import every
from samphire.optim.rules.friendly import friendly
from samphire.optim.rules.functional_sam import functional_sam
from samphire.optim.rules.gam import gam
from samphire.optim.rules.gnp import gnp
from samphire.optim.rules.gsam import gsam
from samphire.optim.rules.imb_sam import imb_sam
from samphire.optim.rules.looksam import looksam
from samphire.optim.rules.lsam import lsam
from samphire.optim.rules.m_sharpness import m_sharpness
from samphire.optim.rules.msam import msam
from samphire.optim.rules.random import random
from samphire.optim.rules.sagm import sagm
from samphire.optim.rules.sam import sam
from samphire.optim.rules.sam_on import sam_on
from samphire.optim.rules.ssam_d import ssam_d
from samphire.optim.rules.ssam_f import ssam_f
from samphire.optim.rules.stable import stable
from samphire.optim.rules.stale import stale
from samphire.optim.rules.vasso import vasso
from samphire.optim.rules.wsam import wsam

__all__: list[str] = [  # the rules; RULES, the package and its pages follow this list
    "sam", "asam", "lsam", "sam_on", "random", "gsam", "gnp", "gam", "sagm", "stable", "cr_sam", "wsam",
    "ssam_f", "ssam_d", "esam", "imb_sam", "entropy_sgd", "functional_sam",
    "looksam", "msam", "stale", "friendly", "vasso", "m_sharpness", "every", "ae_sam",
]  # fmt: skip

RULES: dict[str, Callable[..., Rule]] = {name: checks.suggest_keywords(globals()[name]) for name in __all__}
globals().update(RULES)  # a rule that is a function is another one now

__all__ += ["RULES", "rule", "rule_for_run"]


def rule(name: str, **settings: Any) -> Rule:
    """A rule by its name, for configuration files and command lines.

    Example:
        >>> rule("sam", rho=0.1)
        sam(rho=0.1, climb=Climb(metric=None, on=None))
        >>> rule("asm")
        Traceback (most recent call last):
            ...
        ValueError: no rule is named 'asm'; did you mean 'asam'?
    """
    checks.check_one_of("rule", name, RULES)
    return RULES[name](**settings)


def rule_for_run(name: str, steps: int, batch: int, rho: float | None = None, **settings: Any) -> Rule:
    """A rule by its name, fitted to a run: its length and batch size, and class 0 as the rare one.

    Args:
        name: Of the rule.
        steps: Length of the run, for rules that follow it.
        batch: Examples in a batch; rules that split it make two parts.
        rho: The radius (of the inner rule, for a rule around a rule); ``None`` for the default.
        **settings: Other settings of the rule.

    Example:
        >>> rule_for_run("ae_sam", steps=500, batch=32, rho=0.2)
        ae_sam(steps=500, rule=sam(rho=0.2, climb=...), low=-1.0, high=1.0, decay=0.9)
    """
    checks.check_one_of("rule", name, RULES)
    of_run = {"steps": steps, "m": max(1, batch // 2), "tail": (0,)}
    parameters = inspect.signature(RULES[name]).parameters
    needed = {key: v for key, v in of_run.items() if key in parameters and parameters[key].default is not None}
    fitted = rule(name, **needed | settings)
    return fitted if rho is None else with_rho(fitted, rho)
