"""The experiments of the review."""

from samphire.experiments.experiment import Experiment

REVIEW: tuple[Experiment, ...] = ()

__all__ = ["REVIEW"]
