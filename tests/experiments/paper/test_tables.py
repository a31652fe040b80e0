"""Tables 1 and 2: tuned, repeated and judged on small trees, and what they make of rows written by hand."""

import json
import math
import shutil
from dataclasses import replace

import pytest

import trees
from samphire import experiments, records, report, sweep
from samphire.experiments.experiment import Places
from samphire.experiments.paper import table1, table2, tuning
from samphire.experiments.paper.tuning import Blocks, Tuning

SIDES = ("sgd", "sam", "lsam")
PROBING = {"on": "train", "n": 8096, "held_out": 900, "scaling": "global"}


def run(rule, seed, test, easy, hard, lr=0.05, rho=0.1, state="done", tried="0.001 to 1"):
    probe = {"object": hard, "digit": easy}
    values = {"test_error": test, "probe": probe, "probe_val": probe, "probe_l2": dict.fromkeys(probe, 0.01)}
    values |= {"probe_l2_tried": dict.fromkeys(probe, tried)}
    about = {"rule": rule, "lr": lr, "rho": 0.0 if rule == "sgd" else rho, "seed": seed, "state": state}
    return about | (values if state == "done" else {})


def block(data="cifar-mnist", hard=(0.14, 0.15, 0.13, 0.14), gain=(0.02, 0.03, 0.01, 0.02), fixed=None):
    """SGD, SAM better by the gain in each seed, and LSAM alternately above and below SGD."""
    sgd = [run("sgd", 10 + i, 0.001, 0.002, e) for i, e in enumerate(hard)]
    sam = [run("sam", 10 + i, 0.001, 0.002, e - g) for i, (e, g) in enumerate(zip(hard, gain, strict=True))]
    lsam = [run("lsam", 10 + i, 0.001, 0.002, e + 0.01 * (-1) ** i) for i, e in enumerate(hard)]
    sides = dict(zip(SIDES, (sgd, sam, lsam), strict=True))
    chosen = {
        side: {"lr": 0.05, "rho": runs[0]["rho"], "settings": 3 if side == "sgd" else 18}
        for side, runs in sides.items()
    }
    about = {"data": data, "target": None, "epochs": 20, "model": "small_cnn", "probing": PROBING}
    runs = {"grid": [run(side, 0, 0.5, 0.6, 0.7) for side in SIDES], "repeats": [*sgd, *sam, *lsam]}
    return about | {"chosen": {"probe": chosen, "val_loss": chosen}, "fixed": fixed, "criteria": []} | runs


def claim(rows, start, measure="hard feature's probe error", side="SAM"):
    (found,) = (c for c in table1.claims(rows) if c.text.startswith(f"{start}: the {measure} after {side} is"))
    return found


CHOSEN = "cifar-mnist, chosen by held-out probe error"


def test_the_table_has_ours_beside_the_papers():
    table, *_ = table1.tables([block()])
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    sgd, sam, lsam = rows[:3]
    assert sgd["data"] == "cifar-mnist (easy digit, hard object)"
    assert sgd["hard feature's probe error"] == "14.00 ± 0.82 (n=4)"  # std of 14, 15, 13, 14 is sqrt(2 / 3)
    assert sam["hard feature's probe error"] == "12.00 ± 0.00 (n=4)"
    assert (sgd["settings tried"], sam["settings tried"]) == (3, 18)
    assert (sam["paper: hard"], lsam["paper: hard"]) == ("10.2 ± 0.51", "–")
    assert {row["settings"] for row in rows[:6]} == {"chosen by held-out probe error", "chosen by validation loss"}
    assert [row["algorithm"] for row in rows[6:]] == ["not run: not at this scale, or no data"] * 3


def test_the_table_names_probing_set_size_scaling_and_penalties():
    row = block()
    row["repeats"][4] = run("sam", 10, 0.001, 0.002, 0.12, tried="1e-07 to 1, grown by 6, still at an edge")
    table, *_ = table1.tables([row])
    assert (
        "cifar-mnist: 8096 images the network was trained on, groups balanced, 900 more to select by" in table.caption
    )
    assert "features scaled: one number for all features" in table.caption
    at = table.columns.index("penalties of the hard feature")
    assert [line[at] for line in table.rows[:3]] == ["0.01", "0.01, 1 at an edge", "0.01"]


def test_claims_are_judged_by_a_paired_test():
    sam = claim([block()], CHOSEN)
    # differences -2, -3, -1, -2: mean -2, standard error sqrt(2 / 3) / 2, t = -4.90 with 3 degrees of freedom
    assert sam.verdict == "holds"
    assert sam.ours == "95 %: -3.30 to -0.70 points; difference -2.00 ± 0.41 (n=4), p = 0.016"
    assert "primary outcome" in sam.text
    assert claim([block()], CHOSEN, side="one-pass LSAM").verdict == "open"
    assert claim([block(gain=(-0.02, -0.03, -0.01, -0.02))], CHOSEN).verdict == "contradicted"


def test_the_primary_outcome_must_hold_after_holms_correction():
    """p = 0.016 alone holds; as the smaller of two it is doubled; of four it is 0.065, and open."""
    first, weak = block(), {"gain": (0.01, -0.01, 0.01, -0.01)}
    others = [block(data, **weak) for data in ("fmnist-mnist", "waterbirds", "celeba")]
    two, four = claim([first, others[0]], CHOSEN), claim([first, *others], CHOSEN)
    assert (two.verdict, four.verdict) == ("holds", "open")
    assert "0.033" in two.detail
    assert "0.065" in four.detail
    second = claim([first, *others], "cifar-mnist, chosen by validation loss")
    assert second.verdict == "holds"  # not the primary outcome
    assert "primary" not in second.text


@pytest.mark.parametrize(
    ("hard", "gain", "verdict"),
    [
        ((0.14,), (0.02,), "open"),  # one seed judges nothing
        ((0.14, 0.15), (0.02, 0.03), "open"),  # -2.5 ± 0.5, and 12.7 standard errors for two seeds
        ((0.14, 0.15), (0.0201, 0.0199), "holds"),
        ((0.14, 0.14, 0.14), (0.0, 0.0, 0.0), "open"),
    ],
)
def test_few_seeds_judge_only_what_is_very_clear(hard, gain, verdict):
    assert claim([block(hard=hard, gain=gain)], CHOSEN).verdict == verdict


def test_the_setting_fixed_beforehand_is_judged_on_its_own_runs():
    row = block(fixed=[0.01, 0.2])
    for side, error in zip(SIDES, (0.2, 0.18, 0.19), strict=True):
        row["repeats"] += [
            run(side, s, 0.001, 0.002, error + 1e-4 * s * (side == "sam"), 0.01, 0.2) for s in (10, 11)
        ]
    at = "cifar-mnist, at lr 0.01 and radius 0.2"
    assert claim([row], at).ours.startswith("95 %: ")
    assert "difference -1.89" in claim([row], at).ours  # -1.9 and -1.89 points
    assert claim([row], at, side="one-pass LSAM").ours.endswith("difference -1 (n=2), p = 0")
    assert "difference -2.00 ± 0.41 (n=4)" in claim([row], CHOSEN).ours


def test_trainings_that_stopped_early_are_counted_and_left_out():
    row = block(hard=(0.14, 0.15, 0.13, 0.14, 0.12), gain=(0.02, 0.03, 0.01, 0.02, 0.02))
    (lost,) = (i for i, r in enumerate(row["repeats"]) if (r["rule"], r["seed"]) == ("sam", 14))
    row["repeats"][lost] = run("sam", 14, 0, 0, 0, state="stopped")
    row["chosen"]["probe"] = row["chosen"]["probe"] | {"lsam": {"lr": None, "rho": None, "settings": 18}}
    table, *_ = table1.tables([row])
    sgd, sam, lsam = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows[:3])
    assert sgd["hard feature's probe error"].endswith("(n=5)")
    assert sam["hard feature's probe error"] == "12.00 ± 0.00 (n=4 of 5)"
    assert (lsam["hard feature's probe error"], lsam["settings tried"]) == ("– (n=0)", 18)
    assert "difference -2.00 ± 0.41 (n=4), 1 of 5 pairs left out: collapsed, p = 0.016" in claim([row], CHOSEN).ours
    assert claim([row], CHOSEN, side="one-pass LSAM").verdict == "open"
    assert all(figure for figure in table1.plots([row]))


@pytest.mark.usefixtures("in_this_process")
def test_a_set_that_comes_later_is_added(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = {"model": "samphire.experiments.paper.image_weights:smallest", "weights": None, "epochs": 1}
    birds = {"size": 12, "batch": 16, "augment": False} | small
    blocks = tuple(
        Tuning(name, (0.001, 0.05), (0.0, 0.1), seeds=(10,), settings=tuple(settings.items()))
        for name, settings in (("fmnist-mnist", small | {"examples": 100}), ("waterbirds", birds))
    )
    monkeypatch.setitem(table1.TABLE1.scales, "tiny", Blocks(blocks))
    root = trees.dominoes(tmp_path / "data")
    for sets in (["fmnist-mnist"], ["fmnist-mnist", "waterbirds"]):
        (result,) = experiments.reproduce(["table1"], scale="tiny", out=tmp_path / "out", data_root=root)
        shown = [row[0].split()[0] for row in result.tables[0].rows if row[2] == "SGD"]
        assert list(dict.fromkeys(shown)) == sets
        if len(sets) == 1:
            trees.waterbirds(root)
    (stored,) = records.read(tmp_path / "out" / "runs")
    assert stored.done
    scores = {"val_loss": lambda run: run["val_loss"], "probe": lambda run: max(run["probe_val"].values())}
    for row in stored.rows:  # the setting that is judged is the best of the grid by its criterion, on another seed
        assert {run["seed"] for run in row["grid"]} == {0}
        assert {run["seed"] for run in row["repeats"]} == {10}
        for by, sides in row["chosen"].items():
            for side, chosen in sides.items():
                tried = [run for run in row["grid"] if run["rule"] == side]
                best = min(tried, key=lambda run: (scores[by](run), run["val_loss"]))
                assert (chosen["lr"], chosen["rho"]) == (best["lr"], best["rho"])
                assert len(tuning.runs_of(row, by, side, {})) == 1
    probed = {row["data"]: row["probing"]["on"] for row in stored.rows}
    assert probed == {"fmnist-mnist": "train", "waterbirds": "val"}
    assert len(records.read(tmp_path / "out" / "probings")) == len(records.read(tmp_path / "out" / "trainings"))


def test_what_is_there_and_what_the_rest_will_cost(tmp_path, monkeypatch):
    """Two trainings of three are there; what is left takes longer than nothing, and nothing is trained for it."""
    root, block = trees.dominoes(tmp_path / "data"), Tuning("fmnist-mnist", (0.05,), (0.0, 0.1), seeds=(10,))
    monkeypatch.setitem(table1.TABLE1.scales, "reduced", Blocks((block, Tuning("waterbirds", (0.1,), (0.0,)))))
    places = Places(root, tmp_path / "out" / "trainings")
    for config in block.grid()[:2]:
        with records.open_run(places.trainings, config) as stored:
            stored.append({"val_loss": 0.1})
    table = table1.TABLE1.cost([block, Tuning("waterbirds", (0.1,), (0.0,))], places)
    there, absent = (dict(zip(table.columns, line, strict=True)) for line in table.rows)
    assert (there["grid trained"], there["grid probed"]) == ("2 of 3", "0 of 3")
    assert there["other seeds"] == "up to 6"
    assert there["left"] != "0 s"
    assert absent["trainings"] == "no data"
    assert len(records.read(places.trainings)) == 2


def test_domains_are_judged_together_too():
    rows = []
    for target, gain in (("art_painting", 0.01), ("cartoon", 0.02), ("photo", 0.02), ("sketch", 0.03)):
        row = block("pacs", hard=(0.2,), gain=(gain,)) | {"target": target}
        for r in (*row["grid"], *row["repeats"]):
            r["probe"] = {"label": r["probe"]["object"]}
        rows.append(row)
    claims = {claim.text: claim for claim in table2.claims(rows)}
    how = "chosen by held-out probe error"
    over = claims[f"pacs, over its domains, {how}: the probe's error after SAM is lower than after SGD."]
    assert (over.verdict, over.ours) == ("holds", "difference -2.00 ± 0.41 (n=4), p = 0.016")
    assert over.detail == "Judged by the 95 % interval of the paired difference over domains."
    assert claims[f"pacs, photo, {how}: the probe's error after SAM is lower than after SGD."].verdict == "open"
    (table,) = table2.tables(rows)  # the other one shows what criteria chose
    assert len(table2.tables([row | {"criteria": [{"criterion": "probe", "lr": 0.05}]} for row in rows])) == 2
    accuracy = table.columns.index("accuracy")
    assert table.rows[0][accuracy] == "0.800 (n=1)"


def test_every_criterion_of_the_tables_is_one_of_the_sweeps_and_has_a_name():
    assert set(tuning.CRITERIA) <= sweep.CRITERIA.keys()
    assert len({tuning.chosen_by(block(), by) for by in tuning.CRITERIA}) == len(tuning.CRITERIA)


def test_the_steps_of_a_block_are_its_epochs_of_sgd():
    block = Tuning("cifar-mnist", (0.05, 0.1), (0.0, 0.1, 0.2), seeds=(10, 11), settings=(("epochs", 5),))
    # two rates: SGD once, SAM twice at two passes, LSAM twice; then for two seeds two choices of 1 + 2 + 1
    assert block.steps == 5 * (2 * (1 + 2 * 2 + 2) + 2 * 2 * 4)
    assert replace(block, fixed=(0.1, 0.2)).steps == block.steps + 5 * 2 * 4


def test_chosen_settings_and_the_fixed_one_are_repeated_once():
    block = Tuning("cifar-mnist", (0.05, 0.1), (0.0, 0.1, 0.2), seeds=(10, 11), fixed=(0.1, 0.2))
    middle = next(c for c in block.grid() if c.radius == 0.1)
    again = block.repeats([middle, middle])
    assert {c.seed for c in again} == {10, 11}
    assert all(c.resamples == 0 for c in again)  # probed afterwards
    judged = sorted((c.rule, c.lr, c.radius) for c in again if c.seed == 10)
    fixed = [("lsam", 0.1, 0.2), ("sam", 0.1, 0.2), ("sgd", 0.1, 0.0)]
    assert judged == sorted([*fixed, (middle.rule, middle.lr, 0.1)])
    with pytest.raises(ValueError, match="seeds must be others than the grid's"):
        replace(block, seeds=(0, 1))


def test_the_paper_scale_is_the_papers_grid():
    for experiment, sets in ((table1.TABLE1, table1.PAPER), (table2.TABLE2, table2.PAPER)):
        blocks = experiment.runs(experiment.at("paper"))
        assert {b.data for b in blocks} == set(sets)
        for b in blocks:
            assert (b.lr, b.rho) == (sweep.GRIDS[b.data]["lr"], sweep.GRIDS[b.data]["rho"])
            assert b.settings == ()
    assert len(blocks) == 12


def test_the_seeds_are_those_of_the_analysis():
    """As the module's docstring has them, at the reduced and at the paper's scale."""
    seeds = {"cifar-mnist": range(10, 18), "fmnist-mnist": range(10, 15), "waterbirds": range(10, 13)}
    for scale, birds in (("reduced", (0.005, 0.02)), ("paper", None)):
        for b in table1.TABLE1.runs(table1.TABLE1.at(scale)):
            assert b.seeds == tuple(seeds.get(b.data, tuning.FRESH))
            assert b.fixed == {"cifar-mnist": (0.01, 0.2), "waterbirds": birds}.get(b.data)


def test_a_block_without_a_grid_chooses_nothing_and_its_fixed_setting_is_the_primary_one():
    row = block("waterbirds", fixed=[0.05, 0.1]) | {"chosen": {}, "grid": []}
    at = "waterbirds, at lr 0.05 and radius 0.1"
    assert "primary outcome" in claim([row], at).text
    assert [c.text.split(":")[0] for c in table1.claims([row])] == [at] * 6
    # together with three others the same p is doubled and more: 0.016 of four is 0.065
    others = [block(data, gain=(0.01, -0.01, 0.01, -0.01)) for data in ("fmnist-mnist", "cifar-mnist", "celeba")]
    assert (claim([row], at).verdict, claim([row, *others], at).verdict) == ("holds", "open")
    assert len(table1.plots([row])) == 1  # no grid to draw
    assert len(table1.plots([row, *others])) == 2
    with pytest.raises(ValueError, match="must have learning rates or a fixed setting"):
        Tuning("waterbirds")


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("name", "tree"), [("table1", trees.dominoes), ("table2", trees.pacs)], ids=["table1", "table2"]
)
def test_tuned_and_repeated_end_to_end(tmp_path, monkeypatch, name, tree):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tree(tmp_path / "data")
    (result,) = experiments.reproduce([name], scale="tiny", out=tmp_path / "out", data_root=root)
    assert len(result.tables) == (2 if name == "table1" else 1)  # none of criteria: nothing is chosen
    assert {c.verdict for c in result.claims} == {"open"}
    (stored,) = [
        json.loads(line)
        for path in (tmp_path / "out" / "runs").glob("*/rows.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert list(tuning.settings_of(stored)) == ["fixed"]
    assert [len(tuning.runs_of(stored, "fixed", side, {})) for side in SIDES] == [2, 2, 2]
    assert all(math.isfinite(r["test_error"]) for r in stored["repeats"])
    assert all(r["seconds"] > 0 and r["commits"] for r in stored["repeats"])
    assert all(figure.startswith(b"\x89PNG") for figure in result.figures)
    assert report.to_csv(result.tables[0])
    shutil.rmtree(tmp_path / "out" / "runs")
    seen = []
    experiments.reproduce(
        [name], scale="tiny", out=tmp_path / "out", data_root=root, progress=lambda *a: seen.append(a)
    )
    assert seen[-1][1] == seen[-1][2]  # also if every training is stored
