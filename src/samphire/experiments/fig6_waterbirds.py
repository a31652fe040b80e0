"""Figure 6, Waterbirds: SAM hears images more that the easy feature fits well and the hard one poorly.

samphire reproduce fig6-waterbirds --root DIR
"""

from __future__ import annotations

from samphire.experiments import fig6_toy, real_weights

PAPER_SAYS = fig6_toy.PAPER_SAYS
NOTES = real_weights.NOTES
DATA = ("waterbirds",)
SCALES = real_weights.scales("waterbirds")
runs, compute, steps = real_weights.runs, real_weights.compute, real_weights.steps
tables, plots, claims = real_weights.FIGURE_6
