"""Each command reaches its function; bad input ends with one sentence and exit code 2."""

import sys

import pytest
from typer.testing import CliRunner

from samphire import cli

runner = CliRunner()


@pytest.mark.parametrize("command", [c.name or c.callback.__name__ for c in cli.app.registered_commands])
def test_help_has_an_example(command):
    result = runner.invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ruls"], "No such command 'ruls'."),
        (["train"], "Missing argument 'data'."),
        (["probe", "run", "--resamples", "0"], "Invalid value for '--resamples'"),
        (["probe", "nowhere"], "there is no run at nowhere"),
        (["train", "cifar-mnst"], "no data set is named 'cifar-mnst'; did you mean 'cifar-mnist'?"),
        (["sweep", "cifar-mnist", "--by", "probes"], "no criterion is named 'probes'; did you mean 'probe'?"),
        (["sweep", "cifar-mnist", "--seeds", "0,a"], "seeds must be whole numbers with commas between, got 'a'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(words, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["samphire", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"samphire: {sentence}")
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_the_exit_code_of_a_command_is_kept(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["samphire", "rules", "--help"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
