"""Contests: pairs of seeds, the sentence for each verdict, and networks let go one by one."""

import numpy as np
import pytest

import samphire
from samphire.audits.compare import MEASURES, Contest, contest
from samphire.audits.example import example


def rows(name, worst):
    return [
        {"name": name, "seed": s, **dict.fromkeys(MEASURES, 0.1), "worst-group error": w} for s, w in enumerate(worst)
    ]


def test_differences_are_of_pairs():
    """Seeds differ by 0.3, rules by 0.1 in every pair: only the pairs show it."""
    found = Contest("place", (*rows("sgd", [0.2, 0.5, 0.8]), *rows("sam", [0.1, 0.401, 0.7])), {})
    d = found.difference("sam", "worst-group error")
    assert d.estimate.mean == pytest.approx(-0.09967, abs=1e-5)
    assert found.verdict.startswith("sam has a lower worst-group error than sgd: −10.0 points")


@pytest.mark.parametrize(
    ("after", "words"), [([0.3, 0.6, 0.9], "has a higher"), ([0.1, 0.7, 0.75], "has no decidedly other")]
)
def test_verdicts_in_words(after, words):
    found = Contest("place", (*rows("sgd", [0.2, 0.5, 0.8]), *rows("sam", after)), {})
    assert f"sam {words} worst-group error" in found.verdict


def test_networks_are_audited_in_order_and_have_pages(tmp_path, browser):
    loaded = []

    def load(correlation):
        loaded.append(correlation)
        return correlation

    def examine(correlation):
        seen = example(correlation, val=300, test=400)
        arrays = {part: {"x": s.features, "logits": s.logits, **s.split.features} for part, s in seen.items()}
        return samphire.audit(None, arrays, label="bird", features=["place"])

    found = contest({("a", 0): lambda: load(0.9), ("<b>", 0): lambda: load(0.5)}, examine, tmp_path)
    assert loaded == [0.9, 0.5]
    gaps = {row["name"]: row["gap"] for row in found.rows}
    assert gaps["a"] > gaps["<b>"] + 0.2
    page = found.page(tmp_path / "index.html")
    assert all((tmp_path / file).exists() for file in found.pages.values())
    browser.open(page, 390)
    assert browser.faults() == []
    assert np.isfinite([row["label probe error"] for row in found.rows]).all()


def test_nothing_to_compare():
    with pytest.raises(ValueError, match="nothing to compare"):
        contest({}, lambda model: None)
