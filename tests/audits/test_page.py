"""The page in a real Chromium: nothing is loaded, hostile names stay text, every picture shows, every link lands."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import samphire
from audits.shortcuts import table, trained
from browser import WIDTHS

NASTY = "<script>alert('x')</script> & \"quotes\" </style></td> ünïcode " + "long" * 40


@pytest.fixture(scope="module")
def report():
    data = table(names={"kind": (NASTY, "wren"), "scene": ("land", "<img src=x onerror=alert(1)>")})
    model = trained(data)
    return replace(samphire.audit(model, data, label="kind", features=["scene"]), notes=(NASTY,), inferred=NASTY)


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    return report.page(tmp_path_factory.mktemp("page") / "index.html")


class Parsed(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.values = set(), [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            self.values.setdefault(name, []).append(value)

    def handle_data(self, data):
        self.texts.append(data)


def test_hostile_names_stay_text_and_nothing_comes_from_outside(page):
    parsed = Parsed(page.read_text())
    assert "script" not in parsed.tags
    assert not [name for name in parsed.values if name.startswith("on")]
    assert any(NASTY in text for text in parsed.texts)
    assert all(value.startswith("data:image/") for value in parsed.values["src"])
    assert all(value.startswith("#") for value in parsed.values["href"])
    assert not re.search(r"url\(|@import", page.read_text())


def test_every_link_lands(page):
    parsed = Parsed(page.read_text())
    assert {link[1:] for link in parsed.values["href"]} <= set(parsed.values["id"])
    sections = [name for name in parsed.values["id"] if name != "verdict"]
    assert sections == ["map", "groups", "reliance", "pictures", "sam", "remedy", "notes"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_chromium_shows_it_without_fault(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.faults() == []


def test_it_prints(browser, page):
    browser.open(page, 800, media="print")
    assert browser.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.faults() == []


def test_pictures_are_small_and_carry_nothing_but_pixels(report):
    for sheet in report.sheets:
        for picture in sheet.pictures:
            assert picture.jpeg[:2] == b"\xff\xd8"
            assert len(picture.jpeg) < 20_000
            assert b"Exif" not in picture.jpeg


def test_a_page_that_cannot_be_written_says_so(report, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="choose another place"):
        report.page(tmp_path / "file" / "index.html")


def test_tables_have_every_group(report):
    (scene,) = report.attributes
    assert len(report.table().rows) == 2
    assert {row["feature"] for row in report.rows()} == {"kind", "scene"}
    assert np.isfinite([row["reliance"] for row in report.rows()]).all()
    assert scene.errors.worst.name in report.verdict
