"""``samphire rules``: the list, JSON, and the page."""

import json
from pathlib import Path

from typer.testing import CliRunner

from samphire import cli, optim
from samphire.experiments import rules_gallery
from samphire.optim import describe

DOCS = Path(__file__).parents[2] / "docs"
runner = CliRunner()


def test_the_command_writes_page_and_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(rules_gallery, "STEPS", 2)
    result = runner.invoke(cli.app, ["rules", "--page", str(tmp_path / "new")])
    assert result.exit_code == 0
    assert (tmp_path / "new" / "rules.md").read_text() == (DOCS / rules_gallery.PAGE).read_text()
    assert (tmp_path / "new" / "rules.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_and_json_have_the_same_rules():
    described = {name: describe.describe(name) for name in optim.RULES}
    rows = [json.loads(line) for line in runner.invoke(cli.app, ["rules", "--json"]).stdout.splitlines()]
    assert [row["name"] for row in rows] == list(optim.RULES)
    assert {row["name"]: row["memory"] for row in rows} == {name: d.memory for name, d in described.items()}
    assert rows[0] | {"settings": ""} == {
        "name": "sam",
        "paper": "Foret et al. 2021",
        "passes": 2.0,
        "memory": 0.0,
        "perturbs": "all parameters",
        "summary": "Sharpness-aware minimization: descend along the gradient one step uphill.",
        "settings": "",
    }


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
