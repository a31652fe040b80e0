"""Each command reaches its function; bad input ends with one sentence and exit code 2."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from samphire import cli, optim

runner = CliRunner()


def test_rules_are_listed_with_their_cost():
    result = runner.invoke(cli.app, ["rules", "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["name"] for row in rows] == list(optim.RULES)
    cost = {row["name"]: row["passes"] for row in rows}
    assert cost["sam"] == 2
    assert cost["looksam"] == 1.2
    assert cost["msam"] == 1
    assert cost["gam"] == 4
    assert "rho=0.05" in rows[0]["settings"]
    assert all(row["summary"] for row in rows)
    table = runner.invoke(cli.app, ["rules"]).stdout
    assert all(name in table for name in optim.RULES)


@pytest.mark.parametrize("command", [c.name or c.callback.__name__ for c in cli.app.registered_commands])
def test_help_has_an_example(command):
    result = runner.invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.stdout


def test_unknown_command_exits_with_2():
    done = subprocess.run(
        [sys.executable, "-c", "from samphire.cli import main; main()", "ruls"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "ruls" in done.stderr
