"""Keys and seeds against hashes written out by hand; folders against kills, tears, rivals and damage."""

import ast
import enum
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from samphire import records
from samphire.optim.rules import asam, lsam, sam
from samphire.records import files, origin
from waiting import PATIENCE


class Noise(enum.Enum):
    INSIDE = 1


@dataclass(frozen=True)
class Config:
    rho: float = 0.1
    seeds: int = 3
    name: str = "toy"
    root: Path | None = None


@dataclass(frozen=True)
class Other:
    rho: float = 0.1
    seeds: int = 3
    name: str = "toy"


@dataclass(frozen=True)
class Anything:
    value: object = None


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


# Keys


def test_key_is_the_hash_of_the_fields_in_sorted_json():
    pair = make_dataclass("Pair", ["b", "a"], frozen=True)
    text = f'{{"__type__":"{pair.__module__}.Pair","a":[1,0.5,null,true],"b":"\\u00e9"}}'
    assert records.key(pair(b="é", a=(1.0, 0.5, None, True))) == digest(text)[:16]


def test_key_does_not_depend_on_field_order_or_paths():
    one = make_dataclass("C", ["a", "b"], frozen=True)
    two = make_dataclass("C", ["b", "a"], frozen=True)
    assert records.key(one(a=1, b=2)) == records.key(two(a=1, b=2))
    keys = {records.key(Config(root=root)) for root in (None, Path("a"), Path("b"))}
    assert len(keys) == 1
    assert records.key(Anything((1, {"a": 2}))) == records.key(Anything([1.0, {"a": np.float64(2)}]))


FOLDER = Path(records.__file__).parent

ALONE = f"""
import sys, time, types
from dataclasses import dataclass
package = sys.modules["samphire"] = types.ModuleType("samphire")  # without its public names, hence without torch
package.__path__ = [{str(FOLDER.parent)!r}]
from samphire import records
assert "torch" not in sys.modules

@dataclass(frozen=True)
class Config:
    tags: frozenset = frozenset("abcdef")
"""

HASHER = ALONE + 'print(records.key(Config()), records.seed(Config(), "init"))'


def test_a_field_added_later_counts_only_away_from_its_default():
    young = make_dataclass("Same", ["rho", ("base", str, records.added("sgd"))], frozen=True)
    old = make_dataclass("Same", ["rho"], frozen=True)
    assert records.key(young(0.1)) == records.key(old(0.1))
    assert len({records.key(young(0.1, base)) for base in ("sgd", "adam", "muon")}) == 3


@pytest.mark.slow
def test_key_and_seed_are_the_same_in_every_process():
    said = set()
    for hash_seed in ("1", "2", "3"):
        command = [sys.executable, "-c", HASHER]
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=env, text=True, capture_output=True, check=True, timeout=PATIENCE)
        said.add(done.stdout)
    assert len(said) == 1


VALUES = [
    *(None, True, False, 0, 1, 2.5, math.nan, math.inf, -math.inf, "", "1"),
    *((), (1,), (1, 2), (2, 1), ((1,), 2), {"a": 1}, {"b": 1}, frozenset({3})),
    *(Noise.INSIDE, math.sin, math.cos, Config(), Other()),
    *(sam(0.1), sam(0.2), asam(0.1), lsam(0.1), lsam(0.1, head="fc")),
]


def test_different_values_have_different_keys():
    keys = {records.key(Anything(v)) for v in VALUES}
    assert len(keys) == len(VALUES)


@dataclass
class Thawed:
    rho: float = 0.1


@pytest.mark.parametrize("config", [{"rho": 1}, Config, Thawed(), 3])
def test_only_frozen_dataclasses_are_configurations(config):
    with pytest.raises(TypeError, match="must be an instance of a frozen dataclass, got"):
        records.key(config)


@pytest.mark.parametrize("value", [object(), lambda: 0, b"bytes", {1: 2}, torch.ones(2), 1j])
def test_values_without_a_stable_form_are_refused(value):
    with pytest.raises(TypeError, match=r"Anything\.value\[1\] cannot be part of a configuration's key"):
        records.key(Anything((0, value)))


def test_seeds_differ_by_purpose_and_source():
    assert records.seed(7, "init") == int(digest("7:init")[:16], 16) >> 1
    sources = [0, 1, -1, Config(), Config(rho=0.2)]
    seeds = {records.seed(source, purpose) for source in sources for purpose in ("init", "data")}
    assert len(seeds) == 10
    assert all(0 <= s < 2**63 for s in seeds)
    torch.Generator().manual_seed(max(seeds))


@pytest.mark.parametrize("source", [True, 0.5, "0"])
def test_a_seed_needs_an_integer_or_a_configuration(source):
    with pytest.raises(TypeError, match=f"from an integer or a frozen dataclass, got {source!r}"):
        records.seed(source, "init")


# Rows


def test_rows_survive_the_round_trip(tmp_path):
    rows = [
        {
            "a": np.float32(0.5),
            "b": torch.tensor(2),
            "c": "é\n",
            "d": None,
            "e": [1, (2.0, np.int64(3))],
            "f": {"g": True},
        },
        {"nan": math.nan, "inf": -math.inf, "third": 1 / 3, "tensor": torch.tensor(math.inf)},
    ]
    with records.open_run(tmp_path, Config()) as run:
        for row in rows:
            run.append(row)
    (stored,) = records.read(tmp_path)
    first, second = stored.rows
    assert first == {"a": 0.5, "b": 2, "c": "é\n", "d": None, "e": [1, [2.0, 3]], "f": {"g": True}}
    assert math.isnan(second.pop("nan"))
    assert second == {"inf": -math.inf, "third": 1 / 3, "tensor": math.inf}
    assert stored.done
    assert stored.key == records.key(Config())
    assert stored.config["name"] == "toy"
    assert "root" not in stored.config


def test_arrays_are_no_row_entries(tmp_path):
    with pytest.raises(TypeError, match=r"entry 'w' must be a number.* got Tensor; for an array, pass array\.tolist"):  # noqa: SIM117
        with records.open_run(tmp_path, Config()) as run:
            run.append({"w": torch.ones(2)})


def interrupted(out, rows):
    with records.open_run(out, Config()) as run:
        for row in rows:
            run.append(row)
        raise KeyboardInterrupt


def test_a_run_is_done_only_after_a_clean_exit(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, [{"i": 0}])
    (stored,) = records.read(tmp_path)
    assert not stored.done
    with records.open_run(tmp_path, Config()) as run:
        assert not run.done
        assert run.rows == [{"i": 0}]
        run.append({"i": 1})
    (stored,) = records.read(tmp_path)
    assert stored.done
    assert [row["i"] for row in stored.rows] == [0, 1]
    assert [s["rows"] for s in stored.sessions] == [1, 1]
    assert stored.seconds == sum(s["seconds"] for s in stored.sessions) > 0
    assert json.loads((stored.folder / "done").read_text()) == {"rows": 2, "seconds": stored.seconds}


def test_a_done_run_takes_no_rows_and_no_session(tmp_path):
    with records.open_run(tmp_path, Config()):
        pass
    with pytest.raises(RuntimeError, match="is done and takes no more rows; delete the folder"):  # noqa: SIM117
        with records.open_run(tmp_path, Config()) as run:
            run.append({"i": 0})
    (stored,) = records.read(tmp_path)
    assert stored.rows == ()
    assert len(stored.sessions) == 1


def unfinished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path, [{"i": 0}, {"i": 1}])
    return tmp_path / records.key(Config())


def test_only_a_torn_last_line_is_dropped_and_said_so(tmp_path, logged):
    folder = unfinished(tmp_path)
    whole = (folder / "rows.jsonl").read_bytes()
    for cut in range(1, len(b'{"i": 2}')):
        (folder / "rows.jsonl").write_bytes(whole + b'{"i": 2}'[:cut])
        assert [row["i"] for row in records.read(tmp_path)[0].rows] == [0, 1]
        logged.clear()
        with pytest.raises(KeyboardInterrupt):
            interrupted(tmp_path, [{"i": 2}])
        assert any("dropped its last line, torn by a kill" in message for message in logged)
        assert (folder / "rows.jsonl").read_bytes() == whole + b'{"i": 2}\n'


def test_a_whole_last_row_without_its_newline_is_kept(tmp_path, logged):
    folder = unfinished(tmp_path)
    with (folder / "rows.jsonl").open("ab") as file:
        file.write(b'{"i": 2}')
    assert len(records.read(tmp_path)[0].rows) == 3
    with records.open_run(tmp_path, Config()) as run:
        run.append({"i": 3})
    assert [row["i"] for row in records.read(tmp_path)[0].rows] == [0, 1, 2, 3]
    assert not logged


def test_a_torn_session_is_dropped(tmp_path):
    folder = unfinished(tmp_path)
    with (folder / "sessions.jsonl").open("ab") as file:
        file.write(b'{"seco')
    with records.open_run(tmp_path, Config()):
        pass
    assert len(records.read(tmp_path)[0].sessions) == 2


def test_a_folder_killed_before_its_configuration_was_written_is_taken(tmp_path):
    folder = tmp_path / records.key(Config())
    folder.mkdir()
    (folder / ".part-0123").write_text("{")
    with records.open_run(tmp_path, Config()) as run:
        run.append({"i": 0})
    assert sorted(p.name for p in folder.iterdir()) == [
        ".lock",
        "config.json",
        "done",
        "rows.jsonl",
        "sessions.jsonl",
    ]


WRITER = (
    ALONE
    + """
with records.open_run(sys.argv[1], Config()) as run:
    for i in range(len(run.rows), 100_000):
        run.append({"i": i, "text": "x" * 500})
        time.sleep(1e-4)
        if i % 50 == 49:
            print(i, flush=True)
"""
)


def writer(out):
    command = [sys.executable, "-c", WRITER, str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_writers_lose_nothing_and_rivals_are_refused(tmp_path):
    for _ in range(3):
        with writer(tmp_path) as process:
            try:
                written = int(process.stdout.readline())
                with writer(tmp_path) as rival:
                    error = rival.stderr.read()
            finally:
                process.kill()
        assert rival.returncode == 1
        assert "is being written by another process; wait for it, then resume" in error
        (stored,) = records.read(tmp_path)
        assert len(stored.rows) > written
        assert [row["i"] for row in stored.rows] == list(range(len(stored.rows)))
        assert not stored.done


def test_a_full_disk_tears_no_line(tmp_path, monkeypatch):
    write = os.write
    with records.open_run(tmp_path, Config()) as run:
        run.append({"i": 0})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda file, data: write(file, data[:4]))
            with pytest.raises(OSError, match="the disk is full; free space and resume"):
                run.append({"i": 1})
    assert (tmp_path / records.key(Config()) / "rows.jsonl").read_text() == '{"i": 0}\n'


# Refusals


def test_another_configurations_folder_is_refused(tmp_path):
    folder = unfinished(tmp_path)
    folder.rename(tmp_path / records.key(Config(rho=0.2)))
    with (
        pytest.raises(
            ValueError, match=r"holds another configuration: rho is 0\.1 there and 0\.2 here; choose another"
        ),
        records.open_run(tmp_path, Config(rho=0.2)),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b'{"i": 0}\n{"i"\n{"i": 2}\n', r"damaged: line 2 is no row \('\{\"i\"'\); delete that line"),
        ("rows.jsonl", b"[1]\n", "line 1 is no row"),
        ("config.json", b"{", r"config\.json is damaged: it holds no configuration; move"),
        ("config.json", b"[1]", r"config\.json is damaged: it holds no configuration; move"),
    ],
)
def test_damage_is_named_and_left_alone(tmp_path, name, content, message):
    path = unfinished(tmp_path) / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message), records.open_run(tmp_path, Config()):
        pass
    with pytest.raises(ValueError, match=message):
        records.read(tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["rows.jsonl", "config.json", "sessions.jsonl"])
def test_what_nests_too_deeply_to_be_read_is_damaged(tmp_path, name):
    path = unfinished(tmp_path) / name
    path.write_bytes(b"[" * 100_000 + b"\n" + b"{}\n")
    with pytest.raises(ValueError, match="damaged"):
        records.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", b'{"i": 0}\n', "it ended with 2 rows and has 1"),
        ("rows.jsonl", b"", "it ended with 2 rows and has 0"),
        ("done", b"", "it ended with an unknown number of rows and has 2"),
    ],
)
def test_a_complete_run_has_the_rows_it_ended_with(tmp_path, name, content, said):
    with records.open_run(tmp_path, Config()) as run:
        run.append({"i": 0})
        run.append({"i": 1})
    (run.folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{said}; restore"):
        records.read(tmp_path)
    with pytest.raises(ValueError, match=rf"{said}; restore"), records.open_run(tmp_path, Config()):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("name", ["rows.jsonl", "sessions.jsonl"])
def test_a_run_does_not_write_through_a_link(tmp_path, name):
    other = tmp_path / "theirs.txt"
    other.write_bytes(b'{"seconds": 1}\nno newline')
    folder = unfinished(tmp_path / "runs")
    (folder / name).unlink()
    (folder / name).symlink_to(other)
    with pytest.raises(ValueError, match=rf"{name} is a link"), records.open_run(tmp_path / "runs", Config()):
        pass
    assert other.read_bytes() == b'{"seconds": 1}\nno newline'


def test_a_file_that_holds_no_rows_keeps_its_torn_end(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"no row\nno newline")
    with pytest.raises(ValueError, match="line 1 is no row"):
        files.recovered_rows(tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_bytes() == b"no row\nno newline"


def test_rows_without_configuration_are_refused(tmp_path):
    (unfinished(tmp_path) / "config.json").unlink()
    with (
        pytest.raises(ValueError, match=r"has rows but no config\.json .* move it elsewhere"),
        records.open_run(tmp_path, Config()),
    ):
        pass


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with (
        pytest.raises(OSError, match=r"cannot write to run folder .*: Not a directory; choose another output folder"),
        records.open_run(tmp_path / "out", Config()),
    ):
        pass


def test_a_forbidden_output_folder_is_refused(tmp_path, monkeypatch):
    def forbidden(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(PermissionError, match=r"cannot write to run folder .*: Permission denied; choose"):  # noqa: SIM117
        with records.open_run(tmp_path, Config()):
            pass


def test_reading_where_nothing_is(tmp_path):
    assert records.read(tmp_path) == []
    with pytest.raises(FileNotFoundError, match=r"no folder of runs at .*; check the path"):
        records.read(tmp_path / "absent")


# Files


def test_a_failed_atomic_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    records.write_atomic(path, b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        records.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_where_nothing_can_be_written_or_removed_the_sentence_is_the_same(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"cannot write .*a: Not a directory; free space or choose another"):
        records.write_atomic(tmp_path / "file" / "a", b"")


def test_files_have_the_permissions_of_the_users_choice(tmp_path):
    records.write_atomic(tmp_path / "a", b"")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


# While others write


def test_a_run_can_be_looked_at_before_while_and_after_it_is_written(tmp_path):
    folder = tmp_path / records.key(Config())
    looks = lambda: (
        records.is_done(folder),
        records.is_locked(folder),
        records.count_rows(folder),
        records.last_row(folder),
    )
    assert looks() == (False, False, 0, None)
    with records.open_run(tmp_path, Config()) as run:
        assert looks() == (False, True, 0, None)
        run.append({"i": 0})
        run.append({"i": 1})
        os.write(run._file, b'{"i": 2')  # half a row
        assert looks() == (False, True, 2, {"i": 1})
        os.write(run._file, b"}")
        assert looks() == (False, True, 3, {"i": 2})
        os.write(run._file, b"\n")
    assert looks() == (True, False, 3, {"i": 2})


def test_cells_are_plain():
    assert records.plain_cell((np.float32(0.5), {1: torch.tensor(2)}, None)) == [0.5, {"1": 2}, None]
    with pytest.raises(TypeError, match="row entry 'x' must be a number, text, list or mapping, got ndarray"):
        records.plain_cell(np.zeros(2), "x")


def test_generators_are_seeded_by_purpose():
    one, two = records.generator(3, "init"), records.generator(3, "order")
    assert (one.initial_seed(), two.initial_seed()) == (records.seed(3, "init"), records.seed(3, "order"))


# Provenance


def test_provenance_names_versions_machine_and_time():
    where = records.provenance()
    assert where["torch"] == torch.__version__.partition("+")[0] or where["torch"] == torch.__version__
    assert where["numpy"] == np.__version__
    assert where["threads"] == torch.get_num_threads()
    assert where["cores"] >= 1
    assert where["time"].endswith("+00:00")
    json.dumps(where)


def test_commit_is_that_of_this_repository():
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    origin._commit.cache_clear()
    assert origin._commit() in (None, head, head + "+")


def test_provenance_without_git(monkeypatch):
    def absent(*args, **kwargs):
        raise FileNotFoundError("git")

    origin._commit.cache_clear()
    monkeypatch.setattr(subprocess, "run", absent)
    assert records.provenance()["commit"] is None
    origin._commit.cache_clear()


def test_records_import_the_standard_library_only():
    names = []
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names += [n.name for node in tree.body if isinstance(node, ast.Import) for n in node.names]
        names += [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert len(names) > 20
    ours = {"samphire.checks", "samphire.pool", *(f"samphire.records.{path.stem}" for path in FOLDER.glob("*.py"))}
    assert {name if name in ours else name.partition(".")[0] for name in names} <= sys.stdlib_module_names | ours
