"""Sharpness-aware training and feature quality for PyTorch.

from samphire import SharpnessAware, sam
opt = SharpnessAware(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sam(rho=0.05))
loss = opt.step(closure)
"""

from samphire.optim import (
    SharpnessAware,
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
    sagm,
    sam,
    sam_on,
    split,
    ssam_d,
    ssam_f,
    stable,
    stale,
    vasso,
    wsam,
)

__version__ = "0.1.0"

__all__ = [
    "SharpnessAware", "split",
    "sam", "asam", "lsam", "sam_on", "random", "gsam", "gnp", "gam", "sagm", "stable", "cr_sam", "wsam",
    "ssam_f", "ssam_d", "esam", "imb_sam", "entropy_sgd",
    "looksam", "msam", "stale", "friendly", "vasso", "m_sharpness", "every", "ae_sam",
]  # fmt: skip
