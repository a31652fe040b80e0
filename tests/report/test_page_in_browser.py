"""The page of the toy's figures, from stored rows, in a real Chromium: phone, tablet and desk, light, dark, printed."""

import json
import lzma
from pathlib import Path

import pytest

from browser import WIDTHS
from samphire import experiments

ROWS = Path(__file__).parents[2] / "results" / "toy" / "rows.jsonl.xz"
FIGURES = ("fig1", "fig2", "fig5-toy", "fig11", "theory")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    lines = lzma.decompress(ROWS.read_bytes()).decode().splitlines(keepends=True)
    (out / "rows.jsonl").write_text("".join(line for line in lines if json.loads(line)["experiment"] in FIGURES))
    experiments.render(out / "rows.jsonl", out)
    return out / "index.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_has_no_faults(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.faults() == []
    assert browser.run("return document.images.length") >= len(FIGURES) + 2


TEXTS = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.innerText)"


@pytest.mark.parametrize("width", WIDTHS)
def test_question_answer_and_a_picture_are_on_the_first_screen(browser, page, width):
    browser.open(page, width)
    tops = browser.run(
        "return ['h1', '.answer', '.story img'].map(s => document.querySelector(s).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    assert tops[-1] < 0.7 * 900


@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_figures_stays_in_view(browser, page, width):
    browser.open(page, width)
    browser.run("document.getElementById('theory').scrollIntoView()")
    top, covered = browser.run(
        """const nav = document.querySelector('nav').getBoundingClientRect();
        const card = document.getElementById('theory').getBoundingClientRect();
        return [nav.top, nav.left < card.right && nav.right > card.left && card.top < nav.bottom]"""
    )
    assert 0 <= top < 40
    assert not covered  # the list hides nothing of the card that a link leads to


def test_the_claims_are_filtered_by_verdict_without_a_script(browser, page):
    browser.open(page)
    claims = json.loads((page.parent / "claims.json").read_text())
    for verdict in ("open", "contradicted", "holds"):
        browser.run("document.getElementById(arguments[0]).click()", f"show-{verdict}")
        expected = [claim["claim"] for claim in claims if claim["verdict"] == verdict]
        assert expected
        assert browser.run(TEXTS, ".summary td:nth-child(2)") == expected
    browser.run("document.getElementById('show-all').click()")
    assert len(browser.run(TEXTS, ".summary tbody tr")) == len(claims)


def test_details_are_folded_on_a_screen_and_open_on_paper(browser, page):
    browser.open(page)
    assert browser.run(TEXTS, ".claims li") == []
    browser.run("document.querySelector('#fig2 summary').click()")
    assert len(browser.run(TEXTS, ".claims li")) == 6
    browser.open(page, 820, media="print")
    assert len(browser.run(TEXTS, ".claims li")) == len(json.loads((page.parent / "claims.json").read_text()))
    assert browser.run(TEXTS, "nav, #claims") == []  # the claims stand in their cards
    assert browser.faults() == []


def test_the_page_of_all_toy_figures_takes_less_than_two_megabytes(page):
    per_figure = page.stat().st_size / len(FIGURES)
    assert per_figure * len(experiments.TOY) < 2e6
