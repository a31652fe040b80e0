"""CC-SAM: each class climbs with the head by a radius of its own, in one pass over the body."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from samphire.checks import Range, check_indices, check_number
from samphire.optim.last_layer import LastLayer, watching

__all__ = ["CcSam"]


class CcSam:
    r"""Class-conditional SAM: the rarer a class, the larger its radius.  One pass, as LSAM's.

    .. math:: \ell = (1 - f)\, L(v) + \frac{f}{|B|} \sum_c \sum_{y_i = c} \ell_i(v + \epsilon_c), \qquad
              \epsilon_{c} = \sqrt P\, \rho_c\, \frac{g_c}{\|g_c\|}, \quad
              \rho_c = k\, \frac{\sqrt{\|v\| / \|g_c\|}}{\sqrt 2\, (n_c - 1)^{1/4}\, P^{1/4}},

    for each tensor of the head ``v`` (P numbers) and each class ``c`` in the batch, with ``g_c`` the gradient of the
    class's mean loss there and ``n_c`` its number of training examples. It is a loss: descend along it with any
    optimizer, or under any rule.

    Args:
        last: The model's last layer, from :func:`samphire.optim.last_layer`.
        counts: Training examples of each class.
        k: Scale of the radii.
        flat: Weight f of the perturbed loss; 0.3 for ten classes, 0.5 for a hundred.

    Example:
        >>> from samphire.optim import last_layer
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(16, 4), torch.randint(3, (16,))
        >>> loss = CcSam(last_layer(model), counts=[500, 50, 5])(lambda: model(x), y)
        >>> loss.backward()

    References:
        Zhou et al., Class-Conditional Sharpness-Aware Minimization for Deep Long-Tailed Recognition, CVPR 2023.

    Differences:
        A class with a single example would have an infinite radius; here ``n_c - 1`` is at least 1.
    """

    def __init__(self, last: LastLayer, counts: Sequence[int], k: float = 1e-6, flat: float = 0.3) -> None:
        if not counts or min(counts) < 0:
            raise ValueError(f"cc_sam: counts must have the training examples of each class, got {counts!r}.")
        check_number("cc_sam: k", k, Range(least=0))
        check_number("cc_sam: flat", flat, Range(least=0, most=1))
        self.last, self.counts, self.k, self.flat = last, tuple(counts), k, flat

    def __call__(self, forward: Callable[[], Tensor], y: Tensor) -> Tensor:
        """The loss of a batch: ``forward`` runs the model and returns the head's output, ``y`` are the classes."""
        check_indices("cc_sam: labels", y, len(self.counts))
        with watching(self.last.head) as call:
            losses = F.cross_entropy(forward(), y, reduction="none")
        (features,) = call.inputs(self.last)
        flat = [
            F.cross_entropy(self._perturbed(features[y == c], losses[y == c].mean(), c), y[y == c], reduction="sum")
            for c in y.unique().tolist()
        ]
        return (1 - self.flat) * losses.mean() + self.flat * torch.stack(flat).sum() / len(y)

    def _perturbed(self, features: Tensor, loss: Tensor, c: int) -> Tensor:
        """The head's output at the point that class ``c`` climbs to."""
        v = dict(self.last.head.named_parameters())
        gradients = torch.autograd.grad(loss, tuple(v.values()), retain_graph=True)
        size = sum(p.numel() for p in v.values())
        length = torch.stack([p.detach().norm() for p in v.values()]).norm()
        scale = self.k * size**0.25 / (math.sqrt(2) * max(self.counts[c] - 1, 1) ** 0.25)
        perturbed = {}
        for (name, p), g in zip(v.items(), gradients, strict=True):
            tiny = torch.finfo(g.dtype).tiny
            perturbed[name] = p + scale * length.sqrt() * g / g.norm().clamp(min=tiny) ** 1.5
        return torch.func.functional_call(self.last.head, perturbed, (features,))
