"""Figure 9, CelebA: whom SAM hears more, over the duration of training.

samphire reproduce fig9-celeba --root DIR
"""

from __future__ import annotations

from samphire.experiments import fig9_toy, real_weights

PAPER_SAYS = fig9_toy.PAPER_SAYS
NOTES = real_weights.NOTES
DATA = ("celeba",)
SCALES = real_weights.scales("celeba")
runs, compute, steps = real_weights.runs, real_weights.compute, real_weights.steps
tables, plots, claims = real_weights.FIGURE_9
