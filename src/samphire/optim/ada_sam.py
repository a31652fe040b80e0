"""The base optimizer of AdaSAM."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from samphire.checks import AtLeastZero, BelowOne, Positive, check_value

__all__ = ["AdaSam"]


class AdaSam(Optimizer):
    r"""AMSGrad as AdaSAM writes it; wrap it in ``SharpnessAware`` with ``sam`` for the method.

    .. math::
        m &\leftarrow \beta_1 m + (1-\beta_1)\, g, \qquad v \leftarrow \beta_2 v + (1-\beta_2)\, g^2, \\
        \hat v &\leftarrow \max(\hat v, v), \ \hat v_0 = \varepsilon^2, \quad w \leftarrow w - \eta\, m/\sqrt{\hat v}.

    There is no bias correction, so it is not torch's ``Adam(amsgrad=True)``: the first step is
    :math:`(1-\beta_1)/\sqrt{1-\beta_2} = 3.2` times as long, and ``eps`` acts as a floor instead of a summand.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate.
        betas: Decay of the mean and of the mean square.
        eps: Smallest :math:`\sqrt{\hat v}`.
        weight_decay: Decoupled, as in AdamW; 0 in the paper.

    Example:
        >>> from samphire.optim import SharpnessAware
        >>> model = nn.Linear(2, 1)
        >>> opt = SharpnessAware(model, AdaSam(model.parameters(), lr=1e-3), sam(rho=0.05))

    References:
        Sun et al., AdaSAM: Boosting Sharpness-Aware Minimization with Adaptive Learning Rate and Momentum for
        Training Deep Neural Networks, Neural Networks 2023, https://arxiv.org/abs/2303.00565
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        check_value("AdaSam: lr", lr, AtLeastZero | Tensor)
        for beta in betas:
            check_value("AdaSam: a beta", beta, BelowOne)
        check_value("AdaSam: eps", eps, Positive)
        check_value("AdaSam: weight_decay", weight_decay, AtLeastZero)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step along the gradients in ``.grad``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                    state["v_max"] = torch.full_like(p, group["eps"] ** 2)
                m, v, v_max = state["m"], state["v"], state["v_max"]
                m.lerp_(p.grad, 1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                torch.maximum(v_max, v, out=v_max)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(m, v_max.sqrt(), value=-group["lr"])
        return loss
