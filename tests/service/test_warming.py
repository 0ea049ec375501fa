"""Operators are read beside the first requests: no first question is slow, and no end is delayed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import DatabaseCorrupt, records
from kernel_selector.kernels import registry
from kernel_selector.service import app
from kernel_selector.service.cli import serve
from kernel_selector.service.scheduling import warming
from kernel_selector.service.settings import Settings
from selector import Query, Selector

WAIT_S = 300  # on a busy machine; milliseconds otherwise
LOCAL = "http://127.0.0.1"


class Held:
    """A selector of which questions are counted, and answered once let go."""

    unusable = ""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, object]] = []
        self.is_asked, self.go_on = threading.Event(), threading.Event()

    def operators(self) -> None:
        """Nothing to list."""

    def choose(self, *_: object, **__: object) -> None:
        """Nothing to choose."""

    def close(self) -> None:
        """Nothing to close."""

    def devices(self) -> list[dict[str, object]]:
        """Two that are measured, one of them on two hosts, and one that is not."""
        return [{"key": key, "measured": key != "other"} for key in ("gpu", "gpu", "other", "cpu")]

    def measured(self) -> set[tuple[str, str]]:
        """Every operator on both, but one."""
        return {(name, key) for name in registry.operators() for key in ("gpu", "cpu")} - {("lstm", "cpu")}

    def choose_each(self, queries: list[Query], *, kept: bool) -> list[None]:
        """Questions that nobody has."""
        assert not kept
        self.asked += [(query.operator, query.device) for query in queries]
        self.is_asked.set()
        assert self.go_on.wait(WAIT_S)
        return [None]


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.go_on.set()


def test_it_answers_before_it_is_warm(held: Held) -> None:
    with TestClient(app.create_app(held, settings=Settings(), warm=True), base_url=LOCAL) as client:  # type: ignore[arg-type]
        assert held.is_asked.wait(WAIT_S)
        assert client.get("/healthz").status_code == 200
        held.go_on.set()
        wanted = [(name, key) for name in registry.operators() for key in ("gpu", "cpu")]
        wanted.remove(("lstm", "cpu"))  # of which nothing was measured
        deadline = time.monotonic() + WAIT_S
        while held.asked != wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        assert held.asked == wanted


def test_its_end_waits_for_no_question_and_asks_no_more(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "MOST_WAIT_S", 0.01)
    with TestClient(app.create_app(held, settings=Settings(), warm=True), base_url=LOCAL):  # type: ignore[arg-type]
        assert held.is_asked.wait(WAIT_S)
    (thread,) = (one for one in threading.enumerate() if one.name == "warming")  # it ended before
    held.go_on.set()
    thread.join(WAIT_S)
    assert thread.daemon
    assert len(held.asked) == 1


def test_it_is_warmed_up_where_it_serves_alone(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(database_file))
    assert app.from_environment().state.warm
    served = []
    monkeypatch.setattr(serve, "run_announced", lambda given, _: served.append(given.loaded_app))
    monkeypatch.setattr(serve, "_configuration", lambda application, *_: _Loaded(application))
    serve._serve_here(Selector(database_file), Settings(), ("127.0.0.1", 8000), lambda: None)
    assert served[0].state.warm
    assert not app.create_app(Selector(database_file), settings=Settings()).state.warm


class _Loaded:
    """A configuration of a server with its application."""

    def __init__(self, application: object) -> None:
        self.loaded_app = application


@pytest.fixture
def two_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operators but two, which are warmed up sooner than all."""
    operators = {name: registry.operator(name) for name in ("lstm", "attention")}
    monkeypatch.setattr(registry, "operators", lambda: operators)


@pytest.mark.usefixtures("two_operators")
def test_the_first_question_about_an_operator_is_as_quick_as_others(empty_database: Path) -> None:
    """Half a second passes until Slurm's clients give up; it took up to 0.8."""
    opened = Selector(empty_database, shipped=True)
    with TestClient(app.create_app(opened, settings=Settings(), warm=True), base_url=LOCAL) as client:
        (thread,) = (one for one in threading.enumerate() if one.name == "warming")
        thread.join(WAIT_S)
        layer = {**registry.operator("attention").examples[0], "batch": 3}
        question = {"operator": "attention", "hyperparameters": layer, "device": "h200"}
        started = time.process_time()
        answer = client.post("/v1/choices", json=question)
        assert time.process_time() - started < 0.25
    assert answer.status_code == 200, answer.text
    opened.close()


@pytest.mark.usefixtures("two_operators")
def test_all_that_ships_and_is_ones_own_is_read_before_a_question(database_file: Path) -> None:
    opened = Selector(database_file, shipped=True)
    assert not opened._knowledge.own.loaded
    warming.warm_up(opened)
    known = opened._knowledge
    assert known.own.devices
    assert known.shipped
    for body in (known.own, known.shipped):
        keys = {device.key for device in body.devices}
        assert body.loaded >= {(name, key) for name in registry.operators() for key in keys}
    opened.close()


@pytest.mark.usefixtures("two_operators")
def test_what_cannot_be_read_is_said_once_and_the_rest_is_read(
    database_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = Selector(database_file, shipped=False)
    newest = records.newest

    def damaged(connection: object, **given: object) -> object:
        if given["operator"] == "lstm":
            raise DatabaseCorrupt("a row is damaged.")
        return newest(connection, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(records, "newest", damaged)
    pairs = {(name, device["key"]) for name in ("lstm", "attention") for device in opened.devices()}
    monkeypatch.setattr(Selector, "measured", lambda _: pairs)
    warming.warm_up(opened)
    assert caplog.text.count("not warmed up: a row is damaged.") == 1
    assert {name for name, _ in opened._knowledge.own.loaded} == {"attention"}
    opened.close()


def test_it_is_said_that_what_ships_cannot_be_read(
    empty_database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged() -> None:
        raise OSError("damaged")

    monkeypatch.setattr("selector.selection.knowledge.shipped_body", damaged)
    opened = Selector(empty_database, shipped=True)
    warming.warm_up(opened)
    opened.close()
    assert "not warmed up" in caplog.text
    assert "damaged" in caplog.text
