r"""The rules of the SAM family, each a small frozen coroutine that reads like its paper's algorithm.

Symbols: ``w`` weights, ``g`` clean gradient, ``eps`` displacement, ``rho`` its length, ``t`` step from 0.

For all rules: the norm runs over all perturbed parameters together; a zero gradient means no climb; weight
decay belongs to the base optimizer, so it neither bends the ascent nor is evaluated at ``w + eps``
(google-research/sam has it inside the loss: for that, add the penalty to yours and take it out of the optimizer).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from samphire.optim.rules.climbs import asam, lsam, random, sam, sam_on
from samphire.optim.rules.examples import esam, imb_sam
from samphire.optim.rules.merges import cr_sam, gam, gnp, gsam, sagm, stable, wsam
from samphire.optim.rules.policies import ae_sam, every, m_sharpness
from samphire.optim.rules.reuse import friendly, looksam, msam, stale, vasso
from samphire.optim.rules.sparse import ssam_d, ssam_f
from samphire.optim.rules.walks import entropy_sgd

__all__ = [
    "sam", "asam", "lsam", "sam_on", "random", "gsam", "gnp", "gam", "sagm", "stable", "cr_sam", "wsam",
    "ssam_f", "ssam_d", "esam", "imb_sam", "entropy_sgd",
    "looksam", "msam", "stale", "friendly", "vasso", "m_sharpness", "every", "ae_sam",
    "rule", "RULES",
]  # fmt: skip

RULES: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (sam, asam, lsam, sam_on, random, gsam, gnp, gam, sagm, stable, cr_sam, wsam,
              ssam_f, ssam_d, esam, imb_sam, entropy_sgd,
              looksam, msam, stale, friendly, vasso, m_sharpness, every, ae_sam)
}  # fmt: skip


def rule(name: str, **settings: Any) -> Any:
    """A rule by its name, for configuration files and command lines.

    Example:
        >>> rule("sam", rho=0.1)
        Sam(rho=0.1, climb=Climb(metric=None, on=None))
        >>> rule("asm")
        Traceback (most recent call last):
            ...
        ValueError: no rule named 'asm'; did you mean 'asam', 'sam' or 'gam'? Known: sam, asam, ...
    """
    if name not in RULES:
        close = difflib.get_close_matches(name, RULES)
        *rest, last = map(repr, close or list(RULES)[:1])
        guess = f"{', '.join(rest)} or {last}" if rest else last
        raise ValueError(f"no rule named {name!r}; did you mean {guess}? Known: {', '.join(RULES)}.")
    return RULES[name](**settings)
