"""Every experiment at its tiny scale, resuming, sharing runs, and bad input."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from samphire import cli, experiments, records
from samphire.experiments import fig2


def rows_of(out, name):
    stored = [run for run in records.read(out / "runs") if run.config["experiment"] == name]
    assert len(stored) == 1
    return stored[0]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All experiments, once."""
    out = tmp_path_factory.mktemp("report")
    return out, experiments.reproduce(scale="tiny", out=out)


def test_all_figures_of_the_toy_are_there():
    figures = {
        "fig1",
        "fig2",
        "fig3",
        "fig4",
        "fig5-toy",
        "fig6-toy",
        "fig7",
        "fig8-toy",
        "fig9-toy",
        "fig10",
        "fig11",
        "theory",
    }
    assert figures <= set(experiments.names())
    assert experiments.names()[:2] == ["fig1", "fig2"]


WITHOUT_DATA = [name for name in experiments.names() if not getattr(experiments.load(name), "DATA", ())]


@pytest.mark.parametrize("name", WITHOUT_DATA)
def test_each_experiment_has_rows_a_table_a_picture_and_a_claim(everything, name):
    out, results = everything
    (result,) = [r for r in results if r.name == name]
    assert rows_of(out, name).done
    assert result.tables
    assert all(len(t.rows) for t in result.tables)
    assert result.figures
    assert result.claims
    assert all(c.text and c.ours and c.paper for c in result.claims)
    assert all(c.holds is None for c in result.claims)  # tiny is too short to judge
    assert result.paper_says
    assert result.title.endswith((".", "?"))
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", experiments.names())
def test_each_experiment_has_all_scales_and_ten_seeds_at_paper_scale(name):
    module = experiments.load(name)
    assert set(module.SCALES) | {"reduced"} == set(experiments.SCALES)
    runs = module.runs(module.SCALES["paper"])
    assert runs
    if name != "fig1" and name.startswith(
        "fig"
    ):  # figure 1 pictures single networks; the review has 5 runs, tables 4
        settings = {records.key(experiments.replace(run, seed=0)) for run in runs}
        assert len(runs) >= 10 * len(settings)


def test_the_page_needs_nothing_from_outside(everything):
    out, _ = everything
    page = (out / "index.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:)", page)
    assert "<script" not in page
    assert all(f'id="{name}"' in page for name in WITHOUT_DATA)


def test_verdicts_and_origin_lie_beside_the_page(everything):
    out, results = everything
    claims = json.loads((out / "claims.json").read_text())
    assert [c["claim"] for c in claims] == [claim.text for r in results for claim in r.claims]
    origin = json.loads((out / "provenance.json").read_text())
    assert (origin["experiments"], origin["scale"]) == ([r.name for r in results], "tiny")
    stored = [run for run in records.read(out / "runs") if run.rows]
    assert sum(s["rows"] for s in origin["sessions"]) == sum(len(run.rows) for run in stored)
    assert {"commit", "cpu", "torch", "seconds"} < origin["sessions"][0].keys()


def test_a_second_time_nothing_is_trained_and_the_results_are_the_same(everything, tmp_path):
    out, results = everything
    trained = []
    again = experiments.reproduce(["fig2"], scale="tiny", out=out, progress=lambda *a: trained.append(a))
    assert not trained
    assert again[0].tables == next(r for r in results if r.name == "fig2").tables


def test_runs_that_another_experiment_stored_are_not_trained_again(tmp_path):
    experiments.reproduce(["fig2"], scale="tiny", out=tmp_path)
    seen = []
    experiments.reproduce(["fig3"], scale="tiny", out=tmp_path, progress=lambda *a: seen.append(a))
    shared = {r["key"] for r in rows_of(tmp_path, "fig2").rows} & {r["key"] for r in rows_of(tmp_path, "fig3").rows}
    assert shared
    by_key = {r["key"]: r for r in rows_of(tmp_path, "fig2").rows}
    assert all(r == by_key[r["key"]] for r in rows_of(tmp_path, "fig3").rows if r["key"] in shared)
    assert seen[0][1] > seen[-1][2] - seen[0][2] * 0.99  # progress starts with the shared runs already done


def test_an_interrupted_reproduction_goes_on_where_it_stopped(tmp_path):
    whole = experiments.reproduce(["fig2"], scale="tiny", out=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    with pytest.raises(Stop):
        experiments.reproduce(["fig2"], scale="tiny", out=tmp_path / "parts", progress=stop)
    assert not rows_of(tmp_path / "parts", "fig2").done
    again = experiments.reproduce(["fig2"], scale="tiny", out=tmp_path / "parts")
    assert again[0].tables == whole[0].tables


def test_killed_in_the_middle_nothing_is_lost(tmp_path):
    command = [sys.executable, "-c", "from samphire.cli import main; main()", "reproduce", "fig2", "fig10", "--scale", "tiny", "--out", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("runs/*/done")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = rows_of(tmp_path, "fig2").rows
    assert kept
    results = experiments.reproduce(["fig2", "fig10"], scale="tiny", out=tmp_path)
    assert rows_of(tmp_path, "fig2").rows == kept
    assert len(results) == 2


def test_a_torn_line_is_dropped_and_computed_again(tmp_path):
    experiments.reproduce(["fig2"], scale="tiny", out=tmp_path)
    before = rows_of(tmp_path, "fig2")
    (before.folder / "done").unlink()
    text = (before.folder / "rows.jsonl").read_bytes()
    (before.folder / "rows.jsonl").write_bytes(text[:-20])
    experiments.reproduce(["fig2"], scale="tiny", out=tmp_path)
    after = rows_of(tmp_path, "fig2")
    assert after.done
    assert after.rows[:-1] == before.rows[:-1]
    assert after.rows[-1]["key"] == before.rows[-1]["key"]


def run(*arguments):
    command = [sys.executable, "-c", "from samphire.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_bad_input_ends_with_one_sentence_and_exit_code_2(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for arguments, message in [
        (["reproduce", "fig22"], "no experiment named 'fig22'; did you mean 'fig2'? Known: fig1, fig2"),
        (["reproduce", "fig2", "--scale", "huge"], "scale must be one of tiny, quick, reduced, paper, got 'huge'"),
        (["reproduce", "fig2", "--scale", "tiny", "--out", str(file)], "choose another"),
    ]:
        done = run(*arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.strip().count("\n") == 0


def test_the_command_prints_claims_and_says_where_the_page_is(tmp_path):
    result = CliRunner().invoke(cli.app, ["reproduce", "fig2", "--scale", "tiny", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert "verdict" in result.stdout
    assert "index.html" in result.stdout
    result = CliRunner().invoke(cli.app, ["reproduce", "fig2", "--scale", "tiny", "--out", str(tmp_path), "--json"])
    assert '"figure": "fig2"' in result.stdout


def test_a_sweep_without_runs_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(fig2.SCALES, "tiny", fig2.Config(rhos=()))
    with pytest.raises(ValueError, match=r"fig2 has no runs to train with Config\(.*rhos=\(\)"):
        experiments.reproduce(["fig2"], scale="tiny", out=tmp_path)
