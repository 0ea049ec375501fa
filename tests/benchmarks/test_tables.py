"""The command that measures tables again: what it runs, skips, goes on with, and takes in."""

from __future__ import annotations

import json
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.common.result import BadResult, read_result, write_result
from kernel_selector.kernels.measure import identify

PIECE = "recurrent-peers"


def run(folder: Path, commit: str = "abc123", *more: str) -> int:
    where = ["--smoke", "--results", str(folder), "--commit", commit, "--piece", PIECE]
    return tables.main([*where, *more])


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the piece was run."""
    folder = tmp_path_factory.mktemp("once")
    assert run(folder) == 0
    return folder


@pytest.fixture
def done(once: Path, tmp_path: Path) -> Path:
    """The same for a test to change."""
    return Path(shutil.copytree(once, tmp_path / "done"))


@pytest.fixture
def again(once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the piece gets the file that was measured before."""

    def ended(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        (file,) = once.glob("recurrent_*.json")
        shutil.copy(file, command[command.index("--results") + 1])
        return subprocess.CompletedProcess(command, returncode=0)

    monkeypatch.setattr(tables.subprocess, "run", ended)


def test_pieces_have_names_of_their_own_and_each_file_one_kind_of_command() -> None:
    names = [piece.name for piece in tables.PIECES]
    assert len(set(names)) == len(names)
    assert all(piece.minutes <= 9 for piece in tables.PIECES)  # of a GPU's ten
    modules: dict[str, set[str]] = {}
    for piece in tables.PIECES:
        modules.setdefault(piece.file, set()).add(piece.module)
    assert all(len(found) == 1 for found in modules.values())


@pytest.mark.parametrize("table", ["recurrent", "linear", "sublayers"])
def test_the_pieces_of_a_comparison_are_all_of_its_rows(table: str) -> None:
    from benchmarks.kernels import linear, recurrent, sublayers

    rows = {"recurrent": recurrent, "linear": linear, "sublayers": sublayers}[table].COMPARISON.kind.rows
    listed = [word for piece in tables.PIECES if piece.file == table for word in piece.arguments]
    assert {row.name for row in rows} == {word for word in listed if not word.startswith("--")}


def test_a_piece_is_run_once_a_commit(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = done.glob("recurrent_*.json")
    assert read_result(file)["commit"] == "abc123"
    before = file.read_bytes()
    assert run(done) == 0
    assert file.read_bytes() == before
    assert "== " not in capsys.readouterr().out
    assert run(done, "abc123", "--list") == 0
    assert "done" in capsys.readouterr().out
    assert run(done, "def456") == 0  # nothing of another commit stays
    assert f"{PIECE}: done" in capsys.readouterr().out
    result = read_result(file)
    assert {one["commit"] for one in result["runs"]} == {result["commit"]} == {"def456"}


@pytest.mark.usefixtures("again")
def test_what_the_budget_cuts_off_is_left_for_the_next_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "abc123", "--budget", "1s") == tables.LEFT
    assert f"{PIECE}: not begun" in capsys.readouterr().out
    assert run(tmp_path) == 0


@pytest.mark.usefixtures("again")
def test_a_file_that_was_cut_off_since_is_measured_again(done: Path) -> None:
    (file,) = done.glob("recurrent_*.json")
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    with pytest.raises(BadResult, match=file.name):
        read_result(file)
    assert run(done, "abc123", "--list") == 0
    file.unlink()
    assert run(done) == 0
    assert json.loads(file.read_text())["commit"] == "abc123"


def test_a_piece_that_takes_the_whole_budget_at_once_is_run_first_in_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that crashes is not done because another piece wrote the file."""
    commands: list[list[str]] = []

    def ended(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        key = identify("cpu").key
        for name in ("schedules", "recurrent"):
            write_result(f"{name}_{key}", {}, torch_device="cpu", commit="abc", folder=tmp_path)
        return subprocess.CompletedProcess(command, returncode=status)

    monkeypatch.setattr(tables.subprocess, "run", ended)
    asked = ["--device", "cpu", "--results", str(tmp_path), "--commit", "abc", "--piece"]
    status = 0
    assert tables.main([*asked, "schedules"]) == 0
    status = 1
    assert tables.main([*asked, PIECE]) == 1
    assert [command[2] for command in commands] == [
        "benchmarks.kernels.schedules",
        "benchmarks.kernels.recurrent",
    ]


@pytest.mark.parametrize("written", ['{"lstm": {"com', "[]", '{"lstm": 1}', '{"lstm": {"state": "done"}}'])
def test_a_ledger_that_cannot_be_read_is_named(
    written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / tables.LEDGER).write_text(written)
    with pytest.raises(SystemExit):
        run(tmp_path, "abc123", "--list")
    assert f"{tmp_path / tables.LEDGER}: cut off, or no ledger" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--device", "cuda:77", "--list"], "No device 'cuda:77'"),
        (["--smoke", "--budget", "soon"], "'soon': expected a duration"),
        (["--take", "/no/such/folder"], "/no/such/folder: expected a folder"),
    ],
)
def test_what_is_asked_wrongly_is_said(
    asked: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tables.main(asked)
    assert words in capsys.readouterr().err


def test_a_file_with_pieces_left_is_taken_and_says_so(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "results"
    into.mkdir()
    assert tables.main(["--take", str(done), "--into", str(into)]) == 0
    said = capsys.readouterr().err
    assert "of which recurrent-training is not begun" in said
    assert PIECE not in said
    assert tables.main(["--take", str(done), "--into", str(into)]) == 1
    assert "has no results" in capsys.readouterr().err


def test_whole_files_are_taken_in_and_others_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, into = tmp_path / "measured", tmp_path / "results"
    into.mkdir()
    write_result("small", {"rows": []}, torch_device="cpu", commit="abc", folder=folder)
    write_result("large", {"rows": ["x" * 100] * 2000}, torch_device="cpu", commit="abc", folder=folder)
    (folder / "cut.json").write_text('{"name": "cut", "records": [')
    (folder / tables.LEDGER).write_text("{}")
    (into / "large.json").write_text("what was there before")
    assert tables.main(["--take", str(folder), "--into", str(into)]) == 1
    assert "cut.json" in capsys.readouterr().err
    assert {file.name for file in into.iterdir()} == {"small.json", "large.json.xz"}
    assert json.loads(lzma.decompress((into / "large.json.xz").read_bytes()))["commit"] == "abc"
    assert {file.name for file in folder.iterdir()} == {"cut.json", tables.LEDGER}
