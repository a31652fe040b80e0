"""Which features has a network learned? Frozen features, linear probes, last-layer retraining, errors by group."""

from samphire.probes.frozen import features
from samphire.probes.groups import Errors, GroupError, errors
from samphire.probes.logistic import Linear
from samphire.probes.protocol import (
    FittedProbe,
    domain_probe,
    fitted_probe,
    fitted_probes,
    learning_curve,
    probe,
    probes,
)
from samphire.probes.results import Probe
from samphire.probes.retraining import RetrainedHead, dfr, retrain_last_layer

__all__ = [
    "features",
    "Probe", "probe", "probes", "learning_curve", "domain_probe", "FittedProbe", "fitted_probe", "fitted_probes",
    "RetrainedHead", "dfr", "retrain_last_layer",
    "Errors", "GroupError", "errors", "Linear",
]  # fmt: skip
