"""Figure 9, Waterbirds: whom SAM hears more, over the duration of training.

samphire reproduce fig9-waterbirds --root DIR
"""

from __future__ import annotations

from samphire.experiments import fig9_toy, real_weights

PAPER_SAYS = fig9_toy.PAPER_SAYS
NOTES = real_weights.NOTES
DATA = ("waterbirds",)
SCALES = real_weights.scales("waterbirds")
runs, compute, steps = real_weights.runs, real_weights.compute, real_weights.steps
tables, plots, claims = real_weights.FIGURE_9
