r"""How a sharpness-aware step changes what is learned: phantom parameters, importance weights, and their theory.

Symbols: ``phi`` (..., n, k) features, the easy one first and the hard one second; ``v`` (..., k) the head;
``y`` (..., n) labels -1 or 1; ``lam`` (..., n) importance weights; ``m`` margins. Leading dimensions are runs.
With ``E`` the mean over the batch, :math:`A = E[\lambda y \Phi_{easy}]` and :math:`H = E[\lambda y \Phi_{hard}]`.

Equation numbers are those of Springer, Nagarajan and Raghunathan (2024); where a printed formula is wrong the
corrected one is used, and the function says so. P1 to P4 are our propositions on when the phantom step helps the
hard feature; each returns what it predicts beside what was measured.
"""

from samphire.mechanisms.by_feature import (
    Binned,
    contributions,
    median_by_contribution,
)
from samphire.mechanisms.heads import (
    LearningRates,
    RatioSummary,
    head_gradient,
    learning_rates,
    phantom,
    phantom_head,
    ratio,
    share,
    summarize_ratio,
)
from samphire.mechanisms.phantom_step import (
    Compared,
    FeatureGradient,
    linear_feature_gradient,
    log_weight_ratio,
    log_weight_ratio_first_order,
    logit_shift,
    margin_shift,
    relu_feature_gradient,
)
from samphire.mechanisms.propositions import (
    MatchedMargin,
    RatioRise,
    Speeds,
    WeightShift,
    feature_speeds,
    matched_margin,
    ratio_rise,
    speed_ratio,
    weight_shift,
)
from samphire.mechanisms.weights import (
    effective_sample_size,
    gini,
    gini_small_sample,
    importance_weights,
    log_importance_weights,
    lorenz,
    margins,
    soft_importance_weights,
)

__all__ = [
    "margins",
    "importance_weights",
    "log_importance_weights",
    "soft_importance_weights",
    "lorenz",
    "gini",
    "gini_small_sample",
    "effective_sample_size",
    "head_gradient",
    "phantom_head",
    "phantom",
    "ratio",
    "share",
    "RatioSummary",
    "summarize_ratio",
    "LearningRates",
    "learning_rates",
    "contributions",
    "Binned",
    "median_by_contribution",
    "Compared",
    "margin_shift",
    "log_weight_ratio",
    "log_weight_ratio_first_order",
    "logit_shift",
    "FeatureGradient",
    "linear_feature_gradient",
    "relu_feature_gradient",
    "Speeds",
    "feature_speeds",
    "speed_ratio",
    "RatioRise",
    "ratio_rise",
    "WeightShift",
    "weight_shift",
    "MatchedMargin",
    "matched_margin",
]
