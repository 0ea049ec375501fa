"""Files that commands write: never in the place of a database or of what is read, and whole or not at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernel_selector.db import Database, records, submissions, tokens
from kernel_selector.db.tokens import StoredToken
from kernel_selector.service.cli import main
from selector.exchange import export as transfer
from tests.selector import foreign, replay


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A database with records."""
    path = tmp_path / "m.sqlite"
    with Database.open(path, create=True) as database, database.write() as connection:
        records.add(connection, replay.sweep(list(replay.problems())[:2]))
    return path


def test_what_waits_for_somebody_to_agree_is_said_to_be_left_out(place, tmp_path, capsys):
    when = datetime(2026, 5, 1, tzinfo=UTC)
    unknown = StoredToken(name="u", digest="u", scopes=("measure",), created_at=when, trusted=False)
    with Database.open(place) as database, database.write() as connection:
        tokens.add(connection, unknown)
        batch = submissions.add(connection, author="u", received_at=when)
        added = records.add(connection, replay.sweep(list(replay.problems())[2:3]), submission=batch)
    words = f"{added} measurements left out, for which nobody has vouched yet: see `selector measurements"
    for command in (["export", str(tmp_path / "a.jsonl"), "--database"], ["merge", str(place), "--database"]):
        target = place if command[0] == "export" else tmp_path / "other.sqlite"
        assert main([*command, str(target)]) == 0
        assert words in capsys.readouterr().out
    assert held(tmp_path / "other.sqlite") == held(place) - added


def held(place: Path) -> int:
    with Database.open(place) as database, database.read() as connection:
        return records.total(connection)


@pytest.mark.parametrize(
    "command",
    [
        ["export", "{place}"],
        ["export", "{place}", "--format", "jsonl"],
        ["profile", "lstm", "hidden=8", "batch=1", "--device", "cpu", "--plan", "{place}"],
        ["import", "{lines}", "--rejected", "{place}"],
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_no_command_writes_over_a_database(
    command: list[str], own: bool, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = foreign.write(tmp_path / "a.jsonl", foreign.rows(3))
    before = held(place)
    if not own:
        Database.open(tmp_path / "other.sqlite", create=True).close()
    database = str(place if own else tmp_path / "other.sqlite")
    words = [word.format(place=place, lines=lines) for word in command]
    assert main([*words, "--database", database]) == 2
    assert f"{place} is an SQLite database, which would be lost: name another file" in capsys.readouterr().err
    assert held(place) == before


def test_bad_lines_are_not_written_over_the_file_that_is_read(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = foreign.write(tmp_path / "a.jsonl", foreign.rows(3))
    before = lines.read_bytes()
    assert main(["import", str(lines), "--rejected", str(lines), "--database", str(place)]) == 2
    assert "is the file that is read" in capsys.readouterr().err
    assert lines.read_bytes() == before


def test_an_export_that_is_cut_short_leaves_the_earlier_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "all.jsonl"
    assert main(["export", str(file), "--database", str(place)]) == 0
    before = file.read_bytes()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(transfer, "_write", interrupted)
    assert main(["export", str(file), "--database", str(place)]) == 130
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_an_export_follows_links_and_leaves_them(place: Path, tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    assert main(["export", str(tmp_path / "link.jsonl"), "--database", str(place)]) == 0
    assert (tmp_path / "link.jsonl").is_symlink()
    assert json.loads((tmp_path / "real.jsonl").read_text().splitlines()[0])
