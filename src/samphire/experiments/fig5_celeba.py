"""Figure 5, CelebA: at the phantom parameter the importance weights are spread more evenly.

samphire reproduce fig5-celeba --root DIR
"""

from __future__ import annotations

from samphire.experiments import fig5_toy, real_weights

PAPER_SAYS = fig5_toy.PAPER_SAYS
NOTES = real_weights.NOTES
DATA = ("celeba",)
SCALES = real_weights.scales("celeba")
runs, compute, steps = real_weights.runs, real_weights.compute, real_weights.steps
tables, plots, claims = real_weights.FIGURE_5
