"""Each command reaches its function; bad input ends with one sentence and exit code 2."""

import sys

import pytest
from typer.testing import CliRunner

import samphire
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


def end_of(monkeypatch, error, *words):
    """The exit code of a command that raises an error."""

    def rules():
        raise error

    command = next(c for c in cli.app.registered_commands if c.callback is cli.rules.rules)
    monkeypatch.setattr(command, "callback", rules)
    monkeypatch.setattr(sys, "argv", ["samphire", *words, "rules"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_a_fault_of_ours_is_one_sentence_and_the_place_of_its_trace(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cli.tempfile, "tempdir", str(tmp_path))
    assert end_of(monkeypatch, KeyError("v")) == 1
    printed = capsys.readouterr().err
    (trace,) = tmp_path.iterdir()
    assert printed.startswith("samphire: KeyError: 'v'\nThis should not happen; please report it with ")
    assert str(trace) in printed
    assert "Traceback" in trace.read_text()
    assert "Traceback" not in printed


def test_a_value_error_of_another_library_is_a_fault_too(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cli.tempfile, "tempdir", str(tmp_path))
    assert end_of(monkeypatch, ValueError("zip() argument 2 is shorter")) == 1  # raised in this file, not in ours


def test_a_sentence_is_meant_only_where_a_statement_of_ours_raised_it():
    with pytest.raises(ValueError, match="rho must be") as refused:
        samphire.sam(rho=-1.0)
    assert cli.is_meant(refused.value)
    with pytest.raises(ValueError, match="invalid literal") as slipped:  # in a line of ours that is no raise
        exec(compile("int('a')", samphire.__file__, "exec"))
    assert not cli.is_meant(slipped.value)


def test_debug_shows_the_trace(monkeypatch):
    with pytest.raises(KeyError):
        end_of(monkeypatch, KeyError("v"), "--debug")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "cannot write a: No space left on device; free space."), "cannot write a: No space left on"),
        (PermissionError(13, "Permission denied", "runs/a"), "runs/a: Permission denied."),
    ],
)
def test_errors_of_files_are_one_sentence_without_a_number(monkeypatch, capsys, error, sentence):
    assert end_of(monkeypatch, error) == 2
    assert capsys.readouterr().err.startswith(f"samphire: {sentence}")
