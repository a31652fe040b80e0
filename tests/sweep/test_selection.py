"""Which setting is taken, and the table of all."""

from pathlib import Path

import pytest

from samphire import sweep
from samphire.statistics import Estimate
from samphire.sweep import Trial
from samphire.train import appendix_b


def trial(rho, lr, seed=0, state="done", rule="sam", **row):
    config = appendix_b("cifar-mnist", rule=rule if rho else "sgd", rho=rho or None, lr=lr, seed=seed)
    return Trial(config, Path(), state, row or None)


def test_selection_by_hand():
    found = [
        trial(0, 0.1, 0, val_error=0.30, val_worst=0.5, test_error=0.31, probe_val={"a": 0.1, "b": 0.5}),
        trial(0, 0.1, 1, val_error=0.20, val_worst=0.7, test_error=0.21, probe_val={"a": 0.1, "b": 0.5}),
        trial(0, 0.2, 0, val_error=0.26, val_worst=0.4, test_error=0.36, probe_val={"a": 0.3, "b": 0.2}),
        trial(0, 0.2, 1, val_error=0.28, val_worst=0.4, test_error=0.38, probe_val={"a": 0.3, "b": 0.2}),
        trial(0.1, 0.1, val_error=0.1, val_worst=0.9, test_error=0.5, probe_val={"a": 0.9, "b": 0.9}),
    ]
    sgd, sam = sweep.select(found)
    assert (sgd.side, sgd.lr, sgd.rho, sgd.settings, sgd.count) == ("sgd", 0.1, 0.0, 2, "4 of 4")
    assert (sgd.score.mean, sgd.score.n) == (pytest.approx(0.25), 2)
    assert sgd.score.deviation == pytest.approx(0.05 * 2**0.5)
    assert [row["test_error"] for row in sgd.rows] == [0.31, 0.21]
    assert (sam.side, sam.lr, sam.rho, sam.settings, sam.count) == ("sam", 0.1, 0.1, 1, "1 of 1")
    assert [c.lr for c in sweep.select(found, "worst_group")] == [0.2, 0.1]
    probe = sweep.select(found, "probe")[0]
    assert (probe.lr, probe.score.mean) == (0.2, pytest.approx(0.3))  # of the hardest feature


@pytest.mark.parametrize(
    ("found", "chosen"),
    {
        "the smallest": ([trial(0.1, 0.1, val_error=0.2), trial(0.1, 0.2, val_error=0.1)], (0.1, 0.2)),
        "ties: smaller loss": (
            [trial(0.1, 0.1, val_error=0.2, val_loss=0.4), trial(0.2, 0.2, val_error=0.2, val_loss=0.3)],
            (0.2, 0.2),
        ),
        "ties: smaller rho": ([trial(0.2, 0.1, val_error=0.2), trial(0.1, 0.2, val_error=0.2)], (0.1, 0.2)),
        "ties: then smaller lr": ([trial(0.1, 0.2, val_error=0.2), trial(0.1, 0.1, val_error=0.2)], (0.1, 0.1)),
        "stopped": ([trial(0.1, 0.1, state="stopped", val_error=0.0), trial(0.1, 0.2, val_error=0.2)], (0.1, 0.2)),
        "one seed stopped": (
            [trial(0.1, 0.1, 0, val_error=0.0), trial(0.1, 0.1, 1, state="stopped", loss=9.0)]
            + [trial(0.1, 0.2, seed, val_error=0.2) for seed in range(2)],
            (0.1, 0.2),
        ),
        "one seed stopped, of as many that are done": (
            [
                *(trial(0.1, 0.1, 0, val_error=0.0), trial(0.1, 0.1, 1, state="stopped", loss=9.0)),
                *(trial(0.1, 0.2, 0, val_error=0.2), trial(0.1, 0.2, 1, state="running")),
            ],
            (0.1, 0.2),
        ),
        "fewer seeds": (
            [trial(0.1, 0.1, 0, val_error=0.0), trial(0.1, 0.1, 1, state="running", val_error=0.0)]
            + [trial(0.1, 0.2, seed, val_error=0.2) for seed in range(2)],
            (0.1, 0.2),
        ),
        "a row of a run that is not done": (
            [trial(0.1, 0.1, state="missing", val_error=0.0), trial(0.1, 0.2, val_error=0.2)],
            (0.1, 0.2),
        ),
        "nan": ([trial(0.1, 0.1, val_error=float("nan")), trial(0.1, 0.2, val_error=0.2)], (0.1, 0.2)),
        "nothing": ([trial(0.1, 0.1, state="failed"), trial(0.1, 0.2, state="stopped", val_error=0.1)], (None, None)),
    }.values(),
)  # fmt: skip
@pytest.mark.parametrize("turn", [1, -1])
def test_which_setting_is_taken(found, chosen, turn):
    (choice,) = sweep.select(found[::turn])
    assert (choice.rho, choice.lr) == chosen
    assert (choice.rows == ()) == (chosen == (None, None))


def test_sides_are_told_apart_by_what_differs():
    configs = [
        *sweep.grid("pacs", ["sam"], lr=[0.1], rho=[0, 0.1], targets=["photo", "sketch"]),
        appendix_b("pacs", rule="looksam", rho=0.1, rule_settings=(("k", 3),), target="photo"),
        appendix_b("pacs", rule="sam", rho=0, target="photo", lr=0.3),
    ]
    choices = sweep.select([Trial(c, Path(), "done", {"val_error": 0.1}) for c in configs])
    assert {c.side: c.settings for c in choices} == {
        "sgd, target photo": 2,
        "sam, target photo": 1,
        "sgd, target sketch": 1,
        "sam, target sketch": 1,
        "looksam, k=3, target photo": 1,
    }


def text(cell):
    return cell.spread() if isinstance(cell, Estimate) else str(cell)


def test_the_table_has_no_silent_hole():
    errors = {"val_error": 0.2, "val_worst": 0.4, "test_error": 0.25, "test_worst": 0.5, "probe": {"hard": 0.3}}
    found = [
        trial(0, 0.1, 0, **errors),
        trial(0, 0.1, 1, **errors | {"test_error": 0.35}),
        trial(0.1, 0.1, 0, state="running"),
        trial(0.1, 0.1, 1, state="failed"),
        trial(0.1, 0.2, 0, state="stopped", loss=9.0),
        trial(0.1, 0.2, 1, state="missing"),
    ]
    rows = sweep.table(found, by="worst_group")
    assert [(row["chosen by"], row["side"]) for row in rows] == [
        (by, side) for by in ("worst_group", "val_error", "val_loss", "probe") for side in ("sgd", "sam")
    ]
    sgd, sam = rows[:2]
    assert {name: text(cell) for name, cell in sgd.items()} == {
        "chosen by": "worst_group",
        "side": "sgd",
        "lr": "0.1",
        "rho": "0.0",
        "score": "0.4000 ± 0.0000",
        "test error": "0.3000 ± 0.0707",
        "worst group": "0.5000 ± 0.0000",
        "probe hard": "0.3000 ± 0.0000",
        "seeds": "2",
        "settings": "1",
        "runs": "2 of 2",
    }
    assert sam["runs"] == "0 of 4 (1 stopped, 1 running, 1 failed, 1 missing)"
    assert (sam["settings"], sam["seeds"], sam["lr"], text(sam["test error"])) == (2, 0, None, "–")
    assert rows[4]["lr"] is None  # nothing was probed on held-out examples
    assert rows[4]["runs"] == "2 of 2"
