"""A database that breaks while it is in use: answers go on from what is loaded, and say so."""

import os
import sqlite3
import threading
import time
from dataclasses import replace

import pytest

from kernel_selector.db import Database, DatabaseMissing, records
from kernel_selector.kernels import registry
from selector import Query, Selector
from selector.selection import selector as engine_module
from tests.selector import replay

LSTM = registry.operator("lstm")
PROBLEM = LSTM.problem(hidden=64, batch=8)
OTHERS = sorted(set(replay.ON_CPU) - {LSTM.default})
pytestmark = pytest.mark.usefixtures("here")
OUTAGE = "The database cannot be read now"


def fill(path, fastest):
    with Database.open(path, create=True) as database, database.write() as connection:
        times = {LSTM.default: 2.0, fastest: 1.0}
        records.add(connection, records=[replay.record(PROBLEM, name, time_ms=times[name]) for name in times])


def remove(path):
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "CHECK_S", 0.0)
    monkeypatch.setattr(engine_module, "BACK_OFF", 0)
    monkeypatch.setattr(engine_module, "LOCK_WAIT_S", 0.05)
    path = tmp_path / "measured.sqlite"
    fill(path, OTHERS[0])
    return path


@pytest.fixture
def selector(path):
    opened = Selector(path)
    assert ask(opened).implementation == OTHERS[0]
    yield opened
    opened.close()


def ask(selector, batch=8):
    return selector.choose(hidden=64, batch=batch)


def delete(path):
    remove(path)


def overwrite(path):
    path.write_bytes(b"\xff" * 50_000)


def replace_with_garbage(path):
    other = path.with_name("other")
    other.write_bytes(b"not a database" * 1000)
    remove(path)
    os.replace(other, path)


def replace_with_another_schema(path):
    remove(path)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    connection.close()


def migrate_further(path):
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()


@pytest.mark.parametrize(
    "damage", [delete, overwrite, replace_with_garbage, replace_with_another_schema, migrate_further]
)
def test_what_was_loaded_goes_on_answering_and_the_way_back_is_found(selector, path, damage):
    snapshot = selector.snapshot
    damage(path)
    for batch in (8, 9):  # asked before, and new
        choice = ask(selector, batch)
        assert choice.implementation == OTHERS[0]
        assert choice.snapshot == snapshot
        assert any(OUTAGE in caveat and path.name in caveat for caveat in choice.caveats)
    assert path.name in selector.status()["trouble"]
    remove(path)
    fill(path, OTHERS[1])
    choice = ask(selector)
    assert choice.implementation == OTHERS[1]
    assert not choice.caveats
    assert selector.status()["trouble"] is None
    assert choice.snapshot == selector.snapshot != snapshot


def test_another_valid_database_in_its_place_is_read(selector, path, tmp_path):
    fill(tmp_path / "other.sqlite", OTHERS[1])
    remove(path)
    os.replace(tmp_path / "other.sqlite", path)
    choice = ask(selector)
    assert (choice.implementation, choice.caveats) == (OTHERS[1], ())


def test_a_locked_database_is_waited_for_briefly(selector, path):
    remove(path)
    fill(path, OTHERS[1])
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    choice = ask(selector)
    assert (
        time.monotonic() - started < engine_module.LOCK_WAIT_S + 5
    )  # the 20 s of the first opening are over
    assert choice.implementation == OTHERS[0]
    assert any(OUTAGE in caveat for caveat in choice.caveats)
    holder.execute("COMMIT")
    holder.close()
    assert ask(selector).implementation == OTHERS[1]


def test_what_was_never_loaded_raises_while_the_database_is_away(selector, path):
    elsewhere = replace(replay.HERE, name="Other CPU", host="Other CPU")
    with Database.open(path) as database, database.write() as connection:
        records.add(connection, records=[replay.record(PROBLEM, LSTM.default, device=elsewhere)])
    assert ask(selector).implementation == OTHERS[0]
    remove(path)
    with pytest.raises(DatabaseMissing):
        selector.choose(hidden=64, batch=8, device="other-cpu")
    assert ask(selector).implementation == OTHERS[0]


def test_a_frozen_selector_does_not_need_the_file(path):
    frozen = Selector(path, frozen=True)
    remove(path)
    for batch in (8, 9):
        choice = ask(frozen, batch)
        assert choice.implementation == OTHERS[0]
        assert not any(OUTAGE in caveat for caveat in choice.caveats)
    with pytest.raises(DatabaseMissing):
        frozen.reload()
    assert ask(frozen).implementation == OTHERS[0]
    frozen.close()


def test_a_closed_selector_answers_from_what_was_loaded(selector):
    selector.close()
    assert ask(selector).implementation == OTHERS[0]


def test_evidence_read_later_belongs_to_the_snapshot_of_the_answer(path, monkeypatch):
    monkeypatch.setattr(engine_module, "CHECK_S", 3600.0)
    selector = Selector(path)  # nothing is asked yet, so no evidence is loaded
    before = selector.snapshot
    with Database.open(path) as database, database.write() as connection:
        records.add(connection, records=[replay.record(PROBLEM, OTHERS[1], time_ms=0.5)])
    choice = ask(selector)
    assert choice.implementation == OTHERS[1]
    assert choice.snapshot == selector.snapshot != before
    selector.close()


def test_an_unchanged_database_keeps_its_answers(selector, path):
    before = ask(selector)
    os.utime(path)  # as when another program opens and closes it
    assert ask(selector) is before


@pytest.mark.usefixtures("path")
def test_without_a_database_answers_are_kept_until_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(tmp_path / "later.sqlite"))
    selector = Selector(shipped=False)
    before = ask(selector)
    assert ask(selector) is before
    assert before.caveats[0].startswith("There are no measurements yet.")
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(tmp_path / "elsewhere.sqlite"))
    assert "elsewhere.sqlite" in ask(selector).caveats[0]
    fill(tmp_path / "elsewhere.sqlite", OTHERS[1])
    assert ask(selector).implementation == OTHERS[1]
    selector.close()


def test_other_threads_answer_while_one_reloads(selector, path, monkeypatch):
    reloading, go_on = threading.Event(), threading.Event()
    state_of = engine_module.state_of

    def slow(connection):
        reloading.set()
        assert go_on.wait(30)
        return state_of(connection)

    monkeypatch.setattr(engine_module, "state_of", slow)
    with Database.open(path) as database, database.write() as connection:
        records.add(connection, records=[replay.record(PROBLEM, OTHERS[1], time_ms=0.5)])
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(selector)))
    thread.start()
    try:
        assert reloading.wait(30)
        assert ask(selector).implementation == OTHERS[0]
    finally:
        go_on.set()
        thread.join()
    assert answers[0].implementation == OTHERS[1]


def test_it_knows_when_an_answer_needs_no_work(path, monkeypatch):
    monkeypatch.setattr(engine_module, "CHECK_S", 3600.0)
    selector, query = Selector(path), Query(hyperparameters={"hidden": 64, "batch": 8})
    assert not selector.answers_at_once(query)
    ask(selector)
    assert selector.answers_at_once(query)
    assert not selector.answers_at_once(Query(hyperparameters={"hidden": 64, "batch": 9}))
    monkeypatch.setattr(selector, "_due", 0.0)
    assert not selector.answers_at_once(query)
    selector.close()
    assert selector.answers_at_once(query)
