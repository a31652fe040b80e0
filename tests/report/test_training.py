"""A training as tables and curves, from rows written by hand."""

from pathlib import Path

from samphire.report import training
from samphire.train import TrainedRun, appendix_b

ROWS = (
    {
        "epoch": 1,
        "loss": 1.5,
        "train_error": 0.5,
        "val_loss": 1.0,
        "val_error": 0.4,
        "val_worst": 0.9,
        "seconds": 2.0,
    },
    {"epoch": 2, "loss": 0.5, "train_error": 0.3, "val_loss": 0.8, "val_error": 0.2, "val_worst": 0.7, "seconds": 2.0}
    | {"test_error": 0.25, "test_plain": 0.26, "test_equal": 0.3, "test_worst": 0.6, "test_worst_group": "bird=water"}
    | {"probe": {"bird": 0.1}, "probe_low": {"bird": 0.05}, "probe_high": {"bird": 0.15}},
)
CONFIG = appendix_b("waterbirds", rule="looksam", rho=0.1, rule_settings=(("k", 3),), method="jtt")


def test_settings_have_those_of_rule_and_method():
    rows = dict(training.settings(CONFIG).rows)
    assert (rows["data"], rows["rho"], rows["rule.k"], rows["method.times"]) == ("waterbirds", "0.1", "3", "50")
    assert not [name for name in rows if name.endswith("_settings")]


def test_tables_of_a_whole_run():
    epochs, errors, probes = training.tables(TrainedRun(CONFIG, Path(), ROWS))
    assert epochs.rows[1] == (2, 0.5, 0.3, 0.8, 0.2, 0.7, 2.0)
    assert errors.rows == (
        ("train-weighted", 0.25, None),
        ("plain", 0.26, None),
        ("equal-group", 0.3, None),
        ("worst-group", 0.6, "bird=water"),
    )
    assert probes.rows == (("bird", 0.1, "0.0500 to 0.1500"),)


def test_a_run_that_was_stopped_has_its_epochs_alone():
    (epochs,) = training.tables(
        TrainedRun(CONFIG, Path(), ({"epoch": 1, "loss": 9.0, "stopped": "the loss is nan"},))
    )
    assert epochs.rows == ((1, 9.0, None, None, None, None, None),)


def test_curves_show_every_epoch():
    loss, error = training.curves(TrainedRun(CONFIG, Path(), ROWS)).axes
    assert {line.get_label(): line.get_ydata().tolist() for line in loss.lines} == {
        "training batches": [1.5, 0.5],
        "validation": [1.0, 0.8],
    }
    assert {line.get_label(): line.get_ydata().tolist() for line in error.lines} == {
        "training batches": [0.5, 0.3],
        "validation, train-weighted": [0.4, 0.2],
        "validation, worst group": [0.9, 0.7],
        "probe of bird": [0.1],
    }
