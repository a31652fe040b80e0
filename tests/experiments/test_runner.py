"""Every experiment at its tiny scale, resuming, sharing runs, and bad input."""

import contextlib
import json
import lzma
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from samphire import cli, experiments, records
from samphire.experiments import EXPERIMENTS
from samphire.experiments.experiment import one_by_one, train_each
from samphire.experiments.paper import PAPER, fig2
from waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("rough_pictures")


def rows_of(out, name):
    stored = [run for run in records.read(out / "runs") if run.config["experiment"] == name]
    assert len(stored) == 1
    return stored[0]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All experiments, once."""
    out = tmp_path_factory.mktemp("report")
    return out, experiments.reproduce(experiments.runnable(), scale="tiny", out=out)


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
    assert figures <= set(EXPERIMENTS)
    assert list(EXPERIMENTS)[:2] == ["fig1", "fig2"]


def test_each_experiment_has_a_name_and_a_source_of_its_own():
    assert len(EXPERIMENTS) == len({experiment.title for experiment in EXPERIMENTS.values()})
    assert all((e.source == "the review") == name.startswith("review-") for name, e in EXPERIMENTS.items())
    assert all(EXPERIMENTS[experiment.name] is experiment for experiment in PAPER)


WITHOUT_DATA = [name for name, experiment in EXPERIMENTS.items() if not experiment.data]


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
    assert all(c.verdict == "open" for c in result.claims)  # tiny is too short to judge
    assert result.paper_says
    assert result.title.endswith((".", "?"))
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_has_all_scales_and_ten_seeds_at_paper_scale(name):
    experiment = EXPERIMENTS[name]
    assert set(experiment.scales) | {"reduced"} == set(experiments.SCALES)
    runs = experiment.runs(experiment.at("paper"))
    assert runs
    if name in experiments.TOY and name not in ("fig1", "theory"):  # which show single networks
        settings = {records.key(replace(run, seed=0)) for run in runs}
        assert len(runs) >= 10 * len(settings)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_experiment_asks_for_a_run_twice_which_would_count_it_twice(name):
    experiment = EXPERIMENTS[name]
    for scale in experiment.scales:
        runs = list(experiment.runs(experiment.at(scale)))
        assert len(set(map(records.key, runs))) == len(runs)


def test_the_page_needs_nothing_from_outside(everything):
    out, _ = everything
    page = (out / "index.html").read_text()
    assert set(re.findall(r"(?:src|href)\s*=\s*[\"'](?!#|data:)([^\"']*)", page)) == {"explorer.html"}
    assert (out / "explorer.html").exists()
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


def test_by_default_the_papers_figures_on_the_toy_run_and_by_all_whatever_needs_no_data():
    assert experiments.TOY[:2] == ("fig1", "fig2")
    assert not {"scoreboard", "table1", "review-fig1"} & set(experiments.TOY)
    assert {"scoreboard", "review-fig1", *experiments.TOY} <= set(WITHOUT_DATA) == set(experiments.runnable())
    assert experiments.runnable("data") == list(EXPERIMENTS)


def test_the_page_is_there_after_the_first_figure_and_grows_with_each(tmp_path):
    seen = []
    experiments.reproduce(
        ["fig2", "fig1", "fig3"],
        scale="tiny",
        out=tmp_path,
        done=lambda result: seen.append((result.name, (tmp_path / "index.html").read_text())),
    )
    assert [name for name, _ in seen] == ["fig2", "fig1", "fig3"]
    cards = [re.findall(r'<article class="card" id="(.*?)"', page) for _, page in seen]
    assert cards == [["fig2"], ["fig2", "fig1"], ["fig2", "fig1", "fig3"]]
    assert ["Still to come: " + later in page for (_, page), later in zip(seen, ("fig1, fig3.", "fig3.", ""), strict=True)] == [True, True, False]  # fmt: skip
    assert ["too short for an answer" in page for _, page in seen] == [False, True, True]  # the story needs figure 1


def test_progress_goes_up_to_the_end_over_all_figures(tmp_path):
    seen = []
    experiments.reproduce(["fig2", "fig3", "fig7"], scale="tiny", out=tmp_path, progress=lambda *a: seen.append(a))
    assert list(dict.fromkeys(name for name, _, _ in seen)) == ["fig2", "fig3", "fig7"]
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert len({total for _, _, total in seen}) == 1
    assert seen[-1][1] == seen[-1][2]


def test_a_result_says_how_long_it_took_what_was_run_and_where(everything):
    _, results = everything
    for result in results:
        assert result.seconds > 0
        assert result.settings["scale"] == "tiny"
        assert result.settings["runs"] > 0
        assert {"commit", "cpu", "torch"} <= result.provenance.keys()


def test_a_second_time_nothing_is_trained_and_the_results_are_the_same(everything, tmp_path):
    out, results = everything
    trained = []
    copy = shutil.copytree(out, tmp_path / "copy")
    again = experiments.reproduce(["fig2"], scale="tiny", out=copy, progress=lambda *a: trained.append(a))
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
    until(lambda: list(tmp_path.glob("runs/*/done")), "a figure is done", process)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fig22"], "no experiment is named 'fig22'; did you mean 'fig2'?"),
        (["fig2", "--scale", "huge"], "no scale is named 'huge'; there are tiny, quick, reduced, paper."),
        (["fig2", "--scale", "tiny", "--out", __file__], "choose another"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_exit_code_2(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["samphire", "reproduce", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert said.strip().count("\n") == 0


def test_the_command_prints_a_line_a_figure_and_what_to_do_next(tmp_path):
    command = ["reproduce", "fig1", "fig2", "--scale", "tiny", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["fig1", "○", "3"], ["fig2", "○", "2"]]
    assert re.search(r"0\.\d+ .*\(n=2\) → .* at ρ = 2 .*hard probe error is below SGD's", lines[1])
    assert f"Open it:     xdg-open {tmp_path / 'index.html'}" in result.stdout
    assert result.stdout.count(" reproduce ") == 2
    result = CliRunner().invoke(cli.app, [*command, "-v"])
    assert "verdict" in result.stdout
    assert "fully predictive" in result.stdout
    result = CliRunner().invoke(cli.app, ["reproduce", "fig2", "--scale", "tiny", "--out", str(tmp_path), "--json"])
    assert '"figure": "fig2"' in result.stdout


def test_on_a_terminal_what_is_printed_stands_above_the_bar(tmp_path):
    """A line for the figure, and then every claim of it."""
    command = ["reproduce", "fig2", "--scale", "tiny", "--out"]
    both = [[*command, str(tmp_path / "brief")], [*command, str(tmp_path / "whole"), "-v"]]
    code = f"from samphire.cli import app\nfor words in {both}: app(words, standalone_mode=False); print('END')"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}
    )
    with process:
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while part := os.read(ours, 4096):
                written += part
    os.close(ours)
    assert process.returncode == 0, written
    brief, whole, _ = written.decode().split("END")
    for text, mark in ((brief, "○ 2"), (whole, "Figure 2")):
        lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line.rpartition("\r")[2]) for line in text.split("\r\n")]
        assert any("━" in line and "left:" in line for line in lines)  # the bar
        printed = [line for line in lines if mark in line]
        assert printed
        assert all(line.startswith("fig2") and "left:" not in line for line in printed)


def test_a_sweep_without_runs_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(fig2.FIG2.scales, "tiny", fig2.Config(rhos=()))
    with pytest.raises(ValueError, match=r"fig2 has no runs to train with Config\(.*rhos=\(\)"):
        experiments.reproduce(["fig2"], scale="tiny", out=tmp_path)


# Rows in one file


def test_results_are_rendered_again_from_the_file_of_rows_alone(everything, tmp_path, monkeypatch):
    out, results = everything
    monkeypatch.setattr("samphire.train.fit_many", None)
    again = experiments.render(out / "rows.jsonl", tmp_path)
    assert [result.name for result in again] == [result.name for result in results]
    assert all(a.tables == b.tables and a.claims == b.claims for a, b in zip(again, results, strict=True))
    assert (tmp_path / "claims.json").read_bytes() == (out / "claims.json").read_bytes()
    assert all((tmp_path / f"{name}.png").exists() for name in WITHOUT_DATA)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        p.name for p in out.iterdir() if p.name not in ("runs", "trainings", "provenance.json", "rows.jsonl")
    )


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b"", "is no rows.jsonl of samphire reproduce: it is empty"),
        ("rows.jsonl", b'{"experiment": "fig2", "scale": "tiny"}\n', "its line 1 has no experiment, scale and row"),
        ("rows.jsonl", b"[" * 100_000, "its line 1 has no experiment, scale and row"),
        ("rows.jsonl.xz", b"no archive", "cannot be unpacked"),
    ],
)
def test_rows_that_are_none_are_refused_in_a_sentence(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        experiments.render(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_renders_packed_rows(everything, tmp_path):
    packed, chosen = tmp_path / "rows.jsonl.xz", {"fig2", "theory", "review-rates"}
    lines = (everything[0] / "rows.jsonl").read_bytes().splitlines(keepends=True)
    packed.write_bytes(lzma.compress(b"".join(line for line in lines if json.loads(line)["experiment"] in chosen)))
    printed = CliRunner().invoke(cli.app, ["reproduce", "--rows", str(packed), "--out", str(tmp_path), "--json"])
    assert printed.exit_code == 0
    assert [json.loads(line)["figure"] for line in printed.stdout.splitlines()] == [
        row["figure"] for row in json.loads((everything[0] / "claims.json").read_text()) if row["figure"] in chosen
    ]
    assert (tmp_path / "fig2.png").exists()


def test_the_file_has_each_row_with_its_experiment_and_scale(everything):
    out, _ = everything
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert {line["scale"] for line in lines} == {"tiny"}
    rows = [line["row"] for line in lines if line["experiment"] == "fig7"]
    assert sorted(rows, key=lambda row: row["key"]) == sorted(rows_of(out, "fig7").rows, key=lambda row: row["key"])
    runs = EXPERIMENTS["fig7"].runs(EXPERIMENTS["fig7"].at("tiny"))
    assert [row["key"] for row in rows] == list(dict.fromkeys(map(records.key, runs)))


def test_only_the_tiny_scale_leaves_every_claim_open(everything):
    out, _ = everything
    lines = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    rows = [line["row"] for line in lines if line["experiment"] == "theory"]
    assert {claim.verdict for claim in EXPERIMENTS["theory"].result(rows, "tiny").claims} == {"open"}
    assert "holds" in {claim.verdict for claim in EXPERIMENTS["theory"].result(rows, "quick").claims}


# The record


def row(run):
    return {"value": run}


def test_equal_arguments_make_equal_computations():
    assert train_each(row) == train_each(row, checkpoints=())
    assert train_each(row) != train_each(row, keep_weights=True)
    assert train_each(row) != one_by_one(row) == one_by_one(row)
    assert hash(train_each(row, (1, 2))) == hash(train_each(row, (1, 2)))
    shared = [e.name for e in PAPER if e.compute == EXPERIMENTS["fig2"].compute]
    assert shared == ["fig2", "fig3", "fig7", "fig10", "fig11"]


def test_runs_one_by_one_with_their_steps():
    calls = []
    compute = one_by_one(row, steps=lambda run: run)
    rows = list(compute([3, 1], None, lambda *progress: calls.append(progress)))
    assert rows == [(3, {"value": 3}), (1, {"value": 1})]
    assert calls == [("runs", 3, 4), ("runs", 4, 4)]
