r"""How a sharpness-aware step changes what is learned: the phantom parameter, importance weights, and their theory.

Symbols: ``phi`` (..., n, k) features, the easy one first and the hard one second; ``v`` (..., k) the head;
``y`` (..., n) labels -1 or 1; ``lam`` (..., n) importance weights; ``m`` margins. Leading dimensions are runs.
With ``E`` the mean over the batch, :math:`A = E[\lambda y \Phi_{easy}]` and :math:`H = E[\lambda y \Phi_{hard}]`.

Equation numbers are those of Springer, Nagarajan and Raghunathan (2024); where a printed formula is wrong the
corrected one is used, and the function says so. P1 to P4 are our propositions on when the perturbation helps the
hard feature; each returns what it predicts beside what was measured.
"""

from samphire.mechanisms.batches import batch_weights
from samphire.mechanisms.by_feature import contributions, median_by_contribution, probed_contribution
from samphire.mechanisms.gradient_norms import feature_gradient
from samphire.mechanisms.heads import learning_rates, phantom_head, ratio, summarize_ratio
from samphire.mechanisms.propositions import feature_speeds, matched_margin, ratio_rise, weight_shift
from samphire.mechanisms.shifts import Comparison, logit_shift, margin_shift
from samphire.mechanisms.weights import effective_sample_size, gini, importance_weights, lorenz, margins

__all__ = [
    "margins", "importance_weights", "batch_weights", "lorenz", "gini", "effective_sample_size",
    "phantom_head", "ratio", "summarize_ratio", "learning_rates",
    "contributions", "probed_contribution", "median_by_contribution",
    "Comparison", "margin_shift", "logit_shift", "feature_gradient",
    "feature_speeds", "ratio_rise", "weight_shift", "matched_margin",
]  # fmt: skip
