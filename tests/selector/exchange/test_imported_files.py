"""Files of measurements of others: all that is good comes in, and every bad line is named with the reason."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading

import pytest

from kernel_selector.db import imported, records
from selector.errors import BadFile, BadLines
from selector.exchange.import_file import ImportOptions, import_file
from selector.workloads.imported_operator import imported_operators
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
        (b'gemm,H200,tiled,"1,5",4096,ok,64,nn\n', "with a point before its decimals"),
        (b"gemm,H200,tiled,1.5,4096,ok,nan,nn\n", "a missing value is an empty cell or null"),
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
        ("a.xlsx", b"", "--format"),
        ("a.gz", b"", "--format"),
        ("a.csv", b",operator,implementation,milliseconds,m\n", r"Column 1 .*to_csv\(index=False\)"),
        ("a.csv", b"operator;implementation;milliseconds;m\n", "parted by ';'"),
        ("a.csv", b"operator\timplementation\tmilliseconds\tm\n", "parted by '.t'"),
        ("a.csv.gz", b"\x1f\x8b\x08", "cannot be unpacked"),
        ("a.json", gzip.compress(b'{"results": []}', mtime=0)[:-9], "cut off"),
        ("a.json", b'{"schema_version": "1.1.0", "tune_params_keys": [], "cache": {}}', "of Kernel Tuner"),
        ("a.json", b"[{}]", "as JSON lines"),
        ("a.json", b"7", "the document is 7"),
        ("a.json", b"{}", "it has no fields"),
        ("a.json", b'{"implementation": "a"}', "--format jsonl"),
        ("a.json", b'{"implementation": "a"}\n{"implementation": "b"}\n', "--format jsonl"),
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


def test_a_name_of_a_device_is_the_same_however_it_is_spaced(sqlite_database, tmp_path):
    file = tmp_path / "a.jsonl"
    for added, name in enumerate(["Some  Other GPU ", "Some Other GPU"]):
        file.write_text(changed(device=name))
        assert import_file(file, sqlite_database).known == added


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


def values(database) -> list[dict]:
    with database.read() as connection:
        return [dict(found) for _, found in imported.problems(connection, operator="gemm")]


def test_empty_cells_and_null_are_missing_values(sqlite_database, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        HEADER + "".join(f"gemm,H200,tiled,1.5,4096,ok,{m},{word}\n" for m, word in MISSING_CELLS)
    )
    assert import_file(path, sqlite_database).added == len(MISSING_CELLS)
    assert [(one["m"], one["layout"]) for one in values(sqlite_database)] == MISSING
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(changed(hyperparameters={"m": m, "layout": word}) for m, word in MISSING))
    assert import_file(lines, sqlite_database).known == len(MISSING)
    with sqlite_database.read() as connection:
        spans = {span.name: span for span in imported_operators(connection)["gemm"].hyperparameters}
    assert (spans["m"].kind, spans["m"].low, spans["m"].high, spans["m"].missing) == ("integer", -1, 64, True)
    assert (spans["layout"].words, spans["layout"].missing) == (("nn", "nt"), True)
    assert spans["m"].parse(None) is spans["m"].parse_text("none") is None


MISSING_CELLS = [("", "nn"), ("64", ""), ("0", " "), ("-1", "nt"), (" ", "")]
MISSING = [(None, "nn"), (64, None), (0, None), (-1, "nt"), (None, None)]


def test_a_column_without_any_value_may_get_one_later(sqlite_database, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + GOOD_CELLS.replace("nn", "") + GOOD_CELLS.replace("64,nn", "128,"))
    assert import_file(path, sqlite_database).added == 2
    path.write_text(HEADER + GOOD_CELLS)
    assert import_file(path, sqlite_database).added == 1
    path.write_text(HEADER + GOOD_CELLS.replace("nn", "7"))
    assert import_file(path, sqlite_database).added == 1
    assert [one["layout"] for one in values(sqlite_database)] == [None, None, "nn", "7"]


def test_thousands_separators_are_read(sqlite_database, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + 'gemm,H200,tiled,"1,000.5","4,096",ok,"1,024",nn\n')
    assert import_file(path, sqlite_database).added == 1
    assert values(sqlite_database)[0]["m"] == 1024
    with sqlite_database.read() as connection:
        ((row,),) = imported.figures(connection, operator="gemm")
    assert row[5:] == (1000.5, 4096)


def test_json_lines_may_have_hyperparameters_beside_the_figures(sqlite_database, tmp_path):
    path = tmp_path / "a.jsonl"
    flat = {name: value for name, value in LINE.items() if name != "hyperparameters"}
    path.write_text(json.dumps({**flat, "schema": 1, **LINE["hyperparameters"]}) + "\n" + changed())
    assert import_file(path, sqlite_database).added == 2  # one measurement, taken twice
    assert values(sqlite_database) == [LINE["hyperparameters"]]


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "A.CSV.GZ"])
def test_files_compressed_by_gzip_are_read(sqlite_database, tmp_path, name):
    path, told = tmp_path / name, []
    lines = "".join(GOOD_CELLS.replace("64", str(m)) for m in range(2000))
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + (HEADER + lines).encode()))
    report = import_file(path, sqlite_database, progress=lambda *step: told.append(step))
    assert report.added == 2000
    assert all(0 < done <= total == path.stat().st_size for done, total in told)


def test_a_compressed_file_that_is_cut_off_is_said_to_be(sqlite_database, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    lines = "".join(hyper(m=m, alpha=m / 7) for m in range(20_000))
    path.write_bytes(gzip.compress(lines.encode())[:-2000])
    with pytest.raises(BadLines, match="cannot be unpacked") as caught:
        import_file(path, sqlite_database)
    assert caught.value.count == 1
    report = import_file(path, sqlite_database, KEEP)
    assert report.added > 1000
    assert [fault.line for fault in report.faults] == [report.added + 1]


def test_parquet_files_are_read(sqlite_database, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {
        "operator": ["gemm"] * 3,
        "device": ["h200"] * 3,
        "implementation": ["tiled", "tiled", "split"],
        "milliseconds": [1.5, 2.5, None],
        "status": ["ok", None, "crashed"],
        "m": [64.0, None, 64.0],
        "layout": pyarrow.array(["nn", None, "nn"]).dictionary_encode(),
        "packed": [True, False, None],
    }
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    told = []
    report = import_file(tmp_path / "a.parquet", sqlite_database, progress=lambda *step: told.append(step))
    assert (report.added, len(told)) == (3, 1)
    assert values(sqlite_database) == [
        {"m": 64, "layout": "nn", "packed": True},
        {"m": None, "layout": None, "packed": False},
        {"m": 64, "layout": "nn", "packed": None},
    ]
    for wrong, words in (
        ({"__index_level_0__": [0, 1, 2]}, r"to_parquet\(index=False\)"),
        ({"milliseconds": None}, "must have columns"),
    ):
        columns = {name: value for name, value in {**table, **wrong}.items() if value is not None}
        parquet.write_table(pyarrow.table(columns), tmp_path / "b.parquet")
        with pytest.raises(BadFile, match=words):
            import_file(tmp_path / "b.parquet", sqlite_database)
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(BadFile, match="Not a Parquet file"):
        import_file(tmp_path / "b.parquet", sqlite_database)


def test_without_pyarrow_a_parquet_file_says_what_to_install(sqlite_database, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadFile, match=r"pip install 'kernel-selector\[parquet\]'"):
        import_file(tmp_path / "a.parquet", sqlite_database)
