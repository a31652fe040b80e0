"""Training: one network on a real data set (:func:`fit`), or many small ones at once (:func:`fit_many`)."""

from samphire.train.configs import Config, appendix_b, parse
from samphire.train.fit import Trained, fit, load_network
from samphire.train.fit_many import Checkpoint, Result, fit_many
from samphire.train.small_configs import ModuleConfig, Problem, RuleConfig, ToyConfig, count_steps, generator

__all__ = [
    "Checkpoint",
    "Config",
    "ModuleConfig",
    "Problem",
    "Result",
    "RuleConfig",
    "ToyConfig",
    "Trained",
    "appendix_b",
    "count_steps",
    "fit",
    "fit_many",
    "generator",
    "load_network",
    "parse",
]
