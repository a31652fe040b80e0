"""Figure 8, Waterbirds: the phantom weights are spread more evenly throughout training.

samphire reproduce fig8-waterbirds --root DIR
"""

from __future__ import annotations

from samphire.experiments import fig8_toy, real_weights

PAPER_SAYS = fig8_toy.PAPER_SAYS
NOTES = real_weights.NOTES
DATA = ("waterbirds",)
SCALES = real_weights.scales("waterbirds")
runs, compute, steps = real_weights.runs, real_weights.compute, real_weights.steps
tables, plots, claims = real_weights.FIGURE_8
