"""Rows computed side by side are those computed together, and estimates are described when asked for."""

import numpy as np
import pytest

from selector import Query, in_parts, predictor
from selector.in_parts import LEAST_ROWS
from selector.predicted import predicted


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
@pytest.mark.parametrize("rows", [0, 1, LEAST_ROWS, 2 * LEAST_ROWS, 5 * LEAST_ROWS + 7])
def test_parts_hold_all_rows_in_order_and_divide_no_question(cores, rows, monkeypatch):
    monkeypatch.setattr(in_parts, "_cores", lambda: cores)
    of_each = np.sort(np.random.default_rng(0).integers(0, 1 + rows // 5, rows))
    parts = []

    def compute(part):
        parts.append(of_each[part])
        return np.arange(rows)[part]

    assert np.array_equal(in_parts.in_parts(compute, of_each), np.arange(rows))
    assert len(parts) == max(1, min(cores, in_parts.MOST_PARTS, rows // LEAST_ROWS))
    assert sum(len(np.unique(part)) for part in parts) == len(np.unique(of_each))


def test_an_error_in_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(in_parts, "_cores", lambda: 2)

    def compute(part):
        if part.start:
            raise ValueError("planted")
        return np.zeros(part.stop)

    with pytest.raises(ValueError, match="planted"):
        in_parts.in_parts(compute, np.arange(2 * LEAST_ROWS))


def test_a_batch_in_threads_is_answered_digit_for_digit(trained, monkeypatch):
    def answers(cores):
        monkeypatch.setattr(in_parts, "_cores", lambda: cores)
        trained.reload()
        return [choice.to_dict() for choice in trained.choose_each(asked)]

    asked = [Query(hyperparameters={"hidden": 40 + step, "batch": 7 + step % 50}) for step in range(300)]
    divided = []
    monkeypatch.setattr(
        predictor,
        "in_parts",
        lambda compute, rows: divided.append(len(rows)) or in_parts.in_parts(compute, rows),
    )
    assert answers(1) == answers(3)
    assert max(divided) > 3 * LEAST_ROWS


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
