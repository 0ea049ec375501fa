"""Plots as elements of a page."""

import math
from xml.etree import ElementTree

import pytest

from selector.text.svg import MARKS, PANEL, Axis, Series, fitted, key, look, panel


def drawn(series: list[Series]) -> ElementTree.Element:
    sizes = [1.0, 2.0, 4.0, 8.0]
    x = Axis("a < b", 1, 8, sizes, log=True, texts=["1", "", "4", ""])
    return ElementTree.fromstring(panel("p", "<Title>", "It & that", (x, fitted("y", [1, 10])), series, at=4))


def test_it_says_what_it_shows() -> None:
    found = drawn([Series("one", [(1, 1), (2, 2), (4, 5), (8, 10)])])
    assert found.find("title").text == "<Title>"
    assert found.find("desc").text == "It & that"
    assert found.attrib["aria-labelledby"] == found.find("title").attrib["id"]
    assert found.attrib["aria-describedby"] == found.find("desc").attrib["id"]
    texts = [one.text for one in found.iter("text")]
    assert {"a < b", "y", "1", "4"} <= set(texts)
    assert "style" not in ElementTree.tostring(found).decode()


def test_a_line_breaks_where_there_is_no_value() -> None:
    found = drawn([Series("one", [(1, 1), (2, math.nan), (4, 5), (8, 10)], hollow={0})])
    (line,) = (one for one in found.iter("path") if one.attrib["class"] == "line")
    assert line.attrib["d"].count("M") == 2
    assert [one.attrib["class"] for one in found.iter("path")] == ["line", "hollow mark", "mark", "mark"]


def test_lines_differ_by_their_marks() -> None:
    assert len({key(number) for number in range(len(MARKS))}) == len(set(MARKS)) == len(MARKS)
    found = drawn([Series(str(number), [(1, 1)]) for number in range(3)])
    assert [one.attrib["class"] for one in found.iter("g")] == [look(number) for number in range(3)]


@pytest.mark.parametrize("values", [[1.0], [2.1, 2.9], [0.3, 0.31], [1e-3, 7e3], [0.9, 1.1], [5, 5]])
def test_an_axis_around_values_has_ticks(values: list[float]) -> None:
    axis = fitted("y", values)
    assert 2 <= len(axis.ticks) <= 8
    assert axis.low <= min(values) <= max(values) <= axis.high
    assert all(axis.low <= tick <= axis.high * (1 + 1e-12) for tick in axis.ticks)
    assert PANEL.up(axis, min(values)) >= PANEL.up(axis, max(values))
