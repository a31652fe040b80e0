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


def with_coin(correlation, coin):
    """Arrays in which the model leans on ``place``, or on a ``coin`` that its logits follow."""
    parts = {}
    for part, s in example(correlation, val=300, test=400).items():
        thrown = np.random.default_rng(len(s)).integers(0, 2, len(s))
        x = np.column_stack([s.features, thrown])
        logits = s.logits + coin * np.outer(thrown - 0.5, [-1, 1])
        parts[part] = {"x": x, "logits": logits, "coin": thrown, **s.split.features}
    return parts


def test_all_networks_are_compared_in_the_groups_of_one_attribute():
    """The second leans most on the coin, but the pair is about place."""
    reports = []

    def examine(data):
        reports.append(samphire.audit(None, data, label="bird", features=["place", "coin"]))
        return reports[-1]

    found = contest({("a", 0): lambda: with_coin(0.9, 0.0), ("b", 0): lambda: with_coin(0.5, 20.0)}, examine)
    alone = reports[1]
    place, coin = alone.attributes
    assert alone.main.name == "coin"
    assert found.attribute == "place"
    assert found.rows[1]["gap"] == place.reliance.gap != coin.reliance.gap
    assert found.rows[1]["label probe error"] == place.label.trained.mean


def test_two_files_of_one_name_have_a_page_each(tmp_path):
    report = samphire.audit(None, with_coin(0.9, 0.0), label="bird", features=["place"])
    networks = {("a/model.pt", 0): lambda: None, ("b/model.pt", 0): lambda: None}
    found = contest(networks, lambda _: report, tmp_path)
    assert sorted(found.pages.values()) == ["model-0.html", "model2-0.html"]
    assert all((tmp_path / file).exists() for file in found.pages.values())
