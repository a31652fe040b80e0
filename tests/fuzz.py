"""Damaged input of every kind, made from whole input by a seeded mutator.

A trial passes if the library takes the input, or refuses it in one sentence of its own. A trace, a hang, memory
without end and a program started by the input are failures.

    python tests/fuzz.py 2000        # `make fuzz`: the failures, one line each, and their count
"""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch

import layout_trees
import own_trees
import trees
from samphire import cli, data, models, records
from samphire.data import arrays
from samphire.data.files import decode
from samphire.data.parts import load_parts
from samphire.train import appendix_b, fit, load_network
from samphire.train.saved import saved_network

SECONDS = 600  # after which a trial counts as hanging, on a machine with other work too
MEMORY = 4 * 2**30  # bytes that a trial may take
RUN = appendix_b("fmnist-mnist", epochs=2, batch=100, resamples=0)


# Damage


def flip(draw, path):
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 8, 64])):
        if content:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(draw, path):
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content) + 1)])


def repeat(draw, path):
    content = path.read_bytes()
    a, b = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    path.write_bytes(content[:b] + content[a:])


def random_bytes(draw, path):
    path.write_bytes(draw.randbytes(draw.choice([0, 1, 100, 5000])))


def other_number(draw, path):
    """Four bytes of a header, or a number of a text."""
    content = bytearray(path.read_bytes())
    at = draw.randrange(max(1, min(64, len(content) - 4)))
    content[at : at + 4] = draw.choice(
        [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"-1,x", b"0.5 "]
    )
    path.write_bytes(content)


def other_value(draw, path):
    """A value of JSON, or a cell of a table, replaced by something of another type."""
    odd = draw.choice(["null", "[]", "{}", "-1", "1e999", '"x"', "true", "", "0.5", "\x00"])
    pieces = path.read_bytes().decode("utf-8", "surrogateescape")
    for separator in (": ", ",", "\n", " "):
        parts = pieces.split(separator)
        if len(parts) > 1:
            parts[draw.randrange(1, len(parts))] = odd
            pieces = separator.join(parts)
            break
    path.write_bytes(pieces.encode("utf-8", "surrogateescape"))


def folder(draw, path):
    path.unlink()
    path.mkdir()


def missing(draw, path):
    path.unlink()


def pipe(draw, path):
    path.unlink()
    os.mkfifo(path)


def endless(draw, path):
    path.unlink()
    path.symlink_to("/dev/zero")


def postscript(draw, path):
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(started) print\nshowpage\n")


DAMAGES = [flip, flip, flip, truncate, truncate, repeat, random_bytes, other_number, other_number, other_value, other_value,
           folder, missing, pipe, endless, postscript]  # fmt: skip


# Whole input, and what reads it


def _load(name):
    def read(root):
        parts = data.load(name, root, **({"target": "photo"} if name == "pacs" else {}))
        data.check(name, root)
        for part in parts.values():
            assert len(part) > 0, "a part without examples was accepted"
            assert part.label.dtype == np.int64

    return read


def _judge(root):
    load_parts("waterbirds", root, size=8, cache=root / "cache")


def _weights(root):
    models.load("mlp", 3, root / "weights.pt", in_features=4, hidden=(5,))


def _run(root):
    """Everything that reads a run: its rows, its network, what it says of itself, and a resumed training."""
    (place,) = (path for path in (root / "runs").iterdir() if path.is_dir())
    records.read(root / "runs")
    saved_network(place)
    if (place / "model.pt").exists():
        load_network(place)
    else:
        rows = fit(RUN, root, root / "runs").rows
        assert [row["epoch"] for row in rows] == [1, 2], "rows are not one for each epoch"


class Killed(BaseException):
    pass


def _write_run(root, finished):
    trees.dominoes(root, train=30, test=10)
    count = []

    def stop(*_):
        count.append(1)
        if len(count) > 2 and not finished:
            raise Killed

    with contextlib.suppress(Killed):
        fit(RUN, root, root / "runs", progress=stop)


def _write_weights(root):
    torch.save(models.load("mlp", 3, in_features=4, hidden=(5,)).state_dict(), root / "weights.pt")


def _write_batches(root):
    images = np.random.default_rng(0).integers(0, 256, (10, 3, 32, 32), np.uint8)
    split = arrays.labeled(images, np.arange(10), "object", arrays.OBJECTS)
    arrays.write_batches(root, {"train": split, "test": split})


def _own(layout):
    """Data of one's own in a layout: how to write them, and open them and read every image."""

    def read(root):
        with tempfile.TemporaryDirectory() as place:
            source, asked = layout(Path(place))
            inside = source.relative_to(place)
        for part in data.open(root / inside, **asked).parts.values():
            assert len(part) > 0, "a part without examples was accepted"
            assert 0 <= part.label.min() <= part.label.max() < part.n_classes, "a class that is none was accepted"
            if not isinstance(part.images, np.ndarray):
                for i in range(len(part)):
                    decode(part.images.read(i), part.images.name(i))

    return layout, read


KINDS = {
    "idx": (lambda root: trees.dominoes(root, train=3, test=2), _load("mnist")),
    "waterbirds": (trees.waterbirds, _load("waterbirds")),
    "waterbirds, decoded": (trees.waterbirds, _judge),
    "celeba, text": (lambda root: layout_trees.celeba_text(root / "celeba"), _load("celeba")),
    "celeba, csv": (layout_trees.celeba_csv, _load("celeba")),
    "pacs": (lambda root: layout_trees.folders(root / "PACS", "pacs", per_class=10), _load("pacs")),
    "pacs, parquet": (lambda root: layout_trees.parquet_domains(root / "PACS", "pacs"), _load("pacs")),
    "cifar batches": (_write_batches, _load("cifar10")),
    **{f"own data: {layout.__name__}": _own(layout) for layout in own_trees.LAYOUTS},
    "weights": (_write_weights, _weights),
    "finished run": (lambda root: _write_run(root, finished=True), _run),
    "unfinished run": (lambda root: _write_run(root, finished=False), _run),
}
WORDS = [
    "train", "sweep", "probe", "sharpness", "data", "rules", "reproduce", "check", "list", "get", "--root", "--out", "--json",
    "--data", "--model", "--scale", "tiny", "fig0", "mnist", "fmnist-mnist", "waterbirds", "pacs", "epochs=0", "epochs=x",
    "lr=nan", "rho=-1", "rule=sma", "rule.k=0", "method=dfr", "batch=1e9", "seed=-1", "--seeds", "0,x", "--rules", "", "=",
    "--device", "meta", "nowhere", "-1", "NaN", "--resamples", "0", "--layer", "head", "model=mlp", "weights=nowhere", "é\x00",
]  # fmt: skip
STARTS_WORK = {"get"}


# Trials


@contextlib.contextmanager
def bounded(seconds):
    def late(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def limited_memory():
    """Refuse memory beyond what a trial may take, before the whole machine runs out of it."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def failure(call):
    """What is wrong with how a call ended; empty if it ended well."""
    try:
        with bounded(SECONDS), limited_memory():
            call()
    except TimeoutError as error:
        return "it hangs" if str(error) == "it hangs" else ""
    except Exception as error:
        if cli.is_meant(error):
            return ""
        return f"{type(error).__name__}: {error} at {traceback.extract_tb(error.__traceback__)[-1]}"[:300]
    return ""


def damaged_trial(draw, kind, whole):
    """One or two damaged files of a kind; what was damaged, and what is wrong with how the library took it."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "root"
        shutil.copytree(whole, root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        what = []
        for _ in range(draw.choice([1, 1, 2])):
            path, damage = draw.choice(files), draw.choice(DAMAGES)
            if path.is_file() and not path.is_symlink():
                damage(draw, path)
                what.append(f"{damage.__name__} {path.relative_to(root)}")
        return ", ".join(what), failure(lambda: KINDS[kind][1](root))


def words_trial(draw, root):
    """A command line of random words; work that would be long is not started, as no data are there."""
    words = [draw.choice(WORDS) for _ in range(draw.randrange(1, 7))]
    words = [word for word in words if word not in STARTS_WORK]
    if "reproduce" in words:
        words += ["nowhere", "nowhere"]  # alone it would compute all figures; an option may take one of the words

    def call():
        before = Path.cwd()
        os.chdir(root)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                cli.app(words, standalone_mode=False)
        except (cli.UsageError, cli.typer.Exit, cli.typer.Abort):
            pass
        finally:
            os.chdir(before)

    return json.dumps(words), failure(call)


def trials(n, seed=0, kinds=tuple(KINDS)):
    """Trials of every kind in turn: kind, what was done, what is wrong."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        for kind in kinds:
            root = Path(place) / kind
            root.mkdir()
            KINDS[kind][0](root)
        (Path(place) / "empty").mkdir()
        for i in range(n):
            kind = [*kinds, "words"][i % (len(kinds) + 1)]
            if kind == "words":
                yield kind, *words_trial(draw, Path(place) / "empty")
            else:
                yield kind, *damaged_trial(draw, kind, Path(place) / kind)


def main(n, seed=0):
    wrong = 0
    for i, (kind, what, fault) in enumerate(trials(n, seed), 1):
        if fault:
            wrong += 1
            print(f"{kind}: {what}: {fault}", flush=True)
        if i % 100 == 0:
            print(f"{i} of {n} trials, {wrong} failures", file=sys.stderr, flush=True)
    print(f"{n} trials, {wrong} failures")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *map(int, sys.argv[2:])))
