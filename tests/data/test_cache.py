import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samphire.data.cache import Decoded, decoded, in_order, shapes_of
from samphire.data.files import Files
from samphire.data.split import Split
from trees import SHAPES, pictures
from waiting import PATIENCE


class Counted(Files):
    """Files that know how often one was read."""

    def __init__(self, paths):
        super().__init__(paths)
        self.reads = 0

    def read(self, i):
        self.reads += 1
        return super().read(i)


def split_of(files):
    label = np.arange(len(files))
    return Split(
        files, label, {"a": label % 2}, ids=label + 50, classes=tuple(map(str, label)), values={"a": ("0", "1")}
    )


def left_in(folder):
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


@pytest.mark.parametrize("size", [(12, 12), (24, 10), (64, 64)])
@pytest.mark.parametrize("workers", [1, 3, None])
def test_images_are_pillows_resize(tmp_path, size, workers):
    paths = pictures(tmp_path)
    split = split_of(Files(paths))
    cached = decoded(split, size, tmp_path / "cache", workers=workers)
    assert isinstance(cached.images, np.memmap)
    assert not cached.images.flags.writeable
    for path, pixels in zip(paths, cached.images, strict=True):
        image = Image.open(path).convert("RGB").resize(size[::-1], Image.Resampling.BILINEAR)
        assert np.array_equal(pixels, np.asarray(image).transpose(2, 0, 1))
    assert cached.shapes.tolist() == [list(shape) for shape in SHAPES]
    for name in ("label", "features", "ids", "classes", "values"):
        assert getattr(cached, name) is getattr(split, name)


def test_a_number_is_a_square(tmp_path):
    split = split_of(Files(pictures(tmp_path)))
    assert np.array_equal(decoded(split, 12, tmp_path / "a").images, decoded(split, (12, 12), tmp_path / "b").images)


def test_a_subset_keeps_the_shapes(tmp_path):
    cached = decoded(split_of(Files(pictures(tmp_path))), 8, tmp_path / "cache")
    for chosen in (np.array([4, 1]), cached.label == 3):
        some = cached.subset(chosen)
        assert isinstance(some, Decoded)
        assert np.array_equal(some.shapes, cached.shapes[chosen])
        assert np.array_equal(some.images, cached.images[chosen])
        assert np.array_equal(some.ids, cached.ids[chosen])
    assert np.array_equal(shapes_of(some), some.shapes)


def test_images_that_are_arrays_have_the_shape_they_have():
    split = Split(np.zeros((2, 3, 4, 5), np.uint8), np.zeros(2, np.int64), {})
    assert shapes_of(split).tolist() == [[4, 5], [4, 5]]


def test_the_work_is_done_once_and_reported(tmp_path):
    files = Counted(pictures(tmp_path))
    calls = []
    first = decoded(split_of(files), 8, tmp_path / "cache", progress=lambda *now: calls.append(now))
    second = decoded(split_of(files), 8, tmp_path / "cache", progress=lambda *now: calls.append(now))
    assert files.reads == 6
    assert calls == [("decoding images", i + 1, 6) for i in range(6)]
    assert np.array_equal(first.images, second.images)
    assert len(left_in(tmp_path / "cache")) == 1


@pytest.mark.parametrize("change", ["pixels", "time", "order", "size", "choice"])
def test_whatever_changes_the_images_gives_a_new_cache(tmp_path, change):
    paths = pictures(tmp_path)
    size = 8
    decoded(split_of(Files(paths)), size, tmp_path / "cache")
    if change == "pixels":
        Image.new("RGB", (9, 9), (1, 2, 3)).save(paths[5])
    elif change == "time":
        os.utime(paths[0], ns=(0, 1))
    elif change == "order":
        paths = paths[::-1]
    elif change == "choice":
        paths = paths[:5]
    else:
        size = 9
    files = Counted(paths)
    cached = decoded(split_of(files), size, tmp_path / "cache")
    assert files.reads == len(paths)
    assert len(left_in(tmp_path / "cache")) == 2
    last = Image.open(paths[-1]).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    assert np.array_equal(cached.images[-1], np.asarray(last).transpose(2, 0, 1))


def test_a_corrupt_image_is_named_and_nothing_is_left(tmp_path):
    paths = pictures(tmp_path)
    whole = paths[3].read_bytes()
    paths[3].write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=f"image {paths[3]} cannot be decoded"):
        decoded(split_of(Files(paths)), 8, tmp_path / "cache")
    assert left_in(tmp_path / "cache") == []
    paths[3].write_bytes(whole)
    assert len(decoded(split_of(Files(paths)), 8, tmp_path / "cache").images) == 6


def test_an_image_changed_meanwhile_is_noticed(tmp_path):
    paths = pictures(tmp_path)

    def meddle(what, done, total):
        os.utime(paths[0], ns=(0, 1))

    with pytest.raises(ValueError, match="changed while they were decoded"):
        decoded(split_of(Files(paths)), 8, tmp_path / "cache", progress=meddle)
    assert left_in(tmp_path / "cache") == []


def test_a_missing_image_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        decoded(split_of(Files([tmp_path / "gone.jpg"])), 8, tmp_path / "cache")


PROCESS = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_cache import Counted, decoded, split_of

def progress(what, done, total):
    if done == 1:
        print("begun", flush=True)
        if sys.stdin.readline() == "die\\n":
            os.kill(os.getpid(), signal.SIGKILL)

images, cache = map(Path, sys.argv[1:3])
class Watched(Counted):
    def stamp(self, i):
        if i == len(self) - 1:
            print("looking", flush=True)
        return super().stamp(i)

files = Watched(sorted(images.iterdir()))
sys.stdin.readline()
cached = decoded(split_of(files), 8, cache, progress=progress)
print(files.reads, int(cached.images.astype(int).sum()), flush=True)
"""


@pytest.mark.parametrize("fate", ["live", "die"])
def test_two_processes_at_once_do_the_work_once(tmp_path, fate):
    images, cache = tmp_path / "images", tmp_path / "cache"
    images.mkdir()
    files = Files(sorted(pictures(images, SHAPES * 10)))
    command = [sys.executable, "-c", PROCESS, str(images), str(cache), *map(str, Path(__file__).parents[:2])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    first, second = (subprocess.Popen(command, **pipes) for _ in range(2))
    first.stdin.write("begin\n")
    assert [first.stdout.readline() for _ in range(2)] == ["looking\n", "begun\n"]  # it waits, a part written
    (part,) = left_in(cache)
    assert ".part-" in part
    second.stdin.write("begin\n")
    assert second.stdout.readline() == "looking\n"  # finds no cache yet
    first.stdin.write(f"{fate}\n")
    out, _ = first.communicate(timeout=PATIENCE)
    theirs, _ = second.communicate("live\n", timeout=PATIENCE)
    cached = decoded(split_of(files), 8, cache)
    total = str(cached.images.astype(int).sum())
    if fate == "live":
        assert out.split() == ["looking", "60", total]
        assert theirs.split() == ["0", total]
    else:
        assert first.returncode == -signal.SIGKILL
        assert theirs.split() == ["begun", "looking", "60", total]
    (place,) = left_in(cache)
    assert ".part-" not in place


EIGHT = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_cache import Counted, decoded, split_of

images, cache = map(Path, sys.argv[1:3])
children = []
for _ in range(8):
    child = os.fork()
    if not child:
        files = Counted(sorted(images.iterdir()))
        cached = decoded(split_of(files), 8, cache, workers=1)
        os.write(1, f"{files.reads} {int(cached.images.astype(int).sum())}\\n".encode())
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def test_eight_processes_at_once_do_the_work_once(tmp_path):
    images, cache = tmp_path / "images", tmp_path / "cache"
    images.mkdir()
    files = Files(sorted(pictures(images, SHAPES * 5)))
    command = [sys.executable, "-c", EIGHT, str(images), str(cache), *map(str, Path(__file__).parents[:2])]
    lines = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE
    ).stdout.splitlines()
    total = decoded(split_of(files), 8, cache).images.astype(int).sum()
    assert sorted(lines) == sorted([f"30 {total}"] + 7 * [f"0 {total}"])


@contextmanager
def ending_after(seconds, process):
    """Kill a process that takes longer than this for a block; what reads from it then finds the end."""
    alarm = threading.Timer(seconds, process.kill)
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


OTHER_USER = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from PIL import Image
from test_cache import Files, decoded, split_of

images, cache = map(Path, sys.argv[1:3])
Image.init()
if os.getuid() == 0:
    os.seteuid(65534)  # a user that owns nothing
for size in sys.stdin:
    try:
        found = decoded(split_of(Files(sorted(images.iterdir()))), int(size), cache).images.astype(int).sum()
    except OSError as error:
        found = error
    print(found, flush=True)
"""


def test_two_users_share_a_cache(tmp_path):
    """Another user may use what is there, decode what is not, and hears it where the folder is not theirs."""
    with tempfile.TemporaryDirectory() as shared:  # tmp_path is closed to others
        images, cache = Path(shared) / "images", Path(shared) / "cache"
        for folder in (Path(shared), images, cache):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        split = split_of(Files(sorted(pictures(images))))
        totals = {size: decoded(split, size, cache).images.astype(int).sum() for size in (8, 9)}
        (gone,) = (path for path in cache.iterdir() if path.is_dir() and np.load(path / "images.npy").shape[2] == 9)
        shutil.rmtree(gone)
        for lock in cache.glob(".*.lock"):
            lock.chmod(0o444)  # its maker's

        command = [sys.executable, "-c", OTHER_USER, str(images), str(cache), *map(str, Path(__file__).parents[:2])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        with subprocess.Popen(command, **pipes) as user, ending_after(PATIENCE, user):

            def other(size):
                user.stdin.write(f"{size}\n")
                return user.stdout.readline()

            assert [other(size) for size in (8, 9)] == [f"{totals[8]}\n", f"{totals[9]}\n"]
            cache.chmod(0o555)
            assert f"cannot write decoded images to {cache}: Permission denied; choose another folder" in other(10)
        assert user.returncode == 0
        cache.chmod(0o777)


def test_the_loser_of_a_race_that_no_lock_prevented_takes_the_winners(tmp_path, monkeypatch):
    paths = pictures(tmp_path)
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    inner = []

    def meanwhile(what, done, total):
        if not inner:
            inner.append(None)
            inner[0] = decoded(split_of(Files(paths)), 8, tmp_path / "cache")

    cached = decoded(split_of(Files(paths)), 8, tmp_path / "cache", progress=meanwhile)
    assert np.array_equal(cached.images, inner[0].images)
    assert len(left_in(tmp_path / "cache")) == 1


def test_results_come_in_order_and_never_far_ahead():
    begun, most = [], []
    lock = threading.Lock()

    def make(i):
        with lock:
            begun.append(i)
        return i * i

    results = in_order(make, range(50), threads=4, ahead=5)
    for i, result in enumerate(results):
        assert result == i * i
        most.append(len(begun) - i)
    assert max(most) <= 6


def test_an_error_in_a_thread_stops_the_rest():
    begun = []

    def make(i):
        begun.append(i)
        if i == 3:
            raise OSError("disk")
        return i

    with pytest.raises(OSError, match="disk"):
        list(in_order(make, range(1000), threads=2, ahead=4))
    assert len(begun) < 20


@pytest.mark.parametrize(
    ("images", "size", "error", "message"),
    [
        (Files(["a"]), 0, ValueError, "height must be a whole number >= 1, got 0"),
        (Files(["a"]), (4, -1), ValueError, "width must be a whole number >= 1, got -1"),
        (np.zeros((1, 3, 4, 4), np.uint8), 4, TypeError, "need no decoding"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(tmp_path, images, size, error, message):
    with pytest.raises(error, match=message):
        decoded(Split(images, np.zeros(1, np.int64), {}), size, tmp_path / "cache")


def test_a_size_beyond_all_images_is_refused_before_any_is_decoded(tmp_path):
    files = Counted(pictures(tmp_path))
    with pytest.raises(ValueError, match="size must be at most 67108864 pixels, got 100000 x 100000"):
        decoded(split_of(files), 100_000, tmp_path / "cache")
    assert not files.reads
