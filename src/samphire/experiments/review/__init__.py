"""The figures and claims of the review, one record each."""

from samphire.experiments.review.averaging import AVERAGING
from samphire.experiments.review.bias import BIAS
from samphire.experiments.review.diffusion import DIFFUSION
from samphire.experiments.review.fig1 import FIG1
from samphire.experiments.review.fig2 import FIG2
from samphire.experiments.review.fig3 import FIG3
from samphire.experiments.review.label_noise import LABEL_NOISE
from samphire.experiments.review.m_sharpness import M_SHARPNESS
from samphire.experiments.review.rates import RATES
from samphire.experiments.review.sparse import SPARSE

REVIEW = (FIG1, FIG2, FIG3, RATES, DIFFUSION, M_SHARPNESS, LABEL_NOISE, SPARSE, AVERAGING, BIAS)

__all__ = ["REVIEW"]
