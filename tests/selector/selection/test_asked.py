"""Questions that were answered without being sure are remembered, unless the user wants none to be."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from pathlib import Path

import pytest

from kernel_selector.db import Database, records
from kernel_selector.db.engine.backup import back_up, restore
from kernel_selector.service.cli.profile_request import ProfileRequest
from selector import Selector
from selector.errors import InvalidRequest
from selector.selection import query_log as asked
from tests.selector import replay

QUESTION = {"hidden": 77, "batch": 3}


def remembered(database: Database) -> list:
    return asked.asked(database, replay.HERE.key)


def test_an_unsure_answer_is_remembered_once(sqlite_database: Database) -> None:
    for _ in range(2):
        selector = Selector(sqlite_database)
        for _ in range(3):
            assert selector.choose("lstm", device=replay.HERE, **QUESTION).source == "default"
    (problem,) = remembered(sqlite_database)
    assert (problem["hidden"], problem["batch"]) == (77, 3)
    assert asked.asked(sqlite_database, "another-device") == []


def test_a_measured_answer_is_not(sqlite_database: Database) -> None:
    (problem,) = replay.problems(hidden=(64,), batch=(8,), seq=(10,), layers=(1,), mode=("training",))
    with sqlite_database.write() as connection:
        records.add(connection, replay.sweep([problem]))
    choice = Selector(sqlite_database).choose("lstm", device=replay.HERE, **problem.as_dict)
    assert choice.source == "exact"
    assert remembered(sqlite_database) == []


@pytest.mark.parametrize("word", ["0", "off", "False"])
def test_nothing_is_kept_for_who_wants_none(sqlite_database: Database, monkeypatch, word: str) -> None:
    monkeypatch.setenv(asked.VARIABLE, word)
    Selector(sqlite_database).choose("lstm", device=replay.HERE, **QUESTION)
    assert not asked.file_of(sqlite_database).exists()


def test_the_file_is_bounded_and_lines_that_say_nothing_are_passed_over(sqlite_database: Database) -> None:
    file = asked.file_of(sqlite_database)
    file.write_text('{"device": "cut of\nmilk\n{"device": 3}\n' + "x" * asked.LARGEST_BYTES)
    size = file.stat().st_size
    Selector(sqlite_database).choose("lstm", device=replay.HERE, **QUESTION)
    assert file.stat().st_size == size
    assert remembered(sqlite_database) == []


def test_a_process_forgets_in_the_end_what_it_noted(sqlite_database: Database, monkeypatch) -> None:
    noted: list[int] = []
    monkeypatch.setattr(asked, "MOST_NOTED", 2)
    monkeypatch.setattr(asked, "note", lambda _file, new: noted.extend(one.problem["hidden"] for one in new))
    note, selector = asked.noting(sqlite_database), Selector(sqlite_database)
    choices = [selector.choose("lstm", device=replay.HERE, hidden=each, batch=3) for each in range(70, 74)]
    noted.clear()
    for choice in (*choices, choices[-1], choices[0]):
        note([choice])
    assert noted == [70, 71, 72, 73, 70]


def test_a_place_that_cannot_be_written_costs_no_answer(sqlite_database: Database) -> None:
    asked.file_of(sqlite_database).mkdir()
    assert Selector(sqlite_database).choose("lstm", device=replay.HERE, **QUESTION).implementation


def test_nothing_but_the_question_is_kept(sqlite_database: Database) -> None:
    Selector(sqlite_database).choose("lstm", device=replay.HERE, **QUESTION)
    (line,) = asked.file_of(sqlite_database).read_text().splitlines()
    assert json.loads(line).keys() == {"operator", "hyperparameters", "device"}


def test_without_questions_there_is_nothing_to_measure(sqlite_database: Database) -> None:
    place = sqlite_database.location
    with pytest.raises(InvalidRequest, match="there is nothing to measure"):
        ProfileRequest(given={}, from_query_log=True, device="cpu", database=place).jobs()


def test_a_full_file_is_looked_at_alone_until_somebody_empties_it(sqlite_database: Database) -> None:
    file = asked.file_of(sqlite_database)
    file.write_text("x" * asked.LARGEST_BYTES)
    note, selector = asked.noting(sqlite_database), Selector(sqlite_database)
    first, second, third = (
        selector.choose("lstm", device=replay.HERE, hidden=each, batch=3) for each in range(70, 73)
    )
    note([first])
    note([second])
    assert file.stat().st_size == asked.LARGEST_BYTES
    file.unlink()
    note([third, second])
    assert [problem["hidden"] for problem in remembered(sqlite_database)] == [72, 71]


def test_no_token_fills_the_file_for_the_others(sqlite_database: Database, monkeypatch) -> None:
    monkeypatch.setattr(asked, "SHARE_BYTES", 1200)
    monkeypatch.setattr(asked, "_shares", Counter())
    selector = Selector(sqlite_database)

    def ask(who: str, sizes: range) -> int:
        token = asked.ASKER.set(who)
        for hidden in sizes:
            selector.choose("lstm", device=replay.HERE, hidden=hidden, batch=3)
        asked.ASKER.reset(token)
        return len(remembered(sqlite_database))

    mine = ask("greedy", range(100, 130))
    assert 0 < mine < 20
    assert asked.file_of(sqlite_database).stat().st_size <= 1200
    assert ask("greedy", range(130, 140)) == mine
    assert ask("honest", range(140, 142)) == mine + 2
    assert ask("", range(142, 152)) == mine + 12


def test_what_is_written_beside_a_database_is_for_the_owner_alone(tmp_path: Path) -> None:
    path, copy, before = tmp_path / "m.sqlite", tmp_path / "copy.sqlite", os.umask(0)
    try:
        with Database.open(path, create=True) as database:
            Selector(database).choose("lstm", device=replay.HERE, **QUESTION)
            back_up(path, copy)
            restore(copy, path, author="ops")
            found = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"m.sqlite", "m.sqlite-wal", "m.asked.jsonl", "copy.sqlite"} < found.keys()
    assert set(found.values()) == {0o600}, found


def test_a_mode_that_somebody_chose_stays(sqlite_database: Database) -> None:
    file = asked.file_of(sqlite_database)
    file.touch(mode=0o640)
    file.chmod(0o640)
    Selector(sqlite_database).choose("lstm", device=replay.HERE, **QUESTION)
    assert len(remembered(sqlite_database)) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
