"""Where a network sits: sharpness, Hessian, surfaces and bounds, for any model, loss and data.

    here = Landscape.of(model, nn.functional.cross_entropy, batches)
    sharpness(here, rho=0.05).worst
    eigenvalues(here, k=5).values
    {group: sharpness(part).worst for group, part in here.groups(labels).items()}
    sharpness(here.scaled(), rho=0.5).worst

Every result has ``in_words()``: what is large, and what that does not mean.
"""

from samphire.landscape.bound import assumption, bound, gaussian_kl, lemma_1, theorem_1, wrong_probability
from samphire.landscape.hessian import density, eigenvalues, trace
from samphire.landscape.loss import Landscape
from samphire.landscape.sharpness import average_sharpness, m_sharpness, second_order, sharpness
from samphire.landscape.surfaces import line, plane, random_direction, trajectory

__all__ = [
    "Landscape",
    "sharpness", "second_order", "average_sharpness", "m_sharpness",
    "eigenvalues", "trace", "density",
    "line", "plane", "random_direction", "trajectory",
    "theorem_1", "bound", "assumption", "lemma_1", "gaussian_kl", "wrong_probability",
]  # fmt: skip
