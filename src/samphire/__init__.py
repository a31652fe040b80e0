"""Sharpness-aware training and feature quality for PyTorch.

from samphire import SharpnessAware, sam
opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sam(rho=0.05))
loss = opt.step(closure)
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samphire.audits.audit import audit
    from samphire.optim import rules
    from samphire.optim.last_layer import last_layer
    from samphire.optim.rules import *  # noqa: F403
    from samphire.optim.step import SharpnessAware

__version__ = "0.1.0"

__all__ = ["SharpnessAware", "last_layer", "audit"]
if TYPE_CHECKING:
    __all__ += rules.__all__
else:  # the same names without an import: each rule is the file of its name
    __all__ += [rule.name for rule in iter_modules([f"{place}/optim/rules" for place in __path__])]  # noqa: F405
    __all__ += ["RULES", "rule", "rule_for_run"]  # noqa: F405

PACKAGES = ("audits", "baselines", "data", "experiments", "integrations", "landscape", "mechanisms", "models",
            "optim", "probes", "report", "sweep", "train")  # fmt: skip


def __getattr__(name: str) -> Any:
    """What is imported when it is first used, since torch takes seconds, and the audit needs SciPy and more."""
    if name in PACKAGES:
        return import_module(f"samphire.{name}")
    if name in __all__:
        return getattr(import_module("samphire.audits" if name == "audit" else "samphire.optim"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *PACKAGES})
