"""The command trains, selects, resumes and reports."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from samphire import records
from samphire.cli.sweep import sweep as command
from samphire.sweep.plans import plan

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command)


def call(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def test_the_command_trains_selects_and_resumes(tree, tmp_path):
    out = tmp_path / "runs"
    args = ["fmnist-mnist", "epochs=1", "examples=100", "resamples=1", "lr=0.05", "rho=0,0.1", "--rules", "sam", "--root", tree, "--out", out]  # fmt: skip
    table = call(*args, "--table")
    assert isinstance(table.exception, FileNotFoundError)
    out.mkdir()
    assert "0 of 1 (1 missing)" in " ".join(call(*args, "--table").stdout.split())

    first = call(*args, "--json")
    assert first.exit_code == 0, first.output
    rows = [json.loads(line) for line in first.stdout.splitlines() if line.startswith("{")]
    assert [(row["chosen by"], row["side"]) for row in rows][:2] == [("val_error", "sgd"), ("val_error", "sam")]
    assert all(row["runs"] == "1 of 1" and row["settings"] == 1 for row in rows)
    assert rows[0]["test error"].keys() == {"mean", "std", "n"}
    assert rows[0]["test error"]["std"] is None
    assert first.stderr.count("done: ") == 2
    assert "done: sam, rho=0.1, lr=0.05, seed=0: val_error 0." in first.stderr

    again = call(*args, "--json", "--on", "processes", "--workers", "1")
    assert again.stdout == first.stdout
    assert "done: " not in again.stderr
    assert all(len(run.sessions) == 1 for run in records.read(out))
    assert call(*args, "--json", "--table").stdout == first.stdout


def test_the_command_trains_in_processes(tree, tmp_path):
    words = ["fmnist-mnist", "epochs=1", "examples=100", "resamples=0", "lr=0.05", "rho=0,0.1", "--rules", "sam"]
    assert call(*words, "--on", "processes", "--workers", "1", "--root", tree, "--out", tmp_path).exit_code == 0
    assert [session["threads"] for run in records.read(tmp_path) for session in run.sessions] == [1, 1]


def test_the_command_reports_what_failed(tree, tmp_path):
    (job,) = plan("fmnist-mnist", ["epochs=1", "lr=0.05", "rho=0"], ["sam"], [0])
    (tmp_path / records.key(job)).touch()  # no folder can be made here
    result = call("fmnist-mnist", "epochs=1", "lr=0.05", "rho=0", "--root", tree, "--out", tmp_path)
    assert result.exit_code == 1
    assert "sgd, lr=0.05, seed=0 failed" in result.stderr
    assert "Traceback" in result.stderr
    assert f"{records.key(job)}.txt" in result.stderr
    assert "0 of 1 (1 failed)" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["cifar-mnst"], "no data set is named 'cifar-mnst'; did you mean 'cifar-mnist'"),
        (["cifar-mnist", "rule=sam"], "a sweep has several rules, got 'rule=sam'; write --rules sam"),
        (["cifar-mnist", "seed=1"], "a sweep has several seeds, got 'seed=1'; write --seeds 1"),
        (["cifar-mnist", "lr=a"], "lr must be numbers with commas between, got 'a'"),
        (["cifar-mnist", "--seeds", "0,x"], "seeds must be whole numbers with commas between, got 'x'"),
        (["cifar-mnist", "epochs"], "settings are written key=value, got 'epochs'"),
        (["cifar-mnist", "epoch=3"], "no setting is named 'epoch'; did you mean 'epochs'"),
        (["cifar-mnist", "--by", "test"], "no criterion is named 'test'"),
        (["cifar-mnist", "target=photo"], "target must be a domain for sets with domains only"),
        (["cifar-mnist", "--root", "nowhere"], "nowhere"),
    ],
)
def test_bad_words_are_a_sentence(args, message):
    error = call(*args, "--out", "nothing-is-written-here").exception
    assert isinstance(error, ValueError | OSError)
    assert message in str(error)
    assert not Path("nothing-is-written-here").exists()
