"""Files of measurements of others: all that is good comes in, and every bad line is named with the reason."""

from __future__ import annotations

import json
import os
import threading

import pytest

from kernel_selector.db import imported, records
from selector.errors import BadFile, BadLines
from selector.exchange.import_file import ImportOptions, import_file
from tests.selector import foreign, replay

LINE = {
    "operator": "gemm",
    "device": "H200",
    "implementation": "tiled",
    "hyperparameters": {"m": 64, "alpha": 0.5, "layout": "nn", "packed": True},
    "milliseconds": 1.5,
    "bytes": 4096,
    "status": "ok",
}
HEADER = "operator,device,implementation,milliseconds,bytes,status,m,layout\n"
GOOD_CELLS = "gemm,H200,tiled,1.5,4096,ok,64,nn\n"
KEEP = ImportOptions(keep_going=True)


def changed(**given) -> str:
    return json.dumps({**LINE, **given}) + "\n"


def hyper(**given) -> str:
    return changed(hyperparameters={**LINE["hyperparameters"], **given})


BAD_LINES = {
    '{"operator": "gemm", "dev': "cut off",
    '{"operator": gemm}\n': "not JSON",
    "[1, 2]\n": "not a JSON object",
    changed().replace('"m": 64', '"m": 64, "m": 128'): "it names 'm' twice",
    changed().replace('"bytes"', '"milliseconds"'): "it names 'milliseconds' twice",
    changed(milliseconds=float("nan")): "NaN",
    changed(milliseconds=-1): "milliseconds=-1",
    changed(milliseconds=0): "nanosecond",
    changed(milliseconds=1e9): "a day",
    changed(milliseconds="fast"): "milliseconds='fast': expected a finite number",
    changed(milliseconds=None): "milliseconds are missing",
    changed(bytes=-5): "bytes=-5",
    changed(bytes=0.5): "bytes=0.5",
    changed(bytes=None): "where other rows of gemm have",
    changed(schema=2): "schema 2: this version reads schema 1",
    changed(status="fine"): "expected one of ok, incorrect",
    changed(operator="lstm"): "measured here",
    changed(operator=""): "operator is missing",
    changed(implementation="a\0b"): "printable",
    changed(device=7): "device=7",
    changed(latency=1): "unknown field 'latency'",
    changed(hyperparameters=None): "hyperparameters=None",
    changed(hyperparameters={"m": 64}): "has no alpha",
    hyper(k=1): "has k, unlike other rows",
    hyper(m="many"): "expected a number",
    hyper(m=1e300): "m=1e+300",
    hyper(m=True): "m=True",
    hyper(packed=1): "expected true or false",
    hyper(layout=""): "expected a word",
    hyper(layout=None): "expected a word",
}


@pytest.mark.parametrize(("bad", "reason"), BAD_LINES.items(), ids=[text[:60] for text in BAD_LINES])
def test_a_bad_line_is_named_and_nothing_is_stored_unless_asked(sqlite_database, tmp_path, bad, reason):
    path = tmp_path / "a.jsonl"
    path.write_text(changed() + hyper(m=128) + bad)
    with pytest.raises(BadLines) as caught:
        import_file(path, sqlite_database)
    assert [fault.line for fault in caught.value.faults] == [3]
    assert reason in caught.value.faults[0].reason
    assert "nothing was stored" in str(caught.value)
    with sqlite_database.read() as connection:
        assert imported.total(connection) == 0
    report = import_file(path, sqlite_database, KEEP)
    assert (report.added, report.bad) == (2, 1)
    assert import_file(path, sqlite_database, KEEP).known == 2


@pytest.mark.parametrize(
    ("name", "given"),
    [("=", 1), ("a b", 1), ("device", 1), ("memory", 1)],
)
def test_names_that_no_question_could_use_are_refused(sqlite_database, tmp_path, name, given):
    path = tmp_path / "a.jsonl"
    path.write_text(changed(hyperparameters={name: given}))
    with pytest.raises(BadLines, match="cannot name a hyperparameter"):
        import_file(path, sqlite_database)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"gemm,H200,tiled,1.5,4096,ok,64\n", "7 fields, where the header has 8"),
        (b"gemm,H200,tiled,1.5,4096,ok,64,n", "the file ends within this line"),
        (b"gemm,H200,tiled,1.5,4096,ok,,nn\n", "m is empty"),
        (b"gemm,H200,tiled,1.5,4096,ok,64,\xff\n", "is not UTF-8"),
        (b"gemm,H200,tiled,nan,4096,ok,64,nn\n", "expected a finite number"),
        (b'gemm,H200,tiled,1.5,4096,ok,64,"nn\n', "quoted"),
        (b"gemm,H200,tiled,1.5,4096,ok,x,nn\n", "--words m"),
        (b"gemm,H200,tiled,1.5,4096,ok,64,nn\rgemm,H200,tiled,1.5,4096,ok,65,nn\n", "not CSV with line ends"),
        (b"gemm,H200,tiled,1.5,4096,ok,64," + b"n" * (2**17 + 1) + b"\n", "field limit"),
    ],
)
def test_a_bad_line_of_csv_is_named(sqlite_database, tmp_path, line, reason):
    path = tmp_path / "a.csv"
    path.write_bytes((HEADER + GOOD_CELLS).encode() + line)
    report = import_file(path, sqlite_database, KEEP)
    assert (report.added, report.bad) == (1, 1)
    assert report.faults[0].line == 3
    assert reason in report.faults[0].reason


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b"", "no measurements"),
        ("a.csv", b"a,b\n1,2\n", "header"),
        ("a.csv", b"m,m,implementation,milliseconds\n", "twice"),
        ("a.jsonl", "x".encode("utf-16"), "not text in UTF-8"),
        ("a.json", b'{"results": [', "cut off"),
        ("a.json", b'{"results": [], "schema_version": "2.0.0"}', "schema_version"),
        ("a.parquet", b"", "--format"),
        ("a.csv", None, "cannot be read"),
    ],
)
def test_a_file_that_is_none(sqlite_database, tmp_path, name, content, words):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadFile, match=words):
        import_file(path, sqlite_database)


def test_csv_and_json_lines_with_the_same_measurements_are_the_same(sqlite_database, tmp_path):
    rows = tmp_path / "a.csv"
    rows.write_bytes(
        b"\xef\xbb\xbf" + (HEADER.replace("operator,device,", "") + "tiled,1.5,4096,ok,64,nn\n").encode()
    )
    assert import_file(rows, sqlite_database, ImportOptions(operator="gemm", device="h200")).added == 1
    lines = tmp_path / "a.jsonl"
    lines.write_text(changed(hyperparameters={"m": 64.0, "layout": "nn"}, device="NVIDIA H200"))
    assert import_file(lines, sqlite_database).known == 1


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_pipe_is_read_as_a_file_is(sqlite_database, tmp_path, mark):
    pipe = tmp_path / "a.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(mark + changed().encode(),))
    writer.start()
    assert import_file(pipe, sqlite_database).added == 1
    writer.join()


def test_lines_without_anything_before_the_header_of_csv_are_none(sqlite_database, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n  \n" + HEADER + GOOD_CELLS)
    assert import_file(path, sqlite_database).added == 1
    path.write_text("\n\n")
    with pytest.raises(BadFile, match="no measurements"):
        import_file(path, sqlite_database)


def test_words_may_look_like_numbers_where_it_is_said(sqlite_database, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + GOOD_CELLS.replace("nn", "16") + GOOD_CELLS.replace("nn", "8x8"))
    assert import_file(path, sqlite_database, ImportOptions(words=("layout",))).added == 2


def test_many_bad_lines_are_counted_and_written_down(sqlite_database, tmp_path):
    path, rejected = tmp_path / "a.jsonl", tmp_path / "bad.jsonl"
    path.write_text(changed() + "{}\n" * 30)
    report = import_file(path, sqlite_database, ImportOptions(keep_going=True, rejected=rejected))
    assert (report.bad, len(report.faults)) == (30, 10)
    assert json.loads(rejected.read_text().splitlines()[-1]) == {"line": 31, "reason": "operator is missing"}


def test_records_of_our_own_come_in_as_what_they_are(sqlite_database, tmp_path):
    (record,) = list(replay.sweep(list(replay.problems())[:1]))[:1]
    path = tmp_path / "records.jsonl"
    path.write_text(record.to_json() + "\n" + record.to_json()[:-40] + "\n" + changed())
    report = import_file(path, sqlite_database, KEEP)
    assert (report.added, report.bad) == (2, 1)
    with sqlite_database.read() as connection:
        assert list(records.find(connection)) == [record]


def test_a_t4_file_of_an_autotuner(sqlite_database, tmp_path):
    result = {"times": {}, "invalidity": "correct", "correctness": 1}
    time = {"name": "time", "value": 1500, "unit": "us"}
    results = [
        {**result, "configuration": {"n": 1, "tile": 8}, "measurements": [time]},
        {**result, "configuration": {"n": 1, "tile": 16}, "invalidity": "compile"},
        {**result, "configuration": {"n": 1, "tile": 32}, "measurements": [{**time, "unit": "hours"}]},
        {**result, "configuration": {"n": 1}, "measurements": [time]},
        {**result, "configuration": {"n": 1, "tile": 4}, "invalidity": "lost"},
        7,
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    options = ImportOptions(operator="stencil", device="a100-pcie", naming=("tile",), keep_going=True)
    report = import_file(path, sqlite_database, options)
    assert (report.added, report.bad) == (2, 4)
    assert [fault.line for fault in report.faults] == [3, 4, 5, 6]
    with sqlite_database.read() as connection:
        (page,) = imported.figures(connection, operator="stencil")
    assert [(row[2], row[3], row[5]) for row in page] == [
        ("tile=8", "ok", 1.5),
        ("tile=16", "unsupported", None),
    ]


def test_progress_is_told(sqlite_database, tmp_path):
    path = foreign.write(tmp_path / "a.jsonl", foreign.rows(400))
    told = []
    import_file(path, sqlite_database, progress=lambda done, total: told.append((done, total)))
    assert told
    assert all(0 < done <= total == path.stat().st_size for done, total in told)


def test_repetitions_in_a_file_are_all_stored_and_again_change_nothing(
    sqlite_database, tmp_path, monkeypatch
):
    path = tmp_path / "a.jsonl"
    path.write_text(changed() * 3 + changed(milliseconds=5.0) + changed())
    for batch in (10_000, 2):  # rows that are stored together make no difference
        monkeypatch.setattr("selector.exchange.import_file.BATCH", batch)
        report = import_file(path, sqlite_database)
        assert (report.added, report.known, report.bad) == ((5, 0, 0) if batch > 2 else (0, 5, 0))
    with sqlite_database.read() as connection:
        assert imported.total(connection) == 5
