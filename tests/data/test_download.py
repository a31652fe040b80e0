"""One file from a real server on this machine: resumed, whole or not at all."""

import numpy as np
import pytest

from samphire.data import download as module
from samphire.data.download import download

DATA = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()


def test_download_reports_progress(server, tmp_path):
    server.files["a"] = DATA
    seen = []
    download(f"{server.url}/a", tmp_path / "a", lambda *now: seen.append(now))
    assert (tmp_path / "a").read_bytes() == DATA
    assert seen[-1] == ("a", 5000, 5000)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_cut_connection_goes_on_where_it_stopped(server, tmp_path):
    server.files["a"], server.most = DATA, 2000
    download(f"{server.url}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert server.requests == [("a", None), ("a", "bytes=2000-"), ("a", "bytes=4000-")]


def test_what_has_arrived_is_kept_for_the_next_call(server, tmp_path):
    server.files["a"], server.most = DATA, 1000
    with pytest.raises(OSError, match="was cut off 3 times; the part that arrived is kept"):
        download(f"{server.url}/a", tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a.part"]
    assert (tmp_path / "a.part").read_bytes() == DATA[:3000]
    server.requests.clear()
    server.most = None
    download(f"{server.url}/a", tmp_path / "a")
    assert server.requests == [("a", "bytes=3000-")]
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.files["a"], server.ranges = DATA, False
    (tmp_path / "a.part").write_bytes(DATA[:3000])
    download(f"{server.url}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_part_longer_than_the_file_is_dropped(server, tmp_path):
    server.files["a"] = DATA
    (tmp_path / "a.part").write_bytes(bytes(6000))
    download(f"{server.url}/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA


def test_what_cannot_be_had_is_said(server, tmp_path, monkeypatch):
    with pytest.raises(OSError, match=r"/a answers 404 Not Found"):
        download(f"{server.url}/a", tmp_path / "a")
    with pytest.raises(OSError, match=r"cannot be read \(.*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a")
    monkeypatch.setattr(module, "MOST_BYTES", 4999)
    server.files["a"] = DATA
    with pytest.raises(ValueError, match="has 5000 bytes, more than the 4999 allowed"):
        download(f"{server.url}/a", tmp_path / "a")
