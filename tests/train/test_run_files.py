"""A file of a run that is no ordinary file: refused in a sentence or passed over, never waited for or read without end."""

import shutil
import sys

import pytest

import fuzz

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no pipes")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished and an unfinished run."""
    places = {}
    for kind in ("finished run", "unfinished run"):
        places[kind] = tmp_path_factory.mktemp("run") / kind
        places[kind].mkdir()
        fuzz.KINDS[kind][0](places[kind])
    return places


@pytest.mark.parametrize("kind", ["finished run", "unfinished run"])
@pytest.mark.parametrize("damage", [fuzz.pipe, fuzz.endless, fuzz.folder])
def test_every_file_of_a_run_must_be_an_ordinary_one(runs, kind, damage, tmp_path):
    faults = {}
    files = [path.relative_to(runs[kind]) for path in sorted((runs[kind] / "runs").rglob("*")) if path.is_file()]
    assert {"config.json", "examples.json", "rows.jsonl", ".lock"} <= {path.name for path in files}
    for path in files:
        shutil.copytree(runs[kind], tmp_path / "run")
        damage(None, tmp_path / "run" / path)
        faults[path.name] = fuzz.failure(lambda: fuzz.KINDS[kind][1](tmp_path / "run"))
        shutil.rmtree(tmp_path / "run")
    assert not {name: fault for name, fault in faults.items() if fault}
