"""The wheel holds what a user needs and works in an empty folder; citation and forms for issues can be read."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import samphire
from waiting import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_types_templates_and_the_explorer_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    own = {name for name in names if ".dist-info/" not in name}
    assert own == source | {"samphire/report/explorer.html"}
    assert {"samphire/py.typed", "samphire/report/templates/page.html", "samphire/report/templates/page.css"} < own


def test_the_wheel_works_in_an_empty_folder(wheel, tmp_path):
    place, empty = tmp_path / "site", tmp_path / "empty"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*install, str(wheel)], check=True, timeout=PATIENCE)
    empty.mkdir()
    code = f"import samphire; assert samphire.__file__.startswith({str(place)!r}); samphire.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", f"import samphire.cli; {code}", "reproduce", "fig2", "--scale", "tiny"],
        cwd=empty,
        env=os.environ | {"PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "fig2" in done.stdout
    written = {path.name for path in (empty / "report").iterdir()}
    assert {"index.html", "explorer.html", "fig2.png", "claims.json", "rows.jsonl"} < written
    assert (empty / "report" / "explorer.html").read_bytes() == (ROOT / "docs/explorer/index.html").read_bytes()


def test_the_citation_has_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == samphire.__version__
    assert citation["cff-version"] == "1.2.0"
    assert [author["family-names"] for author in citation["references"][0]["authors"]] == [
        "Springer",
        "Nagarajan",
        "Raghunathan",
    ]


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.stem)
def test_each_form_for_issues_has_a_name_a_description_and_fields_of_its_own(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    fields = [field["id"] for field in form["body"]]
    assert len(set(fields)) == len(fields) > 1
    assert {field["type"] for field in form["body"]} <= {"input", "textarea"}
