"""Sharpness-aware training and feature quality for PyTorch.

from samphire import SharpnessAware, sam
opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sam(rho=0.05))
loss = opt.step(closure)
"""

from samphire.optim import (
    SharpnessAware,
    asam,
    every,
    gam,
    gnp,
    gsam,
    looksam,
    lsam,
    m_sharpness,
    msam,
    random,
    sam,
    sam_on,
    split,
)

__version__ = "0.1.0"

__all__ = [
    "SharpnessAware", "split",
    "sam", "asam", "lsam", "sam_on", "gsam", "gnp", "looksam", "msam", "gam", "random", "m_sharpness", "every",
]  # fmt: skip
