"""Training: one network on a real data set (:func:`fit`), or many small ones at once (:func:`fit_many`)."""

from samphire.train.configs import Config, appendix_b, parse
from samphire.train.fit import fit
from samphire.train.fit_many import Checkpoint, Result, fit_many
from samphire.train.small_configs import ModuleConfig, Problem, RuleConfig, SmallRun, ToyConfig
from samphire.train.trained import TrainedRun, load_network, load_weights

__all__ = [
    "Checkpoint", "Config", "ModuleConfig", "Problem", "Result", "RuleConfig", "SmallRun", "ToyConfig", "TrainedRun",
    "appendix_b", "fit", "fit_many", "load_network", "load_weights", "parse",
]  # fmt: skip
