"""No planted fault passes the gate, and each is found by the check that is there for it."""

from __future__ import annotations

from functools import lru_cache

import pytest

from .gate_faults import FAULTS, PROBLEMS, Fault, gate, planted


@lru_cache
def gate_of(name):
    return gate(name, "cpu")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name):
    fault = FAULTS[name]
    result = gate_of(fault.problem).check(planted(fault))
    assert not result.passed
    assert fault.caught_by in result.detail


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_is_right_passes_where_faults_are_planted(problem):
    result = gate_of(problem).check(planted(Fault(problem, lambda module, *given: module.right(*given))))
    assert result.passed, result.detail
