"""The written report: what it says, its plots, and folders that it cannot be written to."""

from xml.etree import ElementTree

import pytest

from selector import InvalidRequest
from selector.text.svg import Axis, Series, decades, plot
from selector.training.judgements import BASELINES
from selector.training.report import FILE, text, write_report

SVG = "{http://www.w3.org/2000/svg}"


def test_the_report_has_every_split_and_baseline(judged):
    found = text(judged)
    for comparison in judged.evaluations[0].comparisons:
        assert f"Held out: {comparison.held_out}\n" in found
    for name in (*BASELINES, "cost model"):
        assert f"| {name} |" in found
    assert "- `gru` is not judged: 0 measured problems of gru" in found
    assert "random memory limits" in found
    for words, verdicts in judged.verdicts.items():
        assert f"## Choices, held out: {words}\n" in found
        assert f"| source: {verdicts[0].source} |" in found
    assert "| `lstm` | " in found  # of a pair
    assert "Not judged: device replay-cpu-8: nothing else than Replay CPU 8 was" in judged.table()


def test_tables_are_whole(judged):
    width = 0
    for line in text(judged).splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        width = width or line.count("|")
        assert line.count("|") == width, line


def test_plots_lie_beside_the_report_and_are_the_same_each_time(judged, tmp_path):
    first = write_report(tmp_path / "new" / "one", judged)
    second = write_report(tmp_path / "two", judged)
    names = {path.name for path in first.parent.iterdir()}
    assert names == {FILE, "slowdown.svg", "lstm_slowdown.svg", "lstm_times.svg"}
    for name in names:
        assert (first.parent / name).read_bytes() == (second.parent / name).read_bytes()
    for name in names - {FILE}:
        assert f"]({name})" in first.read_text()
        ElementTree.parse(first.parent / name)


def test_a_folder_that_cannot_be_written_to_is_named(judged, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"report='.*file': .* Name a folder"):
        write_report(tmp_path / "file", judged)


def test_the_table_has_a_line_for_each_operator_and_for_all(judged):
    lines = judged.table().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines[3:5]] == ["lstm", "all"]
    assert judged.pooled["cost model"].problems == judged.to_dict()["pooled"]["cost model"]["problems"]


def test_operators_without_measurements_are_said(judged):
    assert [one.operator for one in judged.evaluations] == ["lstm"]
    assert "0 measured problems of gru" in judged.table()


def test_lines_and_points_are_where_their_figures_are():
    x, y = decades("x", [0.2, 30.0]), Axis("y", 0, 100, (0, 50, 100))
    assert (x.low, x.high, x.ticks) == (0.1, 100.0, [0.1, 1.0, 10.0, 100.0])
    drawn = plot(
        "<a & b>", x, y, [Series("line", [(0.1, 0), (100.0, 100)]), Series("dot", [(1e9, 50)], False)]
    )
    root = ElementTree.fromstring(drawn)
    assert root.find(f"{SVG}title").text == "<a & b>"
    assert root.find(f"{SVG}path").attrib["d"] == "M70.0 366.0L624.0 40.0"
    dot = root.find(f"{SVG}circle").attrib
    assert (dot["cx"], dot["cy"]) == ("624.0", "203.0")  # beyond the end of an axis lies on it
