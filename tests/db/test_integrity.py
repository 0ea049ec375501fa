"""What changed in a database otherwise than by storing is found, row by row."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from kernel_selector.db import (
    Database,
    DatabaseError,
    audit,
    corrections,
    imported,
    integrity,
    records,
    submissions,
)
from kernel_selector.kernels.contract import SelectorError
from tests.db.conftest import change

NOW = datetime(2026, 1, 2, tzinfo=UTC)
# statements that change what is read, and the beginning of the words for it
CHANGES = {
    "a time": ("UPDATE measurement SET forward_p50_ms = 1.25 WHERE id = 2", "measurement 2 is not what was"),
    "a reason": ("UPDATE measurement SET reason = 'x' WHERE id = 2", "measurement 2 is not what was"),
    "a sample": ("UPDATE measurement SET forward_raw_ms = '[1.1, 0.3, 2.5]' WHERE id = 2", "measurement 2"),
    "what follows": (
        "UPDATE measurement SET forward_backward_undisturbed_ms = 0.5 WHERE id = 2",
        "measurement 2 has an undisturbed time",
    ),
    "a device": ("UPDATE device SET launch_us = 9.5", "measurement 1 is not what was stored"),
    "a problem that is none": (
        'UPDATE problem SET "values" = 7 WHERE id = 2',
        "measurement 2 cannot be read",
    ),
    "a version": ("UPDATE implementation SET version = 'other'", "measurement 1 is not what was stored"),
    "a row that is gone": ("DELETE FROM measurement WHERE id = 2", "the counts of "),
    "a count": ("UPDATE tally SET records = 7", "the counts of "),
}


# statements that change a record that was set aside, and the beginning of the words for it
CHANGES_ASIDE = {
    "a byte": (
        "UPDATE quarantined SET record = replace(record, 'lstm', 'lstn') WHERE id = 2",
        "quarantined record 2 is not what was set aside",
    ),
    "all of it": ("UPDATE quarantined SET record = '' WHERE id = 2", "quarantined record 2 is not what"),
    "no text": (
        "UPDATE quarantined SET record = CAST(x'7bff7d' AS TEXT) WHERE id = 2",
        "quarantined record 2 cannot be read",
    ),
    "a NUL": (
        "UPDATE quarantined SET record = record || char(0) WHERE id = 2",
        "quarantined record 2 cannot be read",
    ),
    "an author": ("UPDATE submission SET author = 'x' WHERE id = 2", "quarantined record 3 is not what"),
}


# statements that change what is read of imported measurements, and the beginning of the words for it
CHANGES_IMPORTED = {
    "a time": (
        "UPDATE imported_measurement SET time_ms = 1.75 WHERE id = 2",
        "imported measurement 2 is not",
    ),
    "bytes": ("UPDATE imported_measurement SET memory_bytes = 65 WHERE id = 1", "imported measurement 1 is"),
    "a repetition": (
        "UPDATE imported_measurement SET time_ms = 1.75 WHERE id = 5",
        "imported measurement 5 is not",
    ),
    "a reason": (
        "UPDATE imported_measurement SET reason = 'x' WHERE id = 7",
        "imported measurement 7 is not",
    ),
    "a name": ("UPDATE imported_measurement SET implementation = 'u'", "imported measurement 1 is not"),
    "a problem": (
        'UPDATE imported_problem SET "values" = \'{"m": 3}\' WHERE id = 2',
        "imported measurement 2 ",
    ),
    "no problem": (
        "UPDATE imported_problem SET \"values\" = '{' WHERE id = 2",
        "imported measurement 2 cannot",
    ),
    "a key": ("UPDATE imported_problem SET key = 'x' WHERE id = 2", "imported measurement 2 has a problem"),
    "another problem": (
        "UPDATE imported_measurement SET problem_id = 1 WHERE id = 2",
        "imported measurement 2 ",
    ),
    "a problem that is gone": (
        "DELETE FROM imported_problem WHERE id = 2",
        "imported measurement 2 refers to",
    ),
    "an operator": ("UPDATE imported_batch SET operator = 'x'", "imported measurement 1 has a problem"),
    "a device": ("UPDATE imported_batch SET device = 'x'", "imported measurement 1 is not"),
    "a summary": (
        "UPDATE imported_batch SET summary = replace(summary, '\"good\": 5', '\"good\": 4')",
        "imported batch 1 has a summary",
    ),
    "a digest": (
        "UPDATE imported_batch SET digest = '7'",
        "imported batch 1 has the digest 7, and its rows make",
    ),
    "a row that is gone": (
        "DELETE FROM imported_measurement WHERE id = 2",
        "imported batch 1 has the digest",
    ),
    "a batch": (
        "UPDATE imported_measurement SET batch_id = 2 WHERE id = 2",
        "imported batch 1 has the digest",
    ),
}


def found_in(database):
    with database.read() as connection:
        return list(integrity.faults(connection))


@pytest.fixture
def filled(database, make_record):
    with database.write() as connection:
        records.add(connection, [make_record(number) for number in range(3)])
    return database


def test_what_was_stored_has_no_fault(filled):
    assert found_in(filled) == []


@pytest.mark.parametrize(("statement", "words"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_found(tmp_path, make_record, statement, words):
    path = tmp_path / "measurements.sqlite"
    with Database.open(path, create=True) as database:
        with database.write() as connection:
            records.add(connection, [make_record(number) for number in range(3)])
        change(path, statement)
        faults = found_in(database)
    assert faults
    assert faults[0].startswith(words), faults


@pytest.mark.parametrize("is_released", [True, False], ids=["released", "aside"])
@pytest.mark.parametrize(("statement", "words"), CHANGES_ASIDE.values(), ids=CHANGES_ASIDE)
def test_a_change_of_what_was_set_aside_is_found(tmp_path, make_record, statement, words, is_released):
    path, now = tmp_path / "measurements.sqlite", datetime(2026, 5, 1, tzinfo=UTC)
    made = [make_record(number) for number in range(2)]
    lines = [(one.to_json(), "odd") for one in made]
    with Database.open(path, create=True) as database:
        with database.write() as connection:
            first, second = (submissions.add(connection, author=name, received_at=now) for name in ("a", "b"))
            submissions.quarantine(connection, submission=first, lines=lines)
            submissions.quarantine(connection, submission=second, lines=lines[:1])
            if is_released:
                entry = audit.add(
                    connection, author="me", through="command", action=audit.Action.RELEASE, subject="2"
                )
                corrections.release(connection, [corrections.Aside(2, first, made[1])], entry=entry)
        assert found_in(database) == []
        change(path, statement)
        (fault,) = found_in(database)
    assert fault.startswith(words)


def add_imported(database, operator="gemm"):
    """Seven rows: three equal ones of two calls, one that failed, and others."""
    rows = [
        imported.ImportedRow({"m": size, "alpha": 0.5}, "tiled", "ok", 1.5, 64) for size in (1, 2, 4, 8, 1, 1)
    ]
    rows.append(imported.ImportedRow({"m": 1, "alpha": 0.5}, "split", "timeout", None, None, "slow"))
    seen = imported.Repetitions()
    with database.write() as connection:
        for part in (rows[:5], rows[5:]):
            imported.add(
                connection,
                operator=operator,
                device="H200",
                rows=part,
                source="a.jsonl",
                imported_at=NOW,
                seen=seen,
            )


def test_imported_measurements_have_no_fault(database):
    add_imported(database)
    add_imported(database, "conv")
    assert found_in(database) == []


@pytest.mark.parametrize(("statement", "words"), CHANGES_IMPORTED.values(), ids=CHANGES_IMPORTED)
def test_a_change_of_an_imported_measurement_is_found(tmp_path, statement, words):
    path = tmp_path / "measurements.sqlite"
    with Database.open(path, create=True) as database:
        add_imported(database)
        change(path, statement)
        faults = found_in(database)
    assert faults
    assert any(fault.startswith(words) for fault in faults), faults


def records_of(database):
    with database.read() as connection:
        return list(records.find(connection))


def imported_of(database):
    """What is read of imported measurements, but for where they come from and when, which no hash has."""
    with database.read() as connection:
        batches = imported.batches(connection)
        rows = [(batch["id"], list(imported.rows_of(connection, batch["id"]))) for batch in batches]
        problems = list(imported.problems(connection, operator="gemm"))
    return [{**one, "source": "", "imported_at": None} for one in batches], rows, problems


def filled_with_records(database, make_record):
    with database.write() as connection:
        records.add(connection, [make_record(number) for number in range(20)])


def filled_with_imported(database, _):
    """So many that most of the file is theirs."""
    rows = [imported.ImportedRow({"m": size, "alpha": 0.5}, "tiled", "ok", 1.5, 64) for size in range(1000)]
    with database.write() as connection:
        imported.add(connection, operator="gemm", device="H200", rows=rows, source="a.jsonl", imported_at=NOW)


@pytest.mark.parametrize(
    ("fill", "read"),
    [(filled_with_records, records_of), (filled_with_imported, imported_of)],
    ids=["records", "imported"],
)
def test_a_flipped_bit_of_the_file_is_found_or_changes_nothing_that_is_read(
    tmp_path, make_record, fill, read
):
    path, copy = tmp_path / "measurements.sqlite", tmp_path / "flipped.sqlite"
    with Database.open(path, create=True) as database:
        fill(database, make_record)
    with Database.open(path) as database:
        before = read(database)
    content, draw = path.read_bytes(), random.Random(3)
    for _ in range(60):
        place = draw.randrange(100, len(content))
        flipped = bytearray(content)
        flipped[place] ^= 1 << draw.randrange(8)
        copy.write_bytes(flipped)
        try:
            with Database.open(copy) as database:
                assert found_in(database) or read(database) == before
        except (DatabaseError, SelectorError):
            continue
