"""Bad input on the command line: one clear line on stderr, the right exit code, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_selector.service.cli import main

GOOD = ["hidden=256", "batch=32", "--device", "cpu"]

BAD = [  # arguments, what the message must name
    (["choose", "lstmm", *GOOD], "'lstmm'. Did you mean 'lstm'?"),
    (["choose", "lstm", "hiden=256", "batch=32"], "'hiden'"),
    (["choose", "hidden=0", "batch=32"], "hidden='0': expected a whole number from 1 to 65536"),
    (["choose", "hidden=-1", "batch=32"], "hidden='-1'"),
    (["choose", "hidden=1.5", "batch=32"], "hidden='1.5'"),
    (["choose", "hidden=True", "batch=32"], "hidden='True'"),
    (["choose", "hidden=1000000000000", "batch=32"], "1000000000000"),
    (["choose", "hidden=many", "batch=32"], "hidden='many'"),
    (["choose", "hidden=256"], "needs batch"),
    (["choose", *GOOD, "dtype=float33"], "dtype='float33'"),
    (["choose", *GOOD, "mode=sleeping"], "mode='sleeping'"),
    (["choose", *GOOD, "hidden_size=512"], "give one of them"),
    (["choose", *GOOD, "hidden=512"], "hidden is given twice"),
    (["choose", "hidden=256", "batch=32", "--device", "h2000"], "'h2000'"),
    (["choose", *GOOD, "--memory", "much"], "memory='much'"),
    (["choose", "hidden=256", "batch=32", "--device", "rtx"], "nvidia-rtx-a6000"),
    (["choose", "hidden=256", "batch=32", "--device", "mi300x"], "only NVIDIA GPUs and CPUs"),
    (["choose", *GOOD, "--database", ""], "database=''"),
    (["train", "--database", ""], "database=''"),
    (["choose", *GOOD, "--memory", "0"], "memory='0'"),
    (["choose", *GOOD, "--memory=-1"], "memory='-1'"),
    (["choose", *GOOD, "--memory", "1000"], "Nothing fits into memory=1000 bytes"),
    (["choose", *GOOD, "--objective", "beauty"], "objective='beauty'"),
    (["choose", *GOOD, "--override", "magic"], "'magic'"),
    (["choose", "lstm", "hidden"], "'hidden' after the operator 'lstm'"),
    (["choose", "lstm", "=5"], "'=5'"),
    (["choose"], "Missing argument"),
    (["choose", *GOOD, "--colour"], "No such option: --colour. Try: selector choose --help"),
    (["token", "distrust", "worker-9"], "Missing option '--reason'. Try: selector token distrust --help"),
    (["choose", "lstm", "--hidden-size", "256"], "written without dashes: hidden_size=VALUE"),
    (["bogus"], "No such command 'bogus'"),
    (["explain", "hidden=0", "batch=32"], "hidden='0'"),
    (["profile", "lstmm", "hidden=8"], "'lstmm'"),
    (["profile", "lstm", "hidden=8,x", "batch=1"], "hidden='x'"),
    (["profile", "lstm", *GOOD, "--budget", "soon"], "'soon': expected a time"),
    (["profile", "lstm", *GOOD, "--policy", "hasty"], "'hasty'"),
    (["profile", "lstm", *GOOD, "--regime", "graph"], "regime='graph': expected launched or compiled"),
    (["choose", *GOOD, "--regime", "eager"], "regime='eager': expected one of launched, compiled"),
    (["profile", "lstm", "hidden=8", "batch=1", "--device", "cuda:99"], "cuda:99"),
    (["profile", "lstm", "--count", "0"], "--count"),
    (["quickstart", "--budget", "0"], "'0': expected a time above zero"),
    (["quickstart", "--device", "tpu"], "tpu"),
    (["train", "lstmm"], "'lstmm'"),
    (["evaluate", "lstmm"], "'lstmm'"),
    (["serve", "--port", "99999"], "--port"),
]


def line_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line of an error; nothing may be on stdout."""
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.out == ""
    return captured.err.strip().splitlines()[-1]


@pytest.fixture
def database(database_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(database_file))
    return database_file


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(("arguments", "named"), BAD, ids=lambda value: " ".join(value) if value else "")
def test_bad_input_is_one_line_that_names_it_and_exit_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    line = line_of(capsys)
    assert line.startswith("error: ")
    assert named in line


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(("arguments", "named"), BAD[:3])
def test_with_json_the_error_is_json_on_stderr(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == 2
    error = json.loads(line_of(capsys))["error"]
    assert named in error["message"]
    assert error["type"].startswith(("Unknown", "Invalid"))


def corrupt(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)


def foreign(path: Path) -> None:
    path.write_text("dear diary")


def other_revision(path: Path) -> None:
    main(["database", "upgrade", "--database", str(path)])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = 'tomorrow'")
    connection.commit()
    connection.close()


BROKEN = [("DatabaseMissing", lambda _: None)]
BROKEN += [("DatabaseCorrupt", corrupt), ("DatabaseCorrupt", foreign), ("DatabaseRevision", other_revision)]


@pytest.mark.parametrize(("kind", "breakage"), BROKEN)
@pytest.mark.parametrize("command", [["choose", *GOOD], ["train"], ["evaluate"], ["database", "status"]])
def test_an_unusable_database_is_one_line_and_exit_code_1(
    kind: str, breakage, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.sqlite"
    breakage(path)
    capsys.readouterr()
    assert main([*command, "--database", str(path), "--json"]) == 1
    error = json.loads(line_of(capsys))["error"]
    assert error["type"] == kind
    assert str(path) in error["message"]


def test_an_empty_database_gives_the_default_but_nothing_to_train_on(
    empty_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--database", str(empty_database)]
    assert main(["choose", *GOOD, *where, "--json"]) == 0
    choice = json.loads(capsys.readouterr().out)
    assert (choice["implementation"], choice["source"]) == ("torch_lstm", "default")
    assert main(["train", *where]) == 1
    assert "lstm" in line_of(capsys)


@pytest.fixture
def as_ordinary_user() -> Iterator[None]:
    """Root may write what is read-only, so the test takes an ordinary account for its duration."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


@pytest.fixture
def read_only(database_file: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "some.sqlite"
        path.write_bytes(database_file.read_bytes())
        path.chmod(0o444)
        os.chmod(folder, 0o555)
        main(["choose", *GOOD, "--database", str(path), "--json"])  # imports what is needed, as root
        yield path
        os.chmod(folder, 0o755)


@pytest.mark.usefixtures("read_only", "as_ordinary_user")
@pytest.mark.parametrize("command", [["profile", "lstm", "hidden=8", "batch=1"], ["quickstart"]])
def test_a_read_only_database_is_refused_before_anything_is_measured(
    command: list[str], read_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([*command, "--device", "cpu", "--database", str(read_only), "--json"]) == 1
    error = json.loads(line_of(capsys))["error"]
    assert error["type"] == "DatabaseReadOnly"
    assert str(read_only) in error["message"]


def test_a_busy_port_is_one_line(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--database", str(database)]) == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in line_of(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "lstm", *GOOD, "--policy", "hasty"],
        ["profile", "--operator", "gelu", "--device", "cuda:99"],
        ["quickstart", "--device", "cuda:99"],
    ],
)
def test_where_nothing_can_be_measured_no_database_is_made(words: list[str], tmp_path: Path) -> None:
    assert main([*words, "--database", str(tmp_path / "m.sqlite")]) != 0
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_for_a_plan_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    place = "/nowhere/plan.jsonl"
    assert main(["profile", "--operator", "lstm", "--device", "cpu", "--plan", place]) == 2
    assert "/nowhere/plan.jsonl cannot be written: No such file or directory" in line_of(capsys)


def test_a_full_disk_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernel_selector.kernels import registry

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some.sqlite")

    monkeypatch.setattr(registry, "operators", full)
    assert main(["operators"]) == 1
    line = line_of(capsys)
    assert "No space left on device: 'some.sqlite'" in line
    assert "defect" not in line


def test_an_unexpected_error_has_no_traceback_unless_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kernel_selector.kernels import registry

    def broken() -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(registry, "operators", broken)
    assert main(["operators"]) == 1
    assert "unexpected RuntimeError: out of order" in line_of(capsys)
    monkeypatch.setenv("SELECTOR_DEBUG", "1")
    assert main(["operators"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("named", [["--database", "{}"], ["--database={}"]])
def test_commands_in_errors_are_about_the_database_that_was_named(
    named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "one more.sqlite"
    words = [word.format(path) for word in named]
    assert main(["status", *words]) == 1
    assert f"`selector database upgrade --database '{path}'`" in line_of(capsys)
    assert main(["database", "upgrade", *words]) == 0
    capsys.readouterr()
    assert main(["train", *words]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"`selector profile lstm --count 60 --database '{path}'`" in line
    assert f"`selector quickstart --database '{path}'`" in line
    assert main(["choose", *GOOD, "--database", path.name]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "run `selector quickstart --database 'one more.sqlite'`" in shown


def test_commands_in_errors_about_the_default_database_name_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["status"]) == 1
    assert "`selector quickstart` or `selector database upgrade`," in line_of(capsys)


@pytest.mark.parametrize("command", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("operator", "ways"),
    [
        ([], "`selector profile lstm --count 60`, `selector quickstart` or `selector import FILE`"),
        (["lstm"], "`selector profile lstm --count 60`, `selector quickstart` or `selector import FILE`"),
        (["gelu"], "`selector profile gelu --count 60` or `selector import FILE`"),
        (["grouped_gemm"], "`selector import FILE`"),
    ],
)
def test_what_learns_names_what_measures_where_there_is_no_database(
    command: str,
    operator: list[str],
    ways: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty database, which `selector database upgrade` would make, has nothing to learn from either."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("SELECTOR_DATABASE_URL", raising=False)
    assert main([command, *operator]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f" Measurements come from {ways}.")
    assert said.startswith("error: No database at ")
    assert main(["database", "upgrade"]) == 0
    capsys.readouterr()
    if operator != ["grouped_gemm"]:
        assert main([command, *operator]) == 1
        assert f" from {ways}." in capsys.readouterr().err
