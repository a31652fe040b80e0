"""Drawn birds: as many where one expects them as said, shapes that differ, and never over files that are there."""

import numpy as np
import pytest

from samphire import data
from samphire.audits import drawn
from samphire.data.parts import at_size


def test_the_folder_opens_with_the_shortcut_in_train_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(drawn, "PARTS", {"train": (300, 0.95), "val": (100, 0.5), "test": (200, 0.5)})
    table = drawn.write(tmp_path / "birds")
    opened = data.open(table.parent, label="bird", features="place")
    agree = {part: np.mean(s.features["bird"] == s.features["place"]) for part, s in opened.parts.items()}
    assert {part: len(s) for part, s in opened.parts.items()} == {"train": 300, "val": 100, "test": 200}
    assert agree["train"] == pytest.approx(0.95, abs=0.04)
    assert agree["test"] == pytest.approx(0.5, abs=0.1)
    images = at_size(opened.parts["test"], 32, tmp_path / "cache").images
    blue = images[:, 2].mean((1, 2)) > images[:, 1].mean((1, 2))
    assert np.mean(blue == (opened.parts["test"].features["place"] == 0)) > 0.85


@pytest.mark.parametrize(("bird", "wide"), [(0, True), (1, False)])
def test_a_duck_is_wide_and_a_wren_tall(bird, wide):
    """Without noise the body is what differs from the corner; its extent is counted in columns and rows."""

    class Even:
        def normal(self, mean, deviation, size):
            return np.zeros(size)

        def uniform(self, low, high, size=None):
            return np.full(size or (), (low + high) / 2)

        def choice(self, values):
            return values[0]

    pixels = drawn.draw(bird, 0, Even()).astype(int)
    body = (pixels != pixels[0, 0]).any(2)
    columns, rows = body.any(0).sum(), body.any(1).sum()
    assert (columns > 2 * rows) if wide else (rows > 2 * columns)


def test_what_is_there_is_not_written_over(tmp_path):
    with pytest.raises(FileExistsError, match="is there already; choose another folder"):
        drawn.write(tmp_path)
