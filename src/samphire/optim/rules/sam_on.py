"""SAM on the normalization layers."""

from __future__ import annotations

from torch import nn

from samphire.optim import scopes
from samphire.optim.requests import Climb
from samphire.optim.rules.sam import sam
from samphire.optim.schedules import Rho

__all__ = ["sam_on"]


def sam_on(rho: Rho = 0.5, layers: tuple[type[nn.Module], ...] = scopes.NORM_LAYERS) -> sam:
    r"""SAM on the normalization layers only.  Two passes.

    .. math:: \epsilon = \rho\, g_N / \|g_N\| \text{ on the scales and shifts } N \text{ of the norm layers, else } 0.

    Args:
        rho: Length of the step; about ten times SAM's.
        layers: The module types that count as normalization layers.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
        >>> sorted(bind(sam_on(), model).climb.on)
        ['1.bias', '1.weight']

    References:
        Mueller et al., Normalization Layers Are All That Sharpness-Aware Minimization Needs, NeurIPS 2023,
        https://arxiv.org/abs/2306.04226

    Differences:
        The released code picks parameters by ``norm`` or ``bn`` in their names, which misses
        torchvision's ``downsample.1`` and ``features.N``; here the module's type decides.
    """
    return sam(rho, climb=Climb(on=scopes.of_type(tuple(layers))))
