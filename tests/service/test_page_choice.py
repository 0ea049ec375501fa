"""The choice on the page: errors beside the fields, its line of Python, its plots over a size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from kernel_selector.service.pages.explained import python_line
from selector import Query, Selector
from selector.text.units import format_ms
from tests.service.page_reader import Page, read

CHOICE = {"operator": "lstm", "set.hidden": "256", "set.batch": "32"}
SIZES = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def values(page: Page) -> dict[str, str]:
    """What stands in the inputs that are typed into, by name."""
    return {item["name"]: item["value"] for item in page.all("input") if item.get("type") != "hidden"}


def wrong(page: Page) -> set[str]:
    """Names of the fields that are marked as wrong."""
    return {item["name"] for tag in ("input", "select") for item in page.all(tag) if "aria-invalid" in item}


def beside(page: Page, name: str) -> str:
    """The error that a field refers to."""
    (field,) = (item for tag in ("input", "select") for item in page.all(tag) if item.get("name") == name)
    (place,) = (one for one in field["aria-describedby"].split() if one.endswith("-error"))
    (index,) = (at for at, (_, item) in enumerate(page.elements) if item.get("id") == place)
    count = sum(1 for _, item in page.elements[:index] if item.get("class") == "error")
    return [text for tag, text in page.texts if tag == "p" and "expected" in text][count]


@pytest.mark.parametrize(
    ("query", "concerned"),
    [
        ({"set.hidden": "-3", "set.batch": "", "memory": "much"}, {"set.hidden", "set.batch", "memory"}),
        ({"set.hidden": "64"}, {"set.batch"}),
        ({**CHOICE, "set.dtype": "float8"}, {"set.dtype"}),
        ({**CHOICE, "objective": "fast"}, {"objective"}),
        ({**CHOICE, "over": "dtype"}, {"over"}),
        ({**CHOICE, "device": "nonesuch"}, {"device"}),
        ({**CHOICE, "set.hidden_size": "64"}, {"set.hidden"}),
        ({**CHOICE, "set.projection": "256"}, {"set.projection"}),
        ({"operator": "lstmm"}, {"operator"}),
        ({"x": "hiden", "only.hidden": "63"}, {"x", "only.hidden"}),
        ({"x": "hidden", "y": "hidden"}, {"x"}),
        ({**CHOICE, "set.hiden": "3"}, set()),
        ({"only.nonesuch": "3"}, set()),
    ],
)
def test_an_error_stands_beside_the_field_that_it_concerns(
    client: TestClient, query: dict[str, str], concerned: set[str]
) -> None:
    page = read(client, 422, **{"operator": "lstm", **query})
    assert wrong(page) == concerned
    for name in concerned:
        assert [one for _, one in page.elements if one.get("id", "").endswith(f"-{name}-error")]
    alerts = [one for _, one in page.elements if one.get("role") == "alert"]
    assert alerts or concerned == {"operator"}
    links = {one["href"].partition("-")[2] for one in page.all("a") if "-" in one["href"]}
    assert concerned <= links


def test_what_was_typed_stays(client: TestClient) -> None:
    given = {"set.hidden": "-3", "set.batch": "many", "memory": "much", "set.seq": "7"}
    page = read(client, 422, operator="lstm", **given)
    assert given.items() <= values(page).items()
    assert "hidden='-3': expected a whole number" in beside(page, "set.hidden")
    selected = [item["value"] for item in page.all("option") if "selected" in item]
    assert "hiden" in [
        item["value"]
        for item in read(client, 422, operator="lstm", x="hiden").all("option")
        if "selected" in item
    ]
    assert "lstm" in selected


def test_too_little_memory_is_an_error_of_that_field(client: TestClient) -> None:
    page = read(client, 409, **CHOICE, memory="1B")
    assert wrong(page) == {"memory"}
    assert values(page)["memory"] == "1B"


@pytest.mark.parametrize(
    "more", [{}, {"memory": "1GiB", "objective": "memory"}, {"set.hidden": "64", "set.batch": "8"}]
)
def test_the_python_line_gives_the_choice_shown(
    client: TestClient, database_file: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    page = read(client, **{**CHOICE, **more})
    code = "\n".join(text for tag, text in page.texts if tag == "code" and "import selector" in text)
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(database_file))
    found: dict[str, Any] = {}
    exec(code, found)
    choice = found["choice"]
    assert ("h3", choice.implementation) in page.texts
    assert ("dd", str(choice.problem)) in page.texts
    figure = format_ms(choice.time_ms).split()[0]
    assert [text for tag, text in page.texts if tag == "dd" and text.startswith(figure)]


def test_texts_in_the_python_line_are_literals() -> None:
    evil = '"); import os; ("'
    line = python_line(Query(hyperparameters={"hidden": 3, "bias": True}, operator="lstm", device=evil))
    assert line == 'selector.choose("lstm", hidden=3, bias=True, device="\\"); import os; (\\"")'


def test_the_plots_have_the_figures_of_the_choices(client: TestClient, selector: Selector) -> None:
    page = read(client, **CHOICE)
    for name in ("time", "speed-up"):
        assert {"id": f"plot-{name}-title"} in [{"id": one.get("id", "")} for one in page.all("title")]
        (drawn,) = (one for one in page.all("svg") if one.get("aria-labelledby") == f"plot-{name}-title")
        assert drawn["role"] == "img"
        assert drawn["aria-describedby"] == f"plot-{name}-desc"
    text = page.text.split("Times by hidden")[1]
    device = page.text.split("device=")[-1].split('"')[1]
    for size in SIZES:
        made = selector.choose("lstm", hidden=size, batch=32, device=device)
        for one in made.candidates:
            if one.time_ms is not None and one.default:
                assert f"{format_ms(one.time_ms)} 1.00x, {one.source}" in text
    assert re.findall(r"\b(\d+) (?:-|\d)", text)[0] == str(SIZES[0])


def test_the_plots_are_over_the_size_asked_for(client: TestClient) -> None:
    page = read(client, **CHOICE, over="layers")
    assert "Times by layers" in page.text
    assert "Over layers" in page.text
    rows = [one for tag, one in page.texts if tag == "th"]
    assert {"1", "2", "4", "8", "16"} <= set(rows)
    assert "0" not in rows


def test_questions_of_the_plots_are_nobodys(
    client: TestClient, selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not noted as the next to measure."""
    noted: list[object] = []
    monkeypatch.setattr(selector._answers, "_note", noted.extend)
    read(client, **{**CHOICE, "set.batch": "33"})
    assert len(noted) == 1


def test_the_documentation_needs_no_other_host(client: TestClient) -> None:
    answer = client.get("/docs")
    assert answer.status_code == 200
    assert "://" not in answer.text
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    paths = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert len(paths) >= 5
    for path in (*paths, "openapi.json"):
        assert client.get(f"/{path}", headers={"host": "elsewhere"}).status_code == 200, path
    assert {"href": "docs"} in read(client).all("a")
