"""The browser of the tests sees each fault that a page may have, and none in a page that has none."""

import pytest

from browser import WIDTHS

pytestmark = pytest.mark.slow

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{ color: #111; background: #fff; }} {style}</style></head><body><main><h1>A page</h1>{body}</main></body></html>"""


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(body="", style="", **settings):
        (tmp_path / "page.html").write_text(PAGE.format(body=body, style=style))
        browser.open(tmp_path / "page.html", **settings)
        return browser

    return open_page


@pytest.mark.parametrize("width", WIDTHS)
def test_a_sound_page_has_no_faults(opened, width):
    browser = opened("<p>Some text.</p>", width=width)
    assert browser.faults() == []
    assert browser.run("return [innerWidth, document.documentElement.clientWidth]") == [width, width]


@pytest.mark.parametrize(
    ("body", "style", "fault"),
    [
        ("<div style='width: 500px'>x</div>", "", "scrolls sideways"),
        ("<img alt='a plot' src='data:image/png;base64,AAAA'>", "", "not decoded: a plot"),
        ("<p style='color: #aaa'>pale</p>", "", "color-contrast"),
        ("<p>pale at night</p>", "@media (prefers-color-scheme: dark) { body { background: #222; } }", "color-contrast"),
        ("<img src='data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA='>", "", "image-alt"),
        ("<script>console.warn('odd')</script>", "", "odd"),
        ("<script>missing()</script>", "", "missing is not defined"),
        ("<button></button>", "", "button-name"),
    ],
)  # fmt: skip
def test_each_fault_is_seen(opened, body, style, fault):
    browser = opened(body, style, width=390, dark=bool(style))
    assert any(fault in line for line in browser.faults())


def test_what_an_earlier_page_said_is_forgotten(opened):
    opened("<script>console.warn('odd')</script>")
    assert opened().messages() == []


def test_print_and_dark_are_emulated(opened):
    matches = "return ['print', '(prefers-color-scheme: dark)'].map(query => matchMedia(query).matches)"
    assert opened(media="print").run(matches) == [True, False]
    assert opened(dark=True).run(matches) == [False, True]
