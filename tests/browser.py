"""A real Chromium for tests of pages: what it shows, what it says on its console, what a reader cannot read.

``browser`` is a fixture of every test; one Chromium serves all tests of a process. Take what a test needs from it::

    def test_page(browser, tmp_path):
        browser.open(tmp_path / "index.html", width=390)
        assert browser.faults() == []
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (390, 820, 1440)  # CSS pixels: a phone, a tablet, a desk

_WIDER_THAN_THE_WINDOW = """
    const done = arguments[0], look = () => {
        const width = document.documentElement.clientWidth;
        if (document.documentElement.scrollWidth <= width) return done([]);
        done([...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > width + 1)
            .slice(0, 5).map(e => `wider than ${width}: ${e.outerHTML.slice(0, 80)}`).concat('the page scrolls sideways'));
    };
    requestAnimationFrame(() => requestAnimationFrame(look));
"""
_NOT_DECODED = """
    const done = arguments[0];
    Promise.all([...document.images].map(image => image.decode().then(() => null, () => image)))
        .then(list => done(list.filter(image => image).map(image => `not decoded: ${image.alt || image.src.slice(0, 80)}`)));
"""
_AXE = """
    const [rules, done] = arguments;
    const folded = [...document.querySelectorAll('details:not([open])')];
    folded.forEach(details => details.open = true);
    axe.run(document, rules ? {runOnly: {type: 'rule', values: rules}} : {resultTypes: ['violations']})
        .then(result => result.violations.flatMap(violation => violation.nodes.map(
            node => `${violation.id}: ${node.html.slice(0, 80)} ${node.failureSummary}`)), error => [String(error)])
        .then(faults => { folded.forEach(details => details.open = false); done(faults); });
"""


class Browser:
    """A headless Chromium with one page at a time."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, page: str | Path, width: int = 1440, *, height: int = 900, dark: bool = False, media: str = ""
    ) -> None:
        """Load a file or an address, at a width in CSS pixels, in a color scheme, on a screen or for ``"print"``.

        What the pages before have said on the console is forgotten.
        """
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": scheme})
        self.driver.get("about:blank")
        self.messages()
        self.driver.get(page if "://" in str(page) else Path(page).resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns; it reads ``arguments``."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any, seconds: float = 3600) -> Any:
        """What a script passes to its last argument, a function; a script that hangs ends after an hour."""
        self.driver.set_script_timeout(seconds)
        return self.driver.execute_async_script(script, *arguments)

    def messages(self) -> list[str]:
        """What came on the console since the page was opened or this was called: logs, warnings, errors."""
        return [f"console: {line['level']} {line['message']}" for line in self.driver.get_log("browser")]

    def screenshot(self, path: str | Path) -> None:
        """The window as a PNG file."""
        self.driver.save_screenshot(str(path))

    def unreadable(self, *rules: str) -> list[str]:
        """What axe finds wrong for readers: contrast, names of controls, order of headings; or only some rules of it.

        What is folded is unfolded meanwhile, since people do so too.
        """
        from axe_core_python.base import AXE_SCRIPT

        self.run(AXE_SCRIPT)
        return self.wait(_AXE, list(rules) or None)

    def faults(self) -> list[str]:
        """Everything no page may have: it scrolls sideways, a picture is broken, somebody cannot read it, it complains."""
        return [*self.wider(), *self.wait(_NOT_DECODED), *self.unreadable(), *self.messages()]

    def wider(self) -> list[str]:
        """What is wider than the window once it has been drawn, and that the page scrolls sideways."""
        return self.wait(_WIDER_THAN_THE_WINDOW)


def _find(*names: str) -> str:
    path = next(filter(None, map(shutil.which, names)), None)
    assert path, f"tests of pages need {names[0]}, found none on PATH; `apt-get install chromium chromium-driver`."
    return path


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One Chromium for all tests of this process."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _find("chromium", "chromium-browser", "google-chrome")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(_find("chromedriver")))
    yield Browser(driver)
    driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """That Chromium; a page that trains networks does not go on with it after its test."""
    yield chromium
    chromium.driver.get("about:blank")
