"""The measures put together for one model and one data set: what it leans on, what that costs, what to do.

``samphire.audit`` is :func:`samphire.audits.audit.audit`. Decodability (:mod:`~samphire.audits.decodability`),
reliance (:mod:`~samphire.audits.reliance`) and the remedy (:mod:`~samphire.audits.remedy`) are pure functions of
features and logits; each says in its docstring how it decides.
"""

from samphire.audits.audit import audit
from samphire.audits.results import Audit

__all__ = ["audit", "Audit"]
