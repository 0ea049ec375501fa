"""The page in Chromium: nothing on the console, no scrolling sideways on a phone, all by keyboard."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from scripts import chromium
from scripts.page_server import fill, serving

pytestmark = [
    pytest.mark.skipif(chromium.program() is None, reason="no chromium on the PATH"),
    pytest.mark.timeout(900),  # a busy machine takes minutes to start it
]
CHOICE = "?operator=lstm&device=nvidia-h200&set.hidden=256&set.batch=32&set.dtype=bfloat16"
WRONG = "?operator=lstm&device=nvidia-h200&set.hidden=-1&memory=much&x=hiden&only.seq=-1"
PAGES = ("", CHOICE, "?operator=gru&x=seq&y=batch&only.mode=training", "?operator=" + "nonesuch" * 20, WRONG)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("page") / "measurements.sqlite"
    fill(path)
    with serving(path) as base:
        yield f"{base}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Tab]:
    with chromium.tab() as opened:
        yield opened


@pytest.mark.parametrize("query", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1280, False)])
def test_it_fits_and_says_nothing(
    browser: chromium.Tab, url: str, query: str, width: int, dark: bool
) -> None:
    browser.said.clear()
    browser.size(width, 740, dark=dark)
    browser.open(url + query)
    # a 422 is what the page was meant to be answered with
    assert [message for message in browser.said if "422" not in str(message)] == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    captions = "[...document.querySelectorAll('caption')].map(one => one.getBoundingClientRect().right)"
    assert max(browser.ask(captions), default=0) <= width  # of tables that scroll by themselves, too
    assert browser.ask("document.styleSheets.length") == 1
    ground = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") is not dark


def test_the_documentation_is_drawn_without_another_host(browser: chromium.Tab, url: str) -> None:
    browser.said.clear()
    browser.open(f"{url}docs")
    deadline = time.monotonic() + 120
    while not browser.ask("document.querySelectorAll('.opblock').length") and time.monotonic() < deadline:
        time.sleep(0.2)
    paths = browser.ask(
        "[...document.querySelectorAll('.opblock-summary-path')].map(one => one.dataset.path)"
    )
    assert "/v1/choices" in paths
    hosts = browser.ask("performance.getEntriesByType('resource').map(one => new URL(one.name).origin)")
    assert {f"{one}/" for one in hosts} == {url}
    assert browser.said == []


def test_a_script_would_not_run(browser: chromium.Tab, url: str) -> None:
    browser.open(url)
    browser.said.clear()
    browser.ask(
        "document.body.insertAdjacentHTML('beforeend', '<p id=probe onclick=\"this.title=1\">');"
        "document.getElementById('probe').click()"
    )
    assert browser.ask("document.getElementById('probe').title") == ""
    assert "Content Security Policy" in str(browser.said)


def test_by_keyboard_alone(browser: chromium.Tab, url: str) -> None:
    browser.size(360, 740)
    browser.open(url + CHOICE)
    browser.press("Tab")
    assert browser.ask("document.activeElement.textContent") == "Skip to the contents"
    assert browser.ask("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter", "\r")
    assert browser.ask("document.activeElement.id") == "main"
    stops = []
    while (stop := browser.ask("document.activeElement.outerHTML.slice(0, 200)")) not in stops:
        stops.append(stop)
        assert browser.ask(
            "document.activeElement.matches('body, main') "
            "|| getComputedStyle(document.activeElement).outlineStyle != 'none'"
        )
        browser.press("Tab")
    controls = browser.ask(
        "[...document.querySelectorAll('main a, main button, main select, main input:not([type=hidden])')]"
        ".filter(one => one.checkVisibility()).length"
    )
    reached = [stop for stop in stops if stop.startswith(("<a ", "<button", "<select", "<input"))]
    assert len(reached) >= controls
    assert sum('class="scroll"' in stop for stop in stops) >= 3  # tables that are wider than a phone


def test_a_form_is_sent_with_enter(browser: chromium.Tab, url: str) -> None:
    browser.open(url + "?operator=lstm&device=nvidia-h200")
    browser.ask("document.querySelector('[name=\"set.hidden\"]').value = '512'")
    browser.ask("document.querySelector('[name=\"set.batch\"]').value = '64'")
    browser.ask("document.querySelector('[name=\"set.batch\"]').focus()")
    browser.follow()
    assert "set.hidden=512" in browser.ask("location.search")
    assert browser.ask("location.hash") == "#choice"
    assert browser.ask("document.getElementById('explained').textContent")


def test_every_control_has_a_name(browser: chromium.Tab, url: str) -> None:
    browser.open(url + CHOICE)
    nameless = browser.ask(
        "[...document.querySelectorAll('select, input:not([type=hidden])')]"
        ".filter(one => !one.labels.length || !one.labels[0].textContent.trim()).length"
    )
    assert nameless == 0
