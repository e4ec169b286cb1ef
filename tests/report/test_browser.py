"""The report in a real browser: its buttons work by mouse and keyboard, and a phone need not scroll sideways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from tests.report.browser import NEEDED, Browser, chromium

pytestmark = NEEDED

SHOWN = "[...document.querySelectorAll('.forest')].filter(t => t.getClientRects().length).map(t => t.id)"


@pytest.fixture(scope="module")
def run() -> eq.Calibration:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 10, 400), "a_column_with_a_rather_long_name": rng.normal(size=400)})
    frame["zone"], frame["y"] = rng.integers(0, 4, 400), rng.poisson(np.exp(0.02 * frame.age - 1.0))
    rows = eq.data.table(frame, "y ~ age + a_column_with_a_rather_long_name + C(zone)", clusters=["zone"])
    return eq.calibrate(eq.glm("poisson"), rows, ess=200, progress=False)


@pytest.fixture(scope="module")
def page(run: eq.Calibration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.report(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    assert path is not None
    with Browser(path) as opened:
        yield opened


def number(browser: Browser, scale: str, place: int = 0) -> float:
    """The number a reader sees as an estimate."""
    text = browser.read(f"document.querySelectorAll('#forest-{scale} tbody b')[{place}].innerText")
    return float(text.replace("−", "-"))


def test_scales_are_chosen_by_mouse(run: eq.Calibration, page: Path, browser: Browser) -> None:
    browser.open(page, 1200)
    browser.click("label[for=scale-unit]")
    assert browser.read(SHOWN) == ["forest-unit"]
    age = float(run.params["age"])
    assert number(browser, "unit") == pytest.approx(age, rel=0.02)
    browser.click("label[for=exponentiate]")
    assert browser.read(SHOWN) == ["forest-unit-exp"]
    assert number(browser, "unit-exp") == pytest.approx(np.exp(age), rel=1e-3)
    browser.click("label[for=scale-sd]")
    assert browser.read(SHOWN) == ["forest-sd-exp"]
    browser.click("label[for=scale-se]")
    assert browser.read(SHOWN) == ["forest-se"]
    assert number(browser, "se") == pytest.approx(age / run.bse["age"], rel=0.02)


def test_scales_are_chosen_by_keyboard(page: Path, browser: Browser) -> None:
    browser.open(page, 1200)
    browser.read("document.getElementById('scale-unit').focus(); document.getElementById('scale-unit').click()")
    browser.press("ArrowRight", 39)
    assert browser.read(SHOWN) == ["forest-sd"]
    browser.press("Tab", 9)
    assert browser.read("document.activeElement.id") == "exponentiate"
    browser.press(" ", 32)
    assert browser.read(SHOWN) == ["forest-sd-exp"]


def test_the_sampler_is_folded_and_opens(page: Path, browser: Browser) -> None:
    browser.open(page, 1200)
    seen = "document.querySelector('#draws').checkVisibility()"
    if browser.read("document.querySelector('#sampler details').open"):
        browser.click("#sampler summary")
    assert not browser.read(seen)
    browser.click("#sampler summary")
    assert browser.read(seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_need_not_scroll_sideways(page: Path, browser: Browser, scheme: str) -> None:
    browser.open(page, 420, scheme=scheme)
    assert browser.read("document.documentElement.scrollWidth") == 420
    # every interval is inside the window, and every strip as wide as the others
    ends = browser.read(
        "[...document.querySelectorAll('.coefficients .ends, .forest .ends')].filter(e => e.getClientRects().length)"
        ".map(e => e.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    assert len(ends) > 10
    assert all(0 <= left < right <= 420 for left, right in ends)
    widths = browser.read(
        "[...document.querySelectorAll('.strip')].filter(e => e.getClientRects().length)"
        ".map(e => Math.round(e.getBoundingClientRect().width))"
    )
    assert len(set(widths)) == 1
    paper = browser.read("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, paper[4:-1].split(","))) > 3 * 128
    assert light == (scheme == "light")


def test_the_policy_is_kept_and_tables_mean_something(page: Path, browser: Browser) -> None:
    browser.open(page, 420)
    assert not [event for event in browser.seen if event.get("method") == "Log.entryAdded"]
    assert browser.read("document.querySelectorAll('svg:not([aria-hidden]):not([aria-label])').length") == 0
    browser.send("Accessibility.enable")
    nodes = browser.send("Accessibility.getFullAXTree")["nodes"]
    roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
    assert {"table", "row", "columnheader", "rowheader", "cell", "radio", "checkbox", "heading"} <= set(roles)
