"""The page at `/`: what it shows, how it takes bad input, and that names of others stay text."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, StoredModel, models, records
from kernel_selector.kernels.contract import Problem
from kernel_selector.service.app import create_app
from kernel_selector.service.pages.page import age
from kernel_selector.service.pages.question import LONGEST_VALUE, MOST_PARAMETERS
from selector import Selector
from selector.text.svg import MARKS, look
from tests.selector import replay
from tests.selector.conftest import shipped_body, shipped_cache, shipped_file  # noqa: F401 - fixtures
from tests.service.page_reader import read

CHOICE = {"operator": "lstm", "set.hidden": "256", "set.batch": "32"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}&lt;"
EVALUATION = {
    "snapshot": "elsewhere",
    "records": 321,
    "problems": 60,
    "time_error": 0.0712,
    "memory_error": 0.02,
    "comparisons": [
        {
            "held_out": "shapes, in folds of whole problems",
            "selectors": {
                "cost model": {
                    "problems": 60,
                    "gmean": 1.0123,
                    "p90": 1.05,
                    "p99": 1.2,
                    "worst": 1.3,
                    "within_5_percent": 0.9,
                    "top_1": 0.8,
                }
            },
        }
    ],
}


def model(evaluation: dict[str, object]) -> StoredModel:
    created_at = datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    return StoredModel(
        operator="lstm",
        version="v-of-the-model",
        schema=1,
        manifest={},
        evaluation=evaluation,
        arrays=b"",
        created_at=created_at,
    )


@pytest.fixture
def opened(empty_database: Path):
    """A function: a client of the service over a database with these records and models."""
    selectors = []

    def open_with(found=(), stored=()):
        with Database.open(str(empty_database)) as database, database.write() as connection:
            records.add(connection, found)
            for one in stored:
                models.add(connection, model=one)
        selectors.append(Selector(str(empty_database)))
        return TestClient(create_app(selectors[-1]), base_url="http://127.0.0.1")

    yield open_with
    for selector in selectors:
        selector.close()


def test_all_sections_are_there(client: TestClient) -> None:
    page = read(client)
    for heading in ("Coverage", "What wins where", "One choice explained", "Profiling jobs", "Cost models"):
        assert ("h2", heading) in page.texts
    assert ("a", "lstm") in page.texts
    assert "None is trained yet" in page.text
    assert "torch_lstm: 2" in page.text or "cell_loop: 2" in page.text  # the made-up times rise by name


def test_a_browser_is_told_to_run_and_load_nothing_else(client: TestClient) -> None:
    answer = client.get("/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["style-src"] == policy["img-src"] == policy["form-action"] == "'self'"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "://" not in answer.text  # nothing from elsewhere
    for path, media_type in (("/page/style.css", "text/css"), ("/page/icon.svg", "image/svg+xml")):
        found = client.get(path)
        assert found.status_code == 200
        assert found.headers["content-type"].startswith(media_type)
        assert path.removeprefix("/") in answer.text


def test_an_empty_database(opened) -> None:
    page = read(opened())
    assert "Nothing is measured yet" in page.text
    assert "Nothing of lstm is measured on this machine" in page.text


@pytest.mark.usefixtures("shipped_cache")
def test_what_ships_is_shown_as_such(opened) -> None:
    """Its coverage, its winners and its cost models, behind one's own."""
    own = replay.recorded(device_kind="cpu")[:3]
    page = read(opened(own), operator="lstm", device="nvidia-h200")
    assert "NVIDIA H200, comes with the package" in page.text
    assert re.search(rf"lstm {own[0].device.name} \d{{4}}-", page.text)  # one's own says nothing more
    assert "which comes with the package" in page.text
    assert "None is trained yet" not in page.text
    assert "Nothing of lstm is measured" not in page.text


def test_a_choice_is_explained(client: TestClient) -> None:
    page = read(client, **CHOICE, **{"memory": "1GiB", "objective": "memory", "set.mode": "training"})
    assert ("dt", "Because") in page.texts
    assert ("dt", "Rests on") in page.texts
    assert ("dd", "measured: this problem on this device") in page.texts
    chosen = next(attributes for attributes in page.all("tr") if attributes.get("class") == "chosen")
    assert chosen
    fields = {item["name"]: item for item in page.all("input")}
    assert fields["set.hidden"]["value"] == "256"
    assert fields["memory"]["value"] == "1GiB"
    assert "required" in fields["set.hidden"]
    assert "required" not in fields["set.seq"]


def test_nothing_is_chosen_before_it_is_asked_for(client: TestClient) -> None:
    assert "Candidates" not in read(client, operator="lstm").text


def test_the_map_has_the_winners(opened) -> None:
    few = [
        replay.record(
            replay.registry.operator("lstm").problem(hidden=hidden, batch=batch), name, time_ms=time
        )
        for hidden, batch in ((64, 8), (64, 16), (512, 8))
        for name, time in (("torch_lstm", 8.0), ("unfused", 4.0 if hidden == 64 else 9.0))
    ]
    client = opened(few)
    page = read(client)
    assert ("th", "batch \\ hidden") in page.texts
    cells = [text for tag, text in page.texts if tag in ("td", "small")]
    assert cells.count("2.00x, 1 of 1") == 2
    assert cells.count("1.00x, 1 of 1") == 1
    assert page.text.count("unfused: 2") == 1
    assert "-" in cells  # 512 with 16 was not measured
    only = read(client, **{"only.hidden": "512", "x": "batch", "y": "seq"})
    assert "1 problems" in only.text
    assert "unfused: " not in only.text


def test_models_and_their_quality(opened) -> None:
    older = {**EVALUATION, "records": 111}
    page = read(opened(stored=[model(older), model(EVALUATION)]))
    assert "v-of-the-model" in page.text
    assert "2026-02-03 04:05" in page.text
    assert "321 records of 60 problems" in page.text
    assert "time 7.1%" in page.text
    assert "111" not in page.text  # the latest one is in use
    assert [text for tag, text in page.texts if text in ("1.012", "1.300", "90%")] == [
        "1.012",
        "1.300",
        "90%",
    ]
    assert "changed since" in page.text


@pytest.mark.parametrize(
    "evaluation", [{}, {**EVALUATION, "time_error": "?"}, {**EVALUATION, "comparisons": 3}]
)
def test_an_evaluation_that_cannot_be_read(opened, evaluation: dict[str, object]) -> None:
    assert "cannot be read" in read(opened(stored=[model(evaluation)])).text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"operatr": "lstm"}, "no parameter 'operatr'. Did you mean 'operator'"),
        ({"operator": "lstmm"}, "Unknown operator 'lstmm'. Did you mean 'lstm'"),
        ({"operator": "x" * (LONGEST_VALUE + 1)}, "at most 200 characters"),
        ({"operator": ["lstm", "lstm"]}, "'operator' is given twice"),
        ({f"only.{number}": "1" for number in range(MOST_PARAMETERS + 1)}, "at most 60 parameters"),
        ({"operator": "lstm", "x": "hiden"}, "x='hiden'"),
        ({"operator": "lstm", "x": "hidden", "y": "hidden"}, "two different"),
        ({"operator": "lstm", "only.hidden": "63"}, "hidden='63': expected a value that was measured"),
        ({"operator": "lstm", "set.hiden": "3"}, "no hyperparameter 'hiden'"),
        ({"operator": "lstm", "set.hidden": "1.5"}, "hidden='1.5': expected a whole number"),
        ({"operator": "lstm", "set.hidden": "9" * 30, "set.batch": "1"}, "expected a whole number"),
        ({**CHOICE, "memory": "much"}, "memory='much'"),
        ({**CHOICE, "objective": "fast"}, "objective='fast'"),
        ({**CHOICE, "device": "nonesuch"}, "Unknown device 'nonesuch'"),
        ({"operator": "lstm", "set.hidden": "\0\ud800".encode("utf-8", "surrogatepass")}, "hidden="),
    ],
)
def test_bad_input_is_said_on_the_page(client: TestClient, query: dict[str, str], words: str) -> None:
    page = read(client, 422, **query)
    assert words in page.text
    assert ("h2", "Coverage") in page.texts  # the rest is there all the same
    assert [item for _, item in page.elements if item.get("role") == "alert"]


def test_a_question_without_an_answer(client: TestClient) -> None:
    assert "memory" in read(client, 409, **CHOICE, memory="1B").text


def test_the_page_is_only_read(client: TestClient) -> None:
    assert client.post("/").status_code == 405


def test_names_of_others_stay_text(opened) -> None:
    problem = Problem(EVIL, (("size", EVIL), ("mode", "training")))
    known = replay.record(replay.registry.operator("lstm").problem(hidden=64, batch=8), "torch_lstm")
    device = replace(replay.HERE, name=EVIL, host=EVIL)
    old = replace(known, implementation_version=EVIL, device=device)
    client = opened(
        [
            replace(known, problem=problem, implementation=EVIL, device=device),
            old,
            replace(
                replay.record(known.problem, "unfused", time_ms=1e-3),
                implementation=EVIL,
                implementation_version=EVIL,
                device=device,
            ),
        ],
        stored=[replace(model(EVALUATION), operator=EVIL, version=EVIL)],
    )
    page = read(client)
    names = [tag for tag, text in page.texts if text.startswith(EVIL.split("&")[0])]
    assert {"th", "td", "h3", "code", "option"} <= set(names)
    assert "49" not in page.text.split("Cost models")[0]
    for name in ("operator", "x", "only.hidden", "set.hidden", "memory", EVIL):
        said = read(client, 422, **{**CHOICE, name: EVIL})
        assert "alert(1)" in said.text
    read(client, device=EVIL)


def test_it_is_made_from_memory(
    client: TestClient, selector: Selector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_selector.service.jobs.LEAST_AGE_S", 1e6)
    read(client, **CHOICE)

    def refuse(_: Database) -> None:
        raise AssertionError("the database is read for a page")

    monkeypatch.setattr(Database, "read", refuse)
    monkeypatch.setattr(selector, "_due", float("inf"))
    read(client, **CHOICE)


def test_a_database_that_is_gone(opened, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selector.selection.selector.CHECK_S", 0.0)
    monkeypatch.setattr("selector.selection.selector.BACK_OFF", 0)
    client = opened(replay.sweep([replay.registry.operator("lstm").problem(hidden=64, batch=8)]))
    before = read(client)
    empty_database.rename(empty_database.with_suffix(".away"))
    page = read(client)
    assert "The database cannot be read now" in page.text
    assert ("a", "lstm") in page.texts
    assert "cannot be read" not in before.text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "just now"),
        (61, "1 minute ago"),
        (7300, "2 hours ago"),
        (90000, "1 day ago"),
        (-9, "in the future"),
    ],
)
def test_ages_in_words(seconds: float, words: str) -> None:
    assert age(datetime.now(UTC) - timedelta(seconds=seconds)) == words


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out(client: TestClient, scheme: int) -> None:
    """The contrast that WCAG asks for at level AA, in both colour schemes."""
    blocks = re.findall(r":root \{(.*?)\}", client.get("/page/style.css").text, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[scheme]))
    grounds = ("ground", "notice", "chosen", *(f"c{number}" for number in range(8)))
    pairs = [("text", ground) for ground in grounds]
    pairs += [("faint", "ground"), ("link", "ground"), ("on-accent", "accent"), ("wrong", "ground")]
    lines = [(look(number), "ground") for number in range(len(MARKS))]
    for text, ground in pairs + lines:
        dark, light = sorted((luminance(colours[text]), luminance(colours[ground])))
        least = 3.0 if (text, ground) in lines else 4.5  # of graphical objects, of text
        assert (light + 0.05) / (dark + 0.05) >= least, (text, ground)
