"""Figure 7 and the scoreboard on images: their trainings, rows written by hand, and both at their tiny scale."""

import math

import pytest

import trees
from samphire import experiments, optim, records
from samphire.experiments.paper import fig7_images, scoreboard_images
from samphire.experiments.paper.fig7_images import BOTH, FIG7_CIFAR_MNIST, RATES, SAM, SGD, WEIGHTS
from samphire.experiments.paper.scoreboard_images import ENTRIES, LEFT_OUT, SCOREBOARD_CIFAR_MNIST, Board
from samphire.train.methods import first_training

SEEDS = range(10, 18)
NOISE = [0.3, -0.2, 0.1, -0.3, 0.2, 0.0, -0.1, 0.1]


def fig7_rows(hard):
    """Rows with the given mean of the hard error for each algorithm, and some noise."""
    return [
        {"algorithm": name, "seed": seed, "collapsed": False, "test_error": 1.0, "probing": {"on": "train", "n": 8100},
         "probe": {"cifar": error + noise * (1 if name == SGD else 0.5), "mnist": 0.1}}
        for name, error in hard.items()
        for seed, noise in zip(SEEDS, NOISE, strict=True)
    ]  # fmt: skip


def verdicts(rows):
    return [claim.verdict for claim in FIG7_CIFAR_MNIST.claims(rows)]


def test_fig7_judges_each_effect_the_pair_and_sam():
    better = fig7_rows({SGD: 12.0, WEIGHTS: 11.5, RATES: 11.4, BOTH: 11.0, SAM: 10.0})
    assert verdicts(better) == ["holds"] * 7
    worse = fig7_rows({SGD: 12.0, WEIGHTS: 12.5, RATES: 12.6, BOTH: 13.0, SAM: 14.0})
    assert verdicts(worse) == ["contradicted"] * 7
    same = fig7_rows(dict.fromkeys((SGD, WEIGHTS, RATES, BOTH, SAM), 12.0))
    assert verdicts(same)[:4] == ["open"] * 4


def test_fig7_table_has_gains_and_their_share_of_sam_s():
    rows = fig7_rows({SGD: 12.0, WEIGHTS: 11.5, RATES: 11.9, BOTH: 11.0, SAM: 10.0})
    rows[8] |= {"collapsed": True}  # the first seed of the weights alone
    (table,) = FIG7_CIFAR_MNIST.tables(rows)
    lines = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert lines[BOTH]["share of SAM's gain"] == "50%"
    assert lines[SAM]["gain over SGD"].startswith("2.01 [1.9")  # 2, and half the mean of the noise
    assert lines[WEIGHTS]["hard feature"].endswith("(n=7 of 8)")
    assert "1 of 40 trainings stopped early" in table.caption
    assert len(FIG7_CIFAR_MNIST.plots(rows)) == 1


def test_fig7_trains_what_the_queue_of_table_1_trains():
    keys = {records.key(run.run) for run in FIG7_CIFAR_MNIST.runs(FIG7_CIFAR_MNIST.at("paper"))}
    assert len(keys) == 40
    assert "d34ca712118e7e2f" in keys  # SGD with seed 10, as stored
    networks = [run.run for run in fig7_images.runs(fig7_images.Setting(seeds=(10,)))]
    assert [(n.rule, dict(n.rule_settings), n.radius) for n in networks] == [
        ("sgd", {}, 0.0),
        ("lsam", {"effects": "weights"}, 0.2),
        ("lsam", {"effects": "rates"}, 0.2),
        ("lsam", {}, 0.2),
        ("sam", {}, 0.2),
    ]


# The scoreboard


def entry(name, errors, cost=1.0, stopped=0):
    runs = [
        {"seed": 20 + i, "collapsed": False, "test_error": 0.1, "probing": {},
         "probe": {"cifar": error / 100, "mnist": 0.001}}
        for i, error in enumerate(errors)
    ]  # fmt: skip
    for run in runs[:stopped]:
        run["collapsed"] = True
        del run["probe"]
    tried = [{"setting": "rho 0.05", "probe_val": 0.12}, {"setting": "rho 0.2", "probe_val": math.inf}]
    return {"entry": name, "epochs": 10, "cost": cost, "setting": "rho 0.05", "tried": tried, "runs": runs}


def board_rows(cheap=(11.0, 11.1, 11.0)):
    return [
        entry("sgd", (12.0, 12.2, 12.1)),
        entry("lsam", cheap, 1.05),
        entry("sam", (11.0, 11.2, 11.1), 2.0),
        entry("gam", (11.5, 11.9, 11.7), 4.0),
        entry("wsam", (11.0, 11.0, 11.0), 2.0, stopped=2),
    ]


def test_the_board_orders_by_error_and_draws_the_frontier():
    lines = scoreboard_images.board(board_rows((11.4, 11.5, 11.6)))
    assert [line.name for line in lines] == ["sam", "lsam", "gam", "sgd", "wsam"]
    assert [line.cost for line in lines] == [2.0, 1.05, 4.0, 1.0, 2.0]
    assert lines[-1].error == math.inf
    assert [line.name for line in scoreboard_images.frontier(lines)] == ["sgd", "lsam", "sam"]
    table, tried = SCOREBOARD_CIFAR_MNIST.tables(board_rows())
    assert [row[0] for row in table.rows] == ["lsam", "sam", "gam", "sgd", "wsam"]
    assert ("sam", "rho 0.2", "stopped early") in [tuple(row) for row in tried.rows]
    assert len(SCOREBOARD_CIFAR_MNIST.plots(board_rows())) == 1


@pytest.mark.parametrize(
    ("cheap", "verdict"),
    [((11.0, 11.2, 11.1), "holds"), ((12.0, 12.2, 12.1), "contradicted"), ((10.0, 13.0, 11.0), "open")],
)
def test_the_goal_is_sam_s_error_at_sgd_s_cost(cheap, verdict):
    goal = SCOREBOARD_CIFAR_MNIST.claims(board_rows(cheap))[-1]
    assert goal.verdict == verdict
    assert ("within: lsam" in goal.ours) == (verdict == "holds")


def test_a_failed_entry_does_not_squash_the_picture():
    (figure,) = SCOREBOARD_CIFAR_MNIST.plots([*board_rows(), entry("gnp", (50.0, 50.0, 50.0))])
    left, right = figure.axes
    assert left.get_xlim()[0] > -5
    assert right.get_ylim()[1] < 20
    assert [text.get_text() for text in left.texts] == ["← -38"]


def test_every_rule_is_on_the_board_or_left_out_with_a_reason():
    assert set(optim.RULES) <= {*ENTRIES, *LEFT_OUT}
    entries = {entry.name: entry for entry in scoreboard_images.runs(Board())}
    assert all(len(set(entry.tried)) == 2 for entry in entries.values())
    assert entries["sam, equal cost"].epochs == 5
    assert entries["gam, equal cost"].epochs == round(10 / optim.gam().passes)
    assert "lsam, equal cost" not in entries
    judged = entries["sam, equal cost"].judged(entries["sam"].tried[1])
    assert [(c.seed, c.epochs, c.rho) for c in judged] == [(20, 5, 0.2), (21, 5, 0.2), (22, 5, 0.2)]
    with pytest.raises(ValueError, match="seeds must be others than that of the selection, 0, got"):
        Board(seeds=(0, 1))


def test_a_first_training_and_longer_epochs_count():
    jtt = Board(entries=("sgd", "jtt"))
    sgd, config = (entry.tried[0] for entry in scoreboard_images.runs(jtt))
    first = first_training(config)
    seconds = {records.key(first): [2.0, 2.0, 9.0], records.key(config): [6.0] * 10}
    epochs = {key: [{"seconds": each} for each in of_run] for key, of_run in seconds.items()}
    assert scoreboard_images._epochs(sgd, epochs) == 10
    assert scoreboard_images._epochs(config, epochs) == first.epochs + 10 * 3


@pytest.fixture(scope="module")
def results(tmp_path_factory, in_this_process):
    root, out = trees.dominoes(tmp_path_factory.mktemp("data")), tmp_path_factory.mktemp("report")
    chosen = ["fig7-cifar-mnist", "scoreboard-cifar-mnist"]
    return {r.name: r for r in experiments.reproduce(chosen, scale="tiny", out=out, data_root=root)}


def test_both_run_at_their_tiny_scale(results):
    assert [row[0] for row in results["fig7-cifar-mnist"].tables[0].rows] == [SGD, WEIGHTS, RATES, BOTH, SAM]
    costs = {row[0]: float(row[2]) for row in results["scoreboard-cifar-mnist"].tables[0].rows}
    assert set(costs) == {"sgd", "lsam", "sam", "sam, equal cost", "jtt", "muon"}
    assert costs["sgd"] == 1
    assert costs["sam, equal cost"] == pytest.approx(costs["sam"] / 2, abs=0.01)
    assert costs["jtt"] > 1
    assert all(claim.verdict == "open" for r in results.values() for claim in r.claims)
