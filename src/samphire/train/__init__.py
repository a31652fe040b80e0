"""Training: one network on a real data set (:func:`fit`), or many small ones at once (:func:`fit_many`)."""

from samphire.train.configs import Config, appendix_b, parse
from samphire.train.fit import fit
from samphire.train.fit_many import Checkpoint, Result, fit_many
from samphire.train.judging import ProbeSettings
from samphire.train.probing import Probing, probe_stored
from samphire.train.small_configs import ModuleConfig, Problem, RuleConfig, SmallRun, ToyConfig
from samphire.train.trained import TrainedRun, load_network, load_weights

__all__ = [
    "Checkpoint", "Config", "ModuleConfig", "ProbeSettings", "Probing", "Problem", "Result", "RuleConfig", "SmallRun",
    "ToyConfig", "TrainedRun", "appendix_b", "fit", "fit_many", "load_network", "load_weights", "parse",
    "probe_stored",
]  # fmt: skip
