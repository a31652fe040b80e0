"""Figure 5, Waterbirds: at the phantom parameter the importance weights are spread more evenly.

samphire reproduce fig5-waterbirds --root DIR
"""

from __future__ import annotations

from samphire.experiments import fig5_toy, real_weights

PAPER_SAYS = fig5_toy.PAPER_SAYS
NOTES = real_weights.NOTES
DATA = ("waterbirds",)
SCALES = real_weights.scales("waterbirds")
runs, compute, steps = real_weights.runs, real_weights.compute, real_weights.steps
tables, plots, claims = real_weights.FIGURE_5
