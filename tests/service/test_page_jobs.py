"""Profiling jobs on the page: those in progress first, why tasks failed, and what a database costs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kernel_selector.db import Database, DatabaseUnreachable, jobs
from kernel_selector.kernels import registry
from kernel_selector.service import cached
from kernel_selector.service import jobs as shown
from kernel_selector.service.app import create_app
from kernel_selector.service.fleet.jobs import JobRequest, cancel_job, create_job
from kernel_selector.service.tokens import create_token
from selector import Selector
from tests.service.page_reader import Page

EVIL = "<script>alert(1)</script>"


def job(hidden: int, attempts: int = 1) -> JobRequest:
    problems = [registry.operator("lstm").problem(hidden=hidden, batch=batch) for batch in (1, 2, 3)]
    return JobRequest(operator="lstm", problems=problems, devices=["cpu"], max_attempts=attempts)


@pytest.fixture
def store(empty_database: Path):
    with Database.open(str(empty_database)) as opened:
        yield opened


@pytest.fixture
def client(store: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shown, "LEAST_AGE_S", 0.0)
    monkeypatch.setattr(cached, "BACK_OFF", 0)
    selector = Selector(store)
    with TestClient(create_app(selector), base_url="http://127.0.0.1") as opened:
        yield opened
    selector.close()


def rows(client: TestClient) -> list[list[str]]:
    """The cells of the jobs' table, by row."""
    answer = client.get("/")
    assert answer.status_code == 200, answer.text
    assert Page(answer.text).faults == []
    body = answer.text.partition('aria-labelledby="jobs"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    parts = [Page(part) for part in body.split("<tr>")[1:]]
    return [[text for tag, text in part.texts if tag in ("th", "td")] for part in parts]


def test_without_a_job_it_says_how_to_make_one(client: TestClient) -> None:
    text = Page(client.get("/").text).text
    assert "selector jobs create" in text
    assert "Why tasks of job" not in text


def test_jobs_in_progress_come_first(client: TestClient, store: Database) -> None:
    running = create_job(store, job(64), author="a")[0]["id"]
    ended = create_job(store, job(65), author="b")[0]["id"]
    cancel_job(store, ended, author="ann")
    with store.write() as connection:
        taken = jobs.claim(connection, devices=["cpu"], owner="w", lease_s=60)
        jobs.finish(connection, task=taken.task, lease=taken.lease, records=7)
        jobs.claim(connection, devices=["cpu"], owner="w", lease_s=60)
    first, second = rows(client)
    assert first[:4] == [str(running), "lstm", "cpu", "running"]
    assert first[-5:] == ["1 of 3", "1", "1", "0", "7"]
    assert second[:4] == [str(ended), "lstm", "cpu", "cancelled"]
    newest = create_job(store, job(66), author="c")[0]["id"]
    assert [row[0] for row in rows(client)] == [str(newest), str(running), str(ended)]


def test_reasons_and_authors_stay_text(client: TestClient, store: Database) -> None:
    number = create_job(store, job(64), author=EVIL)[0]["id"]
    with store.write() as connection:
        taken = jobs.claim(connection, devices=["cpu"], owner="w", lease_s=60)
        jobs.fail(connection, task=taken.task, lease=taken.lease, reason=EVIL)
    secret = create_token(store, "ann", scopes=["admin", "read"])
    page = Page(client.get("/", headers={"authorization": f"Bearer {secret}"}).text)
    assert ("h3", f"Why tasks of job {number} failed") in page.texts
    assert ("li", EVIL) in page.texts


def test_no_more_than_can_be_read_are_shown(
    client: TestClient, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "SHOWN", 2)
    numbers = [create_job(store, job(hidden), author="a")[0]["id"] for hidden in (64, 65, 66)]
    assert [row[0] for row in rows(client)] == [str(number) for number in (numbers[2], numbers[1])]


def test_a_database_that_is_gone_leaves_what_was_read(
    client: TestClient, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_job(store, job(64), author="a")
    before = rows(client)

    def gone(_: Database) -> None:
        raise DatabaseUnreachable("it is gone")

    monkeypatch.setattr(Database, "read", gone)
    assert rows(client) == before


def test_jobs_are_read_seldom(client: TestClient, store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows(client) == []
    monkeypatch.setattr(shown, "LEAST_AGE_S", 1e6)
    rows(client)
    create_job(store, job(64), author="a")
    assert rows(client) == []


def test_jobs_that_could_never_be_read_are_not_called_none(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    selector = Selector(store)
    cache = shown.JobsCache(selector)

    def gone(_: Database) -> None:
        raise DatabaseUnreachable("it is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "read", gone)
        for _ in range(2):
            with pytest.raises(DatabaseUnreachable):
                cache.jobs()
    assert cache.jobs() == []
    selector.close()
