"""The explorer's page in the browser of the tests: its engine, and its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from browser import Browser

FOLDER = Path(__file__).parents[1] / "docs" / "explorer"
NAMES = (
    "ALGORITHMS", "SHAPES", "Stepper", "Weights", "Run", "generator", "trainPoints", "testPoints", "initialWeights",
    "testSet", "errors", "field", "pointMeasures", "lorenz", "gini", "quantiles", "summarizeHeads", "startSettings", "forEngine",
)  # fmt: skip
_EXPOSE = """
    const script = document.createElement('script');
    script.textContent = document.getElementById('worker').textContent + `;window.engine = {${arguments[0]}};`;
    document.head.append(script);
"""
_UNTIL = "const done = arguments[0], look = () => (CONDITION) ? done() : setTimeout(look, 30); look();"


class Explorer:
    """The page, opened at some settings."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def open(self, width: int = 1440, *, dark: bool = False, **settings: Any) -> Explorer:
        """Load it and wait until it is at the epoch that the settings name."""
        settings = {"epoch": 0, **settings}  # without any it would run at once
        self.browser.open(f"{(FOLDER / 'index.html').as_uri()}#{urlencode(settings)}", width, dark=dark)
        self.rest(settings["epoch"])
        return self

    def until(self, condition: str) -> None:
        """Wait until a condition in JavaScript holds; it may name ``data``, which has the epoch and ``playing``."""
        condition = f"((data) => {condition})(document.body.dataset)"
        self.browser.wait(_UNTIL.replace("CONDITION", condition))

    def rest(self, epoch: float) -> None:
        """Wait until training rests at an epoch or after."""
        self.until(f"data.playing === 'false' && Number(data.epoch) >= {epoch}")

    def engine(self, script: str, *arguments: Any) -> Any:
        """What a script returns that uses ``engine``, the functions of the page's worker."""
        if not self.browser.run("return 'engine' in window"):
            self.browser.run(_EXPOSE, ", ".join(NAMES))
        return self.browser.run(script, *arguments)

    def text(self, selector: str) -> str:
        """What an element says."""
        return self.browser.run("return document.querySelector(arguments[0]).textContent", selector)

    def click(self, selector: str) -> None:
        """Press a button."""
        self.browser.driver.find_element("css selector", selector).click()

    def press(self, key: str, selector: str = "body") -> None:
        """Press a key on an element."""
        self.browser.driver.find_element("css selector", selector).send_keys(key)

    def choose(self, selector: str, value: str) -> None:
        """Set a control as a reader does."""
        self.browser.run(
            "const e = document.querySelector(arguments[0]); e.value = arguments[1]; e.dispatchEvent(new Event('input', {bubbles: true}))",
            selector, value,
        )  # fmt: skip

    @property
    def hash(self) -> str:
        """The page's address after #."""
        return self.browser.run("return location.hash")


@pytest.fixture
def explorer(browser: Browser) -> Explorer:
    """The explorer; open it first."""
    return Explorer(browser)
