"""The recurrent comparison: its rows, its file, its tables, and a run of it on tiny problems."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import selector
from benchmarks.common import comparison
from benchmarks.common.lines import keep
from benchmarks.common.rows import Cell, Row, problems
from benchmarks.common.sessions import measure_all
from benchmarks.common.store import Store
from benchmarks.kernels import gate_verdicts, recurrent, recurrent_gate
from benchmarks.kernels._recurrent_rows import ROWS, small
from kernel_selector.db import Database, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Record, Status
from kernel_selector.kernels.gate import REVISION
from kernel_selector.kernels.measure import ONCE, Session
from scripts.release import to_database
from scripts.tables import gates
from scripts.tables import recurrent as tables

LSTM = registry.operator("lstm")
cells = recurrent.COMPARISON.cells


def row(name: str) -> Row:
    return next(one for one in ROWS if one.name == name)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a smoke run of one row."""
    folder = tmp_path_factory.mktemp("measured")
    assert recurrent.main(["--smoke", "--results", str(folder), "--rows", "step", "--commit", "abc123"]) == 0
    (file,) = folder.glob("*.json")
    return file


@pytest.fixture
def file(measured: Path, tmp_path: Path) -> Path:
    """The same file, for a test to change."""
    return Path(shutil.copy(measured, tmp_path))


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The folder of a smoke run of a grid in two calls, the first without time, and their statuses."""
    folder = tmp_path_factory.mktemp("grid")
    where = ["--smoke", "--results", str(folder), "--rows", "lstm"]
    return folder, [recurrent.main([*where, *more]) for more in (["--budget", "0.001s"], ["--resume"])]


def test_rows_are_what_was_asked() -> None:
    counts = {one.name: len(one.cases) for one in ROWS}
    assert counts["lstm"] == counts["gru"] == counts["rnn"] == 36
    assert counts["persistent"] == 32
    assert counts["deepbench"] == 53
    assert len(counts) == len(ROWS)
    for one in ROWS:
        cases = [(operator, sorted(given.items())) for operator, given in one.cases]
        assert all(cases.count(case) == 1 for case in cases), one.name
        assert {given["dtype"] for _, given in one.cases} <= {"bfloat16", "float16"}


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_every_case_is_a_problem(one: Row) -> None:
    assert len(problems(one)) == len(one.cases)
    assert 1 <= len(problems(small(one))) <= 2


def test_rows_share_cells_and_slow_loops_are_timed_where_they_are_asked_for_alone() -> None:
    chosen = [row("lstm"), row("batch-4"), row("recompute")]
    found = {one.problem.key: {*one.implementations} for one in cells(chosen)}
    assert len(found) == 36 + 3 * 3  # the recompute row's problem is in the grid, those of batch 4 are fp16

    def timed(batch: int, dtype: str = "bfloat16") -> set[str]:
        return found[LSTM.problem(hidden=1024, batch=batch, dtype=dtype).key]

    loops = {"hoisted", "hoisted_batch_minor", "recompute"}
    assert timed(16) == timed(4, "float16") - {"unfused"} == timed(256) - {"recompute"}
    assert not timed(16) & {"unfused", "cell_loop", "torch_compile", "torch_lstm_graph", *loops}
    assert "torch_lstm" in timed(16)
    assert all(loops <= {*one.implementations} for one in cells([row("lstm")], on_cpu=True))
    for one in cells(chosen, without=["torch_lstm", "unfused"], on_cpu=True):
        assert not {"torch_lstm", "unfused"} & {*one.implementations}
    assert [one.careful for one in cells([row("long-bf16"), row("step")])] == [True] + 18 * [False]


def test_jobs_are_shared_by_processes_and_none_is_lost() -> None:
    jobs = [(LSTM.problem(hidden=size, batch=1, seq=2), ("torch_lstm",)) for size in (1, 2, 3)]
    never = float("inf")
    done = dict(measure_all(jobs, ["cpu", "cpu"], policy=ONCE, processes=1, deadline=never))
    assert done.keys() == {problem for problem, _ in jobs}
    assert {record.status for records in done.values() for record in records} == {Status.OK}
    assert list(measure_all(jobs, ["cpu"], policy=ONCE, processes=1, deadline=0.0)) == []


def test_a_smoke_run_measures_stores_resumes_and_joins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--smoke", "--results", str(tmp_path)]
    assert recurrent.main([*where, "--rows", "lstm", "--shard", "1/2"]) == 0
    assert recurrent.main([*where, "--rows", "lstm", "step", "--resume"]) == 0
    (part,) = tmp_path.glob("*.1-of-2.json")
    (whole,) = set(tmp_path.glob("*.json")) - {part}
    result = json.loads(whole.read_text())
    keys = [record["key"] for record in result["records"]]
    assert len(keys) == len(set(keys)) >= 3
    assert {record["run"] for record in result["records"]} == {0, 1}  # one was there already
    assert {line["name"] for line in result["rows"]} >= {"lstm", "step"}
    for record in result["records"]:
        torch_lstm = record["candidates"].get("torch_lstm")
        if torch_lstm is not None:
            assert torch_lstm["times"]["forward"]["p50_ms"] > 0
            assert torch_lstm["error_ratio"] <= 1
        training = record["problem"]["mode"] == "training"
        assert ("float16" in record) == training  # of torch's module, for the rows in bfloat16
        assert not training or record["float16"]["times"]["forward_backward"]["p50_ms"] > 0
    for run in result["runs"]:
        assert run.keys() >= {"commit", "device", "environment", "seed", "started_at", "versions"}
    before = len(result["runs"])
    assert recurrent.main([*where, "--rows", "lstm", "step", "--resume"]) == 0
    assert len(json.loads(whole.read_text())["runs"]) == before  # nothing was left to measure
    key = whole.stem.removeprefix("recurrent_")
    assert recurrent.main(["--results", str(tmp_path), "--join", key]) == 0
    assert not part.exists()
    assert [record["key"] for record in json.loads(whole.read_text())["records"]] == keys
    packed = whole.with_suffix(".json.xz")
    keep(whole.read_text(), packed)
    whole.rename(part)
    assert recurrent.main(["--results", str(tmp_path), "--join", key]) == 0  # also with one that is packed
    assert list(tmp_path.iterdir()) == [whole]
    assert "worst" in capsys.readouterr().out


def test_who_hung_is_not_tried_again(tmp_path: Path) -> None:
    first, second = (
        Cell(LSTM.problem(hidden=size, batch=1, seq=2), ("hoisted", "torch_lstm"), careful=False)
        for size in (1, 2)
    )
    store = Store(tmp_path, "recurrent_here", recurrent.COMPARISON.kind, rows=())
    with Session("cpu", policy=ONCE) as session:
        (record,) = session.measure(first.problem, ["hoisted"])
        hung = replace(record, status=Status.TIMEOUT, reason="no answer for 90 s")
        store.start(session, [first, second], "abc")

        def measure(todo: list[Cell], hung: dict[str, list[Record]]) -> list[Cell]:
            schedule = comparison.Schedule(hung, smoke=True, end=float("inf"))
            return comparison.measure(recurrent.COMPARISON, todo, session, store, schedule)

        once = {first.problem.key: [hung]}
        assert measure([first, second], once) == []
        candidates = {key: cell["candidates"] for key, cell in store.cells.items()}
        assert candidates[first.problem.key]["hoisted"]["status"] == "timeout"
        assert candidates[first.problem.key]["torch_lstm"]["status"] == "ok"
        assert candidates[second.problem.key]["hoisted"]["status"] == "ok"
        often = {f"problem {index}": [hung] for index in range(comparison.MOST_HANGS)}
        assert measure([second], often) == []
    assert "hoisted" not in store.cells[second.problem.key]["candidates"]
    assert not store.holds(second)  # a later run tries it again


def test_stored_records_are_what_the_selector_chooses_from(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads(file.read_text())
    database = str(tmp_path / "measurements.sqlite")
    for added in (sum(len(cell["candidates"]) for cell in result["records"]), 0):
        to_database.main([str(file), "--database", database])
        assert f"{added} of" in capsys.readouterr().out
    with Database.open(database) as opened, opened.read() as connection:
        found = list(records.find(connection, operator="lstm", statuses=[Status.OK]))
    (cell,) = (one for one in result["records"] if one["problem"]["operator"] == "lstm")
    for record in found:
        candidate = cell["candidates"][record.implementation]
        assert record.problem.key == cell["key"]
        assert asdict(record.memory) == candidate["memory"]
        assert record.forward.p50_ms == candidate["times"]["forward"]["p50_ms"]
        assert record.gate.worst_error_ratio == candidate["error_ratio"]
    given = {name: value for name, value in cell["problem"].items() if name != "operator"}
    choice = selector.choose("lstm", **given, database=database)
    assert choice.source == "exact"
    assert choice.implementation in {record.implementation for record in found}


def test_the_tables_show_what_the_file_holds_and_nothing_else(measured: Path, tmp_path: Path) -> None:
    assert tables.overview(tmp_path) == tables.problems(tmp_path) == gates.recurrent(tmp_path) == ""
    shutil.copy(measured, tmp_path / f"{measured.stem}.1-of-1.json")
    assert tables.overview(tmp_path) == ""  # a shard is no result yet
    shutil.copy(measured, tmp_path)
    overview = tables.overview(tmp_path)
    assert "commit `abc123`" in overview
    lines = [
        line
        for line in overview.splitlines()
        if line.startswith("| LSTM, GRU and vanilla RNN inference, batch 1, one")
    ]
    assert len(lines) == 1
    assert lines[0].count("|") == 7  # the row's title and five figures
    assert "asked" not in overview
    assert "hidden | batch" not in overview  # nothing of the training grid was measured
    listed = tables.problems(tmp_path)
    assert "lstm hidden=8 batch=1 seq=1 bfloat16 inference" in listed
    assert "`torch_lstm`" in listed


def test_a_grid_names_the_winner_of_each_cell(grid: tuple[Path, list[int]]) -> None:
    table = tables.problems(grid[0]).split("LSTM, bf16, T=50, training")[1]
    (line,) = (one for one in table.splitlines() if one.startswith("| 8 |"))
    assert line.count("`") == 4  # two batches, each with a name
    assert line.count("| - / ") == 2  # no CUDA graphs on a CPU


def test_a_spent_budget_leaves_cells_for_the_next_run(grid: tuple[Path, list[int]]) -> None:
    assert grid[1] == [3, 0]


def test_a_changed_implementation_is_measured_again(file: Path, tmp_path: Path) -> None:
    found = cells([small(row("step"))], on_cpu=True)[:1]
    store = Store(tmp_path, file.stem, recurrent.COMPARISON.kind)
    store.load([file])
    assert store.holds(found[0])
    store.runs[0]["versions"]["lstm.hoisted"] = "another"
    assert not any(store.holds(one) for one in found if one.problem.operator == "lstm")


def test_a_file_that_was_cut_off_is_named_and_not_written_over(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text()[:500])
    cut = file.read_bytes()
    assert recurrent.main(["--smoke", "--results", str(tmp_path), "--rows", "step", "--resume"]) == 2
    assert f"{file.name}: cut off" in capsys.readouterr().err
    assert file.read_bytes() == cut


def test_the_gate_covers_what_each_operator_has() -> None:
    found = recurrent_gate.problems()
    assert len(found) == len(set(found))
    of_lstm = [one for one in found if one.operator == "lstm"]
    assert {one["hidden"] for one in of_lstm} == set(recurrent_gate.HIDDENS)
    assert {one["dtype"] for one in of_lstm} == {"float64", "float32", "float16", "bfloat16"}
    assert any(one["layers"] == 2 and one["bidirectional"] for one in of_lstm)


def test_verdicts_go_on_where_they_stopped_and_become_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "verdicts.jsonl", tmp_path / "rejected.jsonl"
    run = ["--smoke", "--operators", "rms_norm", "--out", str(out)]
    assert gate_verdicts.main(run) == 0
    judged = [Record.from_json(line) for line in out.read_text().splitlines()]
    assert {one.gate_revision for one in judged} == {REVISION}
    with out.open("a") as file:
        file.write('{"cut off')
    assert gate_verdicts.main(run) == 0
    assert "{} 0 problems left" in capsys.readouterr().out
    wrong = replace(judged[0], status=Status.INCORRECT, reason="half of it is wrong")
    out.write_text("".join(f"{one.to_json()}\n" for one in (wrong, *judged[1:])))
    elsewhere = replace(wrong, device=replace(wrong.device, name="another processor"))
    table.write_text(f"{elsewhere.to_json()}\n")
    where = ["--results", str(tmp_path), "--table", str(table)]
    for _ in range(2):  # the second replaces what the first has written
        assert gate_verdicts.main(["--collect", str(out), *where]) == 0
        found = [Record.from_json(line) for line in table.read_text().splitlines()]
        assert [one.device.name for one in found] == ["another processor", wrong.device.name]
    (result,) = tmp_path.glob("gate_verdicts_*.json")
    data = json.loads(result.read_text())
    assert data["verdicts"]["failed"] == len(data["failures"]) == 1
    assert data["failures"][0]["reason"] == "half of it is wrong"


def test_a_smoke_run_of_the_gate_names_each_implementation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [one for one in recurrent_gate.problems() if one["hidden"] == 16 and one["batch"] == 3][:4]
    monkeypatch.setattr(recurrent_gate, "problems", lambda: few)
    assert recurrent_gate.main(["--smoke", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("recurrent_gate_*.json")
    result = json.loads(file.read_text())
    assert result["problems"] == len(few)
    assert result["problems_left_out"] == 0
    names = {f"lstm.{name}" for name in registry.implementations("lstm")}
    assert names <= result["implementations"].keys()
    for record in result["records"]:
        for outcome in record["results"].values():
            assert (outcome <= 1) if isinstance(outcome, float) else outcome["reason"]
