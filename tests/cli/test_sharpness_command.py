"""``samphire sharpness`` on a small data set written to disk."""

import json

import numpy as np
import pytest
import torch
import typer
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from samphire import landscape
from samphire.cli.sharpness import sharpness
from samphire.data import arrays
from samphire.landscape import Landscape

app = typer.Typer(pretty_exceptions_enable=False)
app.command(epilog="Example:  samphire sharpness runs/3f2a --out pictures")(sharpness)
runner = CliRunner()


def tiny(num_classes=10):
    return nn.Sequential(nn.AvgPool2d(14), nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, num_classes))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A run of the network above on forty digits; the folder of digits is beside it."""
    digits, draw = tmp_path / "MNIST" / "raw", np.random.default_rng(0)
    digits.mkdir(parents=True)
    for stem in ("train", "t10k"):
        arrays.write_idx(digits / f"{stem}-images-idx3-ubyte", draw.integers(0, 256, (40, 28, 28), np.uint8))
        arrays.write_idx(digits / f"{stem}-labels-idx1-ubyte", (np.arange(40) % 10).astype(np.uint8))
    torch.manual_seed(0)
    run = tmp_path / "run"
    run.mkdir()
    torch.save(tiny().state_dict(), run / "model.pt")
    (run / "config.json").write_text(json.dumps({"model": "test_sharpness_command:tiny", "data": "mnist"}))
    (run / "input.json").write_text(json.dumps({"mean": [0.0], "std": [1.0]}))
    return tmp_path


def invoke(place, *options):
    return runner.invoke(app, [str(place / "run"), "--trust", "--root", str(place), *options], catch_exceptions=False)


def test_every_measure_is_told_and_drawn(place):
    out = place / "pictures"
    result = invoke(
        place, "--json", "--m", "5", "--m", "20", "--k", "3", "--batch", "15", "--groups", "--out", str(out)
    )
    assert result.exit_code == 0
    rows = {row["measure"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert list(rows)[:5] == [
        "sharpness",
        "sharpness, scaled",
        "second order",
        "average sharpness",
        "m-sharpness, m=5",
    ]
    assert len([name for name in rows if name.startswith("sharpness, ")]) == 1 + 10  # the scaled one, and ten groups
    assert all(row["words"] for row in rows.values())
    assert {path.name for path in out.iterdir()} == {"ascents.png", "spectrum.png", "line.png", "plane.png"}
    assert all(path.read_bytes()[1:4] == b"PNG" for path in out.iterdir())

    model = tiny()
    model.load_state_dict(torch.load(place / "run" / "model.pt"))
    x = torch.from_numpy(arrays.read_idx(place / "MNIST" / "raw" / "train-images-idx3-ubyte").copy()).float() / 255
    of = Landscape.of(model, F.cross_entropy, (x[:, None], torch.arange(40) % 10))
    assert rows["sharpness"]["worst"] == pytest.approx(landscape.sharpness(of, 0.05).worst, rel=1e-3)
    assert rows["eigenvalues, top"]["values"] == pytest.approx(landscape.eigenvalues(of, 3).values, rel=1e-3)
    group = landscape.sharpness(of.only(np.arange(40) % 10 == 7), 0.05).worst
    assert [row["worst"] for name, row in rows.items() if name.endswith(" 7")] == [pytest.approx(group, rel=1e-3)]
    assert rows["theorem 1"]["vacuous"] is True


def test_words_for_people(place):
    result = invoke(place, "--examples", "20", "--part", "test")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "Within distance 0.05 of the weights the loss rises by" in text
    assert "theorem 1 VACUOUS" in text


def test_bad_input(place):
    with pytest.raises(ValueError, match="mnist has no part 'val'; there are train, test"):
        invoke(place, "--part", "val")
    with pytest.raises(ValueError, match="rho must be a finite number > 0"):
        invoke(place, "--rho", "0")
    (place / "run" / "config.json").unlink()
    with pytest.raises(ValueError, match="does not say its data; name it with --data"):
        invoke(place)
