"""Estimates of a cost model are described when asked for."""

import numpy as np
import pytest

from selector.predicted import Predicted, Predictions, look_up


def test_estimates_are_those_of_their_rows_and_come_fastest_first():
    figures = np.arange(36.0).reshape(4, 9)
    figures[:, 0] = 3.0, 1.0, 3.0, 2.5
    times, sizes = figures[:, [0, 1, 2, 6]], figures[:, [3, 4, 5, 7, 8]]
    asked: list[int] = []

    def bytes_of(which):
        asked.append(len(which))
        return sizes[which]

    together = Predictions([("a", "b", "c"), ("b",), ()], np.array([0, 0, 0, 1]), times, bytes_of)
    one, two, none = (Predicted(together, place) for place in range(3))
    assert one.by_time == ["b", "a", "c"]
    assert list(one) == ["a", "b", "c"]
    assert asked == []
    assert tuple(one["b"]) == (1.0, *figures[1, 1:])
    assert one["b"].memory_bytes == 12
    assert isinstance(one["b"].safe_bytes, int)
    assert one["b"] is one["b"]
    assert one.low_ms() == {"a": 1.0, "b": 10.0, "c": 19.0}
    assert dict(two) == {"b": two["b"]}
    assert two["b"].time_ms == 2.5
    assert "a" not in two
    assert len(none) == 0
    with pytest.raises(KeyError, match="c"):
        two["c"]
    assert asked == [3, 1]  # of all names at once, when the first is described


def test_bytes_of_some_questions_are_asked_for_together():
    asked: list[list[int]] = []

    def bytes_of(which):
        asked.append(which.tolist())
        return np.repeat(which[:, None], 5, axis=1).astype(np.float64)

    names = [("a", "b"), ("a",), (), ("b", "c")]
    together = Predictions(names, np.array([0, 0, 1, 3, 3]), np.ones((5, 4)), bytes_of)
    each = [Predicted(together, place) for place in range(4)]
    look_up([(together, each[3].rows()), (together, each[0].rows()), (together, each[2].rows())])
    assert asked == [[3, 4, 0, 1]]
    assert [one.memory_bytes for one in each[3].values()] == [3, 4]
    assert [one.memory_bytes for one in each[0].values()] == [0, 1]
    assert [one.memory_bytes for one in each[1].values()] == [2]
    look_up([])
    assert asked == [[3, 4, 0, 1], [2]]


def test_of_some_names_the_bytes_are_not_asked_for_until_one_is_described():
    asked: list[list[int]] = []

    def bytes_of(which):
        asked.append(which.tolist())
        return np.repeat(which[:, None], 5, axis=1).astype(np.float64)

    together = Predictions([("a", "b", "c"), ("b",)], np.array([0, 0, 0, 1]), np.ones((4, 4)), bytes_of)
    one = Predicted(together, 0)
    look_up([(together, one.rows(without={"b"}))])
    assert (one["a"].memory_bytes, one["c"].memory_bytes) == (0, 2)
    assert asked == [[0, 2]]
    assert one["b"].memory_bytes == 1
    assert asked == [[0, 2], [1]]
