"""Migrations up, down and complete, from nothing and from every past revision."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from pytest_alembic.tests import (  # noqa: F401 - collected here for both databases
    test_model_definitions_match_ddl,
    test_single_head_revision,
    test_up_down_consistency,
    test_upgrade,
)
from sqlalchemy import inspect, text
from sqlalchemy.exc import DatabaseError

from kernel_selector.db import (
    Database,
    DatabaseRevision,
    audit,
    authorships,
    corrections,
    integrity,
    models,
    records,
    snapshot,
    submissions,
)
from kernel_selector.db.corrections import Aside
from kernel_selector.db.engine import migrations
from kernel_selector.db.engine.database import _make_engine
from kernel_selector.db.engine.location import resolve
from kernel_selector.db.submissions import Chosen
from kernel_selector.kernels.contract import Timing
from tests import empty_databases

ROOT = Path(__file__).parents[3]
STRUCTURE = {
    "sqlite": "SELECT sql FROM sqlite_master ORDER BY name, sql",
    "postgresql": """
        SELECT table_name::text, column_name::text, data_type || is_nullable || coalesce(column_default, '')
            FROM information_schema.columns WHERE table_schema = current_schema()
        UNION ALL SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
            FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
        UNION ALL SELECT tablename, indexname, '' FROM pg_indexes WHERE schemaname = current_schema()
        UNION ALL SELECT event_object_table, trigger_name, action_timing || event_manipulation
            FROM information_schema.triggers WHERE trigger_schema = current_schema()
        UNION ALL SELECT 'function', proname, prosrc
            FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        ORDER BY 1, 2, 3""",
}
ASSETS = sorted((ROOT / "tests" / "assets").glob("[0-9]*.sqlite"))


@pytest.fixture
def alembic_config():
    return {"script_location": str(migrations.FOLDER)}


@pytest.fixture
def alembic_engine(database_url):
    engine = _make_engine(resolve(database_url), 20, migrating=True).execution_options(writing=True)
    yield engine
    engine.dispose()


def test_the_head_is_the_one_that_is_written_down():
    assert ScriptDirectory.from_config(migrations.configuration()).get_current_head() == migrations.HEAD


def test_every_revision_has_a_database_of_its_time():
    scripts = ScriptDirectory.from_config(migrations.configuration()).walk_revisions()
    assert {asset.stem for asset in ASSETS} == {script.revision for script in scripts}


def test_migrations_import_nothing_of_ours():
    for script in ScriptDirectory.from_config(migrations.configuration()).walk_revisions():
        assert "kernel_selector" not in Path(script.path).read_text()


def test_down_to_nothing_and_up_again(database, database_url, make_record):
    from alembic import command

    with database.write() as connection:
        records.add(connection, [make_record()])
    database.close()
    with Database.migrating(database_url) as connection:
        command.downgrade(migrations.configuration(connection), "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    with Database.open(database_url, create=True) as again, again.write() as connection:
        assert records.add(connection, [make_record()]) == 1


@pytest.mark.parametrize("asset", ASSETS, ids=lambda asset: asset.stem)
def test_a_database_of_a_past_revision_is_upgraded_and_read(tmp_path, asset):
    path = tmp_path / asset.name
    shutil.copy(asset, path)
    if asset.stem != migrations.HEAD:
        with pytest.raises(DatabaseRevision, match="selector database upgrade"):
            Database.open(path)
    assert Database.upgrade(path) == migrations.HEAD
    with Database.open(path) as database, database.write() as connection:
        found = list(records.find(connection))
        assert [record.status.value for record in found] == ["ok", "crashed", "unsupported"]
        assert found[0].problem.key == "lstm hidden=64 bias=true dtype=float32 mode=training"
        assert found[0].forward.raw_ms == (1.1, 0.3, 2.0)
        assert records.add(connection, found) == 0  # their identity is what it was
        assert snapshot(connection) == "dcfb44c41739"
        assert models.latest(connection, operator="lstm").arrays == b"not\0pickled"


def test_undisturbed_times_are_filled_in(database, database_url, make_record):
    from alembic import command

    samples = (0.9, 3.0, 0.7, 2.0, 5.0, 4.0, 6.0, 0.8, 1.0, 7.0, 8.0)
    timing = Timing(p20_ms=0.9, p50_ms=3.0, p80_ms=6.0, samples=len(samples), raw_ms=samples)
    given = [
        make_record(0, forward=timing),
        make_record(1, forward=replace(timing, raw_ms=())),
        make_record(2, forward=replace(timing, raw_ms=samples[:5])),
    ]
    with database.write() as connection:
        records.add(connection, given)
    database.close()
    columns = "forward_undisturbed_ms, forward_backward_undisturbed_ms"
    query = text(f"SELECT {columns} FROM measurement ORDER BY id")
    with Database.migrating(database_url) as connection:
        stored = connection.execute(query).all()
        command.downgrade(migrations.configuration(connection), "0006")
        command.upgrade(migrations.configuration(connection), "head")
        filled = connection.execute(query).all()
    for mine, again, record in zip(stored, filled, given, strict=True):
        assert mine == (record.forward.undisturbed_ms, record.forward_backward.undisturbed_ms)
        assert again == pytest.approx(mine)
    assert stored[0][0] == pytest.approx(0.75)
    with Database.open(database_url) as again, again.write() as connection:
        assert records.add(connection, given) == 0  # their identity is what it was
        with pytest.raises(DatabaseError, match="append-only"):
            connection.execute(text("UPDATE measurement SET forward_undisturbed_ms = 1"))


def test_measurements_come_through_from_each_revision(database, database_url, make_record):
    from alembic import command

    with database.write() as connection:
        batch = submissions.add(connection, author="ann", received_at=make_record().measured_at)
        records.add(connection, [make_record(0), make_record(1)], submission=batch)
        before = snapshot(connection), list(records.find(connection))
    database.close()
    for asset in ASSETS[-2::-1]:
        with Database.migrating(database_url) as connection:
            command.downgrade(migrations.configuration(connection), asset.stem)
        with Database.open(database_url, create=True) as again, again.write() as connection:
            assert (snapshot(connection), list(records.find(connection))) == before, asset.stem
            audit.add(
                connection, author="me", through="command", action=audit.Action.UPLOAD, subject=asset.stem
            )
            with pytest.raises(DatabaseError, match="append-only"):
                connection.execute(text("UPDATE audit SET author = 'you'"))
            connection.rollback()


def test_corrections_come_through_the_revision_that_had_one_author(database, database_url, make_record):
    from alembic import command

    when = make_record().measured_at

    def entry(connection, action):
        return audit.add(connection, author="me", through="command", action=action, subject="x")

    def sizes(connection):
        return [record.problem.hidden - 64 for record in records.find(connection)]

    with database.write() as connection:
        first, second = (submissions.add(connection, author=name, received_at=when) for name in ("a", "b"))
        records.add(connection, [make_record(0), make_record(1)], submission=first)
        records.add(connection, [make_record(1), make_record(2)], submission=second)
        lines = [(make_record(number).to_json(), "too fast") for number in (3, 4)]
        submissions.quarantine(connection, submission=first, lines=lines)
        released, kept, retracted, undone, reversing = (
            entry(connection, action)
            for action in (audit.Action.RELEASE,) * 2 + (audit.Action.RETRACT,) * 2 + (audit.Action.UNDO,)
        )
        for number, by in ((3, released), (4, kept)):
            corrections.release(connection, [Aside(number - 2, first, make_record(number))], entry=by)
        corrections.undo(connection, undone=released, entry=reversing, changed=1)
        of_a, of_b = (
            [one for one in corrections.sendings(connection, Chosen(batch=batch)) if one.measurement < 4]
            for batch in (first, second)
        )
        corrections.retract(connection, of_a, entry=retracted, changed=1)
        corrections.retract(connection, of_b, entry=undone, changed=2)
        corrections.undo(connection, undone=undone, entry=reversing, changed=2)
        assert sizes(connection) == [1, 2, 4]
    database.close()
    with Database.migrating(database_url) as connection:
        command.downgrade(migrations.configuration(connection), "0009")
        marks = connection.execute(text("SELECT measurement_id, audit_id FROM retraction ORDER BY 1")).all()
        assert marks == [(1, retracted), (4, reversing)]
        assert connection.execute(text("SELECT quarantined_id, audit_id FROM release")).all() == [(2, kept)]
    Database.upgrade(database_url)
    with Database.open(database_url) as again, again.write() as connection:
        assert (sizes(connection), list(integrity.faults(connection))) == ([1, 2, 4], [])
        corrections.undo(connection, undone=retracted, entry=entry(connection, audit.Action.UNDO), changed=1)
        assert sizes(connection) == [0, 1, 2, 4]
        (aside,) = submissions.quarantined(connection, limit=9)
        once_more = entry(connection, audit.Action.RELEASE)
        corrections.release(connection, [Aside(aside["id"], first, make_record(3))], entry=once_more)
        assert (sizes(connection), list(integrity.faults(connection))) == ([0, 1, 2, 3, 4], [])


def test_corrections_of_an_older_program_meanwhile_are_of_first_authors(database, database_url, make_record):
    """And an owner who was kept as the second author of a copy stays it."""
    from alembic import command

    when = make_record().measured_at
    with database.write() as connection:
        batch = submissions.add(connection, author="a", received_at=when)
        records.add(connection, [make_record(number) for number in range(3)], submission=batch)
        records.add(connection, [make_record(3)])
        found = list(connection.execute(text("SELECT id, content_hash FROM measurement ORDER BY id")))
        before = snapshot(connection)
        retraction = audit.add(
            connection, author="me", through="command", action=audit.Action.RETRACT, subject="x"
        )
    database.close()
    with Database.migrating(database_url) as connection:
        command.downgrade(migrations.configuration(connection), "0010")
        statement = "INSERT INTO retraction (measurement_id, audit_id) VALUES (:measurement, :entry)"
        for measurement in (1, 2, 4):
            connection.execute(text(statement), {"measurement": measurement, "entry": retraction})
        statement = (
            "INSERT INTO authorship (measurement_id, submission_id, content_hash) VALUES (:one, :by, :hashed)"
        )
        for measurement, by, author in ((2, batch, "a"), (2, None, None), (3, batch, "a"), (3, None, None)):
            hashed = authorships.hash_of(found[measurement - 1][1], author)
            connection.execute(text(statement), {"one": measurement, "by": by, "hashed": hashed})
    assert Database.upgrade(database_url) == migrations.HEAD
    with Database.open(database_url) as again, again.write() as connection:
        assert list(integrity.faults(connection)) == []
        marks = connection.execute(text("SELECT measurement_id, submission_id FROM retraction ORDER BY id"))
        assert marks.all() == [(1, batch), (2, None), (4, None)]
        counting = [(one.id, one.author) for one in records.page(connection, after=0, limit=9, equal={})]
        assert counting == [(2, "a"), (3, None)]
        assert snapshot(connection) != before
        with pytest.raises(DatabaseError, match="append-only"):
            connection.execute(text("UPDATE retraction SET submission_id = NULL"))
        connection.rollback()
    with Database.migrating(database_url) as connection:
        command.downgrade(migrations.configuration(connection), "0010")
        command.upgrade(migrations.configuration(connection), "head")


def test_upgrading_twice_changes_nothing(database, make_record):
    with database.write() as connection:
        records.add(connection, [make_record()])
    assert Database.upgrade(database.url) == migrations.HEAD
    with database.read() as connection:
        assert list(records.find(connection)) == [make_record()]


def test_the_command_line_in_a_checkout(tmp_path):
    path = tmp_path / "measurements.sqlite"
    for words in (["upgrade", "head"], ["check"]):
        command = [sys.executable, "-m", "alembic", "-x", f"url={path}", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with Database.open(path) as database, database.read() as connection:
        assert records.total(connection) == 0


@pytest.mark.parametrize("url", ["a.sqlite", "postgresql://nobody@localhost/none"])
def test_the_statements_can_be_printed_without_a_database(url):
    command = [sys.executable, "-m", "alembic", "-x", f"url={url}", "upgrade", "head", "--sql"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "CREATE TABLE measurement" in done.stdout
    assert "CREATE TRIGGER measurement_no_update" in done.stdout


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_the_other_tests_have_the_tables_of_the_migrations(kind, request, tmp_path, monkeypatch):
    """They repeat what the migrations executed for their first empty database."""
    urls = [tmp_path / "one.sqlite", tmp_path / "other.sqlite"]
    if kind == "postgresql":
        urls = [request.getfixturevalue(name) for name in ("postgres_url", "shared_postgres_url")]
    monkeypatch.setattr(empty_databases, "_of_a_kind", {})
    monkeypatch.setattr(migrations, "upgrade", empty_databases.again(migrations.upgrade))
    found = []
    for url in urls:
        with Database.open(url, create=True) as database, database.read() as connection:
            found.append(connection.execute(text(STRUCTURE[kind])).all())
    assert found[0] == found[1]
    assert "authorship_no_update" in str(found[1])
