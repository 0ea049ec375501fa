"""Tables of the documents: what they say of devices and code is what choices and versions say."""

from __future__ import annotations

import json
import lzma
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.result import write_result
from kernel_selector.kernels import registry
from scripts.tables import (
    OTHERS,
    SOURCES,
    TABLES,
    headline,
    models,
    parts,
    stale,
    standing,
    summary,
    supported,
    unmarked,
)
from selector import Selector
from selector.models import layer_kinds
from selector.selection import shipped

ROOT = Path(__file__).parents[2]
NOW = registry.implementations("relu")["torch_relu"].version
OTHER = "0123456789ab"  # as versions are written, of nothing
EVIDENCE = {
    "nvidia-h200": ("exact", r"[\d,]+ measurements"),
    "nvidia-h100-pcie": ("transfer", "those of NVIDIA H100 80GB HBM3, carried over"),
    "nvidia-l4": ("transfer", "those of NVIDIA H200, carried over to another compute capability"),
}


@pytest.mark.parametrize("device", EVIDENCE)
def test_choices_rest_on_what_the_table_says(device: str) -> None:
    source, words = EVIDENCE[device]
    (line,) = re.findall(rf"^.*\| `{device}` \|.*$", (ROOT / "docs/supported.md").read_text(), re.MULTILINE)
    assert re.fullmatch(words, line.split(" | ")[4])
    question = {"hidden": 1024, "batch": 16, "seq": 50, "dtype": "bfloat16"}
    assert Selector(shipped.unpacked()).choose("lstm", **question, device=device).source == source


def test_every_recognised_class_has_operators() -> None:
    known = layer_kinds.known_classes()
    assert {name for operators in known.values() for name in operators} <= set(registry.operators())
    assert "`nn.LSTM`, `nn.GRU`, `nn.RNN` | `lstm`, `gru`, `rnn`" in supported.classes()


def test_a_caption_says_how_much_of_the_code_has_changed() -> None:
    run = {"commit": "c0ffee1", "started_at": "2026-11-21T00:00:00+00:00", "device": {"host": "host"}}
    result = {"device": "card", "environment": {"driver": "1", "torch": "2"}}
    same = {**run, "versions": {"relu.torch_relu": NOW}}
    other = {**run, "versions": {"relu.torch_relu": NOW, "relu.gone": OTHER}}
    assert "all implementations are the same today" in parts.caption({**result, "runs": [same]})
    words = parts.caption({**result, "runs": [same, other]})
    assert "measured at `c0ffee1`, code changed since** (1 of 2 implementations)" in words
    assert "left out, as they are no more: `relu.gone`" in words


def test_lines_of_other_commits_are_named_with_their_result() -> None:
    rows = [{"variant": "sdpa"}, {"variant": "eager", "commit": "c0ffee2"}]
    result = {"commit": "c0ffee1", "measured_at": "2026-11-21T00:00:00+00:00", "rows": rows, "losses": []}
    assert standing.origin(result).startswith("2026-11-21, **measured at `c0ffee1`, `c0ffee2`, versions")


def test_models_of_a_cpu_have_no_peak_and_those_of_graphs_what_is_reserved() -> None:
    line = {"variant": "sdpa", "samples_per_s": 2.0, "batch": 4, "peak_bytes": None, "reserved_bytes": None}
    assert models._cell(line) == "2 (4)"
    on_gpu = {**line, "peak_bytes": 2**30, "reserved_bytes": 2**31}
    assert models._cell(on_gpu) == "2 (4, 1.00 GiB)"
    assert models._cell({**on_gpu, "graphs": True}) == "2 (4, 2.00 GiB)"


def test_problems_without_a_right_implementation_of_ours_are_not_counted() -> None:
    line = {
        "title": "shapes",
        "cells": 3,
        "measured": 3,
        "without_a_figure": ["one"],
        "figures": {"graph": 2.0},
    }
    assert parts.row_table({"graph": "as CUDA graphs"})({"rows": [line]}).rstrip().splitlines()[-1] == (
        "| shapes (2 of 3 problems) | 2 |"
    )
    cells = [{"figures": {"graph": ratio}, "rows": ["shapes"]} for ratio in (2.0, 0.5)]
    found = summary._of_row(
        {"records": [*cells, {"figures": {}, "rows": ["shapes"]}]}, {**line, "name": "shapes"}
    )
    assert summary._row(found, 1.0, found.ratios["graph"]) == ("shapes", "1", "0.5", "2 of 3")


def test_the_headline_names_files_that_are_there() -> None:
    files = re.findall(r"\((benchmarks/results/[^)]+)\)", headline.overview(ROOT / "benchmarks/results"))
    assert len(files) >= 3
    assert all((ROOT / file).is_file() for file in files)


def written(folder: Path, name: str, version: str = NOW, **more: Any) -> Path:
    """A result of a gate with one implementation of a version."""
    total = {"passed": 1, "refused": 0, "failed": 0, "worst_error_ratio": 0.5}
    payload = {
        "problems": 1,
        "implementations": {"relu.torch_relu": total},
        "versions": {"relu.torch_relu": version},
        **more,
    }
    return write_result(name, payload, torch_device="cpu", commit="c0ffee1", folder=folder)


CUT = "cut off, or no JSON"
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut in the middle": (lambda file: file.write_text(file.read_text()[:200]), CUT),
    "empty": (lambda file: file.write_text(""), CUT),
    "not UTF-8": (lambda file: file.write_bytes(b"\xff\xfe{}"), CUT),
    "packed and cut": (
        lambda file: (
            file.with_suffix(".json.xz").write_bytes(lzma.compress(file.read_bytes())[:-30]),
            file.unlink(),
        ),
        CUT,
    ),
    "a list": (lambda file: file.write_text("[]"), "lacks name"),
    "another schema": (lambda file: file.write_text('{"schema": 2, "commit": "abc"}'), "lacks name"),
    "of another benchmark": (lambda file: changed(file, lambda one: one.pop("implementations")), "lacks"),
    "of two devices": (
        lambda file: changed(file, lambda one: one.update(runs=[{"device": {"name": "another card"}}])),
        "of 2 devices",
    ),
    "a version that there never was": (
        lambda file: changed(file, lambda one: one["versions"].update({"relu.torch_relu": "v1"})),
        "versions that there never were: relu.torch_relu 'v1'",
    ),
    "implementations that are no more": (
        lambda file: changed(file, lambda one: one.update(versions={"relu.gone": OTHER})),
        "all that it measured is gone: relu.gone",
    ),
}


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    result = json.loads(file.read_text())
    change(result)
    file.write_text(json.dumps(result))


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_cannot_be_used_is_named_and_left_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "unusable", {})
    spoil, words = BAD[kind]
    written(tmp_path, "recurrent_gate_card")
    spoil(written(tmp_path, "recurrent_gate_broken", implementations={"relu.spoilt": {}}))
    text = TABLES["recurrent_gate"](tmp_path)
    assert text.count("`relu.torch_relu`") == 1
    assert "spoilt" not in text
    ((name, why),) = parts.unusable.items()
    assert name.startswith("recurrent_gate_broken.json")
    assert name in why
    assert words in why


def test_two_forms_of_a_result_are_one_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "unusable", {})
    file = written(tmp_path, "recurrent_gate_card")
    file.with_suffix(".json.xz").write_bytes(lzma.compress(file.read_bytes()))
    assert len(parts.results(tmp_path, "recurrent_gate_*")) == 1
    assert "there is recurrent_gate_card.json too" in parts.unusable["recurrent_gate_card.json.xz"]


def test_a_table_that_does_not_say_that_its_code_has_changed_is_found(tmp_path: Path) -> None:
    written(tmp_path, "recurrent_gate_card")
    text = TABLES["recurrent_gate"](tmp_path)
    assert unmarked(tmp_path, {"recurrent_gate": text}) == stale(tmp_path) == []
    written(tmp_path, "recurrent_gate_card", OTHER)  # a version planted under the table as it was
    (words,) = unmarked(tmp_path, {"recurrent_gate": text})
    assert words.startswith(
        "recurrent_gate: recurrent_gate_card.json was measured at `c0ffee1` and its code has"
    )
    text = TABLES["recurrent_gate"](tmp_path)
    assert "measured at `c0ffee1`, code changed since" in text
    assert unmarked(tmp_path, {"recurrent_gate": text}) == []
    (words,) = stale(tmp_path)  # marked, it is no less old
    assert words.startswith("recurrent_gate_card.json: measured at `c0ffee1`, code changed since")


def test_a_result_without_versions_is_not_taken_for_new(tmp_path: Path) -> None:
    written(tmp_path, "recurrent_gate_card", versions={})
    assert "versions were not recorded" in TABLES["recurrent_gate"](tmp_path)
    assert len(stale(tmp_path)) == 1


def test_the_check_fails_where_a_version_was_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program itself, on a copy of the pages and of one result."""
    root = tmp_path / "copy"
    for folder in ("docs", "scripts", "benchmarks/common", "benchmarks/kernels", "benchmarks/models"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    results = root / "benchmarks/results"
    results.mkdir()
    page = "# Results\n\n<!-- begin:recurrent_gate -->\n<!-- end -->\n"
    for one in (root / "docs").glob("*.md"):
        one.unlink()
    (root / "README.md").write_text("# Nothing\n")
    (root / "docs/results.md").write_text(page)

    def program(*arguments: str) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            patch.syspath_prepend(root / "scripts")  # as where a program is
            patch.setattr(sys, "argv", ["render-docs", *arguments])
            for name in [one for one in sys.modules if one.split(".")[0] == "tables"]:
                del sys.modules[name]  # which remember what they left out
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(root / "scripts/render-docs"), run_name="__main__")
        return end.value.code, capsys.readouterr().err

    written(results, "recurrent_gate_card")
    assert program() == (0, "")
    assert program("--check") == program("--release") == (0, "")
    written(results, "recurrent_gate_card", OTHER)
    status, words = program("--check")
    assert status == 1
    assert "not marked as old: results.md, recurrent_gate: recurrent_gate_card.json" in words
    assert program()[0] == 0
    assert program("--check") == (0, "")
    status, words = program("--release")
    assert status == 1
    assert "to be measured again before a release: recurrent_gate_card.json" in words
    (results / "recurrent_gate_cut.json").write_text('{"name": ')
    status, words = program("--check")
    assert status == 1
    assert "left out of all tables: recurrent_gate_cut.json: cut off" in words


def test_every_table_of_kernels_is_of_sources_that_are_checked() -> None:
    assert SOURCES.keys() | set(OTHERS) == TABLES.keys()
    assert not SOURCES.keys() & set(OTHERS)


def test_the_summary_sorts_layers_by_who_wins_and_devices_apart(tmp_path: Path) -> None:
    from benchmarks.kernels import linear

    for device in ("card-a", "card-b"):
        assert linear.main(["--smoke", "--results", str(tmp_path), "--commit", "abc", "--rows", "odd"]) == 0
        (file,) = (one for one in tmp_path.glob("linear_*.json") if "card" not in one.name)
        result = json.loads(file.read_text())
        result["device"] = device
        for run in result["runs"]:
            run["device"]["name"] = device
        for cell in result["records"]:
            for name, candidate in cell["candidates"].items():
                for timing in candidate["times"].values():
                    timing["p50_ms"] = 2.0 if name == "torch_linear" else 1.0
        (tmp_path / f"linear_{device}.json").write_text(json.dumps(result))
        file.unlink()
    text = summary.overview(tmp_path)
    first, second = text.split("### card-")[1:]
    assert first.startswith("a\n")
    assert second.startswith("b\n")
    for part in (first, second):
        (line,) = (one for one in part.splitlines() if one.startswith("| linear layers of 1 to 64"))
        assert line.endswith("| 2 | 2 | 1 of 52 |")  # that of inference
        assert "Launched by the host, ours win 1 of 1 lines, draw 0 and lose 0." in part
        assert "Where ours win, launched by the host" in part
        assert "Where it is a wash" not in part
        assert "As CUDA graphs" not in part  # which a CPU has none of
        assert f"{result['measured_at'][:10]}, commit `abc`; all implementations are the same today" in part
