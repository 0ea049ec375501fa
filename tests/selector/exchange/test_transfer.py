"""Measurements out of a database and into another: nothing is lost, doubled or replaced."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernel_selector.db import (
    Database,
    audit,
    corrections,
    imported,
    models,
    records,
    snapshot,
    submissions,
    tokens,
)
from kernel_selector.db.models import StoredModel
from kernel_selector.db.tokens import StoredToken
from selector import InvalidRequest, UnknownOperator
from selector.errors import BadLines, Contradiction
from selector.exchange import export as transfer
from selector.exchange.import_file import import_file
from tests.selector import foreign, replay


@pytest.fixture
def other(tmp_path):
    with Database.open(tmp_path / "other.sqlite", create=True) as database:
        yield database


@pytest.fixture
def filled(sqlite_database, tmp_path):
    """A database with measurements of others and records of ours."""
    import_file(foreign.write(tmp_path / "a.jsonl", foreign.rows(10)), sqlite_database)
    with sqlite_database.write() as connection:
        records.add(connection, replay.sweep(list(replay.problems())[:2]))
    return sqlite_database


def snapshot_of(database: Database) -> str:
    with database.read() as connection:
        return snapshot(connection)


def test_json_lines_take_everything_out_and_in(filled, other, tmp_path):
    count = transfer.export(tmp_path / "all.jsonl", filled)
    report = import_file(tmp_path / "all.jsonl", other)
    assert report.added == sum(report.operators.values()) == count
    assert sorted(report.operators) == sorted([foreign.OPERATOR, "lstm"])  # those that can be trained
    assert snapshot_of(other) == snapshot_of(filled)


@pytest.mark.parametrize("name", ["gemm.csv", "gemm.json", "gemm.csv.gz", "gemm.json.gz", "gemm.jsonl.gz"])
def test_csv_and_t4_take_an_imported_operator_out_and_in(sqlite_database, other, tmp_path, name):
    lines = [
        *foreign.rows(10),
        {**next(foreign.rows(1)), "status": "out_of_memory", "reason": "no, too much"},
        {**next(foreign.rows(1)), "hyperparameters": {"m": -1, "n": 0, "alpha": None, "layout": None}},
    ]
    import_file(foreign.write(tmp_path / "a.jsonl", lines), sqlite_database)
    count = transfer.export(tmp_path / name, sqlite_database, operator=foreign.OPERATOR)
    assert import_file(tmp_path / name, other).added == count
    assert snapshot_of(other) == snapshot_of(sqlite_database)


def test_a_t4_file_has_what_its_schema_requires(sqlite_database, tmp_path):
    import_file(foreign.write(tmp_path / "a.jsonl", foreign.rows(10)), sqlite_database)
    transfer.export(tmp_path / "a.json", sqlite_database, operator=foreign.OPERATOR)
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["schema_version"] == "1.0.0"
    words = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    for result in document["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result)
        assert result["invalidity"] in words


def test_parquet_is_not_written(filled, tmp_path):
    with pytest.raises(InvalidRequest, match="format='parquet': expected one of jsonl, csv, t4"):
        transfer.export(tmp_path / "a.parquet", filled, operator=foreign.OPERATOR)


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_what_a_format_cannot_hold_is_refused(filled, tmp_path, name):
    for operator in (None, "lstm"):
        with pytest.raises(InvalidRequest, match="one imported operator"):
            transfer.export(tmp_path / name, filled, operator=operator)
    with pytest.raises(UnknownOperator):
        transfer.export(tmp_path / name, filled, operator="gem")
    with pytest.raises(InvalidRequest, match="cannot be written"):
        transfer.export(tmp_path / "none" / name, filled, operator=foreign.OPERATOR)


def test_a_merge_adds_what_is_missing_once_and_keeps_repetitions(filled, other, tmp_path):
    lines = list(foreign.rows(10))
    good = [line for line in lines if "milliseconds" in line]
    slower = {**good[0], "milliseconds": 2 * good[0]["milliseconds"]}
    import_file(foreign.write(tmp_path / "b.jsonl", [slower, *good[1:3]]), other)
    expected = transfer.diff(filled, other)
    with other.read() as connection:
        before = imported.total(connection)
    found = transfer.merge(filled, other)
    assert found == expected
    assert found.known[foreign.OPERATOR] == 2
    assert found.repeated[foreign.OPERATOR] == 1
    with other.read() as connection:
        assert imported.total(connection) == before + found.new[foreign.OPERATOR]
        assert records.total(connection) == found.new["lstm"]
    again = transfer.merge(filled, other)
    assert not +again.new
    assert again.known["lstm"] == found.new["lstm"]


def test_repeated_records_are_both_kept(filled, other):
    with filled.read() as connection:
        record = next(iter(records.find(connection)))
    vars(record)["seed"] = record.seed + 1
    with other.write() as connection:
        records.add(connection, [record])
    found = transfer.merge(filled, other)
    assert found.repeated == {"lstm": 1}
    with other.read() as connection:
        assert records.total(connection) == found.new["lstm"] + 1


def test_two_descriptions_of_one_operator_are_not_merged(filled, other, tmp_path):
    line = {**next(foreign.rows(1)), "hyperparameters": {"m": 1}}
    import_file(foreign.write(tmp_path / "b.jsonl", [line]), other)
    before = snapshot_of(other)
    for step in (transfer.merge, transfer.diff, transfer.promote):
        with pytest.raises(Contradiction, match="in one place"):
            step(filled, other)
    assert snapshot_of(other) == before


def test_promotion_takes_the_latest_models_along(filled, other):
    for version in ("1", "2"):
        model = StoredModel(
            operator="lstm",
            version=version,
            schema=1,
            manifest={},
            evaluation={},
            arrays=b"",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        with filled.write() as connection:
            models.add(connection, model=model)
    assert transfer.promote(filled, other)[1] == 1
    assert transfer.promote(filled, other)[1] == 0
    with other.read() as connection:
        assert models.latest(connection, operator="lstm").version == "2"
    assert snapshot_of(other) == snapshot_of(filled)


def test_repetitions_survive_a_merge_and_a_file(sqlite_database, other, tmp_path):
    line = next(foreign.rows(1))
    for number, count in enumerate((3, 5)):
        path = foreign.write(tmp_path / f"{number}.jsonl", [line] * count)
        import_file(path, sqlite_database)
    assert transfer.merge(sqlite_database, other).new == {foreign.OPERATOR: 5}
    assert snapshot_of(other) == snapshot_of(sqlite_database)
    assert not +transfer.merge(sqlite_database, other).new
    transfer.export(tmp_path / "all.jsonl", sqlite_database)
    assert import_file(tmp_path / "all.jsonl", other).known == 5


def entries_of(database: Database) -> list[tuple[str, ...]]:
    with database.read() as connection:
        found = list(audit.page(connection, limit=99))
    assert {(one["author"], one["through"]) for one in found} <= {(audit.account(), audit.COMMAND)}
    return [(one["action"], one["subject"], one["details"]) for one in found]


def test_the_journal_has_what_came_from_elsewhere(filled, other, tmp_path):
    given = {"schema": 1, "manifest": {}, "evaluation": {}, "arrays": b""}
    model = StoredModel(operator="lstm", version="1", created_at=datetime(2026, 1, 1, tzinfo=UTC), **given)
    rows = {foreign.OPERATOR: 30}
    imported_first = (
        "measurements.import",
        "a.jsonl",
        {"added": 30, "known": 0, "bad": 0, "operators": rows},
    )
    assert entries_of(filled) == [imported_first]

    new = transfer.merge(filled, other).new
    merged = {"added": new.total(), "known": 0, "operators": dict(new)}
    assert new["lstm"]
    transfer.merge(filled, other)  # adds nothing
    transfer.promote(filled, other)
    with filled.write() as connection:
        models.add(connection, model=model)
    transfer.promote(filled, other)
    promoted = {"added": 0, "models": 1, "known": new.total(), "operators": {}}
    name = Path(filled.location).name
    assert entries_of(other) == [("database.merge", name, merged), ("database.promote", name, promoted)]

    transfer.export(tmp_path / "all.jsonl", filled)
    assert import_file(tmp_path / "all.jsonl", filled).added == 0
    assert entries_of(filled) == [imported_first]


def test_the_journal_has_one_line_for_a_file_of_any_name(other, tmp_path):
    names = ["a\n7  root.jsonl", os.fsdecode(b"b\xff.jsonl")]
    for seed, name in enumerate(names):
        import_file(foreign.write(tmp_path / name, foreign.rows(3, seed=seed)), other)
    assert [subject for _, subject, _ in entries_of(other)] == ["a\\n7  root.jsonl", "b\\udcff.jsonl"]


def test_what_fails_is_not_in_the_journal(filled, other, tmp_path, monkeypatch):
    path = foreign.write(tmp_path / "b.jsonl", [*foreign.rows(1), {"operator": "x"}])
    with pytest.raises(BadLines):
        import_file(path, other)
    monkeypatch.setattr("kernel_selector.db.transfer.copy_models", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        transfer.promote(filled, other)
    assert entries_of(other) == []


@pytest.mark.parametrize("through", ["file", "merge", "promote"])
@pytest.mark.parametrize("verb", ["retract", "distrust"])
@pytest.mark.parametrize("is_late", [True, False], ids=["after it came back", "before"])
def test_copies_of_what_a_token_sent_stay_the_tokens(
    sqlite_database, other, tmp_path, through, verb, is_late
):
    now = datetime(2026, 5, 1, tzinfo=UTC)
    with sqlite_database.write() as connection:
        tokens.add(connection, StoredToken(name="t", digest="t", scopes=("measure",), created_at=now))
        batch = submissions.add(connection, author="t", received_at=now)
        records.add(connection, replay.sweep(list(replay.problems())[:2]), submission=batch)
        count = records.total(connection)

    def correct():
        with sqlite_database.write() as connection:
            if verb == "distrust":
                tokens.trust(connection, name="t", trusted=False)
                return
            entry = audit.add(
                connection, author="me", through="command", action=audit.Action.RETRACT, subject="t"
            )
            found = corrections.sendings(connection, submissions.Chosen(author="t"))
            corrections.retract(connection, found, entry=entry, changed=count)

    path = tmp_path / "all.jsonl"
    assert transfer.export(path, sqlite_database) == count
    transfer.merge(sqlite_database, other)
    if not is_late:
        correct()
    before = snapshot_of(sqlite_database)
    if through == "file":
        assert import_file(path, sqlite_database).known == count
    else:
        getattr(transfer, through)(other, sqlite_database)
    assert snapshot_of(sqlite_database) == before
    if is_late:
        correct()
    with sqlite_database.read() as connection:
        left = records.total(connection)
    assert left == (count if verb == "distrust" else 0)
    assert transfer.waiting(sqlite_database) == left
    assert transfer.export(tmp_path / "none.jsonl", sqlite_database) == 0


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "a.txt.gz", "a.jsonlines"])
def test_an_ending_that_says_no_format_is_refused(filled, tmp_path, name):
    file = tmp_path / name
    words = (
        r"ending says no format\. Expected \.jsonl, \.ndjson, \.csv, \.json, or .*\(--format\): jsonl, csv"
    )
    with pytest.raises(InvalidRequest, match=words):
        transfer.export(file, filled)
    assert not file.exists()
    assert transfer.export(file, filled, kind="jsonl") > 0
    assert transfer.export(tmp_path / "a.NDJSON.gz", filled) > 0
