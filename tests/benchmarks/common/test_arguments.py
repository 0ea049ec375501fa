"""Arguments of programs that write result files."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.common.arguments import add_result_arguments, result_folder
from benchmarks.common.result import RESULTS, ROOT


def parser(**more: str) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser()
    add_result_arguments(found, smoke="a tiny layer", **more)
    return found


def test_results_go_where_it_is_said_else_with_smoke_to_a_folder_of_their_own(tmp_path: Path) -> None:
    assert result_folder(parser().parse_args([]), "lstm") == RESULTS
    for words in ([], ["--smoke"]):
        named = parser().parse_args([*words, "--results", str(tmp_path)])
        assert result_folder(named, "lstm") == tmp_path
    folders = {result_folder(parser().parse_args(["--smoke"]), "lstm") for _ in range(2)}
    assert len(folders) == 2
    for folder in folders:
        assert folder.name.startswith("lstm-")
        assert folder.is_dir()
        folder.rmdir()


def test_what_programs_have_of_the_arguments() -> None:
    given = parser().parse_args(["--commit", "abc"])
    assert vars(given) == {"commit": "abc", "results": None, "smoke": False}
    assert vars(parser(seed="weights").parse_args([]))["seed"] == 0
    with pytest.raises(SystemExit):
        parser(subject="").parse_args(["--commit", "abc"])


def test_help_says_what_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    said = parser(subject="judged", verb="store", seed="inputs and parameters").format_help()
    for words in (
        "--commit COMMIT  what is judged, where there is no repository to ask",
        "--results DIR    where to store (default: results/)",
        "--seed SEED      of inputs and parameters (default: 0)",
        "--smoke          a tiny layer, into a temporary folder",
    ):
        assert words in said


def test_no_program_decides_on_the_folder_by_itself() -> None:
    files = [file for file in (ROOT / "benchmarks").rglob("*.py") if file.name != "arguments.py"]
    own = [file.name for file in files if "results or " in file.read_text()]
    assert own == ["tables.py"]  # which collects those of others
