"""Sharpness-aware training and feature quality for PyTorch.

from samphire import SharpnessAware, sam
opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sam(rho=0.05))
loss = opt.step(closure)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from samphire.optim import SharpnessAware, last_layer, rules
from samphire.optim.rules import *  # noqa: F403

__version__ = "0.1.0"

__all__ = ["SharpnessAware", "last_layer", "audit"]
__all__ += rules.__all__

if TYPE_CHECKING:
    from samphire.audits import audit

PACKAGES = ("audits", "baselines", "data", "experiments", "integrations", "landscape", "mechanisms", "models",
            "probes", "report", "sweep", "train")  # fmt: skip


def __getattr__(name: str) -> Any:
    """What is imported when it is first used, since it needs SciPy and more."""
    if name == "audit":
        return import_module("samphire.audits").audit
    if name in PACKAGES:
        return import_module(f"samphire.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
