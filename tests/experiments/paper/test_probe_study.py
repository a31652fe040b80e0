"""The probe study: its ways, what its rows show, and a whole small one."""

import pytest

import trees
from samphire import experiments, records
from samphire.experiments.paper import probe_study
from samphire.experiments.paper.probe_study import OLD, PROBE_STUDY, Study


def row(rule, seed, way, error, lr=0.01, l2=0.01, tried="0.001 to 1"):
    on, per_group, scaling = way
    about = {"rule": rule, "lr": lr, "rho": 0.0 if rule == "sgd" else 0.2, "seed": seed, "on": on}
    path = {"0.001": error + 1, "0.01": error, "0.1": error + 2}
    return about | {
        "per_group": per_group, "scaling": scaling, "n": 4 * (per_group or (900 if on == "val" else 8096) // 4),
        "hard": "cifar", "error": error, "easy error": 0.1, "l2": l2, "tried": tried, "path": path, "seconds": 10.0,
    }  # fmt: skip


def rows():
    """In every network one number for all is a point better than one for each; fewer and other images are worse."""
    worse = {"global": 0.0, "each": 1.0, "none": 0.1}
    found = []
    for way in Study().ways():
        on, per_group, scaling = way
        level = 14 + worse[scaling] + 4 * (on == "val") + (2 if per_group else 0)
        for i, rule in enumerate(("sgd", "sam", "lsam")):
            found += [row(rule, 0, way, level - i + 10 * lr, lr) for lr in (0.01, 0.05, 0.1)]
            found += [row(rule, seed, way, level - i + 0.1 * seed * (i == 1)) for seed in (10, 11)]
    return found


def lines(table):
    return [dict(zip(table.columns, line, strict=True)) for line in table.rows]


def test_every_way_is_a_line_and_the_old_protocol_is_among_them():
    ways, seeds, path = map(lines, probe_study.tables(rows()))
    assert len(ways) == len(seeds) == len(Study().ways()) == 9
    (old,) = (line for line in ways if "our old protocol" in line["probing set"])
    assert (old["probing set"].split()[0], old["n"], old["scaling"]) == ("validation", 900, "each")
    # 14 - 0, 1, 2 and + 0.1, 0.5, 1.0: mean 13.533; only networks of the grid's seed
    assert ways[0]["hard feature's error"].startswith("13.53 ± ")
    assert ways[0]["hard feature's error"].endswith("(n=9)")
    assert seeds[0]["SGD"] == "14.00 ± 0.00 (n=2)"
    assert seeds[0]["SAM - SGD"] == "0.050 ± 0.050 (n=2)"  # 13 + 1.0 and 13 + 1.1, less 14
    assert path[0] == {"scaling": "global", "0.001": "14.53", "0.01": "13.53", "0.1": "15.53"}


def test_claims_pair_the_networks_of_the_grid():
    each, none, val, old = probe_study.claims(rows())
    assert [claim.verdict for claim in (each, val, old)] == ["holds"] * 3
    assert each.ours.startswith("difference -1")
    assert each.ours.split("n=")[1].startswith("9)")
    assert "networks" in each.detail
    assert none.ours.startswith("difference -0.1")
    assert probe_study.plots(rows())


def test_edges_and_trainings_that_stopped_are_counted():
    found = rows()
    found[0] |= {"tried": "1e-09 to 1, grown by 6, still at an edge"}
    stopped = {name: found[1][name] for name in ("rule", "lr", "rho", "seed", "on", "per_group", "scaling")}
    found[1] = stopped | {"stopped": "not finite"}
    first = lines(probe_study.tables(found)[0])[0]
    assert (first["grid grew"], first["still at an edge"]) == (1, 1)
    assert first["hard feature's error"].endswith("(n=8)")


def test_the_study_probes_every_network_in_every_way():
    runs = PROBE_STUDY.runs(Study())
    assert len({records.key(run) for run in runs}) == len(runs) == (9 + 12) * 9
    assert {run.run.resamples for run in runs} == {0}
    assert sum((run.on, run.settings.per_group, run.settings.scaling) == OLD for run in runs) == 21


def test_a_small_study_end_to_end_in_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("samphire.pool.cores", lambda: 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = trees.dominoes(tmp_path / "data")
    (result,) = experiments.reproduce(["probe-study"], scale="tiny", out=tmp_path / "out", data_root=root)
    study = PROBE_STUDY.at("tiny")
    assert len(records.read(tmp_path / "out" / "trainings")) == len(study.networks()) == 6
    assert len(records.read(tmp_path / "out" / "probings")) == len(PROBE_STUDY.runs(study))
    assert len(result.tables[0].rows) == len(study.ways())
    assert result.figures[0].startswith(b"\x89PNG")
    stored = [r for run in records.read(tmp_path / "out" / "runs") for r in run.rows]
    assert not any("probe" in r or "test_error" in r for r in stored)  # no test example decides
    assert all(r["error"] == pytest.approx(min(r["path"].values())) for r in stored)
