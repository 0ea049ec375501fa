"""`selector status`, `selector refresh`, and plans and sweeps of `selector profile`."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import selector
from kernel_selector.db import Database, records, submissions
from kernel_selector.kernels.measure.jobs import read_jobs
from kernel_selector.service.cli import main
from tests.selector import replay
from tests.selector.conftest import shipped_body, shipped_cache, shipped_file  # noqa: F401 - fixtures


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A database with measurements of a device that is not here, some by earlier sources."""
    problems = replay.problems(hidden=(64, 128), batch=(8,), seq=(10,), layers=(1,), mode=("training",))
    found = [
        replace(one, implementation_version="0" * 12) if one.implementation == "hoisted" else one
        for one in replay.sweep(problems)
    ]
    with Database.open(tmp_path / "m.sqlite", create=True) as database, database.write() as connection:
        records.add(connection, found)
    return str(tmp_path / "m.sqlite")


def test_status_says_what_holds_and_what_changed(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--database", place]) == 0
    text = capsys.readouterr().out
    assert "lstm" in text
    assert "hoisted was changed" in text
    assert main(["status", "--database", place, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["older_sources"], row["older_software"], row["here"]) == (2, 0, False)


def test_the_table_of_status_breaks_no_name(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["status", "--database", place]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["operator", "device", "problems", "measured", "hold", "sources", "last"]
    assert re.search(r"^lstm .* \d{4}-\d\d-\d\d$", rows[1].rstrip())


def test_status_says_what_is_own_and_what_ships(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Database.open(place) as database, database.read() as connection:
        count = records.total(connection)
    assert main(["status", "--database", place]) == 0
    text = capsys.readouterr().out
    assert f"Own: {count} measurements in this database" in text
    assert "Shipped: left out, by SELECTOR_SHIPPED." in text


@pytest.mark.usefixtures("shipped_cache")
def test_status_counts_what_ships(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--database", place, "--json"]) == 0
    shipped = json.loads(capsys.readouterr().out)["shipped"]
    ships = selector.Selector(place).status()["shipped_records"]
    assert shipped.startswith(f"Shipped: {ships} measurements on ")
    assert "NVIDIA H200" in shipped


def test_refresh_says_whose_measurements_it_is_about(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["refresh", "--database", place, "--device", "cpu"])
    assert "Of your own measurements" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "refresh"])
def test_a_database_that_is_missing_is_one_line_and_stays_missing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--database", str(tmp_path / "none.sqlite")]) == 1
    assert capsys.readouterr().err.startswith("error: No database at ")
    assert not list(tmp_path.iterdir())


def test_refreshing_where_nothing_is_old_measures_nothing(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["refresh", "--database", place, "--device", "cpu", "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["measured"] == 0
    assert re.fullmatch(r"Nothing to measure again on .*: what was measured there still holds\.\n", found.err)


def test_a_plan_is_written_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.jsonl"
    words = [
        "profile",
        "--operator",
        "gelu, relu,",
        "--count",
        "3",
        "--device",
        "cuda:0",
        "--plan",
        str(plan),
    ]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == len(plan.read_text().splitlines()) == 6


def test_what_is_old_is_written_as_a_plan_for_another_machine(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.jsonl"
    words = ["refresh", "--database", place, "--device", replay.HERE.key, "--plan", str(plan)]
    assert main(words) == 0
    assert re.match(r"2 problems, \d+ candidates: ", capsys.readouterr().out)
    assert all("hoisted" in job.implementations for job in read_jobs(plan))


def test_a_plan_of_one_problem_is_told_in_the_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.jsonl")
    assert main(["profile", "gelu", "--count", "1", "--device", "cpu", "--plan", plan]) == 0
    assert capsys.readouterr().out.startswith("1 problem, ")


def test_a_plan_for_a_device_that_is_elsewhere_has_its_kind_of_problems(tmp_path: Path) -> None:
    plans = [tmp_path / f"{name}.jsonl" for name in ("by_name", "by_kind", "cpu")]
    for plan, device in zip(plans, ("h200", "cuda", "cpu"), strict=True):
        assert main(["profile", "gelu", "--count", "3", "--device", device, "--plan", str(plan)]) == 0
    by_name, by_kind, cpu = (plan.read_text() for plan in plans)
    assert by_name == by_kind != cpu


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["profile"], "Nothing to measure"),
        (["profile", "gelu", "--count", "3", "--device", "h200"], "No device 'h200' in this machine"),
        (["profile", "gelu", "--device", "h2000", "--plan", "no.jsonl"], "Did you mean 'nvidia-h200'"),
        (["profile", "--operator", "lstm", "hidden=8"], "a sweep draws its own problems"),
        (["profile", "--operator", "lstmm", "--budget", "1m"], "'lstmm'"),
        (
            ["profile", "gelu", "--plan", "no.jsonl", "--budget", "1m"],
            "leave --budget out",
        ),
        (
            ["profile", "gelu", "--plan", "no.jsonl", "--active"],
            "leave --active out",
        ),
        (["profile", "gelu", "--plan", "no.jsonl", "--again"], "leave --again out"),
        (["refresh", "--budget", "soon"], "expected a time"),
    ],
)
def test_mistakes_are_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_status_knows_imported_measurements(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "gemm.csv"
    rows.write_text("operator,device,implementation,block-size,milliseconds\ngemm,h200,tiled,8,0.5\n")
    other = str(tmp_path / "imported only.sqlite")
    for database in (place, other):
        assert main(["import", str(rows), "--database", database]) == 0
        assert f"selector train gemm --database {shlex.quote(database)}\n" in capsys.readouterr().out
        assert main(["status", "--database", database]) == 0
        text = capsys.readouterr().out
        assert "gemm: 1 imported measurement on NVIDIA H200" in text
        assert "Nothing is measured" not in text
    assert main(["status", "--database", other, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["imported"]
    assert found == {"operator": "gemm", "devices": ["NVIDIA H200"], "count": 1}
    assert main(["database", "status", "--database", other]) == 0
    assert capsys.readouterr().out.endswith("imported  gemm on NVIDIA H200: 1 measurement\n")
    assert main(["operators", "--database", other]) == 0
    assert re.search(r"^tiled +1 measurement *$", capsys.readouterr().out, re.MULTILINE)


def test_a_choice_can_be_asked_for_again_in_python(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "gemm.csv"
    rows.write_text("operator,device,implementation,block-size,milliseconds\ngemm,h200,tiled,8,0.5\n")
    assert main(["import", str(rows), "--database", place]) == 0
    asked = ["choose", "gemm", "block-size=8", "--device", "h200", "--database", place]
    assert main(asked) == 0
    code = capsys.readouterr().out.splitlines()[-1].removeprefix("in Python  ")
    assert eval(code, {"selector": selector}).implementation == "tiled"
    assert main(["choose", "lstm", "hidden=8", "batch=1", "--objective", "memory", "--memory", "1GiB"]) == 0
    code = capsys.readouterr().out.splitlines()[-1].removeprefix("in Python  ")
    assert code == "selector.choose('lstm', hidden=8, batch=1, memory='1GiB', objective='memory').build()"


def test_backup_restore_and_check(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = str(tmp_path / "copy.sqlite")
    assert main(["database", "backup", copy, "--database", place]) == 0
    assert main(["database", "check", "--database", copy]) == 0
    assert "No fault was found." in capsys.readouterr().out
    assert main(["database", "restore", copy, "--database", place, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["before"]
    assert main(["database", "check", "--database", before, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == []
    assert main(["database", "backup", copy, "--database", place]) == 1
    assert "exists already" in capsys.readouterr().err


def test_a_restoration_says_which_tokens_are_valid_again(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, at = str(tmp_path / "copy.sqlite"), ["--database", place]
    assert main(["token", "create", "leaked", *at]) == 0
    assert main(["token", "create", "worker", "--scope", "measure", *at]) == 0
    assert main(["database", "backup", copy, *at]) == 0
    assert main(["token", "revoke", "leaked", *at]) == 0
    assert main(["token", "distrust", "worker", "--reason", "its clock", *at]) == 0
    capsys.readouterr()
    assert main(["database", "restore", copy, *at]) == 0
    said = capsys.readouterr().out
    assert f"valid again: selector token revoke leaked --database {place}" in said
    assert 'selector token distrust worker --reason "..."' in said
    assert "Rows that the backup lacks: journal 2; who did what: selector audit --database " in said
    assert main(["token", "revoke", "leaked", *at]) == 0
    capsys.readouterr()
    assert main(["database", "restore", copy, *at, "--json"]) == 0
    undone = json.loads(capsys.readouterr().out)["undone"]
    assert [one["name"] for one in undone["tokens_valid_again"]] == ["leaked"]
    assert main(["audit", *at, "--action", "database.restore", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["entries"]
    assert entry["details"]["undone"] == undone


def test_each_line_of_a_restoration_has_a_command_that_works(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, at = str(tmp_path / "copy.sqlite"), ["--database", place]
    assert main(["token", "create", "worker", "--scope", "measure", *at]) == 0
    assert main(["token", "create", "rotated", *at]) == 0
    with Database.open(place) as database, database.write() as connection:
        batch = submissions.add(connection, author="worker", received_at=datetime.now(UTC))
        (record,) = list(records.find(connection))[:1]
        records.add(connection, [replace(record, seed=7)], submission=batch)
    assert main(["database", "backup", copy, *at]) == 0
    assert main(["token", "rotate", "rotated", *at]) == 0
    assert main(["token", "create", "new", "--scope", "admin", "--untrusted", *at]) == 0
    assert main(["measurements", "retract", "--author", "worker", "--reason", "its clock's fault", *at]) == 0
    assert main(["token", "distrust", "worker", "--reason", "its clock", *at]) == 0
    with Database.open(place) as database, database.write() as connection:
        records.add(connection, [replace(record, seed=8)])
    capsys.readouterr()
    assert main(["database", "restore", copy, *at]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    commands = [line.partition(": selector ")[2] for line in lines if ": selector " in line]
    assert [line for line in lines if ": selector " not in line] == [
        "Retracted, and counting again: 1 measurement."
    ]
    assert [command.partition(" --")[0] for command in commands[:-1]] == [
        "token revoke rotated",
        "token create new",
        "token create rotated",
        "token distrust worker",
        "measurements retract",
        "audit",
    ]
    assert commands[-1].startswith(f"merge {place}.")
    assert "--scope admin --untrusted" in commands[1]
    for command in commands:
        assert main(shlex.split(command)) == 0, command


def test_a_restoration_over_a_damaged_page_does_not_say_that_nothing_was_done(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, at = str(tmp_path / "copy.sqlite"), ["--database", place]
    assert main(["database", "backup", copy, *at]) == 0
    with closing(sqlite3.connect(place)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'measurement'"
        (page,) = connection.execute(query).fetchone()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with Path(place).open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    capsys.readouterr()
    for said, other in (
        ("It has faults, so this may have undone more", "Nothing was"),
        ("Nothing was", "faults"),
    ):
        assert main(["database", "restore", copy, *at]) == 0
        out = capsys.readouterr().out
        assert said in out
        assert other not in out
        assert "What was there is in" in out
        Path(copy).unlink()
        assert main(["database", "backup", copy, *at]) == 0
        capsys.readouterr()


def test_ctrl_c_in_the_search_for_faults_leaves_what_a_restoration_tells(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    copy, at = str(tmp_path / "copy.sqlite"), ["--database", place]
    assert main(["database", "backup", copy, *at]) == 0
    assert main(["token", "create", "new", "--scope", "read", *at]) == 0
    monkeypatch.setattr("kernel_selector.db.integrity.of_file", interrupted)
    capsys.readouterr()
    assert main(["database", "restore", copy, "--faulty", *at]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Token new was made since" in said
    assert "It was not searched for faults to its end, so this may have undone more" in said
    assert "KeyboardInterrupt: `selector database check" in said


def test_a_restoration_over_what_cannot_be_read_says_what_is_lost(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, at = str(tmp_path / "copy.sqlite"), ["--database", place]
    assert main(["database", "backup", copy, *at]) == 0
    Path(place).write_bytes(b"\x5e\x12S no database")
    capsys.readouterr()
    assert main(["database", "restore", copy, *at]) == 0
    said = capsys.readouterr().out
    assert "it starts with the bytes 5e 12 53 20" in said
    assert "Nothing was changed" not in said
    for word in ("Measurements that came since the backup are lost", "retracted", "revoked or distrusted"):
        assert word in said


@pytest.mark.parametrize(
    "command",
    [["merge"], ["diff"], ["promote"], ["database", "restore"], ["database", "check", "--database"]],
)
def test_a_source_that_is_not_there_is_not_to_be_made(
    command: list[str], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none.sqlite")
    at = [] if "check" in command else ["--database", place]
    assert main([*command, missing, *at]) == 1
    said = capsys.readouterr().err
    assert missing in said
    assert "upgrade" not in said
    assert "quickstart" not in said
    assert not Path(missing).exists()
