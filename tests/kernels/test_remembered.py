"""What an operator counts is kept with the problem, and implementations find it there."""

from __future__ import annotations

import sys

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Work
from kernel_selector.kernels.remembered import remembered


def test_each_problem_is_counted_once():
    counted = []

    def work(problem):
        counted.append(problem)
        return Work(flops=problem["hidden"], moved_bytes=1, saved_bytes=1, launches=1, steps=1)

    once = remembered(work, "_work of a test")
    first, second = (registry.operator("lstm").problem(hidden=hidden, batch=1) for hidden in (8, 9))
    assert [once(problem).flops for problem in (first, second, first)] == [8, 9, 8]
    assert counted == [first, second]
    assert first == registry.operator("lstm").problem(hidden=8, batch=1)


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn", "linear", "batched_matmul", "additive_attention"])
def test_implementations_count_on_from_what_is_remembered(name):
    operator = registry.operator(name)
    home = vars(sys.modules[operator.work.__module__])
    assert home["work"].__wrapped__ is operator.work.__wrapped__
    for item in registry.implementations(name).values():
        for example in operator.examples:
            problem, other = operator.problem(example), operator.problem(example)
            operator.work(problem)  # before the implementation asks
            assert item.work(problem) == item.work(other)
