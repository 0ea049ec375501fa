"""Estimates of a cost model are described when asked for."""

import numpy as np
import pytest

from selector.predicted import predicted


def test_estimates_are_those_of_their_rows_and_come_fastest_first():
    figures = np.arange(36.0).reshape(4, 9)
    figures[:, 0] = 3.0, 1.0, 3.0, 2.5
    one, two, none = predicted([("a", "b", "c"), ("b",), ()], np.array([0, 0, 0, 1]), figures)
    assert one.by_time == ["b", "a", "c"]
    assert list(one) == ["a", "b", "c"]
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
