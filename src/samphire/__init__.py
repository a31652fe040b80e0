"""Sharpness-aware training and feature quality for PyTorch.

from samphire import SharpnessAware, sam
opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sam(rho=0.05))
loss = opt.step(closure)
"""

from samphire.optim import SharpnessAware, last_layer, rules
from samphire.optim.rules import *  # noqa: F403

__version__ = "0.1.0"

__all__ = ["SharpnessAware", "last_layer"]
__all__ += rules.__all__
