"""Every table and figure of the paper and of the review: what to run, what came out, and whether each claim holds."""

from samphire.experiments.experiment import SCALES, Experiment, Places
from samphire.experiments.runner import EXPERIMENTS, TOY, load, render, reproduce, runnable

__all__ = ["EXPERIMENTS", "SCALES", "TOY", "Experiment", "Places", "load", "render", "reproduce", "runnable"]
