"""Tables 1 and 2: tuned, repeated and judged on small trees, and what they make of rows written by hand."""

import json
import math
import shutil
from dataclasses import replace

import pytest

import trees
from samphire import experiments, records, report, sweep
from samphire.experiments.paper import table1, table2, tuning
from samphire.experiments.paper.tuning import Blocks, Tuning


def run(rule, seed, test, easy, hard, lr=0.05, rho=0.1, state="done"):
    probe = {"object": hard, "digit": easy}
    values = {"test_error": test, "probe": probe, "probe_val": probe} if state == "done" else {}
    return {"rule": rule, "lr": lr, "rho": 0.0 if rule == "sgd" else rho, "seed": seed, "state": state} | values


def block(data="cifar-mnist", hard=(0.14, 0.15, 0.13, 0.14), gain=(0.02, 0.03, 0.01, 0.02)):
    """SGD, SAM better by the gain in each seed, and LSAM alternately above and below SGD."""
    sgd = [run("sgd", seed, 0.001, 0.002, e) for seed, e in enumerate(hard)]
    sam = [run("sam", seed, 0.001, 0.002, e - g) for seed, (e, g) in enumerate(zip(hard, gain, strict=True))]
    lsam = [run("lsam", seed, 0.001, 0.002, e + 0.01 * (-1) ** seed) for seed, e in enumerate(hard)]
    sides = {
        name: {"lr": 0.05, "rho": runs[0]["rho"], "settings": n, "runs": runs}
        for name, runs, n in (("sgd", sgd, 3), ("sam", sam, 18), ("lsam", lsam, 18))
    }
    grid = [runs[0] for runs in (sgd, sam, lsam)]
    about = {"data": data, "target": None, "by": "val_error", "epochs": 20, "model": "small_cnn"}
    repeats = [run for runs in (sgd, sam, lsam) for run in runs[1:]]
    return about | {"sides": sides, "grid": grid, "repeats": repeats, "criteria": []}


def test_the_table_has_ours_beside_the_papers():
    table, *_ = table1.tables([block()])
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    sgd, sam, lsam = rows[:3]
    assert sgd["data"] == "cifar-mnist (easy digit, hard object)"
    assert sgd["hard feature's probe error"] == "14.00 ± 0.82 (n=4)"  # std of 14, 15, 13, 14 is sqrt(2 / 3)
    assert sam["hard feature's probe error"] == "12.00 ± 0.00 (n=4)"
    assert (sgd["settings tried"], sam["settings tried"]) == (3, 18)
    assert (sam["paper: hard"], lsam["paper: hard"]) == ("10.2 ± 0.51", "–")
    assert [row["algorithm"] for row in rows[3:]] == ["not run: not at this scale, or no data"] * 3


def test_claims_are_judged_by_a_paired_test():
    claims = {claim.text: claim for claim in table1.claims([block()])}
    sam = claims["cifar-mnist: the hard feature's probe error after SAM is lower than after SGD."]
    # differences -2, -3, -1, -2: mean -2, standard error sqrt(2 / 3) / 2, t = -4.90 with 3 degrees of freedom
    assert sam.verdict == "holds"
    assert sam.ours == "difference -2.00 ± 0.41 (n=4), p = 0.016"
    lsam = claims["cifar-mnist: the hard feature's probe error after one-pass LSAM is lower than after SGD."]
    assert lsam.verdict == "open"
    worse = {c.text: c for c in table1.claims([block(gain=(-0.02, -0.03, -0.01, -0.02))])}[sam.text]
    assert worse.verdict == "contradicted"


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
    text = "cifar-mnist: the hard feature's probe error after SAM is lower than after SGD."
    (claim,) = (claim for claim in table1.claims([block(hard=hard, gain=gain)]) if claim.text == text)
    assert claim.verdict == verdict


@pytest.mark.parametrize(("sign", "verdict"), [(-1, "holds"), (1, "contradicted"), (0, "open")])
def test_a_trend_over_the_grid_is_judged_within_learning_rates(sign, verdict):
    radii = (0.0, 0.05, 0.1, 0.2)
    wave = (0.0, 0.01, -0.01, 0.0)  # what is left without a trend
    row = block()
    row["grid"] = [
        run(rule, 0, 0.001, 0.002, 0.2 + lr + sign * rho / 2 + (sign == 0) * wave[i - j], lr, rho)
        for j, lr in enumerate((0.01, 0.05, 0.1))
        for i, rho in enumerate(radii)
        for rule in (("sgd",) if rho == 0 else ("sam",))
    ]
    text = "cifar-mnist: at equal learning rate the hard feature's probe error falls with the radius of SAM."
    (claim,) = (claim for claim in table1.claims([row]) if claim.text == text)
    assert claim.verdict == verdict
    if sign:  # all three learning rates rank four radii in one order: two of the 24**3 outcomes are as clear
        assert claim.ours.endswith(f"p = {2 / 24**3:.2g}")
        assert claim.ours.startswith(f"25.3 % without to {25.3333 + sign * 10:.1f} % at the largest, 4 radii, 3")


def test_a_trend_is_judged_apart_in_seeds_that_had_no_part_in_the_grid():
    gains = {0.01: (0.03, 0.05, 0.01), 0.1: (0.01, 0.01, 0.03)}  # of seeds 1 to 3: means 2, 3 and 2 points
    row = block()
    row["grid"] = [run(rule, 0, 0.001, 0.002, 0.2, lr, 0.2) for lr in gains for rule in ("sgd", "sam", "lsam")]
    row["repeats"] = [
        run(rule, seed, 0.001, 0.002, 0.2 + lr - (rule == "sam") * gain, lr, rho)
        for lr, gain_of in gains.items()
        for seed, gain in enumerate(gain_of, 1)
        for rule, rho in (("sgd", 0.0), ("sam", 0.2), ("sam", 0.1))
        if rho != 0.1 or lr == 0.1  # a chosen setting's repeats are not of the ends
    ]
    row["repeats"] += [run("lsam", 1, 0.001, 0.002, 0.2, 0.1, 0.2)]  # at one learning rate alone
    (claim,) = (claim for claim in table1.claims([row]) if "other seeds" in claim.text)
    assert "after SAM with the largest radius" in claim.text
    # mean -7 / 3, standard error 1 / 3, t = -7 with 2 degrees of freedom
    assert (claim.verdict, claim.ours) == ("holds", "difference -2.33 ± 0.33 (n=3), p = 0.02")
    *_, table = table1.tables([row])  # by learning rate, with the grid's seed, in which all are alike
    cells = [dict(zip(table.columns, line, strict=True)) for line in table.rows if line[1] == "SAM"]
    assert [(line["lr"], line["SGD"]) for line in cells] == [
        (0.01, "20.75 ± 0.50 (n=4)"),
        (0.1, "27.50 ± 5.00 (n=4)"),
    ]
    # gains of 0, 3, 5, 1 and of 0, 1, 1, 3 points: the variances are 59 / 12 and 19 / 12
    difference = [line["difference"] for line in cells]
    assert [e.mean for e in difference] == pytest.approx([-2.25, -1.25])
    assert [e.error for e in difference] == pytest.approx([math.sqrt(59 / 48), math.sqrt(19 / 48)])
    for r in row["repeats"]:
        if (r["rule"], r["seed"], r["lr"]) == ("sam", 3, 0.1) and r["rho"] == 0.2:
            del r["probe"]
    (claim,) = (claim for claim in table1.claims([row]) if "other seeds" in claim.text)
    assert claim.verdict == "open"


def test_trainings_that_stopped_early_are_counted_and_left_out():
    row = block(hard=(0.14, 0.15, 0.13, 0.14, 0.12), gain=(0.02, 0.03, 0.01, 0.02, 0.02))
    row["sides"]["sam"]["runs"][4] = run("sam", 4, 0, 0, 0, state="stopped")
    row["sides"]["lsam"] = {"lr": None, "rho": None, "settings": 18, "runs": []}
    table, *_ = table1.tables([row])
    sgd, sam, lsam = (dict(zip(table.columns, cells, strict=True)) for cells in table.rows[:3])
    assert sgd["hard feature's probe error"].endswith("(n=5)")
    assert sam["hard feature's probe error"] == "12.00 ± 0.00 (n=4 of 5)"
    assert (lsam["hard feature's probe error"], lsam["settings tried"]) == ("– (n=0)", 18)
    claims = {claim.text: claim for claim in table1.claims([row])}
    sam = claims["cifar-mnist: the hard feature's probe error after SAM is lower than after SGD."]
    assert sam.ours == "difference -2.00 ± 0.41 (n=4), 1 of 5 pairs left out: collapsed, p = 0.016"
    assert claims[sam.text.replace("SAM", "one-pass LSAM")].verdict == "open"
    assert all(figure for figure in table1.plots([row]))


def test_a_set_that_comes_later_is_added(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = {
        "model": "samphire.experiments.paper.image_weights:smallest",
        "weights": None,
        "epochs": 1,
        "resamples": 1,
    }
    birds = {"size": 12, "batch": 16, "augment": False} | small
    blocks = tuple(
        Tuning(name, (0.001, 0.05), (0.0, 0.1, 0.3), seeds=1, by=by, settings=tuple(settings.items()))
        for name, settings, by in (
            ("fmnist-mnist", small, "val_error"),
            ("waterbirds", birds, "val_error"),
            ("waterbirds", birds, "probe"),
        )
    )
    monkeypatch.setitem(table1.TABLE1.scales, "tiny", Blocks(blocks))
    root = trees.dominoes(tmp_path / "data")
    for sets in (["fmnist-mnist"], ["fmnist-mnist", "waterbirds", "waterbirds,"]):
        (result,) = experiments.reproduce(["table1"], scale="tiny", out=tmp_path / "out", data_root=root)
        assert [row[0].split()[0] for row in result.tables[0].rows if row[1] == "SGD"] == sets
        if len(sets) == 1:
            trees.waterbirds(root)
    (stored,) = records.read(tmp_path / "out" / "runs")
    assert stored.done
    scores = {"val_error": lambda run: run["val_error"], "probe": lambda run: sum(run["probe_val"].values())}
    for row in stored.rows:  # the setting that is repeated is the best by its criterion
        for side, chosen in row["sides"].items():
            tried = [run for run in row["grid"] if run["rule"] == side]
            best = min(tried, key=lambda run: (scores[row["by"]](run), run["val_loss"]))
            assert chosen["runs"] == [best]
            assert (chosen["lr"], chosen["rho"]) == (best["lr"], best["rho"])


def test_domains_are_judged_together_too():
    rows = []
    for target, gain in (("art_painting", 0.01), ("cartoon", 0.02), ("photo", 0.02), ("sketch", 0.03)):
        row = block("pacs", hard=(0.2,), gain=(gain,)) | {"target": target}
        for side in row["sides"].values():
            for r in side["runs"]:
                r["probe"] = {"label": r["probe"]["object"]}
        rows.append(row)
    claims = {claim.text: claim for claim in table2.claims(rows)}
    over = claims["pacs, over its domains: the probe's error after SAM is lower than after SGD."]
    assert (over.verdict, over.ours) == ("holds", "difference -2.00 ± 0.41 (n=4), p = 0.016")
    assert over.detail == "Judged by the 95 % interval of the paired difference over domains."
    assert claims["pacs, photo: the probe's error after SAM is lower than after SGD."].verdict == "open"
    table, _ = table2.tables(rows)
    accuracy = table.columns.index("accuracy")
    assert table.rows[0][accuracy] == "0.800 (n=1)"


def test_every_criterion_has_a_name_in_the_tables():
    assert tuning.CHOSEN.keys() == sweep.CRITERIA.keys()
    row = block() | {"by": "worst_group"}
    assert table1.claims([row])[0].text.startswith("cifar-mnist, chosen by worst group: the test error after SAM")


def test_the_steps_of_a_block_are_its_epochs_of_sgd():
    block = Tuning("cifar-mnist", (0.05, 0.1), (0.0, 0.1, 0.2), seeds=3, settings=(("epochs", 5),))
    # two rates: SGD once, SAM twice at two passes, LSAM twice; then two seeds of 1 + 2 + 1
    assert block.steps == 5 * (2 * (1 + 2 * 2 + 2) + 2 * 4)
    # the ends of the grid are 4 at each rate; the chosen settings are taken to be among them
    assert replace(block, ends=True).steps == 5 * (2 * (1 + 2 * 2 + 2) + 2 * 2 * 4)


def test_the_ends_of_the_grid_are_repeated_if_asked():
    block = Tuning("cifar-mnist", (0.05, 0.1), (0.0, 0.1, 0.2), seeds=3, ends=True)
    middle = next(c for c in block.grid() if c.radius == 0.1)
    again = block.repeats([middle])
    assert len(set(again)) == len(again) == 2 * (1 + 2 * 3)
    assert {c.seed for c in again} == {1, 2}
    ends = [(c.rule, c.lr, c.radius) for c in again if c.seed == 1 and c.radius != 0.1]
    assert sorted(ends) == [(r, lr, 0.0 if r == "sgd" else 0.2) for r in ("lsam", "sam", "sgd") for lr in (0.05, 0.1)]
    assert replace(block, ends=False).repeats([middle]) == [replace(middle, seed=seed) for seed in (1, 2)]


def test_the_paper_scale_is_the_papers_grid():
    for experiment, sets in ((table1.TABLE1, table1.PAPER), (table2.TABLE2, table2.PAPER)):
        blocks = experiment.runs(experiment.at("paper"))
        assert {b.data for b in blocks} == set(sets)
        for b in blocks:
            assert (b.lr, b.rho) == (sweep.GRIDS[b.data]["lr"], sweep.GRIDS[b.data]["rho"])
            assert b.settings == ()
        assert {b.by for b in blocks} == ({"val_error", "probe"} if experiment.name == "table1" else {"val_error"})
    assert len(blocks) == 12


@pytest.mark.parametrize(
    ("name", "tree"), [("table1", trees.dominoes), ("table2", trees.pacs)], ids=["table1", "table2"]
)
def test_tuned_and_repeated_end_to_end(tmp_path, monkeypatch, name, tree):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tree(tmp_path / "data")
    (result,) = experiments.reproduce([name], scale="tiny", out=tmp_path / "out", data_root=root)
    assert len(result.tables) == (3 if name == "table1" else 2)
    assert all(claim.verdict == "open" for claim in result.claims)
    (stored,) = [
        json.loads(line)
        for path in (tmp_path / "out" / "runs").glob("*/rows.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {side: len(chosen["runs"]) for side, chosen in stored["sides"].items()} == {"sgd": 2, "sam": 2, "lsam": 2}
    assert all(math.isfinite(r["test_error"]) for r in stored["grid"])
    assert all(r["seconds"] > 0 and r["commits"] for r in stored["grid"])
    assert all(figure.startswith(b"\x89PNG") for figure in result.figures)
    assert report.to_csv(result.tables[0])
    shutil.rmtree(tmp_path / "out" / "runs")
    seen = []
    experiments.reproduce(
        [name], scale="tiny", out=tmp_path / "out", data_root=root, progress=lambda *a: seen.append(a)
    )
    assert seen[-1][1] == seen[-1][2]  # also if every training is stored
