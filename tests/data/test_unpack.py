"""Archives: only the wanted files are written, and damage is named."""

import gzip
import tarfile

import numpy as np
import pytest

from downloads import archive
from samphire.data import unpack as module
from samphire.data.unpack import unpack_tar


def link(name, kind, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_only_what_is_wanted_is_written_and_only_there(tmp_path):
    members = {
        "../evil": b"1",
        "/evil-absolute": b"2",
        "a/../../evil": b"3",
        "package/a": b"right",
        "package/b": b"4",
    }
    archive(members, tmp_path / "x.tgz")
    (tmp_path / "out").mkdir()
    unpack_tar(tmp_path / "x.tgz", {"package/a": "a"}, tmp_path / "out")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == ["out", "out/a", "x.tgz"]
    assert (tmp_path / "out/a").read_bytes() == b"right"


ARCHIVE_FAULTS = {
    "symbolic link": ({"a": link("a", tarfile.SYMTYPE, "/etc/passwd")}, "its a is not a file but a link"),
    "hard link": ({"b": b"1", "a": link("a", tarfile.LNKTYPE, "b")}, "its a is not a file but a link"),
    "device": ({"a": link("a", tarfile.CHRTYPE, "")}, "its a is not a file but a link"),
    "twice": ({"a": b"1", "./a": b"2"}, "x.tgz cannot be unpacked.*exists"),
    "lacking": ({"b": b"1"}, "x.tgz lacks a"),
    "too large": ({"b": bytes(2001)}, "unpacks to more than the 2000 bytes allowed"),
}


@pytest.mark.parametrize(("members", "message"), ARCHIVE_FAULTS.values(), ids=ARCHIVE_FAULTS)
def test_archive_faults(tmp_path, monkeypatch, members, message):
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    archive(members, tmp_path / "x.tgz")
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=message):
        unpack_tar(tmp_path / "x.tgz", {"a": "a"}, tmp_path / "out")


def test_damaged_archives_are_named(tmp_path):
    whole = archive({"a": np.random.default_rng(0).bytes(5000)}, tmp_path / "x.tgz")
    for data in (whole[:-500], whole[:99] + bytes(50) + whole[149:], b"no archive", b""):
        (tmp_path / "x.tgz").write_bytes(data)
        with pytest.raises(ValueError, match=r"x.tgz cannot be unpacked"):
            unpack_tar(tmp_path / "x.tgz", {"a": "b"}, tmp_path)
        (tmp_path / "b").unlink(missing_ok=True)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(2001)))
    with pytest.raises(ValueError, match="unpacks to more than the 2000 bytes allowed"):
        module._gunzip(tmp_path / "x.gz", tmp_path / "x")
    assert not (tmp_path / "x").exists()
