"""Which features has a network learned? Frozen features, linear probes, last-layer retraining, errors by group."""

from samphire.probes.frozen import activations, features
from samphire.probes.groups import Errors, GroupError, errors, wilson
from samphire.probes.logistic import Linear, Scaler, softmax_regression, sparse_regression
from samphire.probes.protocol import (
    Probe,
    bootstrap,
    by_difficulty,
    domain_probe,
    learning_curve,
    probe,
    probes,
    rows,
)
from samphire.probes.retraining import Retrained, dfr, retrain_last_layer

__all__ = [
    "features",
    "activations",
    "probe",
    "probes",
    "Probe",
    "by_difficulty",
    "rows",
    "learning_curve",
    "domain_probe",
    "bootstrap",
    "dfr",
    "retrain_last_layer",
    "Retrained",
    "errors",
    "Errors",
    "GroupError",
    "wilson",
    "softmax_regression",
    "sparse_regression",
    "Linear",
    "Scaler",
]
