"""The site in a real browser, opened from the disk: it asks the network for nothing, its search finds, it turns dark."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_snippets import ROOT
from tests.report.browser import NEEDED, Browser, chromium

pytestmark = NEEDED
SCHEME = "document.body.getAttribute('data-md-color-scheme')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site is built with `make docs`, which installs what it takes")
    pytest.importorskip("mkdocstrings_handlers.python", reason="as above")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return place


@pytest.fixture
def browser() -> Iterator[Browser]:
    with Browser(chromium() or "") as opened:
        opened.send("Network.enable")
        yield opened


def waited(browser: Browser, expression: str, seconds: float = 20.0) -> object:
    """The value of an expression once it is something."""
    until = time.monotonic() + seconds
    while not (found := browser.read(expression)) and time.monotonic() < until:
        time.sleep(0.1)
    return found


@pytest.mark.parametrize("page", ["index.html", "tutorials/clusters.html", "reference.html"])
def test_nothing_is_fetched(site: Path, browser: Browser, page: str) -> None:
    browser.open(site / page, 1300)
    waited(browser, "document.readyState == 'complete'")
    events = [event["params"] for event in browser.seen if event.get("method") == "Network.requestWillBeSent"]
    asked = [event["request"]["url"] for event in events]
    assert len(asked) > 3
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_search_finds(site: Path, browser: Browser) -> None:
    browser.open(site / "index.html", 1300)
    browser.click(".md-search__input")
    browser.send("Input.insertText", text="clinics")
    browser.press("ArrowRight", 39)
    assert waited(browser, "document.querySelectorAll('.md-search-result__item').length")
    found = browser.read("[...document.querySelectorAll('.md-search-result__link')].map(a => a.getAttribute('href'))")
    assert any("clusters.html" in link for link in found)


def test_dark_is_asked_for_or_chosen(site: Path, browser: Browser) -> None:
    browser.open(site / "index.html", 1300, scheme="dark")
    assert waited(browser, f"{SCHEME} == 'slate'")
    browser.click('label.md-header__button[title="Light"]')
    assert waited(browser, f"{SCHEME} == 'default'")
    browser.open(site / "quickstart.html", 1300, scheme="dark")  # what was chosen stays
    assert waited(browser, f"{SCHEME} == 'default'")


def test_accents_stand_over_their_letters(site: Path, browser: Browser) -> None:
    browser.open(site / "concepts" / "theory.html", 1300)
    accented = "[...document.querySelectorAll('code .accented')]"
    assert browser.read(f"{accented}.length") > 20
    # one column wide, in a font that places the accent
    assert browser.read(f"{accented}.every(e => getComputedStyle(e).fontFamily == 'sans-serif' && e.offsetWidth < 12)")
